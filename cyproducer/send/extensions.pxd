from libc.stdint cimport int32_t

from cyproducer.futures.delivery cimport RecordFuture


# How a serializer is called.
cdef enum Form:
    NONE = 0
    FUNCTION = 1      # function(data)
    METHOD = 2        # serializer.serialize(topic, headers, data), which may add to the headers
    WITH_CONTEXT = 3  # confluent-kafka's: serializer(data, context), which may add to the context's headers


# The partitions of a topic in one view of the cluster. Never changes.
cdef class TopicPartitions:
    cdef object view          # the ClusterView
    cdef object everything    # SharedList
    cdef object available     # SharedList
    cdef int32_t count        # the partitions are 0 to count - 1; 0 if they have other numbers


cdef class Extensions:
    cdef object key_serializer
    cdef object value_serializer
    cdef int key_form         # a Form
    cdef int value_form
    cdef bint reads_headers   # a serializer gets the headers
    cdef readonly tuple interceptors
    cdef tuple on_sends       # (interceptor, its method on_send)
    cdef tuple on_acknowledgements
    cdef readonly object custom   # CustomPartitioner or None
    # The attributes of `custom`: each lookup would cost a tenth of the cost of a record.
    cdef object keyed
    cdef object asked
    cdef object on_new_batch
    cdef object client        # has the current view
    cdef object view          # the view that the partitions in `topics` belong to
    cdef dict topics          # name -> TopicPartitions
    cdef readonly bint accepts    # the producer's `_accept` gets the serialized records
    cdef object last_followed     # the last Acknowledgement that was made
    cdef object serialized_key(self, object topic, object headers, object data)
    cdef object serialized_value(self, object topic, object headers, object data)
    cdef object intercepted(self, object record)
    cdef TopicPartitions partitions_of(self, object topic)
    cdef bint knows(self, object topic) except -1
    cdef TopicPartitions learn(self, str topic, object view)
    cdef object ask(
        self, TopicPartitions known, str topic, object key, object key_bytes, object value, object value_bytes
    )
    cdef int follow(self, RecordFuture future, object topic, object partition) except -1
    cdef object acknowledge(self, object topic, object partition, object outcome)


cdef object as_record(
    object topic, object value, object key, object headers, object partition, object timestamp_ms
)
cdef int note(object error, str what, object data, object topic) except -1
cdef object acknowledge(tuple on_acknowledgements, object topic, object partition, object outcome)
