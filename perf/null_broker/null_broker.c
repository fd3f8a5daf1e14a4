/* A Kafka cluster that stores nothing and acknowledges at once, so that only the client is measured.
 *
 * One process, one thread, epoll. Every broker has its own port. All brokers share the state of a partition: its
 * counts, and the last five batches of each producer (KIP-98), so that a batch sent twice is recognised and counted
 * once. On request it injects faults into connections, responses and leaders; see `faults` below.
 *
 *   null_broker -b BROKERS -p PARTITIONS -v HIGHEST_PRODUCE_VERSION [-c] [-a PORT,PORT...] [-s SESSION_MS]
 *
 * -c checks batches: checksums, and the numbers at the start of the values (see check_values). -a advertises these
 * ports, of a proxy in front. -s requires SASL PLAIN of each connection, again after SESSION_MS. Prints its ports, then
 * reads commands from stdin (`topic`, `faults`, `shift`, `down`, `report`) and responds to each with a line of JSON.
 * Exits at the end of stdin.
 *
 * Sources: Kafka protocol guide; KIP-43, KIP-152, KIP-368 (SASL), KIP-98 (idempotence), KIP-482 (flexible versions),
 * KIP-511, KIP-516, KIP-951.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    PRODUCE = 0, METADATA = 3, SASL_HANDSHAKE = 17, API_VERSIONS = 18, INIT_PRODUCER_ID = 22, SASL_AUTHENTICATE = 36,
    CORRUPT_MESSAGE = 2, UNKNOWN_TOPIC_OR_PARTITION = 3, LEADER_NOT_AVAILABLE = 5, NOT_LEADER = 6,
    REQUEST_TIMED_OUT = 7, COORDINATOR_LOADING = 14, NOT_ENOUGH_REPLICAS = 19, NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20,
    UNSUPPORTED_VERSION = 35, OUT_OF_ORDER = 45, DUPLICATE = 46, INVALID_EPOCH = 47, STORAGE_ERROR = 56,
    SASL_FAILED = 58, UNKNOWN_TOPIC_ID = 100,
    BATCH_HEADER = 61, KEPT = 5, SENDERS = 16, MOST_BROKERS = 1024, LARGEST_FRAME = 128 << 20,
};

/* ---- random numbers and faults ---- */

static uint64_t rng_state;

static uint64_t rnd(void) {   /* splitmix64 */
    uint64_t z = rng_state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static uint64_t below(uint64_t n) { return n ? rnd() % n : 0; }

/* Probabilities are per request unless stated otherwise. */
typedef struct { const char *name; double chance; long happened; } Fault;
enum { CUT_IN, CUT_OUT, LOSE, STALL, DELAY, SPLIT, THROTTLE, REFUSE, AFTER, MOVE, DOWN, LEADERLESS, NO_ID, FAULTS };
static Fault faults[FAULTS] = {
    [CUT_IN] = {.name = "cut_in"},          /* the connection ends after a random byte of the request */
    [CUT_OUT] = {.name = "cut_out"},        /* processed, but the connection ends inside the response */
    [LOSE] = {.name = "lose"},              /* processed, but the connection is silent from then on */
    [STALL] = {.name = "stall"},            /* not read for up to stall_ms, then processed even if the client is gone */
    [DELAY] = {.name = "delay"},            /* the response is delayed for up to delay_ms */
    [SPLIT] = {.name = "split"},            /* the response pauses at a random byte for up to delay_ms */
    [THROTTLE] = {.name = "throttle"},      /* the response has a throttle time of up to delay_ms (not enforced) */
    [REFUSE] = {.name = "refuse"},          /* per batch: an error before counting: 3, 7, 19 or 56 */
    [AFTER] = {.name = "after"},            /* per batch: an error after counting: 7 or 20 */
    [MOVE] = {.name = "move"},              /* per Produce request: its first partition gets another leader */
    [DOWN] = {.name = "down"},              /* the broker is down for up to down_ms, its partitions moved or not */
    [LEADERLESS] = {.name = "leaderless"},  /* per partition in Metadata: error 5 */
    [NO_ID] = {.name = "no_id"},            /* InitProducerId: error 14 */
};
static long delay_ms = 20, stall_ms = 1500, down_ms = 200;
static long latency_ms;   /* delays every response, in order; requests are read meanwhile */

static bool strikes(int fault) {
    double p = faults[fault].chance;
    if (p <= 0 || (double)(rnd() >> 11) * 0x1p-53 >= p) return false;
    faults[fault].happened++;
    return true;
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void *grown(void *old, size_t size) {
    void *p = realloc(old, size);
    if (!p) { perror("null_broker"); exit(1); }
    return p;
}

/* ---- partitions ---- */

typedef struct { int32_t first, last; int64_t offset; } Batch;
typedef struct { int64_t id; int epoch, kept; Batch batches[KEPT]; /* the newest last */ } Producer;
typedef struct {
    int leader, leader_epoch;
    int64_t records, batches, bytes, duplicates, out_of_order, refused, corrupt, disorder, unnumbered;
    uint64_t sums[3];            /* of the numbers in values, their squares and their cubes, modulo 2^64 */
    uint64_t next[SENDERS];      /* one more than the last number of each sender */
    Producer *producers;
    int producer_count;
} Partition;
typedef struct { char name[256]; int name_size; uint8_t id[16]; int count; Partition *partitions; } Topic;

static Topic *topics;
static int topic_room, *slots, slot_count;   /* slots: a hash table of names; one more than the index, or 0 */
static int topic_count, broker_count = 1, default_partitions = 1, highest_produce = 13;
static bool checking;
static int64_t next_producer_id = 1000, requests[5], acked_batches, stale, expired;
static int ports[MOST_BROKERS], advertised[MOST_BROKERS], listeners[MOST_BROKERS];
static long session_ms = -1;   /* -1: without SASL */
static const char credentials[] = "\0soak\0secret";
static int64_t down_until[MOST_BROKERS];

/* The slot of a name: the one that has it, or the empty one where it belongs. */
static int slot_of(const uint8_t *name, int64_t size) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (int64_t i = 0; i < size; i++) hash = (hash ^ name[i]) * 0x100000001B3u;
    int slot = (int)(hash % (uint64_t)slot_count);
    while (slots[slot]) {
        const Topic *t = &topics[slots[slot] - 1];
        if (t->name_size == size && !memcmp(t->name, name, size)) break;
        slot = (slot + 1) % slot_count;
    }
    return slot;
}

static Topic *find_topic(const uint8_t *name, int64_t size) {
    int found = slot_count && size > 0 ? slots[slot_of(name, size)] : 0;
    return found ? &topics[found - 1] : NULL;
}

static Topic *find_topic_id(const uint8_t *id) {
    uint32_t number = (uint32_t)id[12] << 24 | (uint32_t)id[13] << 16 | (uint32_t)id[14] << 8 | id[15];
    if (!number || number > (uint32_t)topic_count) return NULL;
    Topic *t = &topics[number - 1];
    return memcmp(t->id, id, 16) ? NULL : t;
}

static Topic *make_topic(const uint8_t *name, int64_t size, int count) {
    if (size < 1 || size > 249) return NULL;
    if (topic_count == topic_room) {
        topic_room = 2 * topic_room + 64;
        slot_count = 4 * topic_room;
        topics = grown(topics, sizeof(Topic) * topic_room);
        slots = memset(grown(slots, sizeof(int) * slot_count), 0, sizeof(int) * slot_count);
        for (int i = 0; i < topic_count; i++)
            slots[slot_of((uint8_t *)topics[i].name, topics[i].name_size)] = i + 1;
    }
    int slot = slot_of(name, size);
    Topic *t = memset(&topics[topic_count++], 0, sizeof(Topic));
    slots[slot] = topic_count;
    memcpy(t->name, name, size);
    t->name_size = (int)size;
    memcpy(t->id, "null broker", 11);
    for (int i = 0; i < 4; i++) t->id[12 + i] = (uint8_t)(topic_count >> (24 - 8 * i));
    t->count = count;
    t->partitions = memset(grown(NULL, sizeof(Partition) * count), 0, sizeof(Partition) * count);
    /* From another broker on for each topic, so that all brokers lead some of many small topics. */
    for (int i = 0; i < count; i++) t->partitions[i].leader = (int)(((int64_t)(topic_count - 1) * count + i) % broker_count);
    return t;
}

static void move_leader(Partition *p) {
    if (broker_count < 2) return;
    p->leader = (int)((p->leader + 1 + below(broker_count - 1)) % broker_count);
    p->leader_epoch++;
}

/* ---- bytes ---- */

typedef struct { const uint8_t *at, *end; bool bad, flexible; } In;
typedef struct { uint8_t *data; size_t size, room; bool flexible; } Out;

static const uint8_t *take(In *in, int64_t n) {
    if (n < 0 || in->end - in->at < n) { in->bad = true; in->at = in->end; return (const uint8_t *)""; }
    const uint8_t *p = in->at;
    in->at += n;
    return p;
}

static uint64_t big(const uint8_t *p, int n) {
    uint64_t v = 0;
    while (n--) v = v << 8 | *p++;
    return v;
}

static int64_t r8(In *in) { const uint8_t *p = take(in, 1); return in->bad ? 0 : p[0]; }
static int64_t r16(In *in) { const uint8_t *p = take(in, 2); return in->bad ? 0 : (int16_t)big(p, 2); }
static int64_t r32(In *in) { const uint8_t *p = take(in, 4); return in->bad ? 0 : (int32_t)big(p, 4); }

static uint64_t rvarint(In *in) {
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        uint8_t b = (uint8_t)r8(in);
        v |= (uint64_t)(b & 127) << shift;
        if (b < 128) return v;
    }
    in->bad = true;
    return 0;
}

static int64_t rzigzag(In *in) { uint64_t v = rvarint(in); return (int64_t)(v >> 1) ^ -(int64_t)(v & 1); }
/* An array's count or a byte string's size; -1 for null. */
static int64_t rcount(In *in) { return in->flexible ? (int64_t)rvarint(in) - 1 : r32(in); }

static const uint8_t *rstring(In *in, int64_t *size) {
    *size = in->flexible ? (int64_t)rvarint(in) - 1 : r16(in);
    return *size > 0 ? take(in, *size) : (const uint8_t *)"";
}

static void rtags(In *in) {
    for (uint64_t n = in->flexible ? rvarint(in) : 0; n && !in->bad; n--) { rvarint(in); take(in, rvarint(in)); }
}

static uint8_t *room(Out *out, size_t n) {
    if (out->size + n > out->room) out->data = grown(out->data, out->room = 2 * (out->size + n) + 4096);
    out->size += n;
    return out->data + out->size - n;
}

static void w(Out *out, int bytes, int64_t v) {
    uint8_t *p = room(out, bytes);
    while (bytes--) { p[bytes] = (uint8_t)v; v >>= 8; }
}

static void wvarint(Out *out, uint64_t v) {
    for (; v > 127; v >>= 7) w(out, 1, (int64_t)(v & 127) | 128);
    w(out, 1, (int64_t)v);
}

static void wcount(Out *out, int64_t n) { if (out->flexible) wvarint(out, n + 1); else w(out, 4, n); }
static void wtags(Out *out) { if (out->flexible) w(out, 1, 0); }

static void wstring(Out *out, const void *text, int64_t size) {   /* NULL: null */
    if (!text) size = -1;
    if (out->flexible) wvarint(out, size + 1); else w(out, 2, size);
    if (size > 0) memcpy(room(out, size), text, size);
}

/* ---- batches ---- */

static uint32_t crc_table[8][256];

static void make_crc_table(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c & 1 ? c >> 1 ^ 0x82F63B78u : c >> 1;
        crc_table[0][i] = c;
    }
    for (int k = 1; k < 8; k++)
        for (int i = 0; i < 256; i++) crc_table[k][i] = crc_table[k - 1][i] >> 8 ^ crc_table[0][crc_table[k - 1][i] & 255];
}

static uint32_t crc32c(const uint8_t *p, size_t n) {
    uint32_t c = ~0u;
    for (; n >= 8; n -= 8, p += 8) {
        c ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        c = crc_table[7][c & 255] ^ crc_table[6][c >> 8 & 255] ^ crc_table[5][c >> 16 & 255] ^ crc_table[4][c >> 24]
            ^ crc_table[3][p[4]] ^ crc_table[2][p[5]] ^ crc_table[1][p[6]] ^ crc_table[0][p[7]];
    }
    while (n--) c = c >> 8 ^ crc_table[0][(c ^ *p++) & 255];
    return ~c;
}

/* Values start with a number of 8 bytes: the sender in the highest byte, below it the sender's counter. Within a
 * partition a sender's numbers increase. Over all partitions each number occurs once, which the sums show. */
static void check_values(Partition *p, const uint8_t *batch, int64_t size, int32_t count) {
    In in = {batch + BATCH_HEADER, batch + size, false, false};
    if (batch[22] & 7) { p->unnumbered += count; return; }
    for (int32_t i = 0; i < count && !in.bad; i++) {
        int64_t length = rzigzag(&in);
        const uint8_t *end = in.at + length;
        if (length < 0 || end > in.end) { in.bad = true; break; }
        take(&in, 1);
        rzigzag(&in), rzigzag(&in);
        int64_t key_size = rzigzag(&in);
        if (key_size > 0) take(&in, key_size);
        int64_t value_size = rzigzag(&in);
        const uint8_t *value = take(&in, value_size > 0 ? value_size : 0);
        if (in.bad || value_size < 8 || value[0] >= SENDERS) {
            p->unnumbered++;
        } else {
            uint64_t n = big(value + 1, 7);
            p->disorder += n < p->next[value[0]];
            p->next[value[0]] = n + 1;
            p->sums[0] += n, p->sums[1] += n * n, p->sums[2] += n * n * n;
        }
        in.at = end;
    }
    p->corrupt += in.bad || in.at != in.end;
}

/* Checks a batch against the producer's last ones. Returns 0 or the error code. Sets the offset of a known batch. */
static int judge(const Producer *k, int epoch, int32_t first, int32_t last, int64_t *known_offset) {
    if (epoch < k->epoch) return INVALID_EPOCH;
    if (epoch > k->epoch) return first ? OUT_OF_ORDER : 0;
    for (int i = 0; i < k->kept; i++)
        if (k->batches[i].first == first && k->batches[i].last == last) { *known_offset = k->batches[i].offset; return 0; }
    uint32_t newest = (uint32_t)k->batches[k->kept - 1].last;
    uint32_t ahead = ((uint32_t)first - newest - 1) & 0x7FFFFFFF;
    if (!ahead) return 0;
    return ((newest - (uint32_t)last) & 0x7FFFFFFF) < 0x40000000 ? DUPLICATE : OUT_OF_ORDER;
}

static int append(Partition *p, const uint8_t *b, int64_t size, int64_t *offset) {
    int32_t count = size < BATCH_HEADER ? 0 : (int32_t)big(b + 57, 4);
    if (count < 1 || b[16] != 2 || (int64_t)big(b + 8, 4) != size - 12
        || (checking && crc32c(b + 21, size - 21) != (uint32_t)big(b + 17, 4))) {
        p->corrupt++;
        return CORRUPT_MESSAGE;
    }
    int64_t id = (int64_t)big(b + 43, 8);
    *offset = p->records;
    if (id >= 0) {
        int epoch = (int16_t)big(b + 51, 2);
        int32_t first = (int32_t)big(b + 53, 4), last = (int32_t)(((uint32_t)first + count - 1) & 0x7FFFFFFF);
        Producer *k = NULL;
        for (int i = p->producer_count; i-- && !k;)
            if (p->producers[i].id == id) k = &p->producers[i];
        if (!k) {
            p->producers = grown(p->producers, sizeof(Producer) * (p->producer_count + 1));
            k = &p->producers[p->producer_count++];
            k->id = id, k->epoch = epoch, k->kept = 0;
        } else {
            int64_t known = -1;
            int error = judge(k, epoch, first, last, &known);
            if (error) {
                p->out_of_order += error == OUT_OF_ORDER;
                stale += error != OUT_OF_ORDER;
                return error;
            }
            if (known >= 0) { p->duplicates++; *offset = known; return 0; }
            if (epoch > k->epoch) k->epoch = epoch, k->kept = 0;
        }
        if (k->kept == KEPT) memmove(k->batches, k->batches + 1, sizeof(Batch) * --k->kept);
        k->batches[k->kept++] = (Batch){first, last, *offset};
    }
    p->records += count;
    p->batches++;
    p->bytes += size;
    if (checking) check_values(p, b, size, count);
    return 0;
}

/* ---- requests ---- */

/* Returns whether there is a response. A malformed request sets in->bad. */
static bool produce(In *in, Out *out, int version, int broker, int32_t throttle_ms) {
    int64_t size;
    rstring(in, &size);
    int64_t acks = r16(in);
    r32(in);
    bool broken = false;
    int64_t topics_left = rcount(in);
    wcount(out, topics_left);
    bool move = strikes(MOVE);
    for (; topics_left > 0 && !in->bad; topics_left--) {
        const uint8_t *name = version >= 13 ? take(in, 16) : rstring(in, &size);
        if (in->bad) break;
        Topic *t = version >= 13 ? find_topic_id(name) : find_topic(name, size);
        if (version >= 13) memcpy(room(out, 16), name, 16); else wstring(out, name, size);
        int64_t partitions = rcount(in);
        wcount(out, partitions);
        for (; partitions > 0 && !in->bad; partitions--) {
            int64_t index = r32(in), records = rcount(in), offset = -1;
            const uint8_t *batch = take(in, records < 0 ? 0 : records);
            rtags(in);
            if (in->bad) break;
            Partition *p = t && index >= 0 && index < t->count ? &t->partitions[index] : NULL;
            int error = 0;
            if (p && move) { move_leader(p); move = false; }
            if (!p) {
                error = version >= 13 && !t ? UNKNOWN_TOPIC_ID : UNKNOWN_TOPIC_OR_PARTITION;
            } else if (p->leader != broker) {
                error = NOT_LEADER;
            } else if (strikes(REFUSE)) {
                static const int codes[] = {UNKNOWN_TOPIC_OR_PARTITION, REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS, STORAGE_ERROR};
                error = codes[below(4)];
            } else {
                error = append(p, batch, records, &offset);
                if (!error && acks && strikes(AFTER)) error = below(2) ? REQUEST_TIMED_OUT : NOT_ENOUGH_REPLICAS_AFTER_APPEND;
            }
            if (error) { offset = -1; broken = true; if (p) p->refused++; }
            acked_batches += !error;
            w(out, 4, index), w(out, 2, error), w(out, 8, offset), w(out, 8, -1);
            if (version >= 5) w(out, 8, error ? -1 : 0);
            if (version >= 8) { wcount(out, 0); wstring(out, NULL, 0); }
            if (version >= 10 && error == NOT_LEADER) {   /* tag 0: the current leader (KIP-951) */
                w(out, 1, 1), w(out, 1, 0), w(out, 1, 9), w(out, 4, p->leader + 1), w(out, 4, p->leader_epoch), w(out, 1, 0);
            } else {
                wtags(out);
            }
        }
        rtags(in);
        wtags(out);
    }
    w(out, 4, throttle_ms);
    wtags(out);
    if (!acks && broken) in->bad = true;   /* with acks=0, closing the connection is the only way to report it */
    return acks != 0;
}

static void put_topic(Out *out, int version, const Topic *t, const uint8_t *name, int64_t size, const uint8_t *id) {
    w(out, 2, t ? 0 : id ? UNKNOWN_TOPIC_ID : UNKNOWN_TOPIC_OR_PARTITION);
    wstring(out, t ? (const uint8_t *)t->name : name, t ? t->name_size : size);
    if (version >= 10) memcpy(room(out, 16), t ? t->id : id ? id : (const uint8_t[16]){0}, 16);
    if (version >= 1) w(out, 1, 0);
    wcount(out, t ? t->count : 0);
    for (int i = 0; t && i < t->count; i++) {
        const Partition *p = &t->partitions[i];
        bool none = strikes(LEADERLESS);
        w(out, 2, none ? LEADER_NOT_AVAILABLE : 0), w(out, 4, i), w(out, 4, none ? -1 : p->leader + 1);
        if (version >= 7) w(out, 4, p->leader_epoch);
        wcount(out, 1), w(out, 4, p->leader + 1), wcount(out, 1), w(out, 4, p->leader + 1);
        if (version >= 5) wcount(out, 0);
        wtags(out);
    }
    if (version >= 8) w(out, 4, INT32_MIN);
    wtags(out);
}

static void metadata(In *in, Out *out, int version) {
    if (version >= 3) w(out, 4, 0);
    wcount(out, broker_count);
    for (int i = 0; i < broker_count; i++) {
        w(out, 4, i + 1), wstring(out, "127.0.0.1", 9), w(out, 4, advertised[i] ? advertised[i] : ports[i]);
        if (version >= 1) wstring(out, NULL, 0);
        wtags(out);
    }
    if (version >= 2) wstring(out, "null", 4);
    if (version >= 1) w(out, 4, 1);
    int64_t asked = rcount(in);
    if (asked < 0 || (asked == 0 && version == 0)) {
        wcount(out, topic_count);
        for (int i = 0; i < topic_count; i++) put_topic(out, version, &topics[i], NULL, 0, NULL);
    } else {
        bool create = true;
        if (version >= 4) {   /* the flag that allows topic creation follows the names */
            In ahead = *in;
            for (int64_t n = asked; n > 0 && !ahead.bad; n--) {
                int64_t size;
                if (version >= 10) take(&ahead, 16);
                rstring(&ahead, &size);
                rtags(&ahead);
            }
            create = r8(&ahead) != 0;
        }
        wcount(out, asked);
        for (; asked > 0 && !in->bad; asked--) {
            const uint8_t *id = version >= 10 ? take(in, 16) : NULL;
            int64_t size;
            const uint8_t *name = rstring(in, &size);
            rtags(in);
            if (in->bad) return;
            Topic *t = size >= 0 ? find_topic(name, size) : find_topic_id(id);
            if (!t && size >= 0 && create) t = make_topic(name, size, default_partitions);
            put_topic(out, version, t, size < 0 ? NULL : name, size, size < 0 ? id : NULL);
        }
    }
    if (version >= 8 && version <= 10) w(out, 4, INT32_MIN);
    if (version >= 13) w(out, 2, 0);
    wtags(out);
}

static void init_producer_id(Out *out) {
    bool none = strikes(NO_ID);
    w(out, 4, 0), w(out, 2, none ? COORDINATOR_LOADING : 0);
    w(out, 8, none ? -1 : next_producer_id++), w(out, 2, none ? -1 : 0);
    wtags(out);
}

static void api_versions(Out *out, int version) {
    /* Fetch and ListOffsets are listed but not implemented: without them librdkafka assumes an old message format. */
    const int ranges[][3] = {{PRODUCE, 0, highest_produce}, {1, 0, 11}, {2, 0, 5}, {METADATA, 0, highest_produce > 9 ? 13 : 9},
                             {API_VERSIONS, 0, 4}, {INIT_PRODUCER_ID, 0, 5}, {SASL_HANDSHAKE, 1, 1}, {SASL_AUTHENTICATE, 0, 2}};
    size_t count = sizeof ranges / sizeof *ranges - (session_ms < 0 ? 2 : 0);
    bool known = version <= 4;
    out->flexible = known && version >= 3;
    w(out, 2, known ? 0 : UNSUPPORTED_VERSION);
    wcount(out, count);
    for (size_t i = 0; i < count; i++) {
        w(out, 2, ranges[i][0]), w(out, 2, ranges[i][1]), w(out, 2, ranges[i][2]);
        wtags(out);
    }
    if (known && version >= 1) w(out, 4, 0);
    wtags(out);
}

static void sasl_handshake(In *in, Out *out) {
    int64_t size;
    const uint8_t *name = rstring(in, &size);
    bool known = name && size == 5 && !memcmp(name, "PLAIN", 5);
    w(out, 2, known ? 0 : 33), w(out, 4, 1), wstring(out, "PLAIN", 5);
}

/* until: when the session ends. */
static void sasl_authenticate(In *in, Out *out, int version, int64_t *until) {
    int64_t size = rcount(in);
    const uint8_t *given = take(in, size);
    bool valid = given && !in->bad && size == sizeof credentials - 1 && !memcmp(given, credentials, (size_t)size);
    *until = valid ? session_ms ? now_ns() + session_ms * 1000000 : INT64_MAX : 0;
    w(out, 2, valid ? 0 : SASL_FAILED), wstring(out, NULL, 0), wcount(out, 0);
    if (version >= 1) w(out, 8, valid ? session_ms : 0);
    wtags(out);
}

/* Whether a request may come now on a connection whose session ends at `until`. */
static bool allowed_now(int64_t key, int64_t until) {
    if (session_ms < 0) return key != SASL_HANDSHAKE && key != SASL_AUTHENTICATE;
    if (key == API_VERSIONS || key == SASL_HANDSHAKE || key == SASL_AUTHENTICATE) return true;
    if (until && until <= now_ns()) expired++;
    return until > now_ns();
}

/* Responds to one frame, which has no size prefix. Returns false if the connection must be closed. */
static bool answer(const uint8_t *frame, int64_t size, Out *out, int broker, int64_t *until) {
    static const int flexible_from[] = {[PRODUCE] = 9, [METADATA] = 9, [API_VERSIONS] = 3, [INIT_PRODUCER_ID] = 2,
                                        [SASL_HANDSHAKE] = INT32_MAX, [SASL_AUTHENTICATE] = 2};
    In in = {frame, frame + size, false, false};
    int64_t key = r16(&in), version = r16(&in), correlation_id = r32(&in), client_id_size;
    rstring(&in, &client_id_size);
    size_t start = out->size;
    bool wanted = true;
    if (in.bad || (key != PRODUCE && key != METADATA && key != API_VERSIONS && key != INIT_PRODUCER_ID
                   && key != SASL_HANDSHAKE && key != SASL_AUTHENTICATE) || !allowed_now(key, *until)) return false;
    in.flexible = out->flexible = version >= flexible_from[key];
    rtags(&in);
    w(out, 4, 0), w(out, 4, correlation_id);
    if (key != API_VERSIONS) wtags(out);
    if (key != SASL_HANDSHAKE)
        requests[key == PRODUCE ? 0 : key == METADATA ? 1 : key == API_VERSIONS ? 2 : key == INIT_PRODUCER_ID ? 3 : 4]++;
    if (key == API_VERSIONS) {
        api_versions(out, (int)version);
    } else if (key == PRODUCE && version >= 3 && version <= highest_produce) {
        wanted = produce(&in, out, (int)version, broker, strikes(THROTTLE) ? (int32_t)below(delay_ms + 1) : 0);
    } else if (key == METADATA && version <= 13) {
        metadata(&in, out, (int)version);
    } else if (key == INIT_PRODUCER_ID && version <= 5) {
        init_producer_id(out);
    } else if (key == SASL_HANDSHAKE && version == 1) {
        sasl_handshake(&in, out);
    } else if (key == SASL_AUTHENTICATE && version <= 2) {
        sasl_authenticate(&in, out, (int)version, until);
    } else {
        return false;
    }
    if (wanted) {
        for (int i = 0; i < 4; i++) out->data[start + i] = (uint8_t)((out->size - start - 4) >> (24 - 8 * i));
    } else {
        out->size = start;
    }
    return !in.bad;
}

/* ---- connections ---- */

typedef struct { size_t end; int64_t due; } Departure;   /* out may be written up to `end` from `due` on */
typedef struct Connection {
    int fd, broker, watched;          /* watched: the events registered with epoll; 0: not registered */
    uint8_t *in;
    size_t in_room, in_start, in_end;
    Out out;
    size_t sent, allowed;             /* bytes of out that are written, and that may be written before hold_until */
    Departure *departures;            /* of responses that latency_ms delays, in order */
    size_t departing, departure_room;
    int64_t session_until;            /* when its SASL session ends; 0: there is none */
    int64_t hold_until, cut_at;       /* cut_at: the byte of the frame at which it ends; -1: none, -2: not drawn yet */
    bool silent, closing, stalled;
    struct Connection *next;
} Connection;

static Connection *connections;
static int epoll_fd;
/* Whether a connection was closed since the last sweep, or may wait for a time: otherwise none is looked at. */
static bool closed, timed;

static void close_connection(Connection *c) {
    if (c->fd < 0) return;
    struct linger reset = {1, 0};
    if (below(2)) setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    close(c->fd);
    c->fd = -1;
    closed = true;
}

static void sweep(void) {   /* frees closed connections between two waits, when no event points to one */
    if (!closed) return;
    closed = false;
    for (Connection **at = &connections; *at;) {
        Connection *c = *at;
        if (c->fd >= 0) { at = &c->next; continue; }
        *at = c->next;
        free(c->in), free(c->out.data), free(c->departures), free(c);
    }
}

static void watch(Connection *c, int events) {
    if (c->fd < 0 || events == c->watched) return;
    struct epoll_event e = {.events = (uint32_t)events, .data.ptr = c};
    epoll_ctl(epoll_fd, !events ? EPOLL_CTL_DEL : c->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, c->fd, &e);
    c->watched = events;
}

/* Returns how much of out may be written now. */
static size_t departed(Connection *c) {
    if (!c->departing) return c->out.size;
    int64_t now = now_ns();
    size_t gone = 0;
    while (gone < c->departing && c->departures[gone].due <= now) gone++;
    if (gone == c->departing) { c->departing = 0; return c->out.size; }
    size_t end = gone ? c->departures[gone - 1].end : c->sent;
    c->departing -= gone;
    memmove(c->departures, c->departures + gone, c->departing * sizeof(Departure));
    return end;
}

static void depart_later(Connection *c) {
    if (c->departing == c->departure_room)
        c->departures = grown(c->departures, sizeof(Departure) * (c->departure_room = 2 * c->departure_room + 8));
    timed = true;
    c->departures[c->departing++] = (Departure){c->out.size, now_ns() + latency_ms * 1000000};
}

static bool flushed(Connection *c) {   /* false: the socket is full, data is held back, or the connection is closed */
    size_t end = c->hold_until ? c->allowed : departed(c);
    while (c->sent < end) {
        ssize_t n = send(c->fd, c->out.data + c->sent, end - c->sent, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
        if (n < 0) {
            /* Requests that have already arrived are still processed, as by a real broker. */
            c->silent = true;
            break;
        }
        c->sent += (size_t)n;
    }
    if (c->silent) c->sent = c->out.size, c->departing = 0;
    if (c->departing && c->sent > 65536) {
        memmove(c->out.data, c->out.data + c->sent, c->out.size -= c->sent);
        for (size_t i = 0; i < c->departing; i++) c->departures[i].end -= c->sent;
        c->sent = 0;
    }
    if (c->sent < c->out.size) return c->departing && !c->hold_until;
    c->sent = c->out.size = 0;
    if (c->closing) close_connection(c);
    return c->fd >= 0;
}

static void hold(Connection *c, long most_ms) {
    c->hold_until = now_ns() + (int64_t)(1 + below(most_ms)) * 1000000;
    timed = true;
}

/* whole: all of its partitions get another leader, as if it were shut down in an orderly way; otherwise half of them. */
static void take_down(int broker, long ms, bool whole) {
    down_until[broker] = now_ns() + ms * 1000000;
    for (Connection *c = connections; c; c = c->next)
        if (c->broker == broker) close_connection(c);
    for (int i = 0; i < topic_count; i++)
        for (int k = 0; k < topics[i].count; k++)
            if (topics[i].partitions[k].leader == broker && (whole || below(2))) move_leader(&topics[i].partitions[k]);
}

static void shift_leaders(const char *prefix) {
    for (int i = 0; i < topic_count; i++) {
        if (strncmp(topics[i].name, prefix, strlen(prefix))) continue;
        for (int k = 0; k < topics[i].count; k++) {
            Partition *p = &topics[i].partitions[k];
            p->leader = (p->leader + 1) % broker_count;
            p->leader_epoch++;
        }
    }
}

/* Responds to the frame at in_start, and injects faults. Returns false if there is nothing more to do now. */
static bool serve_frame(Connection *c, int64_t size) {
    if (strikes(DOWN)) { take_down(c->broker, (long)(1 + below(down_ms)), false); return false; }
    if (!c->stalled && strikes(STALL)) { c->stalled = true; c->allowed = 0; hold(c, stall_ms); return false; }
    c->stalled = false;
    size_t before = c->out.size;
    if (!answer(c->in + c->in_start + 4, size, &c->out, c->broker, &c->session_until)) { close_connection(c); return false; }
    c->in_start += 4 + (size_t)size;
    c->cut_at = -2;
    if (c->silent) c->out.size = before;
    if (latency_ms && c->out.size > before) depart_later(c);
    if (strikes(CUT_OUT)) {
        c->out.size = before + below(c->out.size - before);
        c->closing = true;
    } else if (strikes(LOSE)) {
        c->out.size = before;
        c->silent = true;
    } else if (strikes(DELAY)) {
        c->allowed = before;
        hold(c, delay_ms);
    } else if (strikes(SPLIT)) {
        c->allowed = before + below(c->out.size - before);
        hold(c, delay_ms);
    }
    return flushed(c);
}

static void serve(Connection *c) {
    while (c->fd >= 0) {
        if (c->hold_until) { flushed(c); watch(c, 0); return; }
        if (!flushed(c)) { watch(c, EPOLLOUT); return; }
        size_t have = c->in_end - c->in_start;
        int64_t size = have >= 4 ? (int64_t)big(c->in + c->in_start, 4) : 0;
        if (size > LARGEST_FRAME) { close_connection(c); return; }
        if (have >= 4 && c->cut_at == -2) c->cut_at = strikes(CUT_IN) ? (int64_t)below((uint64_t)size + 4) : -1;
        if (c->cut_at >= 0 && have >= (size_t)c->cut_at) { close_connection(c); return; }
        if (have >= 4 && have >= (size_t)size + 4) { serve_frame(c, size); continue; }
        if (c->in_start && (c->in_start == c->in_end || c->in_end == c->in_room)) {
            memmove(c->in, c->in + c->in_start, have);
            c->in_start = 0, c->in_end = have;
        }
        if (c->in_room < (size_t)size + 4 || c->in_end == c->in_room)
            c->in = grown(c->in, c->in_room = (size_t)size + 4 > (1u << 20) ? (size_t)size + 4 + (1u << 20) : 2u << 20);
        ssize_t n = recv(c->fd, c->in + c->in_end, c->in_room - c->in_end, 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) { watch(c, EPOLLIN); return; }
        if (n <= 0) { close_connection(c); return; }
        c->in_end += (size_t)n;
    }
}

static void welcome(int broker) {
    int fd, one = 1;
    while ((fd = accept4(listeners[broker], NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        if (down_until[broker] > now_ns()) { close(fd); continue; }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        Connection *c = memset(grown(NULL, sizeof *c), 0, sizeof *c);
        c->fd = fd, c->broker = broker, c->cut_at = -2, c->next = connections;
        connections = c;
        watch(c, EPOLLIN);
    }
}

/* ---- control ---- */

static void report(void) {
    printf("{\"requests\": {\"produce\": %ld, \"metadata\": %ld, \"api_versions\": %ld, \"init_producer_id\": %ld, "
           "\"sasl_authenticate\": %ld}",
           (long)requests[0], (long)requests[1], (long)requests[2], (long)requests[3], (long)requests[4]);
    printf(", \"batches_acknowledged\": %ld, \"stale\": %ld, \"expired\": %ld, \"faults\": {",
           (long)acked_batches, (long)stale, (long)expired);
    for (int i = 0; i < FAULTS; i++) printf("%s\"%s\": %ld", i ? ", " : "", faults[i].name, faults[i].happened);
    printf("}, \"topics\": {");
    for (int i = 0; i < topic_count; i++) {
        printf("%s\"%s\": [", i ? ", " : "", topics[i].name);
        for (int k = 0; k < topics[i].count; k++) {
            const Partition *p = &topics[i].partitions[k];
            printf("%s{\"records\": %ld, \"batches\": %ld, \"bytes\": %ld, \"duplicates\": %ld, \"out_of_order\": %ld, "
                   "\"refused\": %ld, \"corrupt\": %ld, \"disorder\": %ld, \"unnumbered\": %ld, \"sums\": [%lu, %lu, %lu]}",
                   k ? ", " : "", (long)p->records, (long)p->batches, (long)p->bytes, (long)p->duplicates,
                   (long)p->out_of_order, (long)p->refused, (long)p->corrupt, (long)p->disorder, (long)p->unnumbered,
                   (unsigned long)p->sums[0], (unsigned long)p->sums[1], (unsigned long)p->sums[2]);
        }
        printf("]");
    }
    printf("}}\n");
}

/* `faults`: sets the named faults, as NAME=PROBABILITY, and switches off the others; also seed=, delay_ms=,
 * stall_ms=, down_ms=, latency_ms=. */
static bool set_faults(char *words) {
    for (int i = 0; i < FAULTS; i++) faults[i].chance = 0;
    latency_ms = 0;
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) {
        char *value = strchr(word, '=');
        bool known = false;
        if (!value) return false;
        *value++ = 0;
        for (int i = 0; i < FAULTS; i++)
            if (!strcmp(word, faults[i].name)) faults[i].chance = atof(value), known = true;
        if (!strcmp(word, "seed")) rng_state = strtoull(value, NULL, 10), known = true;
        if (!strcmp(word, "delay_ms")) delay_ms = atol(value), known = true;
        if (!strcmp(word, "stall_ms")) stall_ms = atol(value), known = true;
        if (!strcmp(word, "down_ms")) down_ms = atol(value), known = true;
        if (!strcmp(word, "latency_ms")) latency_ms = atol(value), known = true;
        if (!known) return false;
    }
    return true;
}

/* `shift PREFIX`: the leaders of these topics' partitions move to the next broker. `down BROKER MS`: see take_down. */
static void obey(char *line) {
    char name[256];
    int count;
    long ms;
    bool done = false;
    if (!strcmp(line, "report")) {
        report();
        fflush(stdout);
        return;
    }
    if (!strncmp(line, "faults", 6)) {
        done = set_faults(line + 6);
    } else if (sscanf(line, "shift %249s", name) == 1) {
        shift_leaders(name);
        done = true;
    } else if (sscanf(line, "down %d %ld", &count, &ms) == 2 && count >= 0 && count < broker_count) {
        take_down(count, ms, true);
        done = true;
    } else if (sscanf(line, "topic %249s %d", name, &count) == 2 && count > 0) {
        done = !find_topic((uint8_t *)name, (int64_t)strlen(name)) && make_topic((uint8_t *)name, (int64_t)strlen(name), count);
    }
    printf(done ? "{\"done\": true}\n" : "{\"done\": false}\n");
    fflush(stdout);
}

static void listen_to_all(void) {
    /* A descriptor for each broker and each connection: usually more than the soft limit. */
    struct rlimit files;
    if (!getrlimit(RLIMIT_NOFILE, &files)) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    for (int i = 0; i < broker_count; i++) {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t size = sizeof a;
        int fd = listeners[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = &listeners[i]};
        if (fd < 0 || bind(fd, (struct sockaddr *)&a, size) || listen(fd, 128)
            || getsockname(fd, (struct sockaddr *)&a, &size) || epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &e)) {
            perror("null_broker");
            exit(1);
        }
        ports[i] = ntohs(a.sin_port);
        printf("%s%d", i ? ", " : "{\"ports\": [", ports[i]);
    }
    printf("]}\n");
    fflush(stdout);
}

int main(int argc, char **argv) {
    static char line[4096];
    size_t line_size = 0;
    for (int option; (option = getopt(argc, argv, "b:p:v:ca:s:")) != -1;) {
        if (option == 'b') broker_count = atoi(optarg);
        else if (option == 'p') default_partitions = atoi(optarg);
        else if (option == 'v') highest_produce = atoi(optarg);
        else if (option == 'c') checking = true;
        else if (option == 's') session_ms = atol(optarg);
        else if (option == 'a') {
            int count = 0;
            for (char *port = strtok(optarg, ","); port && count < MOST_BROKERS; port = strtok(NULL, ","))
                advertised[count++] = atoi(port);
        }
        else return 2;
    }
    if (broker_count < 1 || broker_count > MOST_BROKERS || default_partitions < 1 || highest_produce < 3 || highest_produce > 13)
        return 2;
    make_crc_table();
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = NULL};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, 0, &e)) { perror("null_broker: stdin"); return 1; }
    listen_to_all();
    for (;;) {
        struct epoll_event events[64];
        int64_t now = 0, wait_ns = -1;
        sweep();
        bool waiting = false;
        for (Connection *c = timed ? connections : NULL; c; c = c->next) {
            int64_t due = c->hold_until ? c->hold_until : c->departing ? c->departures[0].due : 0;
            if (!due) continue;
            waiting = true;
            if (!now) now = now_ns();
            if (due > now) {
                if (wait_ns < 0 || due - now < wait_ns) wait_ns = due - now;
                continue;
            }
            c->hold_until = 0;
            serve(c);
            wait_ns = 0;
        }
        timed = waiting;
        int n = epoll_wait(epoll_fd, events, 64, wait_ns < 0 ? -1 : (int)((wait_ns + 999999) / 1000000));
        for (int i = 0; i < n; i++) {
            void *what = events[i].data.ptr;
            if (what == NULL) {
                ssize_t got = read(0, line + line_size, sizeof line - 1 - line_size);
                if (got <= 0) return 0;
                line_size += (size_t)got;
                for (char *end; (end = memchr(line, '\n', line_size));) {
                    *end = 0;
                    obey(line);
                    line_size -= (size_t)(end + 1 - line);
                    memmove(line, end + 1, line_size);
                }
                if (line_size == sizeof line - 1) return 1;
            } else if (what >= (void *)listeners && what < (void *)(listeners + MOST_BROKERS)) {
                welcome((int)((int *)what - listeners));
            } else {
                serve(what);
            }
        }
    }
}
