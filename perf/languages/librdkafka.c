/* Sends records with librdkafka, a callback for each. languages.py explains the arguments and the output. */
#include <librdkafka/rdkafka.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

static long acknowledged;

static void on_delivery(rd_kafka_t *producer, const rd_kafka_message_t *message, void *opaque) {
    (void)producer;
    (void)opaque;
    if (message->err) {
        fprintf(stderr, "%s\n", rd_kafka_err2str(message->err));
        exit(1);
    }
    acknowledged++;
}

static double cpu_s(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
           (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static void set(rd_kafka_conf_t *options, const char *name, const char *value) {
    char error[256];
    if (rd_kafka_conf_set(options, name, value, error, sizeof error) != RD_KAFKA_CONF_OK) {
        fprintf(stderr, "%s\n", error);
        exit(1);
    }
}

static void send_records(rd_kafka_t *producer, rd_kafka_topic_t *topic, long records, size_t size) {
    static char value[1000];
    acknowledged = 0;
    for (long sent = 0; sent < records;) {
        if (rd_kafka_produce(topic, RD_KAFKA_PARTITION_UA, RD_KAFKA_MSG_F_COPY, value, size, NULL, 0, NULL)) {
            /* The queue is full. */
            rd_kafka_poll(producer, 5);
        } else if (++sent % 1024 == 0) {
            rd_kafka_poll(producer, 0);
        }
    }
    while (acknowledged < records)
        rd_kafka_poll(producer, 50);
}

int main(int count, char **arguments) {
    if (count != 4)
        return 2;
    long records = atol(arguments[2]), size = atol(arguments[3]);
    rd_kafka_conf_t *options = rd_kafka_conf_new();
    set(options, "bootstrap.servers", arguments[1]);
    set(options, "enable.idempotence", "true");
    if (size == 100)
        set(options, "linger.ms", "5");
    rd_kafka_conf_set_dr_msg_cb(options, on_delivery);
    char error[256];
    rd_kafka_t *producer = rd_kafka_new(RD_KAFKA_PRODUCER, options, error, sizeof error);
    if (!producer) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    rd_kafka_topic_t *topic = rd_kafka_topic_new(producer, "bench", NULL);
    send_records(producer, topic, records / 5, size);
    double used = cpu_s(), start = now_s();
    send_records(producer, topic, records, size);
    used = cpu_s() - used;
    double elapsed = now_s() - start;
    printf("{\"version\": \"%s\", \"cpu_us\": %f, \"wall_us\": %f}\n", rd_kafka_version_str(), used * 1e6 / records,
           elapsed * 1e6 / records);
    rd_kafka_topic_destroy(topic);
    rd_kafka_destroy(producer);
    return 0;
}
