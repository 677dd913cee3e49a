/* nslimit: what loopback allows. Answers every frame with one fixed body and the asker's request id; decides nothing.
 *
 * usage: nslimit BODY_BYTES
 *
 * Listens on a free port of 127.0.0.1, prints its number, and ends with its input or after ten
 * idle minutes. One thread. */
#include "remoting.h"
#include <sys/epoll.h>

#define EVENTS 256
#define IDLE_MS 600000
#define IN_BYTES (1 << 16)
#define OUT_BYTES (1 << 22)

typedef struct {
    int fd;
    size_t bytes;
    char in[IN_BYTES];
} connection;

static char out[OUT_BYTES];
static char *body;
static size_t body_bytes;

static size_t answer_to(const char *frame, char *at) {
    char header[256];
    uint32_t id = (uint32_t)json_number(frame + PREFIX_BYTES, get32(frame + 4) & 0xffffff, "\"opaque\":");
    int header_bytes = snprintf(header, sizeof header,
                                "{\"code\":0,\"flag\":1,\"language\":\"JAVA\",\"opaque\":%u,"
                                "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}", id);
    put32(at, (uint32_t)(4 + (size_t)header_bytes + body_bytes));
    put32(at + 4, (uint32_t)header_bytes);
    memcpy(at + PREFIX_BYTES, header, (size_t)header_bytes);
    memcpy(at + PREFIX_BYTES + header_bytes, body, body_bytes);
    return PREFIX_BYTES + (size_t)header_bytes + body_bytes;
}

/* Answers all whole frames with one write; false once the peer is gone. */
static int serve(connection *c) {
    ssize_t n = read(c->fd, c->in + c->bytes, IN_BYTES - c->bytes);
    if (n <= 0) return 0;
    c->bytes += (size_t)n;
    size_t used = 0, made = 0;
    while (c->bytes - used >= PREFIX_BYTES) {
        size_t frame_bytes = 4 + (size_t)get32(c->in + used);
        if (c->bytes - used < frame_bytes || made + body_bytes + 512 > OUT_BYTES) break;
        made += answer_to(c->in + used, out + made);
        used += frame_bytes;
    }
    memmove(c->in, c->in + used, c->bytes - used);
    c->bytes -= used;
    return !made || write(c->fd, out, made) == (ssize_t)made;
}

int main(int argc, char **argv) {
    static const char route[] = "{\"brokerDatas\":[{";
    body_bytes = argc > 1 ? (size_t)atoi(argv[1]) : 0;
    if (body_bytes < sizeof route || body_bytes > 65536) die("usage: nslimit BODY_BYTES");
    body = allocate(body_bytes);
    memset(body, 'x', body_bytes);
    memcpy(body, route, sizeof route - 1);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 1024)) die("listen: %s", strerror(errno));
    getsockname(listener, (struct sockaddr *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    int poll_fd = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &listener}, events[EVENTS];
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, listener, &event);
    event.data.ptr = NULL;
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, STDIN_FILENO, &event);
    for (;;) {
        int ready = epoll_wait(poll_fd, events, EVENTS, IDLE_MS);
        if (!ready) return 0;
        for (int i = 0; i < ready; i++) {
            if (!events[i].data.ptr) return 0;
            if (events[i].data.ptr == &listener) {
                connection *c = allocate(sizeof *c);
                c->fd = accept(listener, NULL, NULL);
                setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                event.data.ptr = c;
                epoll_ctl(poll_fd, EPOLL_CTL_ADD, c->fd, &event);
            } else if (!serve(events[i].data.ptr)) {
                connection *gone = events[i].data.ptr;
                close(gone->fd);
                free(gone);
            }
        }
    }
}
