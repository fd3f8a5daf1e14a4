"""Parses a sink's options: ``option("topic", ...)``, ``option("kafka.linger.ms", ...)`` and so on.

Owns ``SinkOptions`` and the errors about options. Does not own the producer's options, which
``cyproducer.config`` checks, or columns (``columns``). Runs on the driver, while Spark plans; the result is
pickled and sent to the tasks.

Option values are strings; names are case-insensitive. Spark's own sink ignores unknown options; here they are
errors, because a misspelt option would silently do nothing.

A session's settings ``spark.cyproducer.kafka.NAME`` are defaults of the producer's options, which
``options_of_session`` reads on the driver.
"""

import difflib
import sys
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cyproducer.config import ProducerConfig, hide, hide_value, option_name, unknown_option
from cyproducer.config.option_kinds import Secret, SecretUrl
from cyproducer.config.options import OPTIONS_BY_NAME
from cyproducer.config.spelling import java_spelling, rename
from cyproducer.control.partitioners import CustomPartitioner, resolve_partitioner
from cyproducer.errors import InvalidTopicError, KafkaConfigurationError
from cyproducer.records.topic_names import legal_topic
from cyproducer.spark.exactly_once.names import JOB, STREAM, Sink, is_prefix, location
from cyproducer.spark.exactly_once.names import decision_topic as default_decision_topic
from cyproducer.spark.sharing import SharedConfig, sink_spelling

FORMAT: Final = "cyproducer"
LEAST_PYSPARK: Final = 4
"""The first major version of PySpark whose Python data sources can write."""
SESSION_PREFIX: Final = "spark.cyproducer."
AT_LEAST_ONCE: Final = "at-least-once"
EXACTLY_ONCE: Final = "exactly-once"

_EXACTLY_ONCE_ONLY: Final = (
    "transactionalIdPrefix",
    "txnAppId",
    "txnVersion",
    "startingBatchId",
    "decisionLogTopic",
)
_OWN: Final = (
    "topic",
    "includeHeaders",
    "deliveryGuarantee",
    "deadLetterTopic",
    "createTopic.partitions",
    "createTopic.replication",
    "summaryCallback",
    "checkOnDriver",
    *_EXACTLY_ONCE_ONLY,
)
_OF_SPARK: Final = ("path", "checkpointlocation", "queryname")
"""Options that Spark itself passes to the sink."""
_NO_TABLE_OPTIONS: Final = (
    f". Spark hands no options of a table (CREATE TABLE ... USING {FORMAT}) on to a Python data source: give "
    "them to each write, as in INSERT INTO ... WITH ('kafka.bootstrap.servers' = '...', 'topic' = '...'), or "
    "insert into a temporary view that has them: CREATE TEMPORARY VIEW ... (value STRING) "
    f"USING {FORMAT} OPTIONS (...)"
)
"""Appended to an error message if there are no options at all."""
_NOT_OURS: Final = {
    "key_serializer": "keys are bytes or strings, which are written unchanged",
    "value_serializer": "values are bytes or strings, which are written unchanged",
    "transactional_id": (
        f"give 'transactionalIdPrefix', with deliveryGuarantee={EXACTLY_ONCE!r}: each task has an id of its "
        "own"
    ),
}

_SHOWN: Final = {
    "ssl_keystore_key": "give the path of a file with key and certificates as '{}ssl.keystore.location'",
    "sasl_oauthbearer_assertion_private_key_passphrase": (
        "give '{}sasl.oauthbearer.assertion.private.key.file' the path of a key that only the executors' "
        "user can read"
    ),
}
"""Secret options that Spark does not recognise as secrets by name, mapped to what to give instead. ``{}`` is
replaced by the prefix."""
_PROXIES: Final = ("proxy_url", "socks5_proxy")
_FORMS: Final = (
    (("sasl_jaas_config",), ("sasl_plain_username", "sasl_plain_password")),
    (("ssl_cafile",), ("ssl_truststore_certificates",)),
    (("ssl_certfile", "ssl_keyfile"), ("ssl_keystore_certificate_chain", "ssl_keystore_key")),
    (("proxy_url",), ("socks5_proxy",)),
)
"""Pairs of equivalent forms: a write's own options in one form replace the session's options in the other."""

_BULK: Final = {"linger_ms": 20, "batch_size": 524_288}
"""Defaults for tasks that have many rows and wait only for the last one. Without linger, the sender sometimes
keeps sending small batches, which cost client and broker nearly twice the CPU (``perf/README.md``). A task
flushes at its end, so it does not wait for ``linger_ms``."""

TRANSACTION_TIMEOUT_MS: Final = 900_000
"""The default of ``kafka.transaction.timeout.ms``, which is the brokers' default maximum: the transactions of
a stage's first tasks stay open until its last task has ended."""


@dataclass(frozen=True)
class ExactlyOnceOptions:
    """The options of exactly-once. Immutable; pickled with the tasks."""

    prefix: str
    """The prefix of the transactional ids."""
    app: str | None = None
    """``txnAppId``; None: the sink is a stream that is identified by its checkpoint."""
    version: int | None = None
    """``txnVersion``; None: a stream."""
    checkpoint: str | None = None
    """The location of the stream's checkpoint; None: it is not an option of the write."""
    starting_batch: int | None = None
    decision_topic: str = ""
    timeout_ms: int = TRANSACTION_TIMEOUT_MS

    def sink(self, *, stream: bool) -> Sink:
        """Returns the sink that the options identify.

        Raises:
            KafkaConfigurationError: they do not identify one.
        """
        if stream:
            if self.version is not None:
                raise KafkaConfigurationError(
                    "option 'txnVersion' is for batch writes: a stream's versions are its batch ids"
                )
            if self.app is not None:
                return Sink(self.prefix, STREAM, self.app)
            if self.checkpoint is None:
                raise KafkaConfigurationError(
                    f"deliveryGuarantee {EXACTLY_ONCE!r} needs option 'checkpointLocation' at the write, not "
                    "only in the session's configuration, which the sink can't see; or 'txnAppId', a name "
                    "that no other stream has"
                )
            return Sink(self.prefix, STREAM, location(self.checkpoint))
        if self.app is None or self.version is None:
            raise KafkaConfigurationError(
                f"deliveryGuarantee {EXACTLY_ONCE!r} for a batch write needs options 'txnAppId', the job's "
                "name, and 'txnVersion', a number that grows with each of its writes: a job that runs again "
                "is recognised by them"
            )
        if self.starting_batch is not None:
            raise KafkaConfigurationError("option 'startingBatchId' is for streams")
        return Sink(self.prefix, JOB, self.app)


@dataclass(frozen=True)
class SinkOptions:
    """The options of one write. Immutable; pickled with the tasks."""

    config: SharedConfig
    """The producer's configuration."""
    topic: str | None = None
    """The topic of all rows; None: the column ``topic`` has each row's topic."""
    headers: bool = True
    """Whether the column ``headers`` is written."""
    dead_letter_topic: str | None = None
    create_partitions: int | None = None
    create_replication: int | None = None
    summary_callback: str | None = None
    """``module:function``."""
    check_on_driver: bool = True
    """Whether the driver connects before the tasks start, and looks up the topics."""
    exactly_once: ExactlyOnceOptions | None = None
    """None: at-least-once."""


def parse(options: Mapping[str, str], session: Mapping[str, Any] | None = None) -> SinkOptions:
    """Parses and checks the sink's options. ``session``: the result of ``session_options``.

    Raises:
        KafkaConfigurationError: an option is unknown, has a value that is not allowed, or requests a
            guarantee that this sink does not provide. The message names every wrong option of the producer.
    """
    options = given = {name.lower(): _hidden(name.lower(), value) for name, value in options.items()}
    defaults = session = hide(session or {})
    producer: dict[str, Any] = {}
    for name, value in given.items():
        if name.startswith("kafka."):
            known = _producer_option(name, "kafka.")
            if known == "socks5_proxy" and isinstance(value, SecretUrl):
                raise KafkaConfigurationError(
                    f"option {name!r} can't have a password, which Spark shows in plans and event logs: give "
                    "'kafka.proxy.url', whose value Spark hides"
                )
            producer[known] = value
        elif name not in _OF_SPARK and name not in {own.lower() for own in _OWN}:
            raise KafkaConfigurationError(_about_unknown(name))
    if "bootstrap_servers" not in {**defaults, **producer}:
        of_table = "" if given else _NO_TABLE_OPTIONS
        raise KafkaConfigurationError(
            f"option 'kafka.bootstrap.servers' is missing: must be the addresses of the brokers{of_table}"
        )
    try:
        config = producer_config(producer, columns=True, session=defaults, of_sink=True)
        exactly_once = _exactly_once(given, ProducerConfig(**config.config), producer, defaults)
    except KafkaConfigurationError as error:
        of_session = set(defaults) - set(producer)
        rename(error, lambda name: f"{SESSION_PREFIX * (name in of_session)}{sink_spelling(name)}")
        raise
    partitions = _whole(given, "createTopic.partitions", least=1)
    replication = _whole(given, "createTopic.replication", least=1)
    if replication is not None and partitions is None:
        raise KafkaConfigurationError(
            "option 'createTopic.replication' has no effect without 'createTopic.partitions'"
        )
    callback = given.get("summarycallback")
    if callback is not None and not all(callback.partition(":")):
        raise KafkaConfigurationError(
            f"option 'summaryCallback'={callback!r}: must be 'module:function', which is imported in the "
            "process in which Spark commits"
        )
    return SinkOptions(
        config=config,
        topic=_topic(given, "topic"),
        headers=_flag(given, "includeHeaders", default=True),
        dead_letter_topic=_topic(given, "deadLetterTopic"),
        create_partitions=partitions,
        create_replication=replication,
        summary_callback=callback,
        check_on_driver=_flag(given, "checkOnDriver", default=True),
        exactly_once=exactly_once,
    )


def _hidden(name: str, value: Any) -> Any:
    """Returns the value of a write's option, hidden as by ``hide``. The name is in lower case."""
    return hide_value(name.removeprefix("kafka."), value) if name.startswith("kafka.") else value


def _producer_option(name: str, prefix: str) -> str:
    """Returns the producer's name of a Spark option or setting that has the prefix.

    Raises KafkaConfigurationError if the sink does not accept it, or if it is a secret that Spark would show.
    """
    bare = name.removeprefix(prefix)
    if unknown := unknown_option(bare, prefix):
        raise KafkaConfigurationError(unknown)
    known = option_name(bare) or bare
    if known in _NOT_OURS:
        raise KafkaConfigurationError(f"option {name!r} can't be given: {_NOT_OURS[known]}")
    if known in _SHOWN:
        raise KafkaConfigurationError(
            f"option {name!r} can't be given: Spark shows it in plans and event logs. Replace this key, and "
            f"{_SHOWN[known].format(prefix)}"
        )
    return known


def options_of_session(session: Any = None) -> dict[str, Any]:
    """Returns the producer's options from the settings of a session, by the producer's names.

    ``session``: by default the session that is active in this thread, or else the process's session. Without
    a session there are no options.

    Raises:
        ImportError: as ``check_pyspark``.
        KafkaConfigurationError: as ``session_options``.
    """
    check_pyspark()
    if session is None:
        # If that module is not loaded, the process has no session. Functions may also be made in workers,
        # which have none.
        sql: Any = sys.modules.get("pyspark.sql")
        if sql is None:
            return {}
        # A thread that did not create the session has no active session.
        session = sql.SparkSession.getActiveSession() or sql.SparkSession._instantiatedSession
        if session is None:
            return {}
    try:
        at_start = dict(session.sparkContext.getConf().getAll())
    except AttributeError:
        # A Spark Connect client does not have this configuration.
        at_start = {}
    return session_options(dict(session.conf.getAll), at_start)


def check_pyspark() -> None:
    """Checks the version of PySpark, if it is loaded. Earlier versions do not have the functions that this
    package calls, and would raise errors about them.

    Raises:
        ImportError: it is too old.
    """
    version: str = getattr(sys.modules.get("pyspark"), "__version__", "")
    major = version.partition(".")[0]
    if major.isdecimal() and int(major) < LEAST_PYSPARK:
        raise ImportError(
            f"cyproducer.spark needs PySpark {LEAST_PYSPARK}.0 or later, and this is {version}: pip install "
            "'cyproducer[spark]'"
        )


def is_connect() -> bool:
    """Returns whether this process is a Spark Connect client."""
    # If this module is not loaded, the process has no session.
    utils: Any = sys.modules.get("pyspark.sql.utils")
    return utils is not None and bool(utils.is_remote())


def session_options(settings: Mapping[str, str], at_start: Container[str]) -> dict[str, Any]:
    """Returns the producer's options in a session's settings. ``at_start``: the settings that were made when
    the application started.

    Raises:
        KafkaConfigurationError: a setting is not an option of the sink, or contains a secret that Spark would
            show.
    """
    found: dict[str, Any] = {}
    prefix = f"{SESSION_PREFIX}kafka."
    # Only these settings: the session's other settings may contain secrets of their own.
    hidden = {
        name: hide_value(name.removeprefix(prefix), value) if name.startswith(prefix) else None
        for name, value in settings.items()
        if name.startswith(SESSION_PREFIX)
    }
    del settings
    for name, value in hidden.items():
        if not name.startswith(prefix):
            raise KafkaConfigurationError(
                f"setting {name!r} is unknown: must be an option of the producer, as {prefix}NAME"
            )
        known = _producer_option(name, prefix)
        if known in _PROXIES and isinstance(value, SecretUrl):
            raise KafkaConfigurationError(
                f"setting {name!r} can't have a password, which Spark shows in its UI and event logs: give "
                "it to the sink, as option 'kafka.proxy.url'"
            )
        if option_name(known) and isinstance(value, Secret) and name not in at_start:
            # Spark copies the setting to each job's properties, and redacts only those that are also in the
            # application's configuration.
            raise KafkaConfigurationError(
                f"setting {name!r} was made after the application started, and Spark shows it in event logs: "
                "replace this password, and give it with --conf or as option of the write"
            )
        found[known] = value
    # In clear text: a registered format contains these options, and is pickled.
    return {name: value.reveal() if isinstance(value, Secret) else value for name, value in found.items()}


def producer_config(
    given: Mapping[str, Any],
    *,
    columns: bool,
    session: Mapping[str, Any] | None = None,
    of_sink: bool = False,
) -> SharedConfig:
    """Returns the producer's options under the producer's own names, checked as by its constructor.

    ``columns``: whole columns are sent, so serializers, interceptors and custom partitioners, which need
    single records, are refused. ``session``: defaults by the producer's names; None: those of the current
    session. ``of_sink``: see ``SharedConfig``.

    Missing topics are not created by default, so that a misspelt topic is an error. The other defaults are
    those for bulk sends.
    """
    given = hide(given)
    named = {option_name(name) or name: value for name, value in given.items()}
    if len(named) < len(given):
        # Raises an error that names the option that was given twice.
        ProducerConfig(**given)
    session = hide(options_of_session() if session is None else session)
    defaults = {"allow_auto_create_topics": False, **_BULK, **_without_other_forms(session, named)}
    config = {**defaults, **named}
    checked = ProducerConfig(**config)
    if checked.transactional_id is not None:
        raise KafkaConfigurationError(
            f"transactional_id={checked.transactional_id!r}: can't be given. Each task has a producer of its "
            "own, and producers with the same transactional id fence each other"
        )
    try:
        partitioner = resolve_partitioner(
            checked.partitioner, checked.partitioner_ignore_keys, checked.partitioner_rack_aware
        )
    except (TypeError, ValueError) as error:
        raise KafkaConfigurationError(str(error)) from error
    if columns:
        for name in ("key_serializer", "value_serializer", "interceptors"):
            if getattr(checked, name, None):
                raise KafkaConfigurationError(f"{name}: can't be given, as whole columns are sent")
        if isinstance(partitioner, CustomPartitioner):
            raise KafkaConfigurationError(
                "partitioner: a custom one can't be given, as whole columns are sent: give a column "
                "'partition'"
            )
    return SharedConfig(config, of_sink=of_sink)


def _without_other_forms(session: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the session's options without those that are another form of a given option: both together
    would contradict each other."""
    left = dict(session)
    for forms in _FORMS:
        for form, other in (forms, forms[::-1]):
            if any(name in given for name in form):
                for name in other:
                    left.pop(name, None)
    return left


def _exactly_once(
    given: Mapping[str, str], config: ProducerConfig, *producer: Mapping[str, Any]
) -> ExactlyOnceOptions | None:
    """Checks the guarantee, and returns the options of exactly-once; None: at-least-once.

    ``producer``: the mappings that may contain ``transaction.timeout.ms``.
    """
    value = given.get("deliveryguarantee", AT_LEAST_ONCE)
    if value not in (AT_LEAST_ONCE, EXACTLY_ONCE):
        raise KafkaConfigurationError(
            f"option 'deliveryGuarantee'={value!r}: must be {AT_LEAST_ONCE!r}, which is the default, or "
            f"{EXACTLY_ONCE!r}"
        )
    if value == AT_LEAST_ONCE:
        for name in _EXACTLY_ONCE_ONLY:
            if name.lower() in given:
                raise KafkaConfigurationError(
                    f"option {name!r} has no effect with deliveryGuarantee={AT_LEAST_ONCE!r}, the default: "
                    f"set it to {EXACTLY_ONCE!r}"
                )
        check_at_least_once(config)
        return None
    return exactly_once_options(
        config,
        prefix=given.get("transactionalidprefix"),
        app=_text(given, "txnAppId"),
        version=_whole(given, "txnVersion", least=0),
        checkpoint=_text(given, "checkpointLocation"),
        starting_batch=_whole(given, "startingBatchId", least=0),
        decision_topic=_topic(given, "decisionLogTopic"),
        default_timeout=not any("transaction_timeout_ms" in each for each in producer),
    )


def exactly_once_options(
    config: ProducerConfig,
    *,
    prefix: str | None,
    app: str | None,
    version: int | None = None,
    checkpoint: str | None = None,
    starting_batch: int | None = None,
    decision_topic: str | None = None,
    default_timeout: bool = False,
) -> ExactlyOnceOptions:
    """Checks the options of exactly-once; ``default_timeout``: no timeout was given.

    Raises:
        KafkaConfigurationError: one is missing, or has a value that is not allowed.
    """
    check_at_least_once(config)
    allowed = "1 to 100 letters, digits, '.', '_' and '-', beginning with a letter or digit"
    if prefix is None:
        raise KafkaConfigurationError(
            f"deliveryGuarantee {EXACTLY_ONCE!r} needs option 'transactionalIdPrefix', a name for this job's "
            f"transactions: {allowed}"
        )
    if not is_prefix(prefix):
        raise KafkaConfigurationError(f"option 'transactionalIdPrefix'={prefix!r}: must be {allowed}")
    return ExactlyOnceOptions(
        prefix,
        app,
        version,
        checkpoint,
        starting_batch,
        decision_topic or default_decision_topic(prefix),
        TRANSACTION_TIMEOUT_MS if default_timeout else int(config.transaction_timeout_ms),
    )


def once_of_function(
    config: SharedConfig,
    guarantee: str,
    prefix: str | None,
    app: str | None,
    decision_topic: str | None,
    default_timeout: bool,
) -> ExactlyOnceOptions | None:
    """Checks the guarantee of a function for ``foreachBatch``; returns None for at-least-once.

    Raises:
        KafkaConfigurationError: as ``exactly_once_options``, or an argument has no effect.
    """
    checked = ProducerConfig(**config.config)
    if guarantee == EXACTLY_ONCE:
        return exactly_once_options(
            checked, prefix=prefix, app=app, decision_topic=decision_topic, default_timeout=default_timeout
        )
    if guarantee != AT_LEAST_ONCE:
        raise KafkaConfigurationError(
            f"delivery_guarantee={guarantee!r}: must be {AT_LEAST_ONCE!r} or {EXACTLY_ONCE!r}"
        )
    for name, value in (
        ("transactional_id_prefix", prefix),
        ("txn_app_id", app),
        ("decision_log_topic", decision_topic),
    ):
        if value is not None:
            raise KafkaConfigurationError(
                f"{name}={value!r} has no effect without delivery_guarantee={EXACTLY_ONCE!r}"
            )
    check_at_least_once(checked)
    return None


def check_at_least_once(config: ProducerConfig) -> None:
    """
    Raises:
        KafkaConfigurationError: the producer's options guarantee less than at-least-once.
    """
    if not config.enable_idempotence:
        raise KafkaConfigurationError(
            f"deliveryGuarantee {AT_LEAST_ONCE!r} needs an idempotent producer: kafka.acks=all, "
            "kafka.retries above 0, at most 5 requests in flight, and kafka.enable.idempotence not set to "
            "false"
        )


def _topic(given: Mapping[str, str], name: str) -> str | None:
    value = given.get(name.lower())
    if value == "":
        raise KafkaConfigurationError(f"option {name!r} is empty: must be the name of a topic")
    if value is not None:
        try:
            legal_topic(value)
        except InvalidTopicError as error:
            raise KafkaConfigurationError(f"option {name!r}: {error.args[0]}") from None
    return value


def _text(given: Mapping[str, str], name: str) -> str | None:
    value = given.get(name.lower())
    if value == "":
        raise KafkaConfigurationError(f"option {name!r} is empty")
    return value


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    value = given.get(name.lower())
    if value is None:
        return default
    if value.lower() not in ("true", "false"):
        raise KafkaConfigurationError(f"option {name!r}={value!r}: must be 'true' or 'false'")
    return value.lower() == "true"


def _whole(given: Mapping[str, str], name: str, least: int) -> int | None:
    value = given.get(name.lower())
    if value is None:
        return None
    if not value.isdecimal() or int(value) < least:
        raise KafkaConfigurationError(f"option {name!r}={value!r}: must be a whole number, at least {least}")
    return int(value)


def _about_unknown(name: str) -> str:
    if (known := option_name(name)) in _NOT_OURS:
        return f"option {name!r} can't be given: {_NOT_OURS[known]}"
    own = {each.lower(): each for each in _OWN}
    # Also without their prefix, as in a properties file.
    producer = {
        form: sink_spelling(option)
        for option in OPTIONS_BY_NAME
        if option not in _NOT_OURS
        for form in (option, java_spelling(option))
    }
    near = difflib.get_close_matches(name, [*own, *producer], n=1, cutoff=0.7)
    if near:
        return f"option {name!r} is unknown: did you mean {own.get(near[0]) or producer[near[0]]!r}?"
    return (
        f"option {name!r} is unknown: must be one of {', '.join(_OWN)}, or an option of the producer, as "
        "kafka.NAME"
    )
