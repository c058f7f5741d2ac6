/* The timed loop, and what must not cost Python anything: the synchronisation before a sample and the reference copies.
 *
 * Plain C without Python.h or mpi.h: programs are lists of function pointers with word-sized arguments, so one loop drives
 * MPI, NCCL and anything else whose functions return 0 for success. Called through ctypes, which lets go of Python's lock.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_WORDS 12

typedef uint64_t word;
typedef int (*function)(word, word, word, word, word, word, word, word, word, word, word, word);

typedef struct {
    function call;
    word words[MAX_WORDS];
} call_t;

typedef struct {
    const call_t *calls;
    int64_t n;
} slot_t;

typedef struct {
    int64_t code;      /* what the failing call returned */
    int64_t call;      /* its place in the program; -1: in the synchronisation */
    int64_t iteration; /* the iteration it happened in */
} failure_t;

static inline int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Surplus arguments are harmless in the C calling conventions of Linux: the caller cleans up. */
static inline int run_slot(const slot_t *slot, int64_t *failed) {
    for (int64_t i = 0; i < slot->n; i++) {
        const word *w = slot->calls[i].words;
        int code = slot->calls[i].call(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11]);
        if (code != 0) {
            *failed = i;
            return code;
        }
    }
    return 0;
}

/* n samples of `batch` iterations each; a synchronisation (may be NULL) before every sample. Iteration k uses slot
 * (first + k) % slots. start_ns and elapsed_ns have n entries. Returns the samples finished; less than n after a failure. */
int64_t collbench_run(const slot_t *slots, int64_t n_slots, const slot_t *sync, int64_t n, int64_t batch, int64_t first,
                      int64_t *start_ns, int64_t *elapsed_ns, volatile int64_t *progress, failure_t *failure) {
    int64_t k = first;
    for (int64_t i = 0; i < n; i++) {
        int64_t failed = -1;
        int code = sync ? run_slot(sync, &failed) : 0;
        if (code != 0) {
            *failure = (failure_t){code, -1, i * batch};
            return i;
        }
        int64_t start = now_ns();
        for (int64_t j = 0; j < batch; j++, k++) {
            code = run_slot(&slots[k % n_slots], &failed);
            if (code != 0) {
                *failure = (failure_t){code, failed, i * batch + j};
                return i;
            }
            *progress = i * batch + j;
        }
        start_ns[i] = start;
        elapsed_ns[i] = now_ns() - start;
    }
    return n;
}

/* --- synchronisation of ranks whose library has no barrier worth the name -------------------------------------------------
 *
 * Inside a host: a sense-reversing barrier in shared memory that spins, or sleeps where cores are too few to spin on. Between hosts: the first rank of each host runs a
 * dissemination barrier over connected TCP sockets, busy-polled; round r goes to the host 2^r further. */
typedef struct {
    _Atomic int32_t arrived;
    char apart[60]; /* the two words on lines of their own */
    _Atomic int32_t sense;
} shared_t;

typedef struct {
    shared_t *shared;
    int64_t ranks;   /* on this host */
    int64_t leader;  /* whether this rank speaks for the host */
    int64_t sleeps;  /* too few cores to spin on: sleep while waiting */
    int64_t rounds;  /* of the dissemination between hosts; 0 on one host */
    const int32_t *to;
    const int32_t *from;
} barrier_t;

static int send_byte(int fd) {
    char byte = 1;
    ssize_t sent;
    while ((sent = send(fd, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT)) != 1)
        if (sent < 0 && errno != EAGAIN && errno != EINTR) return errno;
    return 0;
}

static int receive_byte(int fd) {
    char byte;
    ssize_t got;
    while ((got = recv(fd, &byte, 1, MSG_DONTWAIT)) != 1) {
        if (got == 0) return ECONNRESET;
        if (errno != EAGAIN && errno != EINTR) return errno;
    }
    return 0;
}

static int between_hosts(const barrier_t *b) {
    for (int64_t r = 0; r < b->rounds; r++) {
        int code = send_byte(b->to[r]);
        if (code == 0) code = receive_byte(b->from[r]);
        if (code != 0) return code;
    }
    return 0;
}

/* Waits for the word to change from `seen`: spins, or where cores are too few for that, sleeps. */
static void wait_while(_Atomic int32_t *at, int32_t seen, int64_t sleeps) {
    if (sleeps) syscall(SYS_futex, at, FUTEX_WAIT, seen, NULL, NULL, 0);
}

static void wake(_Atomic int32_t *at, int64_t sleeps) {
    if (sleeps) syscall(SYS_futex, at, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

int collbench_sync(barrier_t *b) {
    int32_t sense = atomic_load_explicit(&b->shared->sense, memory_order_acquire);
    int code = 0;
    if (b->leader) {
        int32_t here;
        while ((here = atomic_load_explicit(&b->shared->arrived, memory_order_acquire)) != (int32_t)b->ranks - 1)
            wait_while(&b->shared->arrived, here, b->sleeps);
        atomic_store_explicit(&b->shared->arrived, 0, memory_order_relaxed);
        code = between_hosts(b);
        atomic_store_explicit(&b->shared->sense, code ? -1 : !sense, memory_order_release);
        wake(&b->shared->sense, b->sleeps);
        return code;
    }
    if (sense < 0) return ECONNRESET;
    atomic_fetch_add_explicit(&b->shared->arrived, 1, memory_order_acq_rel);
    wake(&b->shared->arrived, b->sleeps);
    int32_t seen;
    while ((seen = atomic_load_explicit(&b->shared->sense, memory_order_acquire)) == sense)
        wait_while(&b->shared->sense, sense, b->sleeps);
    return seen < 0 ? ECONNRESET : 0;
}

/* --- canaries: has the machine itself changed while a cell was measured? ----------------------------------------------------- */
typedef struct {
    _Atomic int64_t *line; /* shared by the two ranks of a pair, on a cache line of its own */
    int64_t first;         /* whether this rank serves */
    int64_t base;          /* what the line holds when both are ready; moves on with every call */
    int64_t rounds;        /* round trips per block */
    int64_t deadline_ns;   /* for all of it: a partner that does not run must not hold this rank for ever */
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

/* Blocks of round trips of a cache line between two ranks; a first one, not timed, lets the partner arrive. */
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

/* Blocks of a chain of multiplications, each of which needs the one before: what one core gives this process. */
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

/* --- references: what the memory of this host can do ----------------------------------------------------------------------- */
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
