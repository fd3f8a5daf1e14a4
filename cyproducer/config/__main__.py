"""``python -m cyproducer.config`` prints the table of all options as Markdown."""

from cyproducer.config import options_as_markdown

print(options_as_markdown(), end="")
