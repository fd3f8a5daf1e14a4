"""``python -m cyproducer.observability`` prints the tables of ``docs/metrics.md``."""

from cyproducer.observability.definitions import metrics_as_markdown

if __name__ == "__main__":
    print(metrics_as_markdown(), end="")
