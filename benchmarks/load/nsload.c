/* nsload: GET_ROUTEINFO_BY_TOPIC in a closed loop.
 *
 * usage: nsload HOST PORT CONNECTIONS DEPTH SECONDS TOPIC_PREFIX TOPICS [json|binary [once]]
 *
 * Every connection keeps DEPTH requests in flight for SECONDS, over the topics PREFIX0, PREFIX1, ... in turn. With `once`
 * it ends as soon as every topic was asked for and answered. A request's latency runs from when it is ready to be written until the read that brought the end of its answer. An answer counts as
 * right if its code is 0 and its body holds a route. Prints one JSON object; the exit status is 1 if any was wrong. */
#include "signing.h"
#include <fcntl.h>
#include <sys/epoll.h>

#define EVENTS 256
#define OUT_BYTES (1 << 16)
#define IN_BYTES (1 << 20)
#define DEPTH_MAX 256
#define LATENCIES 4000000 /* one counter a microsecond; what takes longer counts as the last */

typedef struct {
    char *head, *tail; /* the header before and after the request id */
    size_t head_bytes, tail_bytes;
} request;

typedef struct {
    int fd;
    char *out, *in;
    size_t out_bytes, out_sent, in_bytes;
    uint64_t asked_at[DEPTH_MAX]; /* by slot: a request id is a slot plus a multiple of the depth */
    uint32_t next_id[DEPTH_MAX];
} connection;

static request *requests;
static unsigned topics, next_topic, questions_max; /* 0 for no bound */
static uint64_t asked;
static int depth, binary;
static uint32_t latencies[LATENCIES];

static request make_request(const char *topic) {
    size_t topic_bytes = strlen(topic);
    if (topic_bytes > 255) die("the topic's name is too long");
    request made = {.head = allocate(384 + topic_bytes), .tail = allocate(64 + topic_bytes)};
    char signature[256] = "";
    if (signing_name) {
        char values[512], proof[SIGNATURE_CHARS + 1];
        int bytes = snprintf(values, sizeof values, "%s%s", signing_name, topic);
        sign(values, (size_t)bytes, "", 0, proof);
        snprintf(signature, sizeof signature, "\"AccessKey\":\"%s\",\"Signature\":\"%s\",", signing_name, proof);
    }
    if (binary) {
        if (signing_name) die("binary headers are not signed");
        memcpy(made.head, "\0\151" "\0" "\1\357", made.head_bytes = 5); /* code 105, Java, version 495 */
        put32(made.tail + 8, (uint32_t)(2 + 5 + 4 + topic_bytes));      /* after an empty flag and no remark */
        memcpy(made.tail + 12, "\0\5topic", 7);
        put32(made.tail + 19, (uint32_t)topic_bytes);
        memcpy(made.tail + 23, topic, topic_bytes);
        made.tail_bytes = 23 + topic_bytes;
    } else {
        made.head_bytes = (size_t)sprintf(
            made.head, "{\"code\":105,\"extFields\":{%s\"topic\":\"%s\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":", signature,
            topic);
        made.tail_bytes = (size_t)sprintf(made.tail, ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":495}");
    }
    return made;
}

static size_t write_id(char *at, uint32_t id) {
    if (binary) {
        put32(at, id);
        return 4;
    }
    char digits[10];
    size_t count = 0;
    do digits[count++] = (char)('0' + id % 10), id /= 10; while (id);
    for (size_t i = 0; i < count; i++) at[i] = digits[count - 1 - i];
    return count;
}

static void ask(connection *c, int slot) {
    if (questions_max && asked == questions_max) return;
    asked++;
    const request *next = &requests[next_topic++ % topics];
    if (c->out_bytes + next->head_bytes + next->tail_bytes + 32 > OUT_BYTES) die("too many requests at once");
    char *frame = c->out + c->out_bytes, *at = frame + PREFIX_BYTES;
    memcpy(at, next->head, next->head_bytes);
    at += next->head_bytes;
    at += write_id(at, c->next_id[slot] += (uint32_t)depth);
    memcpy(at, next->tail, next->tail_bytes);
    at += next->tail_bytes;
    put32(frame, (uint32_t)(at - frame - 4));
    put32(frame + 4, (uint32_t)(at - frame - PREFIX_BYTES) | (binary ? 0x01000000u : 0));
    c->out_bytes += (size_t)(at - frame);
    c->asked_at[slot] = now_ns();
}

static void send_asked(connection *c) {
    while (c->out_sent < c->out_bytes) {
        ssize_t n = write(c->fd, c->out + c->out_sent, c->out_bytes - c->out_sent);
        if (n < 0 && errno == EAGAIN) return; /* the next answer on this connection tries again */
        if (n < 0) die("write: %s", strerror(errno));
        c->out_sent += (size_t)n;
    }
    c->out_sent = c->out_bytes = 0;
}

static unsigned percentile(uint64_t count, double share) {
    uint64_t seen = 0;
    for (unsigned us = 0; us < LATENCIES; us++)
        if ((seen += latencies[us]) && (double)seen >= (double)count * share) return us;
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 8) die("usage: nsload HOST PORT CONNECTIONS DEPTH SECONDS TOPIC_PREFIX TOPICS [json|binary [once]]");
    int connections = atoi(argv[3]);
    depth = atoi(argv[4]);
    double seconds = atof(argv[5]);
    topics = (unsigned)atoi(argv[7]);
    binary = argc > 8 && !strcmp(argv[8], "binary");
    questions_max = argc > 9 && !strcmp(argv[9], "once") ? topics : 0;
    if (connections < 1 || connections > 10000 || depth < 1 || depth > DEPTH_MAX || topics < 1 || seconds > 600) die("out of bounds");
    prepare_signing();
    requests = allocate(topics * sizeof *requests);
    for (unsigned i = 0; i < topics; i++) {
        char topic[256];
        snprintf(topic, sizeof topic, "%s%u", argv[6], i);
        requests[i] = make_request(topic);
    }
    int poll_fd = epoll_create1(0);
    connection *all = allocate((size_t)connections * sizeof *all);
    for (int i = 0; i < connections; i++) {
        connection *c = &all[i];
        c->fd = connect_loopback(argv[1], atoi(argv[2]));
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
        c->out = allocate(OUT_BYTES);
        c->in = allocate(IN_BYTES);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poll_fd, EPOLL_CTL_ADD, c->fd, &event);
    }
    uint64_t right = 0, wrong = 0, in_bytes = 0, body_bytes = 0, slowest = 0;
    uint64_t start = now_ns(), end = start + (uint64_t)(seconds * 1e9);
    for (int i = 0; i < connections; i++) {
        for (int slot = 0; slot < depth; slot++) {
            all[i].next_id[slot] = (uint32_t)slot;
            ask(&all[i], slot);
        }
        send_asked(&all[i]);
    }
    struct epoll_event events[EVENTS];
    while (now_ns() < end && !(questions_max && right + wrong == questions_max)) {
        int ready = epoll_wait(poll_fd, events, EVENTS, 100);
        for (int i = 0; i < ready; i++) {
            connection *c = events[i].data.ptr;
            ssize_t n = read(c->fd, c->in + c->in_bytes, IN_BYTES - c->in_bytes);
            if (n < 0 && errno == EAGAIN) continue;
            if (n <= 0) die("the server closed a connection");
            uint64_t now = now_ns();
            c->in_bytes += (size_t)n;
            in_bytes += (uint64_t)n;
            size_t used = 0, frame_bytes;
            answer got;
            while ((frame_bytes = read_answer(c->in + used, c->in_bytes - used, &got))) {
                int slot = (int)(got.request_id % (uint32_t)depth);
                if (got.request_id != c->next_id[slot]) die("an answer to %u, which was not asked", got.request_id);
                int is_route = got.code == 0 && got.body_bytes && memmem(got.body, got.body_bytes, "\"brokerDatas\":[{", 16);
                if (is_route) right++, body_bytes += got.body_bytes;
                else wrong++;
                uint64_t us = (now - c->asked_at[slot]) / 1000;
                if (us > slowest) slowest = us;
                latencies[us < LATENCIES ? us : LATENCIES - 1]++;
                used += frame_bytes;
                ask(c, slot);
            }
            if (!used && c->in_bytes == IN_BYTES) die("an answer of more than %d bytes", IN_BYTES);
            memmove(c->in, c->in + used, c->in_bytes - used);
            c->in_bytes -= used;
            send_asked(c);
        }
    }
    double elapsed = (double)(now_ns() - start) / 1e9;
    uint64_t count = right + wrong;
    printf("{\"right\": %lu, \"wrong\": %lu, \"per_s\": %.1f, \"p50_us\": %u, \"p90_us\": %u, \"p99_us\": %u, \"p999_us\": %u, "
           "\"max_us\": %lu, \"body_bytes\": %lu, \"mb_per_s\": %.1f}\n",
           right, wrong, (double)count / elapsed, percentile(count, .5), percentile(count, .9), percentile(count, .99),
           percentile(count, .999), slowest, right ? body_bytes / right : 0, (double)in_bytes / elapsed / 1e6);
    return wrong || !count;
}
