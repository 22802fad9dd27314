"""Draw the Mermaid diagrams of the docs as SVG; run it after a diagram changed.

`npm pack mermaid@11`, unpack it, and then `python -m infra.site.draw package/dist/mermaid.min.js`. It needs Chromium.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from infra.site.generated import diagrams, drawing, mermaid

root = Path(__file__).parents[2]
theme = {
    "startOnLoad": False,
    "theme": "base",
    "fontFamily": "system-ui, sans-serif",
}


def main(script: str) -> None:
    """Replaces the drawings that are there by those of the diagrams as they are now."""
    pages = [*root.glob("*.md"), *root.glob("docs/**/*.md")]
    texts = [text for page in pages for text in mermaid.findall(page.read_text())]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.add_script_tag(path=script)
        for old in diagrams.glob("*.svg"):
            old.unlink()
        for text in texts:
            drawing(text).write_text(svg(page, text, drawing(text).stem) + "\n")
        browser.close()


def svg(page: Page, text: str, name: str) -> str:
    """A diagram as SVG, whose styles apply only to it."""
    drawn = page.evaluate(
        "async ([theme, name, text]) => { mermaid.initialize(theme); return (await mermaid.render(name, text)).svg }",
        [theme, f"diagram-{name}", text],
    )
    return str(drawn)


if __name__ == "__main__":
    main(sys.argv[1])
