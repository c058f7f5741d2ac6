/* The host's time to enqueue one ncclAllReduce, in the manner of nccl-tests: a plain C loop of 20 calls on one stream, one rank.
 *
 *     enqueue PATH_OF_LIBNCCL BYTES SAMPLES
 *
 * prints {"enqueue_s": …, "time_s": …}: medians over the samples, per call, of the host's loop and of the loop with its completion.
 * Buffers rotate through 16 MiB, as nccl-tests shifts them. CUDA and NCCL are opened at run time, so no header of theirs is needed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ITERATIONS 20
#define WARMUPS 5
#define ROTATED (16u << 20)

typedef struct {
    char internal[128];
} unique_id;

static void *find(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "%s is missing\n", name);
        exit(2);
    }
    return found;
}

static void check(int code, const char *what) {
    if (code) {
        fprintf(stderr, "%s returned %d\n", what, code);
        exit(2);
    }
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    size_t bytes = strtoull(argv[2], NULL, 10), samples = strtoull(argv[3], NULL, 10);
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), *nccl = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
    if (!cuda || !nccl || bytes < 4 || bytes > ROTATED || samples < 1) {
        fprintf(stderr, "%s\n", cuda && nccl ? "BYTES or SAMPLES is not valid" : dlerror());
        return 2;
    }
    int (*init)(unsigned) = find(cuda, "cuInit"), (*device)(int *, int) = find(cuda, "cuDeviceGet");
    int (*retain)(void **, int) = find(cuda, "cuDevicePrimaryCtxRetain"), (*use)(void *) = find(cuda, "cuCtxSetCurrent");
    int (*make_stream)(void **, unsigned) = find(cuda, "cuStreamCreate"), (*wait)(void *) = find(cuda, "cuStreamSynchronize");
    int (*allocate)(uint64_t *, size_t) = find(cuda, "cuMemAlloc_v2");
    int (*get_id)(unique_id *) = find(nccl, "ncclGetUniqueId"), (*join)(void **, int, unique_id, int) = find(nccl, "ncclCommInitRank");
    int (*allreduce)(const void *, void *, size_t, int, int, void *, void *) = find(nccl, "ncclAllReduce");
    int (*leave)(void *) = find(nccl, "ncclCommDestroy");

    int gpu;
    void *context, *stream, *comm;
    uint64_t send, receive;
    unique_id id;
    check(init(0), "cuInit");
    check(device(&gpu, 0), "cuDeviceGet");
    check(retain(&context, gpu), "cuDevicePrimaryCtxRetain");
    check(use(context), "cuCtxSetCurrent");
    check(make_stream(&stream, 1), "cuStreamCreate");
    check(allocate(&send, ROTATED), "cuMemAlloc");
    check(allocate(&receive, ROTATED), "cuMemAlloc");
    check(get_id(&id), "ncclGetUniqueId");
    check(join(&comm, 1, id, 0), "ncclCommInitRank");

    size_t slots = ROTATED / bytes, slot = 0;
    int64_t *host = calloc(2 * samples, sizeof *host), *whole = host + samples;
    if (!host) return 2;
    for (size_t i = 0; i < WARMUPS + samples; i++) {
        int64_t began = now_ns();
        for (int k = 0; k < ITERATIONS; k++, slot = (slot + 1) % slots) {
            size_t at = slot * bytes;
            int code = allreduce((void *)(send + at), (void *)(receive + at), bytes / 4, 7, 0, comm, stream); /* ncclFloat32, ncclSum */
            if (code) check(code, "ncclAllReduce");
        }
        int64_t enqueued = now_ns();
        check(wait(stream), "cuStreamSynchronize");
        if (i >= WARMUPS) {
            host[i - WARMUPS] = enqueued - began;
            whole[i - WARMUPS] = now_ns() - began;
        }
    }
    check(leave(comm), "ncclCommDestroy");
    qsort(host, samples, sizeof *host, ascending);
    qsort(whole, samples, sizeof *whole, ascending);
    printf("{\"enqueue_s\": %.4g, \"time_s\": %.4g}\n", host[samples / 2] * 1e-9 / ITERATIONS, whole[samples / 2] * 1e-9 / ITERATIONS);
    return 0;
}
