/* What collbench is compared with: an all-reduce of floats timed in C, with MPI called directly.
 *
 *     direct BYTES WARMUP ITERATIONS    so many samples
 *     direct BYTES WARMUP 0 SECONDS     as many as fit into the seconds
 *
 * A sample is what collbench calls isolated: barrier, stamp, call, stamp; its value is the maximum over ranks. Thread level single,
 * buffers out of place, fixed, page-aligned, of ordinary pages and touched. Rank 0 prints a line of JSON.
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define MOST 1000000 /* samples kept */
#define BATCH 100    /* samples between two looks at the time */
#define PAGE 4096

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static float *recv_buffer, *send_buffer;

static void allocate(size_t bytes) {
    size_t part = (bytes + PAGE - 1) / PAGE * PAGE;
    char *memory = mmap(NULL, 2 * part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) MPI_Abort(MPI_COMM_WORLD, 1);
    madvise(memory, 2 * part, MADV_NOHUGEPAGE);
    memset(memory, 0, 2 * part);
    recv_buffer = (float *)memory;
    send_buffer = (float *)(memory + part);
    for (size_t i = 0; i < bytes / sizeof(float); i++) send_buffer[i] = (float)(i % 7);
}

static void sample(int count, int n, int64_t *elapsed) {
    for (int i = 0; i < n; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        int64_t start = now_ns();
        MPI_Allreduce(send_buffer, recv_buffer, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        elapsed[i] = now_ns() - start;
    }
}

/* Samples until rank 0's time is over; returns how many. */
static int sample_for(int count, double seconds, int64_t *elapsed) {
    int64_t end = now_ns() + (int64_t)(seconds * 1e9);
    int n = 0, more = 1;
    while (more && n + BATCH <= MOST) {
        sample(count, BATCH, elapsed + n);
        n += BATCH;
        more = now_ns() < end;
        MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    return n;
}

static int ascending(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* VmHWM and not getrusage, whose maximum remembers the process before exec. */
static long peak_kib(void) {
    char line[256];
    long kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "VmHWM: %ld", &kib) == 1) break;
    if (status) fclose(status);
    return kib;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    if (argc < 4) MPI_Abort(MPI_COMM_WORLD, 2);
    size_t bytes = strtoull(argv[1], NULL, 10);
    int warmup = atoi(argv[2]), n = atoi(argv[3]), count = (int)(bytes / sizeof(float)), rank;
    if (warmup > MOST || n > MOST || (n == 0 && argc < 5)) MPI_Abort(MPI_COMM_WORLD, 2);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    allocate(bytes);
    int64_t *elapsed = malloc(MOST * sizeof *elapsed), *slowest = malloc(MOST * sizeof *slowest);
    sample(count, warmup, elapsed);
    if (n > 0)
        sample(count, n, elapsed);
    else
        n = sample_for(count, atof(argv[4]), elapsed);
    long mine = peak_kib(), most = 0;
    MPI_Reduce(elapsed, slowest, n, MPI_INT64_T, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&mine, &most, 1, MPI_LONG, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        qsort(slowest, (size_t)n, sizeof *slowest, ascending);
        double p50 = (double)(slowest[(n - 1) / 2] + slowest[n / 2]) / 2;
        printf("{\"p50_s\": %.10g, \"n\": %d, \"peak_bytes\": %ld}\n", p50 * 1e-9, n, most * 1024);
    }
    MPI_Finalize();
    return 0;
}
