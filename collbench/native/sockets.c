/* Messages between two ranks over one or several connected TCP sockets, as a plain program sends them. Plain C, called by the loop.
 *
 * A message is divided evenly over the streams; a single byte uses the last one. With one stream, messages in one direction use
 * blocking calls, with the sockets' SO_SNDTIMEO and SO_RCVTIMEO as time limits. All other messages use
 * non-blocking calls, with a poll whenever a socket is full or empty. Only the kernel copies data. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <sys/socket.h>

#define MAX_STREAMS 64

enum { CLOSED = -1, LATE = -2, CROWDED = -3 }; /* in addition to errno's numbers; backends/socket.py has their texts */
enum { IN, OUT };

typedef struct {
    int64_t direction;
    char *at;
    uint64_t bytes;
} message_t;

typedef struct {
    int64_t streams;
    const int32_t *sockets;
    int64_t deadline_ms; /* time limit without progress */
    int64_t room;        /* capacity for posted messages */
    int64_t posted;
    message_t *messages;
} pair_t;

/* The progress of one direction of one stream. */
typedef struct {
    int64_t message;
    uint64_t moved; /* of this stream's part of the message */
} cursor_t;

typedef struct {
    const pair_t *pair;
    const message_t *messages;
    int64_t n;
    cursor_t at[MAX_STREAMS][2];
} transfer_t;

static int why(ssize_t result) {
    if (result == 0 || errno == EPIPE || errno == ECONNRESET) return CLOSED;
    return errno == EAGAIN ? LATE : errno;
}

static ssize_t one_call(int fd, int64_t direction, char *at, uint64_t bytes, int flags) {
    return direction == OUT ? send(fd, at, bytes, flags | MSG_NOSIGNAL) : recv(fd, at, bytes, flags);
}

/* Transfers a whole message with blocking calls. */
static int blocking(int fd, const message_t *m) {
    uint64_t moved = 0;
    while (moved < m->bytes) {
        ssize_t n = one_call(fd, m->direction, m->at + moved, m->bytes - moved, m->direction == IN ? MSG_WAITALL : 0);
        if (n > 0) moved += (uint64_t)n;
        else if (n == 0 || errno != EINTR) return why(n);
    }
    return 0;
}

/* Returns the first byte of a stream's part of a message. */
static uint64_t begin_of(uint64_t bytes, int64_t stream, int64_t streams) {
    return (uint64_t)((unsigned __int128)bytes * (uint64_t)stream / (uint64_t)streams);
}

/* Transfers the bytes that a stream can transfer now in one direction. `left`: whether more remain. */
static int advance(transfer_t *t, int64_t s, int64_t direction, int *left) {
    const pair_t *pair = t->pair;
    cursor_t *at = &t->at[s][direction];
    for (*left = 1; at->message < t->n; at->message++, at->moved = 0) {
        const message_t *m = &t->messages[at->message];
        uint64_t begin = begin_of(m->bytes, s, pair->streams), length = begin_of(m->bytes, s + 1, pair->streams) - begin;
        while (m->direction == direction && at->moved < length) {
            ssize_t n = one_call(pair->sockets[s], direction, m->at + begin + at->moved, length - at->moved, MSG_DONTWAIT);
            if (n > 0) at->moved += (uint64_t)n;
            else if (n == 0 || (errno != EAGAIN && errno != EINTR)) return why(n);
            if (at->moved < length) return 0; /* the socket is full, or empty */
        }
    }
    *left = 0;
    return 0;
}

static int wait_for(struct pollfd *sockets, int64_t n, int64_t deadline_ms) {
    int ready;
    while ((ready = poll(sockets, (nfds_t)n, (int)deadline_ms)) < 0)
        if (errno != EINTR) return errno;
    return ready ? 0 : LATE;
}

/* Transfers the bytes that a stream can transfer now in both directions, and sets the events to poll for the rest. */
static int serve(transfer_t *t, int64_t s, struct pollfd *socket) {
    int out = socket->events & POLLOUT, in = socket->events & POLLIN, code = 0;
    int either = socket->revents & (POLLERR | POLLHUP);
    if (out && (either || socket->revents & POLLOUT)) code = advance(t, s, OUT, &out);
    if (in && code == 0 && (either || socket->revents & POLLIN)) code = advance(t, s, IN, &in);
    socket->events = (short)((out ? POLLOUT : 0) | (in ? POLLIN : 0));
    if (!socket->events) socket->fd = -1; /* poll ignores it */
    return code;
}

/* Transfers all messages, in both directions of all streams. */
static int together(transfer_t *t) {
    struct pollfd sockets[MAX_STREAMS];
    int64_t k = t->pair->streams;
    for (int64_t s = 0; s < k; s++) sockets[s] = (struct pollfd){t->pair->sockets[s], POLLIN | POLLOUT, POLLIN | POLLOUT};
    for (;;) {
        int left = 0;
        for (int64_t s = 0; s < k; s++) {
            int code = sockets[s].fd >= 0 && sockets[s].revents ? serve(t, s, &sockets[s]) : 0;
            if (code != 0) return code;
            left += sockets[s].fd >= 0;
        }
        int code = left ? wait_for(sockets, k, t->pair->deadline_ms) : 0;
        if (code != 0 || !left) return code;
    }
}

static int run(const pair_t *pair, const message_t *messages, int64_t n) {
    int64_t out = 0;
    for (int64_t i = 0; i < n; i++) out += messages[i].direction == OUT;
    if (pair->streams > 1 || (out && out < n)) {
        transfer_t t = {.pair = pair, .messages = messages, .n = n};
        return together(&t);
    }
    int code = 0;
    for (int64_t i = 0; i < n && code == 0; i++) code = blocking(pair->sockets[0], &messages[i]);
    return code;
}

int collbench_socket_send(const pair_t *pair, char *at, uint64_t bytes) {
    message_t m = {OUT, at, bytes};
    return run(pair, &m, 1);
}

int collbench_socket_receive(const pair_t *pair, char *at, uint64_t bytes) {
    message_t m = {IN, at, bytes};
    return run(pair, &m, 1);
}

static int post(pair_t *pair, int64_t direction, char *at, uint64_t bytes) {
    if (pair->posted == pair->room) return CROWDED;
    pair->messages[pair->posted++] = (message_t){direction, at, bytes};
    return 0;
}

int collbench_socket_post_send(pair_t *pair, char *at, uint64_t bytes) { return post(pair, OUT, at, bytes); }

int collbench_socket_post_receive(pair_t *pair, char *at, uint64_t bytes) { return post(pair, IN, at, bytes); }

/* Transfers all messages posted since the last call. */
int collbench_socket_waitall(pair_t *pair) {
    int64_t n = pair->posted;
    pair->posted = 0;
    return run(pair, pair->messages, n);
}
