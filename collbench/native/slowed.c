/* Calls that make an iteration take a chosen part longer: one at its begin, one at its end. Plain C, called by the loop.
 *
 * The last call holds the rank by spinning on the clock. Where that would be long it sleeps first: ranks that share cores, and the threads
 * of a library, are to have the core meanwhile. Seen with 2 cores for two ranks of Gloo and other work: a rank that spun held its core
 * against the threads that the other rank waited for, whose iteration then took both ranks' parts longer. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <time.h>

#define TRIES 32
#define PAIRS 64
#define SPUN_NS 100000 /* a sleeper wakes up to 50 us (timer slack) and a switch too late */

typedef struct {
    int64_t began_ns;
    int64_t cost_ns; /* what these two calls take by themselves: so much less is held */
    int64_t turn;    /* the iterations so far */
    int64_t n;
    const double *by; /* n parts of the iteration's time, used in turn */
} slowed_t;

static inline int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Sleeps until shortly before a moment that is far enough away. */
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
    int64_t until = ended + (int64_t)((double)(ended - s->began_ns) * s->by[s->turn++ % s->n]) - s->cost_ns;
    sleep_before(until, until - ended);
    while (now_ns() < until) continue;
    return 0;
}

/* Nanoseconds that the two calls add to an iteration by themselves. Together they look at the clock three times when they hold nothing. When
 * they hold, they add two and a half looks: the last of a spin comes half a look late on average, and one look is part of what is held.
 * The quickest of several tries, since others may have had the core. */
int64_t collbench_slowed_cost(void) {
    const double nothing = 0;
    slowed_t s = {0, 0, 0, 1, &nothing};
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
