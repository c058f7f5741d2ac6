/* The state of the machine in one number: how long a cache line takes from one core to another and back.
 *
 *     state_probe CPU CPU
 *
 * Two threads, each on a core of its own, take turns in raising a counter. Prints nanoseconds per round trip: the median of
 * BATCHES batches, so that a thread put off its core for a while does not count.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define BATCHES 51
#define ROUNDS 2000

static _Alignas(64) _Atomic long turn;

static int stay_on(int cpu) {
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(cpu, &only);
    return pthread_setaffinity_np(pthread_self(), sizeof only, &only);
}

static void answer(long from) {
    for (long i = from; i < from + 2 * ROUNDS; i += 2) {
        while (atomic_load_explicit(&turn, memory_order_acquire) != i) {}
        atomic_store_explicit(&turn, i + 1, memory_order_release);
    }
}

static void *other(void *cpu) {
    if (stay_on(*(int *)cpu)) exit(2);
    for (int b = 0; b < BATCHES; b++) answer(2L * ROUNDS * b + 1);
    return NULL;
}

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    int first = atoi(argv[1]), second = atoi(argv[2]);
    double each[BATCHES];
    pthread_t thread;
    if (stay_on(first) || pthread_create(&thread, NULL, other, &second)) return 2;
    for (int b = 0; b < BATCHES; b++) {
        double start = now_ns();
        answer(2L * ROUNDS * b);
        each[b] = (now_ns() - start) / ROUNDS;
    }
    pthread_join(thread, NULL);
    qsort(each, BATCHES, sizeof *each, ascending);
    printf("%.1f\n", each[BATCHES / 2]);
    return 0;
}
