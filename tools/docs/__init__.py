"""Makes the documentation site, and the README that PyPI shows, from the repository's Markdown pages."""
