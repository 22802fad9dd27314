"""The documentation site: `make docs` builds it with Sphinx from the Markdown files where they are."""
