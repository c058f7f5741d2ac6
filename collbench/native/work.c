/* Computing of `--overlap`: arithmetic on memory, the same amount in each call, whatever else runs. Plain C, called by the loop.
 *
 * Unlike collbench_compute, which ends at a time, it takes longer if something takes its core or its memory bandwidth away. It measures
 * itself, so that this is known also where the computation is a part of a sample. */
#define _GNU_SOURCE
#include <stdint.h>
#include <time.h>

#define STEPS 8 /* multiplications and additions of an element, in registers */

/* Also in measuring/computation.py. */
typedef struct {
    double *memory;      /* of `blocks` × `length` elements, used in turn */
    int64_t blocks, length;
    int64_t amount;      /* blocks of one computation */
    int64_t next;        /* the block that is used next */
    int64_t *elapsed_ns; /* of the last computations, a ring of `capacity` */
    int64_t capacity;
    int64_t done;        /* computations so far */
    int64_t slice, spent_ns; /* of the computation that is not done: its slices so far, and their time */
} work_t;

static inline int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* One of `slices` equal parts of a computation. */
int collbench_computation(work_t *work, int64_t slices) {
    int64_t began = now_ns();
    int64_t first = work->amount * work->slice / slices, last = work->amount * (work->slice + 1) / slices;
    for (int64_t i = first; i < last; i++) {
        double *x = work->memory + work->next * work->length;
        for (int64_t j = 0; j < work->length; j++) {
            double value = x[j];
            for (int k = 0; k < STEPS; k++) value = value * 0.999 + 0.001;
            x[j] = value;
        }
        work->next = work->next + 1 < work->blocks ? work->next + 1 : 0;
    }
    work->spent_ns += now_ns() - began;
    if (++work->slice >= slices) {
        work->elapsed_ns[work->done % work->capacity] = work->spent_ns;
        work->done++;
        work->slice = work->spent_ns = 0;
    }
    return 0;
}
