/* nsreg: many brokers with large topic tables, each on a connection of its own, that register and heartbeat.
 *
 * usage: nsreg HOST PORT CLUSTERS BROKERS TOPICS [PREFIX [spaced|compact [FIRST_CLUSTER]]]
 *
 * There are BROKERS brokers in each of CLUSTERS clusters; the brokers of a cluster have the same TOPICS topics, PREFIX0,
 * PREFIX1, ... (c0PREFIX0, c1PREFIX0, ... where there is more than one cluster). Bodies are built before any clock runs,
 * so the sender's part in a figure is one system call. They are written as Python's json module would, or `compact`, as
 * a Java broker does. FIRST_CLUSTER, 0 unless given, keeps the brokers of two programs apart.
 *
 * Reads commands from its input, and answers each with one JSON line:
 *   register            connect all, then register one after another: the total includes connecting
 *   once                every broker sends the same again
 *   beat same S         for S seconds, one after another without pause, every broker sends the same again
 *   beat version S      ... and in each round the data version, and so every body, is another
 *   beat queues S       ... and so are the queue counts of one topic in a hundred
 * A beat ends early when a further line is there to read. The end of input, or ten idle minutes, ends the program. */
#include "remoting.h"
#include <poll.h>
#include <sys/uio.h>

#define IDLE_S 600
#define COUNTER_DIGITS 7
#define CHANGED_SHARE 100
#define TIMES_MAX 200000

typedef struct {
    char *bytes;
    size_t size;
    size_t counter_at;         /* the digits of the data version */
    size_t *reads_at, *writes_at; /* by topic: the one digit of each queue count */
    uint32_t crc;
} body;

typedef struct {
    int fd, cluster, number;
    uint32_t request_id;
} broker;

static body *bodies;
static broker *brokers;
static int clusters, brokers_each, topics, total, first_cluster;
static unsigned counter = 1000000; /* seven digits always, so that a body keeps its size */
static uint32_t crc_table[8][256];
static double times_ms[TIMES_MAX];

/* CRC-32, eight bytes at a time: a body of 2 MB costs a millisecond. */
static void make_crc_table(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c & 1 ? c >> 1 ^ 0xedb88320u : c >> 1;
        crc_table[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int k = 1; k < 8; k++) crc_table[k][i] = crc_table[k - 1][i] >> 8 ^ crc_table[0][crc_table[k - 1][i] & 255];
}

static uint32_t crc32_of(const char *data, size_t bytes) {
    const unsigned char *at = (const unsigned char *)data;
    uint32_t c = ~0u;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint32_t low, high;
        memcpy(&low, at, 4);
        memcpy(&high, at + 4, 4);
        low ^= c;
        c = crc_table[7][low & 255] ^ crc_table[6][low >> 8 & 255] ^ crc_table[5][low >> 16 & 255] ^ crc_table[4][low >> 24] ^
            crc_table[3][high & 255] ^ crc_table[2][high >> 8 & 255] ^ crc_table[1][high >> 16 & 255] ^ crc_table[0][high >> 24];
    }
    while (bytes--) c = crc_table[0][(c ^ *at++) & 255] ^ c >> 8;
    return ~c;
}

static void append(body *b, const char *text, int spaced) {
    for (; *text; text++) {
        b->bytes[b->size++] = *text;
        if (spaced && (*text == ',' || *text == ':')) b->bytes[b->size++] = ' ';
    }
}

static body make_body(const char *prefix, int spaced) {
    size_t name_bytes = strlen(prefix) + 10;
    body b = {.bytes = allocate(1024 + (size_t)topics * (256 + 2 * name_bytes)),
              .reads_at = allocate((size_t)topics * sizeof(size_t)), .writes_at = allocate((size_t)topics * sizeof(size_t))};
    char text[1024];
    append(&b, "{\"filterServerList\":[],\"topicConfigSerializeWrapper\":{\"dataVersion\":{\"counter\":", spaced);
    b.counter_at = b.size;
    snprintf(text, sizeof text, "%0*u,\"stateVersion\":0,\"timestamp\":1700000000000},\"topicConfigTable\":{", COUNTER_DIGITS, counter);
    append(&b, text, spaced);
    for (int i = 0; i < topics; i++) {
        snprintf(text, sizeof text, "%s\"%s%d\":{\"attributes\":{},\"order\":false,\"perm\":6,\"readQueueNums\":", i ? "," : "", prefix, i);
        append(&b, text, spaced);
        b.reads_at[i] = b.size;
        snprintf(text, sizeof text, "8,\"topicFilterType\":\"SINGLE_TAG\",\"topicName\":\"%s%d\",\"topicSysFlag\":0,\"writeQueueNums\":", prefix, i);
        append(&b, text, spaced);
        b.writes_at[i] = b.size;
        append(&b, "8}", spaced);
    }
    append(&b, "},\"topicQueueMappingInfoMap\":{},\"topicQueueMappingDetailMap\":{},\"mappingDataVersion\":"
               "{\"counter\":0,\"stateVersion\":0,\"timestamp\":1700000000000}}}", spaced);
    b.crc = crc32_of(b.bytes, b.size);
    return b;
}

static void change_bodies(int queues_too) {
    char digits[COUNTER_DIGITS + 1];
    unsigned round = ++counter;
    snprintf(digits, sizeof digits, "%0*u", COUNTER_DIGITS, round);
    for (int c = 0; c < clusters; c++) {
        body *b = &bodies[c];
        memcpy(b->bytes + b->counter_at, digits, COUNTER_DIGITS);
        for (int i = (int)(round % CHANGED_SHARE); queues_too && i < topics; i += CHANGED_SHARE) {
            char count = b->bytes[b->reads_at[i]] == '8' ? '4' : '8';
            b->bytes[b->reads_at[i]] = b->bytes[b->writes_at[i]] = count;
        }
        b->crc = crc32_of(b->bytes, b->size);
    }
}

static void send_all(int fd, struct iovec *parts, int count) {
    while (count) {
        ssize_t n = writev(fd, parts, count);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) die("write: %s", strerror(errno));
        while (count && (size_t)n >= parts->iov_len) n -= (ssize_t)parts->iov_len, parts++, count--;
        if (count) parts->iov_base = (char *)parts->iov_base + n, parts->iov_len -= (size_t)n;
    }
}

/* Registers one broker, waits for the answer, and gives the milliseconds that both took. */
static double say(broker *b) {
    const body *table = &bodies[b->cluster];
    char head[2048], in[8192];
    int k = b->number + 1 + 1000 * first_cluster, cluster = b->cluster + first_cluster;
    int header_bytes = snprintf(
        head + PREFIX_BYTES, sizeof head - PREFIX_BYTES,
        "{\"code\":103,\"language\":\"JAVA\",\"version\":475,\"opaque\":%u,\"flag\":0,\"serializeTypeCurrentRPC\":\"JSON\","
        "\"extFields\":{\"brokerName\":\"c%d-b%d\",\"brokerAddr\":\"127.0.0.1:%d\",\"clusterName\":\"cluster%d\","
        "\"haServerAddr\":\"127.0.0.1:%d\",\"brokerId\":\"0\",\"compressed\":\"false\",\"bodyCrc32\":\"%u\","
        "\"enableActingMaster\":\"false\"}}",
        ++b->request_id, cluster, b->number % brokers_each, 20000 + k, cluster, 40000 + k, table->crc & 0x7fffffffu);
    put32(head, (uint32_t)(4 + (size_t)header_bytes + table->size));
    put32(head + 4, (uint32_t)header_bytes);
    struct iovec parts[] = {{head, PREFIX_BYTES + (size_t)header_bytes}, {table->bytes, table->size}};
    uint64_t start = now_ns();
    send_all(b->fd, parts, 2);
    size_t bytes = 0;
    answer got;
    while (!read_answer(in, bytes, &got)) {
        if (bytes == sizeof in) die("the answer to a registration is too long");
        ssize_t n = read(b->fd, in + bytes, sizeof in - bytes);
        if (n <= 0) die("the server closed a broker's connection");
        bytes += (size_t)n;
    }
    double taken = (double)(now_ns() - start) / 1e6;
    if (got.code != 0 || got.request_id != b->request_id) die("refused: %.*s", (int)bytes - PREFIX_BYTES, in + PREFIX_BYTES);
    return taken;
}

static int ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static void report(int count, int rounds, uint64_t start) {
    double elapsed = (double)(now_ns() - start) / 1e9;
    qsort(times_ms, (size_t)count, sizeof *times_ms, ascending);
    printf("{\"count\": %d, \"rounds\": %d, \"body_bytes\": %zu, \"total_s\": %.4f, \"per_s\": %.2f, \"median_ms\": %.3f, \"max_ms\": %.3f}\n",
           count, rounds, bodies[0].size, elapsed, count / elapsed, times_ms[count / 2], times_ms[count - 1]);
    fflush(stdout);
}

static void register_all(const char *host, int port) {
    uint64_t start = now_ns();
    for (int i = 0; i < total; i++) brokers[i].fd = connect_loopback(host, port);
    for (int i = 0; i < total; i++) times_ms[i] = say(&brokers[i]);
    report(total, 1, start);
}

static int line_waits(int milliseconds) {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    return poll(&input, 1, milliseconds) > 0;
}

static void beat(int changes, int queues_too, double seconds) {
    uint64_t start = now_ns(), end = start + (uint64_t)(seconds * 1e9);
    int count = 0, rounds = 0;
    do {
        if (changes) change_bodies(queues_too);
        rounds++;
        for (int i = 0; i < total && count < TIMES_MAX && (count == 0 || now_ns() < end) && !(count && line_waits(0)); i++)
            times_ms[count++] = say(&brokers[i]);
    } while (now_ns() < end && count < TIMES_MAX && !line_waits(0));
    report(count, rounds, start);
}

int main(int argc, char **argv) {
    if (argc < 6) die("usage: nsreg HOST PORT CLUSTERS BROKERS TOPICS [PREFIX [spaced|compact [FIRST_CLUSTER]]]");
    clusters = atoi(argv[3]), brokers_each = atoi(argv[4]), topics = atoi(argv[5]);
    total = clusters * brokers_each;
    first_cluster = argc > 8 ? atoi(argv[8]) : 0;
    if (total < 1 || total > 1000 || topics < 1 || topics > 1000000 || first_cluster < 0 || first_cluster > 19) die("out of bounds");
    make_crc_table();
    bodies = allocate((size_t)clusters * sizeof *bodies);
    brokers = allocate((size_t)total * sizeof *brokers);
    for (int c = 0; c < clusters; c++) {
        char prefix[128];
        snprintf(prefix, sizeof prefix, "c%d%s", c, argc > 6 ? argv[6] : "T");
        bodies[c] = make_body(clusters > 1 ? prefix : prefix + 2, !(argc > 7 && !strcmp(argv[7], "compact")));
    }
    for (int i = 0; i < total; i++) brokers[i] = (broker){.fd = -1, .cluster = i / brokers_each, .number = i};
    setvbuf(stdin, NULL, _IONBF, 0); /* so that poll sees every line that was not read */
    char line[128], kind[32];
    double seconds;
    while (line_waits(IDLE_S * 1000) && fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "register\n")) {
            register_all(argv[1], atoi(argv[2]));
        } else if (!strcmp(line, "once\n")) {
            uint64_t start = now_ns();
            for (int i = 0; i < total; i++) times_ms[i] = say(&brokers[i]);
            report(total, 1, start);
        } else if (sscanf(line, "beat %31s %lf", kind, &seconds) == 2 && seconds <= IDLE_S) {
            beat(strcmp(kind, "same") != 0, !strcmp(kind, "queues"), seconds);
        } else if (strcmp(line, "\n") != 0) {
            die("not a command: %s", line);
        }
    }
    return 0;
}
