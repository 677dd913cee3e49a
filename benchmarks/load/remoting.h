/* What the load programs share: frames of RocketMQ's remoting protocol, a clock, a loopback socket. */
#ifndef REMOTING_H
#define REMOTING_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PREFIX_BYTES 8 /* the frame's length, then the header's length with the header's form in the top byte */

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static inline void put32(char *at, uint32_t value) {
    value = htonl(value);
    memcpy(at, &value, 4);
}

static inline uint32_t get32(const char *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return ntohl(value);
}

static inline __attribute__((noreturn, format(printf, 1, 2))) void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(3);
}

static inline void *allocate(size_t bytes) {
    void *memory = calloc(1, bytes);
    if (!memory) die("out of memory");
    return memory;
}

static inline int connect_loopback(const char *host, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) die("not an IPv4 address: %s", host);
    if (ntohl(address.sin_addr.s_addr) >> 24 != 127) die("not a loopback address: %s", host);
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) die("connect: %s", strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

typedef struct {
    int code;
    uint32_t request_id;
    const char *body;
    size_t body_bytes;
} answer;

static inline long json_number(const char *header, size_t bytes, const char *key) {
    const char *at = memmem(header, bytes, key, strlen(key));
    return at ? strtol(at + strlen(key), NULL, 10) : -1;
}

/* Reads one answer at `in`; gives the bytes that it takes, or 0 if it is not whole yet. */
static inline size_t read_answer(const char *in, size_t bytes, answer *out) {
    if (bytes < PREFIX_BYTES) return 0;
    size_t frame_bytes = 4 + (size_t)get32(in);
    if (bytes < frame_bytes) return 0;
    uint32_t mark = get32(in + 4);
    size_t header_bytes = mark & 0xffffff;
    const char *header = in + PREFIX_BYTES;
    if (frame_bytes < PREFIX_BYTES + header_bytes) die("a frame shorter than its header");
    if (mark >> 24) { /* the binary form: code, language, version, request id */
        out->code = (unsigned char)header[0] << 8 | (unsigned char)header[1];
        out->request_id = get32(header + 5);
    } else {
        out->code = (int)json_number(header, header_bytes, "\"code\":");
        out->request_id = (uint32_t)json_number(header, header_bytes, "\"opaque\":");
    }
    out->body = header + header_bytes;
    out->body_bytes = frame_bytes - PREFIX_BYTES - header_bytes;
    return frame_bytes;
}

#endif
