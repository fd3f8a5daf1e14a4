"""What a program adds to ``send()``: serializers, interceptors and a custom partitioner.

Owns calling them, and what happens if they raise. Does not own their order or the sending
(``send_path``), or the rules for a partitioner's result (``control/partitioners``). Everything runs on the
thread that calls ``send()``, except ``on_acknowledgement``, which runs as a callback of the record's future.

An object's methods are looked up once, when the producer is created.
"""

from cpython.long cimport PyLong_CheckExact
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport int32_t

cimport cython

from cyproducer.base.free_threading cimport FREE_THREADED
from cyproducer.base.named_tuples cimport new_named, set_field
from cyproducer.futures.delivery cimport RecordFuture
from cyproducer.futures.invoke_callback cimport ON_BOTH

import logging
import sys

from cyproducer.structs import ProducerRecord, RecordMetadata, TopicPartition

cdef extern from "<Python.h>":
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1

log = logging.getLogger("cyproducer")

# As a C variable: looking up the class takes longer than filling its instance.
cdef type record_kind = ProducerRecord
# SerializationContext, once a producer has a ConfluentSerializer.
cdef object context_kind = None


cdef tuple form_of(object serializer):
    """The ``Form``, and what to call."""
    global context_kind
    if serializer is None:
        return NONE, None
    # Only a program that has a ConfluentSerializer has imported its module.
    adapters = sys.modules.get("cyproducer.serializers")
    if adapters is not None and type(serializer) is adapters.ConfluentSerializer:
        context_kind = adapters.SerializationContext
        return WITH_CONTEXT, serializer
    if hasattr(serializer, "serialize"):
        return METHOD, serializer.serialize
    return FUNCTION, serializer


cdef class TopicPartitions:
    """The partitions of a topic in one view of the cluster."""


cdef class Extensions:
    """A producer's serializers, interceptors and custom partitioner. Thread-safe if they are thread-safe."""

    def __init__(
        self, *, key_serializer=None, value_serializer=None, interceptors=(), custom=None, bint accepts=False
    ):
        """
        Args:
            key_serializer: a callable, an object with ``serialize``, or None.
            value_serializer: like ``key_serializer``.
            interceptors: objects with ``on_send``, ``on_acknowledgement``, or both.
            custom: the ``CustomPartitioner``, or None.
            accepts: whether the producer's ``_accept`` gets each record instead of the accumulator.
        """
        self.key_form, self.key_serializer = form_of(key_serializer)
        self.value_form, self.value_serializer = form_of(value_serializer)
        self.interceptors = tuple(interceptors)
        self.reads_headers = self.key_form > FUNCTION or self.value_form > FUNCTION
        self.on_sends = tuple([(i, i.on_send) for i in self.interceptors if hasattr(i, "on_send")])
        self.on_acknowledgements = tuple(
            [(i, i.on_acknowledgement) for i in self.interceptors if hasattr(i, "on_acknowledgement")]
        )
        self.custom = custom
        if custom is not None:
            self.keyed = custom.keyed
            self.asked = custom.ask
            self.on_new_batch = custom.on_new_batch
        self.accepts = accepts

    def use(self, client):
        """Sets the client whose ``view`` has the partitions; called again in a forked child."""
        self.client = client
        self.view = None
        self.topics = {}

    @property
    def needed(self):
        """Whether there is anything to call."""
        serializes = self.key_form != NONE or self.value_form != NONE
        return bool(serializes or self.interceptors or self.custom is not None or self.accepts)

    # Serializers

    cdef object serialized_key(self, object topic, object headers, object data):
        return serialized(self.key_form, self.key_serializer, topic, headers, data)

    cdef object serialized_value(self, object topic, object headers, object data):
        return serialized(self.value_form, self.value_serializer, topic, headers, data)

    # Interceptors

    cdef object intercepted(self, object record):
        """Returns the record as the interceptors changed it."""
        for interceptor, on_send in self.on_sends:
            try:
                changed = on_send(record)
                if not isinstance(changed, record_kind):
                    raise TypeError(f"on_send returned {changed!r}: it must return a ProducerRecord")
                record = changed
            except Exception:
                log.exception("interceptor %r raised in on_send; the record goes on as it was", interceptor)
        return record

    cdef int follow(self, RecordFuture future, object topic, object partition) except -1:
        """Registers the interceptors for the outcome of a future."""
        cdef Acknowledgement followed = None if FREE_THREADED else self.last_followed
        # Does not hold the record itself: its value would stay in memory until the callback runs.
        if followed is None or followed.topic is not topic or followed.partition is not partition:
            followed = Acknowledgement.__new__(Acknowledgement)
            followed.extensions = self.on_acknowledgements
            followed.topic = topic
            followed.partition = partition
            if not FREE_THREADED:
                self.last_followed = followed
        future._add(ON_BOTH, followed)
        return 0

    cdef object acknowledge(self, object topic, object partition, object outcome):
        acknowledge(self.on_acknowledgements, topic, partition, outcome)

    # The partitioner

    cdef TopicPartitions partitions_of(self, object topic):
        """The topic's partitions in the current view; None if they are not known yet, or it is not a str."""
        cdef TopicPartitions known
        if not PyUnicode_CheckExact(topic):
            return None
        with cython.critical_section(self):
            known = self.topics.get(topic)
        return known if known is not None and known.view is self.client.view else None

    cdef bint knows(self, object topic) except -1:
        """Whether it is unnecessary to wait for the topic's metadata."""
        return self.client.view.knows(topic)

    cdef TopicPartitions learn(self, str topic, object view):
        """Caches a topic's partitions until the view changes."""
        cdef TopicPartitions known = TopicPartitions.__new__(TopicPartitions)
        known.view = view
        known.everything, known.available = view.partitions_in_order(topic)
        if not known.everything:
            # Raises, before the partitioner is called with no partitions to choose from.
            self.custom.checked(None, topic, view)
        if known.everything == list(range(len(known.everything))):
            known.count = <int32_t>len(known.everything)
        with cython.critical_section(self):
            if self.view is not view:
                self.topics = {}
                self.view = view
            self.topics[topic] = known
        return known

    cdef object ask(
        self, TopicPartitions known, str topic, object key, object key_bytes, object value, object value_bytes
    ):
        """The partition that the custom partitioner chooses."""
        cdef int too_large = 0
        cdef object answer
        if self.keyed is not None:
            answer = self.keyed(key_bytes, known.everything, known.available)
        else:
            answer = self.asked(topic, key, key_bytes, value, value_bytes, known.view)
        if PyLong_CheckExact(answer) and 0 <= PyLong_AsLongLongAndOverflow(answer, &too_large) < known.count:
            return answer
        return self.custom.checked(answer, topic, known.view)


cdef class Acknowledgement:
    """A callback that passes the outcomes of records to interceptors.

    Consecutive records with the same topic and partition share one. ``partition``: the partition that was
    given for the record, or None.
    """

    cdef tuple extensions
    cdef object topic
    cdef object partition

    def __call__(self, outcome):
        acknowledge(self.extensions, self.topic, self.partition, outcome)


cdef object acknowledge(tuple on_acknowledgements, object topic, object partition, object outcome):
    """Calls interceptors as the Java client calls ``onAcknowledgement``: metadata, and the error or None."""
    error = None
    metadata = outcome
    if isinstance(outcome, BaseException):
        error = outcome
        number = -1 if partition is None else partition
        place = TopicPartition(topic, number)
        metadata = RecordMetadata(topic, number, place, -1, -1, None, -1, -1, -1)
    for interceptor, on_acknowledgement in on_acknowledgements:
        try:
            on_acknowledgement(metadata, error)
        except Exception:
            log.exception("interceptor %r raised in on_acknowledgement", interceptor)


cdef object as_record(
    object topic, object value, object key, object headers, object partition, object timestamp_ms
):
    """A ``ProducerRecord``."""
    cdef tuple made = new_named(record_kind, 6)
    set_field(made, 0, topic)
    set_field(made, 1, value)
    set_field(made, 2, key)
    set_field(made, 3, headers)
    set_field(made, 4, partition)
    set_field(made, 5, timestamp_ms)
    return made


cdef inline object serialized(int form, object serializer, object topic, object headers, object data):
    if form == FUNCTION:
        return serializer(data)
    if form == METHOD:
        return serializer(topic, headers, data)
    return serializer.serializer(data, context_kind(topic, serializer.field, headers))


cdef int note(object error, str what, object data, object topic) except -1:
    """Adds a note to a serializer's exception: which data it was raised for."""
    text = f"raised by {what}_serializer, for a {what} of type {type(data).__name__} for topic {topic!r}"
    # A serializer may raise the same object again.
    if text not in getattr(error, "__notes__", ()):
        error.add_note(text)
    return 0
