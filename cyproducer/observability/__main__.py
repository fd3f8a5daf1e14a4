"""``python -m cyproducer.observability`` prints the tables of ``docs/metrics.md``."""

from cyproducer.observability.definitions import metrics_as_markdown
from cyproducer.observability.exports import exports_as_markdown

if __name__ == "__main__":
    print(exports_as_markdown(), end="\n\n")
    print(metrics_as_markdown(), end="")
