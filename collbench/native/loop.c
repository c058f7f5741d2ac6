/* The timed loops, and the synchronization before a sample, which must not use Python either.
 *
 * Plain C without Python.h or mpi.h: programs are lists of function pointers with word-sized arguments, so one loop drives
 * MPI, NCCL and any other library with functions that return 0 for success. Called through ctypes, which releases Python's lock.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
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
    int64_t code;      /* return value of the failed call */
    int64_t call;      /* its position in the program; -1: in the synchronization */
    int64_t iteration; /* the iteration of the failure */
} failure_t;

static inline int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Additional arguments have no effect in the C calling conventions of Linux, in which the caller cleans up. */
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

/* n samples of `batch` iterations each; a synchronization (may be NULL) before every sample. Iteration k uses slot
 * (first + k) % slots. start_ns and elapsed_ns have n entries. Returns the number of complete samples, less than n after a failure. */
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

/* --- calls that only enqueue work on streams --------------------------------------------------------------------------------
 *
 * A sample is the time between two events on a stream. Its start and end are recorded around `batch` iterations; then every stream is
 * polled until it is empty, and every communicator is checked for errors that occurred after its call had returned. */
typedef struct {
    int64_t n;           /* streams, one per rank of this process */
    const word *streams;
    const word *starts;  /* events */
    const word *ends;
    const word *comms;   /* n_comms of them */
    int64_t n_comms;
    int (*record)(word event, word stream);
    int (*query)(word stream);
    int (*elapsed)(float *ms, word start, word end);
    int (*async_error)(word comm, int *error);
    int64_t deadline_ns;
} device_t;

enum { NOT_READY = 600, IN_PROGRESS = 7 };          /* cuda.h, nccl.h */
enum { IN_DEVICE = -2, IN_LIBRARY = -3, LATE = -4 }; /* values of failure_t.call for work that failed while it was awaited */

static int record_all(const device_t *d, const word *events) {
    int code = 0;
    for (int64_t i = 0; i < d->n && code == 0; i++) code = d->record(events[i], d->streams[i]);
    return code;
}

static int async_error(const device_t *d) {
    int error = 0, code = 0;
    for (int64_t i = 0; i < d->n_comms && code == 0; i++) {
        code = d->async_error(d->comms[i], &error);
        if (code == 0 && error != IN_PROGRESS) code = error;
    }
    return code;
}

/* Waits for all streams. Returns whether they are empty; else stores the reason in the failure. */
static int finished(const device_t *d, failure_t *failure) {
    int64_t end = now_ns() + d->deadline_ns;
    for (int64_t i = 0; i < d->n; i++) {
        int code;
        while ((code = d->query(d->streams[i])) == NOT_READY) {
            if ((code = async_error(d)) != 0) {
                *failure = (failure_t){code, IN_LIBRARY, 0};
                return 0;
            }
            if (now_ns() > end) {
                *failure = (failure_t){0, LATE, 0};
                return 0;
            }
            sched_yield(); /* the events have the time, so another process may use this core */
        }
        if (code != 0) {
            *failure = (failure_t){code, IN_DEVICE, 0};
            return 0;
        }
    }
    return 1;
}

static int read_events(const device_t *d, double *ns, int64_t stride) {
    for (int64_t i = 0; i < d->n; i++) {
        float ms = 0;
        int code = d->elapsed(&ms, d->starts[i], d->ends[i]);
        if (code != 0) return code;
        ns[i * stride] = (double)ms * 1e6;
    }
    return 0;
}

/* As collbench_run, for calls that only enqueue. enqueue_ns has n entries, the host's time for the calls of a sample; device_ns has n per stream. */
int64_t collbench_run_on_device(const device_t *d, const slot_t *slots, int64_t n_slots, const slot_t *sync, int64_t n, int64_t batch,
                                int64_t first, int64_t *enqueue_ns, double *device_ns, volatile int64_t *progress, failure_t *failure) {
    int64_t k = first;
    for (int64_t i = 0; i < n; i++) {
        int64_t failed = -1;
        int code = sync ? run_slot(sync, &failed) : 0;
        if (code != 0) {
            *failure = (failure_t){code, -1, i * batch};
            return i;
        }
        if ((code = record_all(d, d->starts)) != 0) {
            *failure = (failure_t){code, IN_DEVICE, i * batch};
            return i;
        }
        int64_t start = now_ns();
        for (int64_t j = 0; j < batch; j++, k++) {
            code = run_slot(&slots[k % n_slots], &failed);
            if (code != 0) {
                *failure = (failure_t){code, failed, i * batch + j};
                return i;
            }
        }
        enqueue_ns[i] = now_ns() - start;
        if ((code = record_all(d, d->ends)) != 0) *failure = (failure_t){code, IN_DEVICE, 0};
        int done = code == 0 && finished(d, failure);
        if (done && (code = read_events(d, device_ns + i, n)) != 0) *failure = (failure_t){code, IN_DEVICE, 0};
        if (!done || code != 0) {
            failure->iteration = i * batch;
            return i;
        }
        *progress = (i + 1) * batch - 1;
    }
    return n;
}

/* --- synchronization of ranks if the barrier of their library has a large skew -------------------------------------------------
 *
 * Inside a host: a sense-reversing barrier in shared memory that spins, or sleeps if there are too few cores. Between hosts: the first rank of each host runs a
 * dissemination barrier over connected TCP sockets, busy-polled; round r goes to the host 2^r further. */
typedef struct {
    _Atomic int32_t arrived;
    char apart[60]; /* each of the two words on its own cache line */
    _Atomic int32_t sense;
} shared_t;

typedef struct {
    shared_t *shared;
    int64_t ranks;   /* on this host */
    int64_t leader;  /* whether this rank communicates for its host */
    int64_t sleeps;  /* too few cores to spin: sleep while waiting */
    int64_t rounds;  /* number of rounds between hosts; 0 on one host */
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

/* Waits until the word differs from `seen`: spins, or sleeps if there are too few cores. */
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
