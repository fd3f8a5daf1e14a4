/* Sends prepared requests over a blocking socket: the lower bound for any client.
 *
 *   raw_socket PORT COUNT IN_FLIGHT < FRAMES
 *
 * FRAMES are requests with their size prefixes. They are sent repeatedly, in order, until COUNT responses
 * have arrived, with at most IN_FLIGHT requests in flight. One thread. Prints JSON: wall and CPU seconds, and
 * p50 and p99 in microseconds, from before a request is written until its response is read.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void die(const char *what) { perror(what); exit(1); }

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static double cpu_s(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static uint32_t size_at(const uint8_t *p) { return (uint32_t)p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3]; }

static void send_all(int fd, const uint8_t *data, size_t size) {
    while (size) {
        ssize_t n = send(fd, data, size, MSG_NOSIGNAL);
        if (n < 0) die("send");
        data += n, size -= (size_t)n;
    }
}

/* Reads one response. Several may arrive together: data after the first one is kept for the next call. */
static void read_answer(int fd) {
    static uint8_t buffer[1 << 16];
    static size_t have;
    for (;;) {
        if (have >= 4 && have >= 4 + (size_t)size_at(buffer)) {
            size_t size = 4 + (size_t)size_at(buffer);
            memmove(buffer, buffer + size, have -= size);
            return;
        }
        ssize_t n = recv(fd, buffer + have, sizeof buffer - have, 0);
        if (n <= 0) die("recv");
        have += (size_t)n;
    }
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    long count = atol(argv[2]), in_flight = atol(argv[3]), sent = 0, answered = 0;
    size_t size = 0, room = 1 << 20;
    uint8_t *frames = malloc(room);
    for (size_t n; (n = fread(frames + size, 1, room - size, stdin)) > 0;)
        if ((size += n) == room) frames = realloc(frames, room *= 2);
    double *began = malloc(sizeof *began * (size_t)count), *taken = malloc(sizeof *taken * (size_t)count);
    if (!frames || !began || !taken || size < 4 || count < 1 || in_flight < 1) return 2;
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a)) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    double wall = now_us(), cpu = cpu_s();
    for (size_t at = 0; answered < count;) {
        while (sent < count && sent - answered < in_flight) {
            size_t frame = 4 + (size_t)size_at(frames + at);
            began[sent++] = now_us();
            send_all(fd, frames + at, frame);
            if ((at += frame) >= size) at = 0;
        }
        read_answer(fd);
        taken[answered] = now_us() - began[answered];
        answered++;
    }
    wall = now_us() - wall, cpu = cpu_s() - cpu;
    qsort(taken, (size_t)count, sizeof *taken, by_size);
    printf("{\"wall_s\": %.6f, \"cpu_s\": %.6f, \"p50_us\": %.2f, \"p99_us\": %.2f}\n", wall / 1e6, cpu,
           taken[count / 2], taken[count * 99 / 100]);
    return 0;
}
