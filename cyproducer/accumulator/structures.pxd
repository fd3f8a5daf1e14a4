"""The C structures of the accumulator. They hold no Python objects: the sender uses them without the GIL.

Ownership: the accumulator owns nodes, topics and partitions as long as it lives. A batch has one owner at a
time: its partition's queue, an in-flight request, or the thread that seals it.
``Accumulator.lock`` guards everything here unless a field's comment says otherwise. Lock order: it comes
before ``Partition.lock``.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from cyproducer.futures.delivery cimport CompletionList, Delivery
from cyproducer.base.meters cimport Meter, Meters
from cyproducer.base.sync cimport cyp_prefetch, pthread_cond_t, pthread_mutex_t

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_t:
        pass

# A record to be appended. Borrowed pointers, valid during the call.
cdef struct RecordView:
    const uint8_t* key
    int64_t key_size          # -1: no key
    const uint8_t* value
    int64_t value_size        # -1: a tombstone
    const uint8_t* headers    # their count as a varint, then the headers, encoded as in the record
    int64_t headers_size      # at least 1: the count
    int64_t timestamp_ms      # -1: now

cdef enum BatchState:
    OPEN = 0                  # accepts records
    SEALING = 1               # accepts no more records; one thread compresses it, and no other accesses it
    SEALED = 2                # ready to be drained

cdef struct Batch:
    Batch* next               # in its partition's queue
    Batch* next_to_compress   # in the queue of the compression thread
    Batch* older              # in the list of incomplete batches, sorted by id
    Batch* newer
    Partition* partition
    Delivery* delivery
    uint8_t* data             # the batch header, then the records
    int64_t capacity          # of data, in bytes; reserved in the pool
    int64_t size              # used bytes of data
    int64_t limit             # size at which the batch is full
    int64_t raw_size          # size before compression
    int64_t largest           # bytes of its largest record, before compression
    int64_t id                # increases with creation; the parts of a split batch share it
    int64_t first_record      # number of its first record within the partition: unique, defines the order
    int64_t created_ns
    int64_t drained_ns        # when it was last put into a request
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t clock_ms          # the last timestamp taken from the clock; 0: none
    int32_t count             # records
    int32_t attempts          # requests it was part of
    int32_t held              # references to its delivery that it holds, including those for future records
    int32_t base_sequence     # -1: none
    int64_t producer_id       # -1: none
    int16_t producer_epoch
    int8_t ambiguous          # an attempt's outcome is unknown: the batch may be in the log
    int8_t abandoned          # its records failed while it was in flight; not in the incomplete list
    int8_t codec              # the codec of data: 0 until compressed
    int8_t state              # a BatchState
    int8_t in_request         # it is in a request, whose sendmsg may still read data
    int8_t probes             # a probe: it may exceed its topic's batch_limit, see batch_limit.pyx
    int8_t grown              # it was full and could not be sent, and accepts more records: see far_brokers

cdef enum:
    NODE_BUCKETS = 64         # a cluster may have 1,000 brokers or more, which shares a bucket among 16
    MOST_UNSETTLED = 5        # batches per partition and producer id that brokers remember

cdef enum Gate:
    GATE_OPEN = 0             # all batches can be sent
    GATE_UNSETTLED = 1        # only batches that have a sequence can be sent
    GATE_SHUT = 2             # no batch can be sent

cdef enum Membership:
    NOWHERE = 0               # nothing to send, or sending is not allowed now
    LINGERING = 1             # an open batch waits for linger_ms, or the stream linger, to elapse
    GATHERING = 2             # linger 0: an open batch waits for its broker's in-flight requests
    SENDABLE = 3              # its oldest batch goes into the next request
    JOINING = 4               # must be added to the open transaction (AddPartitionsToTxn) first

# With 10,000 partitions, most of a record's time is spent waiting for memory. So the fields are sorted by use
# into four cache lines, at which partition_table aligns partitions.
cdef struct Partition:
    # 1. Appending to the open batch, and the queue.
    int32_t lock              # a spin lock, see `open`
    int32_t index             # the partition's number
    # The batch that records are appended to under `lock` alone; NULL: an append takes the accumulator's lock.
    # Changed with both held. While it is not NULL, `lock` guards what an append changes: in the batch size,
    # largest, max_timestamp, clock_ms, held and count, here `records` and `appended`.
    Batch* open
    int64_t appended          # records appended under `lock` alone since `open` was set
    int64_t records           # records ever appended to it
    Batch* first              # the queue, oldest first; only the last batch can be open
    Batch* last
    Topic* topic
    Node* node                # the leader; NULL while unknown
    # 2. Creating a batch, and moving through the lists.
    Partition* prev           # in the list named by `membership`
    Partition* next
    Partition* skip           # a hint, for look_ahead: the partition that is, or was, four places behind it
    int64_t mark              # GATHERING: sendable when its node has answered this many requests
    int64_t retry_at_ns       # end of its backoff; 0: none
    int32_t hint              # initial size of the next batch: the size that the last batch needed
    int32_t queued            # batches in the queue
    int32_t in_flight         # batches in unanswered requests
    int32_t unsettled_count
    int8_t membership
    int8_t gate               # a Gate, set by the control plane: which batches can be sent
    int8_t known              # its broker has acknowledged a batch of this producer id and remembers it
    int8_t awaited            # a thread was in get() for a record of the last acknowledged batch
    int8_t recovering         # a batch was re-enqueued, or the leader changed: in-flight requests end first
    int8_t has_gap            # a batch of the transaction, and those behind it, are absent from the log
    int8_t gap_moves          # the records behind the absent batch get different sequences
    # 3. Sequences.
    int64_t producer_id       # the producer id of its sequences; meaningless before the first batch
    int64_t sequenced_ns      # when a batch last got its sequences
    Batch* unsettled[MOST_UNSETTLED]  # batches with a sequence and without an outcome, in sequence order
    int32_t next_sequence
    int16_t producer_epoch
    # 4. Transactions.
    int32_t gap_sequence      # the sequence of `gap_record`
    int64_t gap_record        # in a transaction with `has_gap`: the first record of the oldest absent batch
    int64_t joining           # number of the last transaction that the control plane was to add it to
    int64_t joined            # number of the last transaction that it was added to
    int64_t written_in        # number of the transaction that the next two fields belong to; 0: none
    int64_t first_offset      # of its records that were acknowledged in that transaction
    int64_t last_offset
    int64_t unused

cdef enum:
    AHEAD = 4                 # how many partitions or batches ahead a loop prefetches

cdef inline void prefetch_partition(const Partition* p) noexcept nogil:
    """Fetches what is used of a partition outside transactions into the cache; ``p`` may be NULL."""
    cyp_prefetch(p, 3)


cdef inline void prefetch_batch(const Batch* b) noexcept nogil:
    """Fetches a batch into the cache, without its records; ``b`` may be NULL."""
    cyp_prefetch(b, 4)


cdef inline void prefetch_records(const uint8_t* data) noexcept nogil:
    """Fetches the start of a batch's buffer into the cache: all of a small record; may be NULL."""
    cyp_prefetch(data, 3)


cdef struct PartitionList:
    Partition* first
    Partition* last
    int32_t count

# The settings that may differ by topic: those of the producer, or of one entry of topic_options.
cdef struct TopicSettings:
    int64_t linger_ns
    PartitionList lingering   # the LINGERING partitions of its topics
    void* native              # a NativeCodec, owned by the compressor; NULL: no codec, or it needs the GIL
    int32_t compressor        # its index in RecordAccumulator.compressors
    int16_t acks
    int8_t codec

# A broker.
cdef struct Node:
    Node* next
    Node* next_in_bucket
    int32_t id
    int32_t takes             # set by the sender: new work for this broker should wake the sender
    int32_t in_rack           # it is in the client's rack, and the partitioner is rack-aware (KIP-1123)
    void* transport             # set by the sender; NULL while no connection accepts requests
    int64_t sent              # requests ever put in flight
    int64_t answered          # requests ever answered, or lost with their connection
    int64_t waiting_since_ns  # time since which batches are ready and none was sent; 0: no batch waits
    int64_t flow              # recently sent records; decays to 0 within FLOW_NS
    int64_t flow_ns           # when `flow` was computed
    int64_t fastest_ns        # time that its fastest recent answers took; 0: no answer yet
    int64_t latest_ns         # time that its last answer took
    int64_t latest_at_ns      # when that answer came
    PartitionList sendable
    PartitionList gathering
    Meter meter

# A record whose topic has no metadata yet: an element of the topic's record queue, followed by its bytes.
cdef struct Parked:
    Parked* next
    Delivery* delivery        # a reference is held; forwarded once the partition is known
    RecordView record         # points behind this structure
    int64_t reserved          # bytes reserved in the pool
    int64_t deadline_ns
    int64_t id
    int32_t partition         # -1: to be chosen

cdef struct Topic:
    Topic* next               # in the accumulator's list of all topics
    Topic* prev
    Topic* next_waiting       # in the list of topics with parked records, by their first record's deadline
    Topic* prev_waiting
    TopicSettings* settings   # of the accumulator; never changes
    int64_t number            # in order of creation: addresses differ from run to run
    int8_t gone               # forgotten, and in no list: a thread that holds a pointer looks it up again
    const char* name          # UTF-8, not terminated
    int32_t name_size
    uint8_t id[16]            # zero if the broker reported none
    # The next two are also read without the lock: the array has room for the count before the count grows.
    Partition** partitions    # an array that was outgrown is kept as long as the topic: see widen
    void* blocks              # the memory of the partitions: each block begins with the address of the next
    int32_t partition_count   # 0: no metadata yet
    int32_t partition_room
    int32_t designating       # partition count that only parked records see while they are moved
    int32_t* available        # indices of the partitions that have a leader, those in the rack first
    int32_t available_count
    int32_t in_rack_count     # those of them whose leader is in_rack
    int32_t key_hash          # number of the rule that hashes keys
    int32_t keyless           # a Keyless: the policy for records without a key
    # Without the lock, the next two are hints.
    int32_t sticky            # the current partition of keyless records; -1: none chosen
    int64_t sticky_bytes      # bytes of keyless records since that partition was chosen
    int64_t batch_limit       # maximum batch size after a batch was refused as too large; 0: none
    int64_t probe_at_ns       # from this time on the next batch may be a probe
    int64_t probe_wait_ns     # delay before the next probe
    double compression_ratio  # estimate of compressed / raw size; sets the raw limit of new batches
    uint32_t turn             # counter of the round robin policy
    Parked* first_parked
    Parked* last_parked
    int64_t parked_bytes
    int64_t last_used_ns
    Meter meter

# Compresses large batches that are due before they are full: see compression_thread.
cdef struct CompressionThread:
    int32_t wanted            # the thread is enabled, and a topic's codec does not need the GIL
    int32_t started
    int32_t stopping
    int32_t process           # pid of the process that started it: a forked child has no such thread
    pthread_t thread
    Batch* first              # its queue, oldest first
    Batch* last
    pthread_cond_t filled     # the queue is no longer empty
    void (*compress)(void* context, Batch* b) noexcept nogil    # without the lock
    void (*wake)(void* context) noexcept nogil                  # wakes up the sender, without the lock
    void* context             # of both, borrowed

cdef enum Sleep:
    AWAKE = 0                 # the sender looks for work without a wake-up
    ASLEEP = 1                # waits for events; the thread that wakes it sets AWAKE
    STANDING_BY = 2           # leaves the first record to the thread that awaits it: sender/loop_ownership
    LEFT_ALONE = 3            # standing by, and that record was appended

cdef struct Accumulator:
    pthread_mutex_t lock
    int32_t queued            # threads that wait for the lock and delay others (GIL): see cyp_give_way
    pthread_cond_t progress   # a batch completed, or a parked record was appended or failed
    int64_t batch_size        # bytes, including the batch header
    int64_t most_grown        # bytes of the largest batch for a far broker: see far_brokers
    int32_t queues            # partitions that have batches in their queue
    TopicSettings* settings   # the producer's, then those of the entries of topic_options, in their order
    int32_t settings_count
    int64_t stream_linger_ns  # where linger_ns is 0: the current stream linger, see ready_partitions
    int64_t longest_stream_ns  # the stream linger of the fastest streams
    int64_t availability_timeout_ns   # skip brokers that were sent nothing for this long; 0: never
    int64_t single_broker_ns  # how long SINGLE_BROKER stays with one broker
    int64_t single_broker_until_ns
    int32_t single_broker_id
    int32_t adaptive_partitioning   # sticky weights partitions by queue length
    int32_t compresses_with_gil      # a topic's codec needs the GIL
    int32_t compresses_without_gil   # a topic's codec does not
    int32_t idempotent        # batches get sequences
    int32_t one_in_flight     # without sequences: one batch in flight per partition, to keep the order
    int64_t producer_id       # -1: not known yet, or discarded
    int16_t producer_epoch
    int32_t closed            # accepts no more records, and makes all batches sendable
    int32_t refusing          # accepts no records: closed, or no transaction is open
    int64_t transaction       # number of the open or last transaction; 0: no transactional id
    int32_t adds_partitions   # a partition must be added to the transaction before it is written to
    int32_t wrote             # a batch of the transaction was put into a request
    int32_t ending            # the sender calls the control plane once nothing is incomplete or on the wire
    int64_t on_wire           # batches in unanswered requests
    PartitionList joining
    int32_t flushing          # flush() calls in progress
    const int32_t* waiting    # the pool's count of waiters for memory
    int32_t sleeping          # a Sleep: whether new work must wake the sender
    int64_t sleeping_until_ns
    int64_t next_id
    uint64_t random           # state of the random generator for keyless records
    Batch* oldest             # incomplete batches, in queues and in flight
    Batch* newest
    int64_t incomplete
    Batch* spare              # completed batches for reuse, at most MOST_SPARE: see batch_outcomes
    int32_t spares
    CompressionThread compression
    int64_t parked
    int64_t parked_bytes
    int64_t most_parked_bytes     # of all topics together; one topic may have half of it
    int32_t crowded           # threads that wait until fewer records are parked
    int32_t parked_anew       # a first record was parked, and the sender has not yet read its deadline
    Topic* first_waiting      # topics that have parked records
    Topic* last_waiting
    Node* nodes
    Node* node_buckets[NODE_BUCKETS]   # the same nodes by id, for find_node
    Topic* topics
    int64_t topics_made
    CompletionList* completions
    int64_t records_appended  # without those that Partition.appended still counts
    Meters meters
