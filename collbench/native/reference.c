/* State probes and reference rates of the host, measured next to the test cases. Plain C, called through ctypes. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
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
} canary_t;

static int wait_for(_Atomic int64_t *line, int64_t value, int64_t end) {
    for (int64_t spins = 1; atomic_load_explicit(line, memory_order_acquire) < value; spins++)
        if (spins % 4096 == 0 && now_ns() > end) return ETIMEDOUT;
    return 0;
}

static int round_trips(const canary_t *c, int64_t from, int64_t rounds, int64_t end) {
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
int collbench_ping_pong(canary_t *c, int64_t blocks, int64_t *elapsed_ns) {
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
