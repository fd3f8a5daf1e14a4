"""The C structures that records wait in. No Python object among them: the sender walks them without the GIL.

Ownership: the accumulator owns nodes, topics and partitions until it goes. A batch belongs to one place at a
time: its partition's queue, an in-flight request, or the hands of the thread that seals it.
Everything here is guarded by ``Accumulator.lock`` unless a field says otherwise.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from cyproducer.futures.delivery cimport CompletionList, Delivery
from cyproducer.base.meters cimport Meter, Meters
from cyproducer.base.sync cimport pthread_cond_t, pthread_mutex_t

# A record on its way in. Borrowed pointers, valid during the call.
cdef struct RecordView:
    const uint8_t* key
    int64_t key_size          # -1: no key
    const uint8_t* value
    int64_t value_size        # -1: a tombstone
    const uint8_t* headers    # their count as a varint, then the headers, as the record has them
    int64_t headers_size      # at least 1: the count
    int64_t timestamp_ms      # -1: now

cdef enum BatchState:
    OPEN = 0                  # takes records
    SEALING = 1               # takes no more; a thread compresses it and nobody else touches it
    SEALED = 2                # ready to be drained

cdef struct Batch:
    Batch* next               # in its partition's queue
    Batch* older              # in the list of everything incomplete, by id
    Batch* newer
    Partition* partition
    Delivery* delivery
    uint8_t* data             # the batch header, then the records
    int64_t capacity          # of data; what the pool counts
    int64_t size              # bytes of data that are used
    int64_t limit             # size at which the batch is full
    int64_t raw_size          # size before compression
    int64_t largest           # bytes of its largest record, before compression
    int64_t id                # counts up with creation; the parts of a batch that was split share it
    int64_t first_record      # the number of its first record in its partition: their order, and unique
    int64_t created_ns
    int64_t drained_ns        # when it was last put into a request
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t clock_ms          # the last timestamp that was the clock's; 0: none
    int32_t count             # records
    int32_t attempts          # requests it was in
    int32_t held              # references to its delivery that it has; what futures will take is among them
    int32_t base_sequence     # -1: none
    int64_t producer_id       # -1: none
    int16_t producer_epoch
    int8_t ambiguous          # an attempt's outcome is not known: it may be in the log
    int8_t abandoned          # its records have failed while it was on the wire; out of the incomplete list
    int8_t codec              # what data is compressed with: 0 until compressed
    int8_t state              # a BatchState
    int8_t in_request         # whether a request's writev may still read data
    int8_t probes             # it may be larger than its topic's batch_limit, to see whether that still holds

cdef enum:
    MOST_UNSETTLED = 5        # batches of a partition that brokers remember, for each producer id

cdef enum Gate:
    GATE_OPEN = 0             # all may go
    GATE_UNSETTLED = 1        # what has a sequence may go
    GATE_SHUT = 2             # nothing may

cdef enum Membership:
    NOWHERE = 0               # nothing to send, or not allowed to
    LINGERING = 1             # an open batch waits for its linger, or a stream's, to run out
    GATHERING = 2             # linger 0: an open batch waits for what its broker has in flight
    SENDABLE = 3              # its oldest batch goes with the next request

cdef struct Partition:
    Partition* prev           # in the list that `membership` names
    Partition* next
    Topic* topic
    Node* node                # the leader; NULL while unknown
    Batch* first              # the queue, oldest first; only the last one may be open
    Batch* last
    int64_t mark              # GATHERING: goes when its node has answered this many requests
    int64_t retry_at_ns       # backing off until then; 0: not
    int64_t hint              # size that the next batch starts with: that of the last, had memory allowed
    int64_t records           # appended to it, ever
    int64_t producer_id       # whom its sequences belong to; meaningless before the first batch
    int64_t sequenced_ns      # when a batch got its sequences last
    Batch* unsettled[MOST_UNSETTLED]  # with a sequence and without an outcome, in the order of both
    int32_t unsettled_count
    int32_t next_sequence
    int32_t index             # the partition's number
    int32_t queued            # batches in the queue
    int32_t in_flight         # batches in requests that are not answered
    int8_t membership
    int8_t gate               # a Gate: the control plane's word on what may go
    int8_t known              # its broker has acknowledged a batch of this producer id, and remembers it
    int8_t awaited            # a thread was in get() for a record of the batch that was acknowledged last
    int8_t recovering         # a batch came back, or the leader moved: what is in flight ends first
    int16_t producer_epoch

cdef struct PartitionList:
    Partition* first
    Partition* last
    int32_t count

# A broker.
cdef struct Node:
    Node* next
    int32_t id
    int32_t takes             # whether the sender wants to hear of new work for it; the sender's word
    void* transport             # the sender's, NULL while there is no connection that takes requests
    int64_t sent              # requests put in flight, ever
    int64_t answered          # requests answered or given up, ever
    int64_t waiting_since_ns  # since when it had something to send and sent nothing; 0: it does not
    int64_t flow              # records that went there lately: they fade within FLOW_NS
    int64_t flow_ns           # as of then
    PartitionList sendable
    PartitionList gathering
    Meter meter

# A record whose topic has no metadata yet: the "-1" queue's element, followed by its bytes.
cdef struct Parked:
    Parked* next
    Delivery* delivery        # a reference is held; forwarded once the partition is known
    RecordView record         # points behind this structure
    int64_t reserved          # bytes taken from the pool
    int64_t deadline_ns
    int64_t id
    int32_t partition         # -1: to be chosen

cdef struct Topic:
    Topic* next               # in the accumulator's list of all
    Topic* prev
    Topic* next_waiting       # in the list of those that have parked records, by the deadline of their first
    Topic* prev_waiting
    int8_t gone               # forgotten, and in no list: whoever has it in hand looks the topic up again
    const char* name          # UTF-8, not terminated
    int32_t name_size
    uint8_t id[16]            # zero where the broker gave none
    Partition** partitions
    int32_t partition_count   # 0: no metadata yet
    int32_t partition_room
    int32_t designating       # partitions shown to parked records alone while they are moved
    int32_t* available        # indices of the partitions that have a leader
    int32_t available_count
    int32_t key_hash          # how keys choose: the number of a rule
    int32_t keyless           # how the others are placed: a Keyless
    int32_t sticky            # the partition that keyless records go to now; -1: none chosen
    int64_t sticky_bytes      # what went there since it was chosen
    int64_t batch_limit       # bytes a batch may have since one was too large; 0: batch_size
    int64_t probe_at_ns       # from when on the next batch may be larger, as a probe
    int64_t probe_wait_ns     # how long after a probe that was refused
    double compression_ratio  # estimate of compressed to raw size; new batches are cut out by it
    uint32_t turn             # round robin's counter
    Parked* first_parked
    Parked* last_parked
    int64_t parked_bytes
    int64_t last_used_ns
    Meter meter

cdef enum Sleep:
    AWAKE = 0                 # it looks by itself
    ASLEEP = 1                # waits for events; whoever wakes it makes it AWAKE
    STANDING_BY = 2           # leaves the first record to the thread that will wait: network/loop_ownership
    LEFT_ALONE = 3            # standing by, and that record has come

cdef struct Accumulator:
    pthread_mutex_t lock
    int32_t queued            # threads that wait for the lock and hold up others: see cyp_give_way
    pthread_cond_t progress   # a batch completed, or a parked record found its place
    int64_t batch_size        # bytes, with the batch header
    int64_t linger_ns
    int64_t stream_linger_ns  # linger_ns, or where that is 0 what a stream lingers now; see readiness
    int64_t longest_stream_ns  # what the fastest stream lingers where linger_ns is 0
    int64_t availability_timeout_ns   # leave out brokers that sent nothing for so long; 0: never
    int64_t single_broker_ns  # how long SINGLE_BROKER stays with one
    int64_t single_broker_until_ns
    int32_t single_broker_id
    int32_t adaptive_partitioning   # sticky weighs partitions by their queues
    int32_t codec
    int32_t idempotent        # batches get sequences
    int32_t one_in_flight     # without sequences a partition keeps its order by one batch at a time
    int64_t producer_id       # -1: not known yet, or given up
    int16_t producer_epoch
    int32_t closed            # takes no more records
    int32_t flushing          # flushes under way
    const int32_t* waiting    # threads that wait for memory; the pool's
    int32_t sleeping          # a Sleep: how the sender is to be told of new work
    int64_t sleeping_until_ns
    int64_t next_id
    uint64_t random           # state of the generator that places keyless records
    Batch* oldest             # everything that is not complete, in queues and in flight
    Batch* newest
    int64_t incomplete
    int64_t parked
    int64_t parked_bytes
    int64_t most_parked_bytes     # of all topics together; one may have half of it
    int32_t crowded           # threads that wait until fewer records are parked
    int32_t parked_anew       # the first was parked, and the sender has not yet asked for its deadline
    Topic* first_waiting      # topics that have parked records
    Topic* last_waiting
    PartitionList lingering
    Node* nodes
    Topic* topics
    CompletionList* completions
    int64_t records_appended
    Meters meters
