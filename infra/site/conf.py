"""Sphinx's configuration; the source folder is the repository."""

import shutil
from pathlib import Path

from sphinx.application import Sphinx

from infra.site import generated

project = "Sluice"
author = "The Sluice authors"
root_doc = "README"
include_patterns = ["*.md", "benchmarks/README.md", "docs/**.md", "examples/README.md"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

# Links to headings work as they do where the files are hosted; a link that does not resolve is a warning.
myst_heading_anchors = 4

# Docstrings are plain text with code between single backticks.
default_role = "code"
# `--since` is an option and not a dash.
smartquotes = False
autodoc_default_options = {"members": True, "imported-members": True}
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 60

html_theme = "pydata_sphinx_theme"
html_title = "Sluice"
html_context = {"default_mode": "auto"}
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {
    "logo": {"text": "Sluice"},
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": [],
    "footer_end": [],
    "show_toc_level": 2,
}
# Pages that are a section by themselves have nothing to list beside them.
html_sidebars: dict[str, list[str]] = {
    page: [] for page in ("README", "docs/tutorial", "CHANGELOG", "CONTRIBUTING", "search", "genindex", "py-modindex")
}


def write_home(app: Sphinx, error: Exception | None) -> None:
    """A copy of the README's page as `index.html`, where servers and people look first."""
    if error is None and app.builder.name == "html":
        shutil.copy(Path(app.outdir, "README.html"), Path(app.outdir, "index.html"))


def readable(*signature: str | object) -> tuple[str, str] | None:
    """A signature without the `<factory>` of dataclasses, which Sphinx takes for a mistake."""
    *_, arguments, returns = signature
    return (arguments.replace("<factory>", "..."), str(returns or "")) if isinstance(arguments, str) else None


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-signature", readable)
    app.connect("source-read", generated.complete)
    app.connect("build-finished", write_home)
