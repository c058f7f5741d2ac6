/* Calls that make an iteration longer by a given part: one at its start, one at its end. Plain C, called by the loop.
 *
 * The last call delays the rank by spinning on the clock. Before a long delay it sleeps, so that ranks that share cores, and the threads
 * of a library, can use the core. Measured with 2 cores for two ranks of Gloo and other work: a rank that spun kept its core
 * from the threads that the other rank waited for, so that the other rank's iteration became longer by both ranks' parts. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <time.h>

#define TRIES 32
#define PAIRS 64
#define LARGE_PART 0.5 /* from here on a delay is a part of the shortest iteration; see slowed.py */
#define SPUN_NS 100000 /* a sleep ends up to 50 us (timer slack) and a context switch too late */

typedef struct {
    int64_t began_ns;
    int64_t cost_ns; /* time of these two calls without a delay, by which the delay is shortened */
    int64_t turn;    /* number of iterations so far */
    int64_t n;
    const double *by; /* n parts of the iteration's time, used in turn */
    int64_t least_ns; /* the shortest iteration so far, without its delay; 0: none yet */
} slowed_t;

static inline int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Sleeps until shortly before `until_ns`, unless that is too soon. */
static void sleep_before(int64_t until_ns, int64_t left_ns) {
    if (left_ns < 2 * SPUN_NS) return;
    int64_t woken = until_ns - SPUN_NS;
    struct timespec t = {woken / 1000000000, woken % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) continue;
}

int collbench_slowed_begin(slowed_t *s) {
    s->began_ns = now_ns();
    return 0;
}

int collbench_slowed_end(slowed_t *s) {
    int64_t ended = now_ns();
    int64_t took = ended - s->began_ns;
    double part = s->by[s->turn++ % s->n];
    if (s->least_ns == 0 || took < s->least_ns) s->least_ns = took;
    if (part >= LARGE_PART) took = s->least_ns;
    int64_t until = ended + (int64_t)((double)took * part) - s->cost_ns;
    sleep_before(until, until - ended);
    while (now_ns() < until) continue;
    return 0;
}

/* Returns the nanoseconds that the two calls add to an iteration without a delay. Together they read the clock three times. With a delay
 * they add two and a half readings: the last one of a spin is half a reading late on average, and one reading is part of the delay.
 * It is the minimum of several attempts, since other processes may use the core. */
int64_t collbench_slowed_cost(void) {
    const double nothing = 0;
    slowed_t s = {0, 0, 0, 1, &nothing, 0};
    int64_t quickest = INT64_MAX;
    for (int i = 0; i < TRIES; i++) {
        int64_t began = now_ns();
        for (int j = 0; j < PAIRS; j++) {
            collbench_slowed_begin(&s);
            collbench_slowed_end(&s);
        }
        int64_t took = now_ns() - began;
        if (took < quickest) quickest = took;
    }
    return quickest * 5 / (6 * PAIRS);
}
