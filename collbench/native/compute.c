/* Computing of a replayed step: a call that keeps its core busy for a given time. Plain C, called by the loop.
 *
 * It ends when the clock has advanced by that time. So other work on the core does not make it longer, and a step's time minus its
 * computing is the time that the communication costs. It calls nothing of the library that is measured, as computing does not. */
#define _GNU_SOURCE
#include <stdint.h>
#include <time.h>

static inline int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The call itself takes one reading of the clock more than `ns`, less than 0.1 us. */
int collbench_compute(int64_t ns) {
    int64_t until = now_ns() + ns;
    while (now_ns() < until) continue;
    return 0;
}
