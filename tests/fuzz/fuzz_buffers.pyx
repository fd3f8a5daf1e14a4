"""Fuzz target for the accumulator and its pool: operations in any order, chosen by libFuzzer.

One thread runs the operations of the application threads, the sender thread and the control plane, one after
the other; a fuzzer can't test races between threads. A small model knows what each batch must hold.
"""

import traceback

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport abort
from libc.string cimport memcpy, memset

from cyproducer.accumulator.record_accumulator cimport (
    APPENDED,
    IS_CLOSED,
    NEED_MEMORY,
    NO_SUCH_PARTITION,
    TOPIC_UNKNOWN,
    Appended,
    RecordAccumulator,
)
from cyproducer.accumulator.buffer_pool cimport BufferPool
from cyproducer.futures.delivery cimport PENDING, Delivery, delivery_unref
from cyproducer.accumulator.parked_records cimport apply_topic, fail_parked, forget_topic, park, parked_size
from cyproducer.base.meters cimport RECORDS_FAILED, RECORDS_SENT
from cyproducer.accumulator.ready_partitions cimport drain, expire_linger, refresh
from cyproducer.accumulator.sequences cimport set_identity
from cyproducer.accumulator.structures cimport MOST_UNSETTLED, SEALED, SEALING, Batch, Node, RecordView, Topic
from cyproducer.base.sync cimport FAR_NS
from cyproducer.accumulator.partition_table cimport TopicInfo, find_node, make_node
from cyproducer.records.record_batch cimport BATCH_HEADER
from fuzz_checks cimport Input, Read, check, next_byte, next_two, read_sized, read_zigzag

from cyproducer.base.clock import ManualClock
from cyproducer.futures.completion import CompletionQueue
from cyproducer.errors import KafkaTimeoutError
from cyproducer.records.compression import compressor_for, decompress
from tools.harness.accumulator_options import accumulator_options

cdef enum:
    PARTITIONS = 3
    MOST_OUT = 64             # batches in requests at a time
    MOST_HELD = 512           # deliveries that are held until the end

cdef struct Model:
    int32_t number                 # of the last record
    int64_t accepted               # records appended to batches, without parked ones
    int64_t ended                  # records whose batch was completed or failed
    Batch* out[MOST_OUT]
    int abandoned                  # of `out`: batches that failed at their deadline
    int out_count
    Delivery* held[MOST_HELD]
    int held_count

COMPRESSORS = (None, compressor_for("zstd"), compressor_for("none"))


cdef int check_batch(Batch* b) except -1:
    """Checks that the batch's records are readable, and in the order in which they were appended."""
    cdef Read r
    cdef int64_t size
    cdef int64_t end
    cdef int32_t n
    cdef int32_t number
    cdef int32_t last = -1
    cdef const uint8_t* value
    check(b.count > 0 and b.size <= b.capacity, "a batch has records, and fits its buffer")
    packed = b.data[BATCH_HEADER:b.size]
    records = decompress(b.codec, packed, b.raw_size) if b.codec else packed
    check(len(records) == b.raw_size - BATCH_HEADER, "a batch's size before compression is known")
    r.at = <const uint8_t*><char*>records
    r.end = r.at + <int64_t>len(records)
    for n in range(b.count):
        end = read_zigzag(&r)
        check(0 < end <= r.end - r.at, "a record lies within its batch")
        end += <int64_t>r.at
        r.at += 1
        read_zigzag(&r)
        check(read_zigzag(&r) == n, "a batch's offsets count up")
        read_sized(&r, &size)
        value = read_sized(&r, &size)
        check(size >= 4, "a value has its number")
        memcpy(&number, value, 4)
        check(number > last, "a batch's records are in order")
        last = number
        r.at = <const uint8_t*>end
    check(r.at == r.end, "a batch holds its records and nothing else")
    return 0


cdef void hold(Model* m, Delivery* d) noexcept:
    if m.held_count < MOST_HELD:
        m.held[m.held_count] = d
        m.held_count += 1
    else:
        delivery_unref(d)


cdef int append(RecordAccumulator acc, Topic* t, Model* m, Input* i, bint may_park) except -1:
    cdef uint8_t value[2048]
    cdef uint8_t headers[1]
    cdef uint8_t choice = next_byte(i)
    cdef RecordView r
    cdef Appended out
    cdef Delivery* parked = NULL
    cdef int32_t partition = choice % (PARTITIONS + 1)
    cdef int64_t grant = 0
    cdef int64_t need
    cdef int result
    memset(value, choice, 2048)
    headers[0] = 0
    r.key = value
    r.key_size = -1
    r.value = value
    r.value_size = 4 + (next_two(i) % 2044 if choice & 64 else next_byte(i))
    r.headers = headers
    r.headers_size = 1
    r.timestamp_ms = next_byte(i) << (choice >> 4)
    # One counter for all partitions: the numbers in each of them increase.
    m.number += 1
    memcpy(value, &m.number, 4)
    result = acc.append(t, partition, &r, &grant, False, &out)
    if out.sealing != NULL:
        # Whether or not there was room for the record.
        acc.seal(out.sealing)
    if result == NEED_MEMORY and choice & 128:
        need = out.need
        if acc.pool.try_reserve(need):
            grant = need
            result = acc.append(t, partition, &r, &grant, False, &out)
            if out.sealing != NULL:
                acc.seal(out.sealing)
            if grant:
                acc.pool.unreserve(grant)
    if result == APPENDED:
        m.accepted += 1
        hold(m, out.delivery)
    elif result == TOPIC_UNKNOWN and may_park:
        need = parked_size(&r)
        if acc.pool.try_reserve(need):
            result = park(acc, t, partition if partition < PARTITIONS else -1, &r, need, FAR_NS, &parked)
            if result:
                acc.pool.unreserve(need)
            elif parked != NULL:
                hold(m, parked)
    else:
        check(
            result == NEED_MEMORY or result == NO_SUCH_PARTITION or result == TOPIC_UNKNOWN
            or result == IS_CLOSED,
            "an append returns one of its results",
        )
    return 0


cdef int take(RecordAccumulator acc, Model* m, Input* i, int64_t now) except -1:
    """Drains batches, as for a request."""
    cdef Node* node = find_node(&acc.c, 1 + next_byte(i) % 2)
    cdef int32_t count
    cdef int32_t n
    cdef Batch* b
    if node == NULL or m.out_count == MOST_OUT:
        return 0
    count = drain(&acc.c, node, next_two(i), m.out + m.out_count, MOST_OUT - m.out_count, now)
    for n in range(m.out_count, m.out_count + count):
        b = m.out[n]
        if b.state == SEALING:
            acc.compress(b)
            b.state = SEALED
        check(b.state == SEALED and b.in_request, "a batch in a request accepts no more records")
        check((b.base_sequence >= 0) == (acc.c.idempotent != 0), "a batch has a sequence if idempotent")
        check(b.partition.unsettled_count <= MOST_UNSETTLED, "no more unsettled than brokers remember")
        check(b.partition.first == NULL or b.partition.first.id > b.id, "the oldest batch goes first")
        check_batch(b)
    m.out_count += count
    return 0


cdef int end_one(RecordAccumulator acc, Model* m, Input* i, int64_t now, int how) except -1:
    """Ends a batch's request, as at a response: ``how`` is 0 acknowledged, 1 failed, 2 to be sent again."""
    cdef int at
    cdef Batch* b
    cdef Node* node
    if m.out_count == 0:
        return 0
    at = next_byte(i) % m.out_count
    b = m.out[at]
    m.out_count -= 1
    m.out[at] = m.out[m.out_count]
    node = b.partition.node
    if node != NULL:
        node.answered += 1
    if how == 2 and b.abandoned:
        how = 1   # its records have failed: it is not sent again
    if b.abandoned:
        m.abandoned -= 1
    elif how < 2:
        m.ended += b.count
    if how == 0:
        acc.complete(b, next_byte(i), -1)
    elif how == 1:
        acc.fail(b, KafkaTimeoutError("chosen by the fuzzer"))
    else:
        acc.requeue(b, 0 if next_byte(i) % 2 else now + 1_000_000)
    return 0


cdef int expire(RecordAccumulator acc, Model* m, int64_t before) except -1:
    cdef Batch* b = acc.overdue(before)
    if b == NULL:
        return 0
    m.ended += b.count
    if b.in_request:
        m.abandoned += 1
        acc.abandon(b, KafkaTimeoutError("too late"))
    else:
        acc.fail(b, KafkaTimeoutError("too late"))
    return 1


cdef int play(Input* i, Model* m) except -1:
    cdef uint8_t options = next_byte(i)
    cdef BufferPool pool = BufferPool([2048, 8192, 65536, 1 << 20][options % 4])
    cdef RecordAccumulator acc
    cdef TopicInfo topic
    cdef Topic* t
    cdef int op
    cdef int32_t n
    cdef int64_t now
    cdef int64_t counted
    clock = ManualClock(1_000_000_000)
    acc = RecordAccumulator(
        accumulator_options(
            batch_size=[1, 200, 1000, 16384][options >> 2 & 3],
            linger_ms=[0.0, 5.0][options >> 4 & 1],
            enable_idempotence=options >> 7,
            partitioner_single_broker_ms=1000.0,
        ),
        pool,
        clock,
        CompletionQueue(),
        compressor=COMPRESSORS[(options >> 5) % 3],
        seed=options,
        # Another thread would hold batches at any time, also at the end.
        compression_thread=False,
    )
    topic = acc.topic("t")
    # Pinned, so that forgetting the topic only drops its metadata: appends continue with this object.
    topic.pins = 1
    t = &topic.c
    make_node(&acc.c, 1)
    make_node(&acc.c, 2)
    set_identity(&acc.c, 4711, 0)
    while i.at != i.end:
        op = next_byte(i) % 16
        now = acc.clock.now_ns()
        if op < 7:
            append(acc, t, m, i, op < 4)
        elif op < 9:
            take(acc, m, i, now)
        elif op < 12:
            end_one(acc, m, i, now, op - 9)
        elif op == 12:
            clock.advance_ms(next_byte(i) / 16)
            expire_linger(&acc.c, acc.clock.now_ns())
        elif op == 13:
            n = 1 + next_byte(i) % PARTITIONS
            apply_topic(acc, topic, b"", [(next_byte(i) % 4) - 1 or -1 for _ in range(n)])
        elif op == 14:
            op = next_byte(i) % 8
            if op == 0:
                forget_topic(acc, topic)
            elif op == 1:
                acc.close()
            elif op == 2:
                fail_parked(acc, topic, KafkaTimeoutError("no metadata"), FAR_NS)
            elif op == 3:
                expire(acc, m, now - 2_000_000)
            else:
                for n in range(t.partition_count):
                    # As at the end of a backoff.
                    t.partitions[n].retry_at_ns = 0
                    refresh(&acc.c, t.partitions[n])
        check(acc.c.incomplete >= m.out_count - m.abandoned, "a batch in a request is incomplete")
    # The end, as in Sender.abort.
    acc.close()
    while m.out_count:
        end_one(acc, m, i, 0, 1)
    fail_parked(acc, topic, KafkaTimeoutError("closed"), FAR_NS)
    while expire(acc, m, FAR_NS):
        pass
    check(acc.c.incomplete == 0 and acc.c.oldest == NULL, "nothing stays incomplete")
    check(acc.c.records_appended == m.ended, "each appended record has an outcome")
    counted = acc.c.meters.all.total[RECORDS_SENT] + acc.c.meters.all.total[RECORDS_FAILED]
    check(counted >= m.ended, "each outcome is counted")
    check(m.ended >= m.accepted, "no record is lost")
    check(pool.in_use == 0, "all memory is returned")
    for n in range(m.held_count):
        check(m.held[n].state != PENDING, "no future stays pending")
        delivery_unref(m.held[n])
    return 0


cdef int fuzz_buffers(const uint8_t* data, size_t size) noexcept with gil:
    cdef Input i = Input(data, data + size)
    cdef Model m
    memset(&m, 0, sizeof(Model))
    try:
        play(&i, &m)
    except BaseException:
        traceback.print_exc()
        abort()
    return 0


def address(str target):
    """The address of a target's function, for libFuzzer to call; 0 if the target is not in this module."""
    return <size_t>&fuzz_buffers if target == "buffers" else 0
