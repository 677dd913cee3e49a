/* brload: load on a broker: messages sent, sent in batches, sent at a pace, or pulled.
 *
 * usage: brload HOST PORT send  TOPIC QUEUES SECONDS CONNECTIONS DEPTH BODY_BYTES
 *        brload HOST PORT batch TOPIC QUEUES SECONDS CONNECTIONS DEPTH BODY_BYTES MESSAGES
 *        brload HOST PORT fill  TOPIC QUEUES COUNT   CONNECTIONS DEPTH BODY_BYTES MESSAGES
 *        brload HOST PORT pace  TOPIC QUEUES SECONDS RATE BODY_BYTES
 *        brload HOST PORT pull  TOPIC QUEUES SECONDS MESSAGES
 *
 * `send` and `batch` keep DEPTH requests open on every connection for SECONDS, over the queues in turn; `fill` does so
 * until the broker has taken COUNT messages, in batches. `pace` sends RATE messages a second on one connection without
 * waiting for answers; the first eight bytes of each body are the wall clock in nanoseconds. `pull` reads every queue
 * from its first message on, one request open for each queue on a connection of its own, and begins again at its end.
 *
 * With LOAD_KEY=NAME:SECRET in the environment, `send` signs its requests.
 *
 * A request's latency runs from when it is ready to be written until the read that brought the end of its answer. An
 * answer is right if its code is 0, and, for a pull, if its body is made of whole records. A broker may refuse some sends
 * when it has too much to do. Prints one JSON object; the exit status is 1 if more than one answer in a hundred was wrong. */
#include "signing.h"
#include <fcntl.h>
#include <sys/epoll.h>

#define EVENTS 256
#define CONNECTIONS_MAX 1024
#define DEPTH_MAX 256
#define BODY_BYTES_MAX (1 << 20)
#define BATCH_MAX 1000
#define HEADER_BYTES_MAX 1024
#define IN_BYTES (8 << 20)
#define RECORD_MAGIC 0xdaa320a7u
#define LATENCIES 4000000 /* one counter a microsecond; what takes longer counts as the last */
#define SEND 310
#define SEND_BATCH 320
#define PULL 11

typedef struct {
    int fd;
    char *out, *in;
    size_t out_bytes, out_sent, in_bytes;
    uint64_t asked_at[DEPTH_MAX]; /* by slot: a request id is a slot plus a multiple of the depth */
    uint32_t next_id[DEPTH_MAX];
    int is_choked; /* its socket did not take everything */
    int queue;     /* of a connection that pulls */
    long long offset;
} connection;

static const char *topic;
static int poll_fd, queues, depth, batch, body_bytes, pull_messages;
static size_t out_bytes_max;
static uint64_t messages_asked, messages_done, wrong, answers;
static char payload[BODY_BYTES_MAX];
static uint32_t latencies[LATENCIES];

static void ask(connection *c, int slot, const char *header, size_t header_bytes, const char *body, size_t bytes) {
    if (c->out_bytes + PREFIX_BYTES + header_bytes + bytes > out_bytes_max) die("too much to write at once");
    char *frame = c->out + c->out_bytes;
    put32(frame, (uint32_t)(4 + header_bytes + bytes));
    put32(frame + 4, (uint32_t)header_bytes);
    memcpy(frame + PREFIX_BYTES, header, header_bytes);
    if (bytes) memcpy(frame + PREFIX_BYTES + header_bytes, body, bytes);
    c->out_bytes += PREFIX_BYTES + header_bytes + bytes;
    c->asked_at[slot] = now_ns();
}

static long long wall_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (long long)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Writes the fields of a signature: `plain` are the properties as the broker reads them. */
static void write_signature(char *fields, size_t bytes_max, int queue, long long born, const char *plain) {
    char values[HEADER_BYTES_MAX], signature[SIGNATURE_CHARS + 1];
    int bytes = snprintf(values, sizeof values, "%sbrload%sTBW102%d%d0%lld0%s0false%s", signing_name, topic, queues, queue,
                         born, plain, batch ? "true" : "false");
    sign(values, (size_t)bytes, payload, (size_t)body_bytes, signature);
    snprintf(fields, bytes_max, ",\"AccessKey\":\"%s\",\"Signature\":\"%s\"", signing_name, signature);
}

static int write_send_header(char *header, int code, uint32_t id, const char *properties, const char *plain) {
    int queue = (int)(messages_asked / (uint64_t)(batch ? batch : 1) % (uint64_t)queues);
    long long born = wall_ms();
    char signature[256] = "";
    if (signing_name) write_signature(signature, sizeof signature, queue, born, plain);
    return snprintf(
        header, HEADER_BYTES_MAX,
        "{\"code\":%d,\"extFields\":{\"a\":\"brload\",\"b\":\"%s\",\"c\":\"TBW102\",\"d\":\"%d\",\"e\":\"%d\",\"f\":\"0\","
        "\"g\":\"%lld\",\"h\":\"0\",\"i\":\"%s\",\"j\":\"0\",\"k\":\"false\",\"m\":\"%s\"%s},\"flag\":0,\"language\":\"JAVA\","
        "\"opaque\":%u,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":475}",
        code, topic, queues, queue, born, properties, batch ? "true" : "false", signature, id);
}

static void ask_send(connection *c, int slot) {
    char header[HEADER_BYTES_MAX], properties[128], plain[128];
    uint32_t id = c->next_id[slot] += (uint32_t)depth;
    snprintf(properties, sizeof properties, "KEYS\\u0001k%llu\\u0002WAIT\\u0001true\\u0002TAGS\\u0001tag\\u0002",
             (unsigned long long)messages_asked);
    if (signing_name)
        snprintf(plain, sizeof plain, "KEYS\001k%llu\002WAIT\001true\002TAGS\001tag\002", (unsigned long long)messages_asked);
    int bytes = write_send_header(header, SEND, id, properties, plain);
    messages_asked++;
    ask(c, slot, header, (size_t)bytes, payload, (size_t)body_bytes);
}

/* A batch is a row of: length, magic (0), checksum (0), flag (0), body with its length, properties with theirs. */
static void ask_batch(connection *c, int slot) {
    static char body[(size_t)64 << 20];
    char header[HEADER_BYTES_MAX], properties[128];
    uint32_t id = c->next_id[slot] += (uint32_t)depth;
    if (signing_name) die("batches are not signed");
    int header_bytes = write_send_header(header, SEND_BATCH, id, "WAIT\\u0001true\\u0002", "");
    char *at = body;
    for (int i = 0; i < batch; i++) {
        int properties_bytes = snprintf(properties, sizeof properties, "KEYS\001k%llu\002WAIT\001true\002TAGS\001tag\002",
                                        (unsigned long long)messages_asked++);
        memset(at, 0, 16);
        put32(at, (uint32_t)(22 + body_bytes + properties_bytes));
        put32(at + 16, (uint32_t)body_bytes);
        memcpy(at + 20, payload, (size_t)body_bytes);
        at += 20 + body_bytes;
        at[0] = (char)(properties_bytes >> 8);
        at[1] = (char)properties_bytes;
        memcpy(at + 2, properties, (size_t)properties_bytes);
        at += 2 + properties_bytes;
    }
    ask(c, slot, header, (size_t)header_bytes, body, (size_t)(at - body));
}

static void ask_pull(connection *c, int slot) {
    char header[HEADER_BYTES_MAX];
    int bytes = snprintf(
        header, sizeof header,
        "{\"code\":%d,\"extFields\":{\"consumerGroup\":\"brload\",\"topic\":\"%s\",\"queueId\":\"%d\",\"queueOffset\":\"%lld\","
        "\"maxMsgNums\":\"%d\",\"sysFlag\":\"4\",\"commitOffset\":\"0\",\"suspendTimeoutMillis\":\"0\",\"subscription\":\"*\","
        "\"subVersion\":\"0\",\"expressionType\":\"TAG\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%u,"
        "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":475}",
        PULL, topic, c->queue, c->offset, pull_messages, c->next_id[slot] += (uint32_t)depth);
    ask(c, slot, header, (size_t)bytes, NULL, 0);
}

static void (*ask_next)(connection *, int);

static void watch(connection *c, int operation, int is_choked) {
    struct epoll_event event = {.events = is_choked ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.ptr = c};
    if (epoll_ctl(poll_fd, operation, c->fd, &event)) die("epoll_ctl: %s", strerror(errno));
    c->is_choked = is_choked;
}

static void flush_out(connection *c) {
    while (c->out_sent < c->out_bytes) {
        ssize_t n = write(c->fd, c->out + c->out_sent, c->out_bytes - c->out_sent);
        if (n < 0 && errno != EAGAIN) die("write: %s", strerror(errno));
        if (n < 0) {
            if (!c->is_choked) watch(c, EPOLL_CTL_MOD, 1);
            return;
        }
        c->out_sent += (size_t)n;
    }
    c->out_sent = c->out_bytes = 0;
    if (c->is_choked) watch(c, EPOLL_CTL_MOD, 0);
}

/* The number of whole records in a body, or -1 if it is made of anything else. */
static long count_records(const char *body, size_t bytes) {
    long count = 0;
    while (bytes) {
        if (bytes < 8 || get32(body) < 8 || get32(body) > bytes || get32(body + 4) != RECORD_MAGIC) return -1;
        size_t size = get32(body);
        body += size, bytes -= size, count++;
    }
    return count;
}

static long long header_number(const char *frame, const char *key) {
    size_t bytes = get32(frame + 4) & 0xffffff;
    const char *at = memmem(frame + PREFIX_BYTES, bytes, key, strlen(key));
    if (!at) return -1;
    at += strlen(key);
    while (*at == '"' || *at == ':' || *at == ' ') at++;
    return strtoll(at, NULL, 10);
}

static int take(connection *c, const char *frame, const answer *got) {
    answers++;
    if (ask_next == ask_pull) {
        long count = got->code == 0 ? count_records(got->body, got->body_bytes) : -1;
        if (count <= 0) {
            if (!wrong++) fprintf(stderr, "a pull of queue %d at %lld was answered with code %d: %.*s\n", c->queue,
                                  c->offset, got->code, (int)(get32(frame + 4) & 0xffffff), frame + PREFIX_BYTES);
            return 0;
        }
        messages_done += (uint64_t)count;
        c->offset = header_number(frame, "\"nextBeginOffset\"");
        if (c->offset >= header_number(frame, "\"maxOffset\"")) c->offset = header_number(frame, "\"minOffset\"");
    } else if (got->code == 0) {
        messages_done += (uint64_t)(batch ? batch : 1);
    } else if (!wrong++) {
        fprintf(stderr, "a send was answered with code %d: %.*s\n", got->code, (int)(get32(frame + 4) & 0xffffff),
                frame + PREFIX_BYTES);
    }
    return 1;
}

static void read_in(connection *c, int asks_on) {
    ssize_t n = read(c->fd, c->in + c->in_bytes, IN_BYTES - c->in_bytes);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) die("the broker closed the connection");
    c->in_bytes += (size_t)n;
    uint64_t now = now_ns();
    size_t used = 0, bytes;
    answer got;
    while ((bytes = read_answer(c->in + used, c->in_bytes - used, &got))) {
        int slot = (int)(got.request_id % (uint32_t)depth);
        uint64_t us = (now - c->asked_at[slot]) / 1000;
        latencies[us < LATENCIES ? us : LATENCIES - 1]++;
        if (take(c, c->in + used, &got) && asks_on) ask_next(c, slot);
        used += bytes;
    }
    memmove(c->in, c->in + used, c->in_bytes - used);
    c->in_bytes -= used;
    flush_out(c);
}

static uint32_t percentile(double share) {
    uint64_t all = 0, seen = 0;
    for (int us = 0; us < LATENCIES; us++) all += latencies[us];
    for (int us = 0; us < LATENCIES; us++)
        if ((double)(seen += latencies[us]) >= share * (double)all && seen) return (uint32_t)us;
    return 0;
}

static void report(double seconds) {
    printf("{\"messages\": %llu, \"per_s\": %.1f, \"answers\": %llu, \"wrong\": %llu, \"seconds\": %.3f, \"p50_us\": %u, "
           "\"p99_us\": %u, \"p999_us\": %u}\n",
           (unsigned long long)messages_done, (double)messages_done / seconds, (unsigned long long)answers,
           (unsigned long long)wrong, seconds, percentile(0.5), percentile(0.99), percentile(0.999));
}

static connection *open_all(const char *host, int port, int count) {
    poll_fd = epoll_create1(0);
    connection *all = allocate((size_t)count * sizeof *all);
    size_t frame_max = (size_t)(batch ? batch : 1) * (size_t)(body_bytes + 128) + HEADER_BYTES_MAX + PREFIX_BYTES;
    out_bytes_max = (size_t)depth * frame_max;
    for (int i = 0; i < count; i++) {
        connection *c = &all[i];
        c->fd = connect_loopback(host, port);
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
        c->out = allocate(out_bytes_max);
        c->in = malloc(IN_BYTES); /* not touched before it is needed */
        if (!c->in) die("out of memory");
        c->queue = i;
        for (int slot = 0; slot < depth; slot++) c->next_id[slot] = (uint32_t)slot;
        watch(c, EPOLL_CTL_ADD, 0);
    }
    return all;
}

static void run_closed(const char *host, int port, int connections, double seconds, uint64_t count) {
    connection *all = open_all(host, port, connections);
    struct epoll_event events[EVENTS];
    uint64_t start = now_ns(), end = start + (uint64_t)(seconds * 1e9);
    for (int i = 0; i < connections; i++) {
        for (int slot = 0; slot < depth; slot++) ask_next(&all[i], slot);
        flush_out(&all[i]);
    }
    while (now_ns() < end && messages_done < count) {
        int n = epoll_wait(poll_fd, events, EVENTS, 100);
        for (int i = 0; i < n; i++) {
            if (events[i].events & EPOLLOUT) flush_out(events[i].data.ptr);
            if (events[i].events & ~(uint32_t)EPOLLOUT) read_in(events[i].data.ptr, messages_asked - wrong * (uint64_t)batch < count);
        }
    }
    report((double)(now_ns() - start) / 1e9);
}

/* Answers are read, so that errors are seen, and not waited for. */
static void run_paced(const char *host, int port, double seconds, double rate) {
    connection *c = open_all(host, port, 1);
    struct epoll_event event;
    uint64_t start = now_ns(), count = (uint64_t)(seconds * rate);
    while (messages_asked < count) {
        uint64_t due = start + (uint64_t)((double)messages_asked * 1e9 / rate), now = now_ns();
        if (now < due) {
            struct timespec wait = {.tv_nsec = (long)(due - now)};
            nanosleep(&wait, NULL);
            continue;
        }
        struct timespec wall;
        clock_gettime(CLOCK_REALTIME, &wall);
        uint64_t stamp = (uint64_t)wall.tv_sec * 1000000000ull + (uint64_t)wall.tv_nsec;
        put32(payload, (uint32_t)(stamp >> 32));
        put32(payload + 4, (uint32_t)stamp);
        ask_send(c, 0);
        flush_out(c);
        if (epoll_wait(poll_fd, &event, 1, 0) == 1) read_in(c, 0);
    }
    while (answers < count && epoll_wait(poll_fd, &event, 1, 5000) == 1) read_in(c, 0);
    if (answers < count) wrong += count - answers;
    report((double)(now_ns() - start) / 1e9);
}

static int number(const char *text, int least, int most) {
    char *end;
    long value = strtol(text, &end, 10);
    if (*end || value < least || value > most) die("not a number from %d to %d: %s", least, most, text);
    return (int)value;
}

int main(int count, char **words) {
    if (count < 8) die("usage: see the first lines of brload.c");
    const char *host = words[1], *what = words[3];
    int port = number(words[2], 1, 65535);
    topic = words[4];
    queues = number(words[5], 1, CONNECTIONS_MAX);
    double amount = atof(words[6]);
    memset(payload, 'x', sizeof payload);
    prepare_signing();
    depth = 1;
    if (!strcmp(what, "pull") && count == 8) {
        pull_messages = number(words[7], 1, 100000);
        ask_next = ask_pull;
        run_closed(host, port, queues, amount, UINT64_MAX);
    } else if (!strcmp(what, "pace") && count == 9) {
        body_bytes = number(words[8], 8, BODY_BYTES_MAX);
        ask_next = ask_send;
        run_paced(host, port, amount, number(words[7], 1, 1000000));
    } else if (!strcmp(what, "send") && count == 10) {
        depth = number(words[8], 1, DEPTH_MAX);
        body_bytes = number(words[9], 1, BODY_BYTES_MAX);
        ask_next = ask_send;
        run_closed(host, port, number(words[7], 1, CONNECTIONS_MAX), amount, UINT64_MAX);
    } else if ((!strcmp(what, "batch") || !strcmp(what, "fill")) && count == 11) {
        depth = number(words[8], 1, DEPTH_MAX);
        body_bytes = number(words[9], 1, 1 << 15);
        batch = number(words[10], 1, BATCH_MAX);
        ask_next = ask_batch;
        int is_fill = !strcmp(what, "fill");
        run_closed(host, port, number(words[7], 1, CONNECTIONS_MAX), is_fill ? 1e6 : amount,
                   is_fill ? (uint64_t)amount : UINT64_MAX);
    } else {
        die("usage: see the first lines of brload.c");
    }
    return wrong * 100 > answers || !messages_done;
}
