"""MkDocs' hooks: pages that are not in ``docs/``, links between all pages, and diagrams without a network.

Pages are written to be read in the repository, where a link is a path. Here it becomes one of the site. A
link to a file that is not on the site leads to the repository if ``pyproject.toml`` has its address, and is
plain text otherwise. A link to nothing fails the build.
"""

import logging
import posixpath
import re
import shutil
import sys
import tomllib
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from tools.docs import links, sources, tables  # noqa: E402 - the line above makes that possible

log = logging.getLogger("mkdocs.hooks.cyproducer")

#: Pages of the site whose text is elsewhere in the repository.
ELSEWHERE = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "measuring.md": "perf/README.md",
}
_ON_SITE = {path: page for page, path in ELSEWHERE.items()}

_WITH_INHERITED = "\n    options:\n      inherited_members: true\n      members_order: alphabetical"
_OF_CONFIG = "\n    options:\n      members: [as_dict, from_kwargs, given, replace]"
#: The pages of the API reference: what is on them, in order. A text stands as it is.
REFERENCE = {
    "reference/producer.md": (
        "# The producer",
        f"::: cyproducer.producer.KafkaProducer{_WITH_INHERITED}",
        "::: cyproducer.ProducerRecord",
        "::: cyproducer.Partitioner",
    ),
    "reference/futures.md": (
        "# Futures and their results",
        "::: cyproducer.futures.delivery.RecordFuture",
        "::: cyproducer.RecordMetadata",
        "::: cyproducer.TopicPartition",
        "## Of many records in one call",
        "::: cyproducer.futures.bulk_future.BulkFuture",
        "::: cyproducer.futures.bulk_future.BulkMetadata",
        "::: cyproducer.futures.bulk_future.RowOffsets",
        "::: cyproducer.structs.OffsetRange",
        "::: cyproducer.structs.FailedRows",
    ),
    "reference/transactions.md": (
        "# Transactions of other processes",
        "[The guide](../transactions.md) shows how to use these.",
        "::: cyproducer.transactions.commit",
        "::: cyproducer.transactions.abort",
        "::: cyproducer.transactions.list_transactions",
        "::: cyproducer.transactions.describe_transaction",
        "::: cyproducer.transactions.abort_open",
        "::: cyproducer.transactions.TransactionAdmin",
        "::: cyproducer.structs.PreparedTransaction",
        "::: cyproducer.control.transaction_ending.Outcome",
        "::: cyproducer.control.transaction_ending.Ended",
        "::: cyproducer.transactions.DescribedTransaction",
        "::: cyproducer.transactions.AbortedTransaction",
        "::: cyproducer.wire.transaction_api.TransactionListing",
    ),
    "reference/config.md": (
        "# Configuration and metrics",
        "The options themselves are on [their own page](../options.md).",
        f"::: cyproducer.ProducerConfig{_OF_CONFIG}",
        "::: cyproducer.observability.registry.MetricName",
        "::: cyproducer.observability.registry.Metric",
    ),
    "reference/errors.md": (
        "# Errors",
        "::: cyproducer.errors\n    options:\n      members: {own_errors}\n      show_root_heading: false",
        "## Errors of brokers",
        "One class for each error code, below `BrokerResponseError`.",
        "{codes}",
    ),
    "reference/testing.md": (
        "# Testing",
        "[The guide](../testing.md) shows how to use these.",
        "::: cyproducer.testing.MockProducer",
        "::: cyproducer.testing.MockRecord",
        "::: cyproducer.testing.EmbeddedBroker",
        "::: cyproducer.testing.StoredRecord",
        "::: cyproducer.testing.EmbeddedBrokerError",
    ),
    "reference/clients.md": (
        "# In other clients' shapes",
        "[Moving from another client](../migration.md) says what differs.",
        "## aiokafka",
        "::: cyproducer.aio.AIOKafkaProducer",
        "::: cyproducer.aio.BatchBuilder",
        "## confluent-kafka",
        f"::: cyproducer.confluent.producer.Producer{_WITH_INHERITED}",
        "::: cyproducer.confluent.SerializingProducer",
        "::: cyproducer.confluent.reports.Message",
        "::: cyproducer.confluent.KafkaException",
        "## Serializers of confluent-kafka",
        "::: cyproducer.serializers.ConfluentSerializer",
    ),
    "reference/observability.md": (
        "# Exporters and tracing",
        "::: cyproducer.prometheus.ProducerCollector",
        "::: cyproducer.opentelemetry.instrumentor.CyproducerInstrumentor",
        "::: cyproducer.opentelemetry.metrics.instrument_metrics",
        "::: cyproducer.opentelemetry.metrics.ProducerMetrics",
    ),
    "reference/spark.md": (
        "# Spark",
        "[The guide](../spark.md) shows how to use these.",
        "::: cyproducer.spark.register",
        "::: cyproducer.spark.produce_partitions",
        "::: cyproducer.spark.produce_arrow",
        "::: cyproducer.spark.foreach_batch",
        "::: cyproducer.spark.foreach_writer",
        "::: cyproducer.spark.shared_producer",
        "::: cyproducer.spark.SharedConfig",
        "::: cyproducer.spark.close_all",
        "::: cyproducer.spark.WriteSummary",
        "::: cyproducer.spark.WrittenRange",
        "::: cyproducer.spark.RowsFailedError",
        "::: cyproducer.spark.SchemaError",
    ),
}

MERMAID = "assets/mermaid.js"

#: What the API reference is made from. ``mkdocs.yml`` names it too.
SOURCES = ROOT / ".cache" / "docs"


def repository() -> str | None:
    """The address of the repository, if it has one: the only place where it is set."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        address: str | None = tomllib.load(file)["project"].get("urls", {}).get("Repository")
    return address


def on_config(config: Any) -> Any:
    shutil.rmtree(SOURCES, ignore_errors=True)
    sources.write(ROOT / "cyproducer", SOURCES)
    config.repo_url = repository()
    return config


def on_files(files: Files, config: Any) -> Files:
    made = {page: (ROOT / path).read_text(encoding="utf-8") for page, path in ELSEWHERE.items()}
    made["options.md"] = tables.options_page()
    for page, parts in REFERENCE.items():
        made[page] = "\n\n".join(parts)
    made["reference/errors.md"] = made["reference/errors.md"].format(
        own_errors=tables.own_errors(), codes=tables.codes_table()
    )
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    here = page.file.src_uri
    if here == "metrics.md":
        stored, heading, _ = markdown.partition("### `producer-metrics`")
        if not heading:
            raise ValueError("metrics.md: the heading above the first table is missing")
        markdown = stored + tables.metrics_tables()
    if here in REFERENCE or here == "options.md":
        return markdown
    path = ELSEWHERE.get(here, f"docs/{here}")

    def leads_to(target: str, fragment: str, image: bool) -> str | None:
        on_site = _ON_SITE.get(target) or (
            target.removeprefix("docs/") if target.startswith("docs/") else None
        )
        if on_site is not None:
            return posixpath.relpath(on_site, posixpath.dirname(here) or ".") + fragment
        if not (ROOT / target).exists():
            log.warning("%s: a link leads to %s, which does not exist", path, target)
        address = repository()
        return None if address is None else f"{address.rstrip('/')}/blob/HEAD/{target}{fragment}"

    return _PATH_AS_TEXT.sub(
        partial(_titled, titles=_titles(config.nav), here=here), links.rewrite(markdown, path, leads_to)
    )


#: In the repository a page is its path: ``[docs/metrics.md](docs/metrics.md#options)``.
_PATH_AS_TEXT = re.compile(r"\[[\w./-]+\.md\]\((?P<target>(?P<page>[^()#\s:]+\.md)(?:#[^()\s]*)?)\)")


def _titled(link: re.Match[str], titles: dict[str, str], here: str) -> str:
    """The link with the page's title in the navigation as its text."""
    page = posixpath.normpath(posixpath.join(posixpath.dirname(here), link["page"]))
    return f"[{titles[page]}]({link['target']})" if page in titles else link[0]


def _titles(nav: Any) -> dict[str, str]:
    """Page -> title."""
    found: dict[str, str] = {}
    for entry in nav:
        for title, below in entry.items():
            found.update({below: title} if isinstance(below, str) else _titles(below))
    return found


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    # In the code of a table's cell, the repository's rendering needs a backslash before a bar.
    html = re.sub(r"<td.*?</td>", lambda cell: cell[0].replace(r"\|", "|"), html, flags=re.DOTALL)
    # A wide diagram scrolls; it would be shrunk until nobody could read it.
    return re.sub(
        r'(<pre class="mermaid"><code>flowchart.*?</pre>)',
        r'<div class="diagram">\1</div>',
        html,
        flags=re.DOTALL,
    )


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Only the pages with diagrams load what draws them: three megabytes."""
    if '<pre class="mermaid">' not in output:
        return output
    script = posixpath.relpath(MERMAID, posixpath.dirname(page.file.dest_uri) or ".")
    # Before the theme's script, which would otherwise load it from a public server.
    return re.sub(r"(?=</head>)", f'<script src="{script}"></script>', output, count=1)


def on_post_build(config: Any) -> None:
    with as_file(files("mermaidx") / "assets" / "mermaid.js") as script:
        target = Path(config.site_dir) / MERMAID
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(script, target)
