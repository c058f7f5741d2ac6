/* State probes and reference rates of the host, measured next to the test cases. Plain C, called through ctypes. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>

static inline int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* --- state probes: whether the machine state changed during a test case ----------------------------------------------------- */
typedef struct {
    _Atomic int64_t *line; /* shared by the two ranks of a pair, on a separate cache line */
    int64_t first;         /* whether this rank serves */
    int64_t base;          /* the value of the line when both are ready; increases with every call */
    int64_t rounds;        /* round trips per block */
    int64_t deadline_ns;   /* time limit of the whole call, for a partner that does not run */
} state_probe_t;

static int wait_for(_Atomic int64_t *line, int64_t value, int64_t end) {
    for (int64_t spins = 1; atomic_load_explicit(line, memory_order_acquire) < value; spins++)
        if (spins % 4096 == 0 && now_ns() > end) return ETIMEDOUT;
    return 0;
}

static int round_trips(const state_probe_t *c, int64_t from, int64_t rounds, int64_t end) {
    for (int64_t i = 0; i < rounds; i++) {
        int64_t ball = from + 2 * i + 1;
        if (c->first) atomic_store_explicit(c->line, ball, memory_order_release);
        int code = wait_for(c->line, c->first ? ball + 1 : ball, end);
        if (code != 0) return code;
        if (!c->first) atomic_store_explicit(c->line, ball + 1, memory_order_release);
    }
    return 0;
}

/* Measures blocks of round trips of a cache line between two ranks. An untimed block before them waits for the partner. */
int collbench_ping_pong(state_probe_t *c, int64_t blocks, int64_t *elapsed_ns) {
    int64_t end = now_ns() + c->deadline_ns, base = c->base;
    c->base += 2 * c->rounds * (blocks + 1);
    int code = round_trips(c, base, c->rounds, end);
    for (int64_t b = 0; b < blocks && code == 0; b++) {
        base += 2 * c->rounds;
        int64_t start = now_ns();
        code = round_trips(c, base, c->rounds, end);
        elapsed_ns[b] = now_ns() - start;
    }
    return code;
}

/* Measures blocks of dependent multiplications: the speed of one core for this process. */
int collbench_work(int64_t blocks, int64_t steps, int64_t *elapsed_ns) {
    volatile uint64_t sink;
    for (int64_t b = 0; b < blocks; b++) {
        int64_t start = now_ns();
        uint64_t x = (uint64_t)start | 1;
        for (int64_t i = 0; i < steps; i++) x = x * 6364136223846793005u + 1442695040888963407u;
        sink = x;
        elapsed_ns[b] = now_ns() - start;
    }
    (void)sink;
    return 0;
}

/* --- references: rates of this host's memory ----------------------------------------------------------------------- */
int collbench_nothing(void) { return 0; }

int collbench_copy(void *to, const void *from, uint64_t bytes) {
    memcpy(to, from, bytes);
    return 0;
}

#define SUM(name, type)                                                  \
    int name(type *restrict to, const type *restrict from, uint64_t n) { \
        for (uint64_t i = 0; i < n; i++) to[i] = (type)(to[i] + from[i]); \
        return 0;                                                        \
    }
SUM(collbench_sum_float64, double)
SUM(collbench_sum_float32, float)
SUM(collbench_sum_int64, int64_t)
SUM(collbench_sum_int32, int32_t)
SUM(collbench_sum_int8, int8_t)
SUM(collbench_sum_uint8, uint8_t)

/* --- references: transfers between two ranks of this host ---------------------------------------------------------- */
typedef struct {
    _Alignas(128) _Atomic int64_t filled; /* chunks that the sender has copied in, and the receiver has copied out, ever */
    _Alignas(128) _Atomic int64_t emptied;
    _Alignas(128) char chunks[];
} channel_t;

typedef struct {
    channel_t *out, *in; /* in memory that both ranks share */
    uint64_t chunk_bytes;
    int64_t chunks;      /* that a channel has */
    int64_t deadline_ns; /* time limit without progress */
} segment_t;

typedef int (*sum_t)(void *to, const void *from, uint64_t n);

static int wait_in_turns(int64_t *idle, int64_t *since, int64_t deadline_ns) {
    if (++*idle % 1024 != 0) return 0;
    int64_t now = now_ns();
    if (*idle == 1024) *since = now;
    if (now - *since > deadline_ns) return ETIMEDOUT;
    sched_yield(); /* the partner may need this core */
    return 0;
}

/* Moves a message through shared memory: this rank copies `from` into its channel by chunks, while it copies the chunks of the partner's
 * message out into `to`, or adds them with `sum`. `from` or `to` is NULL if the rank only receives or only sends. */
int collbench_pass(segment_t *s, char *to, const char *from, uint64_t bytes, sum_t sum, uint64_t width) {
    int64_t n = (int64_t)((bytes + s->chunk_bytes - 1) / s->chunk_bytes), idle = 0, since = 0;
    int64_t sent = from ? 0 : n, taken = to ? 0 : n;
    int64_t out = atomic_load(&s->out->filled), in = atomic_load(&s->in->emptied);
    while (sent < n || taken < n) {
        int moved = 0;
        if (sent < n && out + sent - atomic_load_explicit(&s->out->emptied, memory_order_acquire) < s->chunks) {
            uint64_t at = (uint64_t)sent * s->chunk_bytes, size = bytes - at < s->chunk_bytes ? bytes - at : s->chunk_bytes;
            memcpy(s->out->chunks + (uint64_t)((out + sent) % s->chunks) * s->chunk_bytes, from + at, size);
            atomic_store_explicit(&s->out->filled, out + ++sent, memory_order_release);
            moved = 1;
        }
        if (taken < n && atomic_load_explicit(&s->in->filled, memory_order_acquire) > in + taken) {
            uint64_t at = (uint64_t)taken * s->chunk_bytes, size = bytes - at < s->chunk_bytes ? bytes - at : s->chunk_bytes;
            const char *chunk = s->in->chunks + (uint64_t)((in + taken) % s->chunks) * s->chunk_bytes;
            if (sum) sum(to + at, chunk, size / width);
            else memcpy(to + at, chunk, size);
            atomic_store_explicit(&s->in->emptied, in + ++taken, memory_order_release);
            moved = 1;
        }
        int code = moved ? (int)(idle = 0) : wait_in_turns(&idle, &since, s->deadline_ns);
        if (code != 0) return code;
    }
    return 0;
}

/* Copies memory of another process of this user (cross-memory attach), as MPI libraries do if the kernel permits it. */
int collbench_copy_from(int64_t process, char *to, char *from, uint64_t bytes) {
    uint64_t copied = 0;
    while (copied < bytes) {
        struct iovec here = {to + copied, bytes - copied}, there = {from + copied, bytes - copied};
        ssize_t n = process_vm_readv((pid_t)process, &here, 1, &there, 1, 0);
        if (n <= 0) return n < 0 ? errno : EFAULT;
        copied += (uint64_t)n;
    }
    return 0;
}
