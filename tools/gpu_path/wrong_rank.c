/* An NCCL whose rank 1 contributes wrong data to every all-reduce: it sends what its receive buffer holds.
 *
 * Linked against the real library (all other functions are the real ones), loaded through COLLBENCH_NCCL. REAL_NCCL is the real one's path.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>

#define WRONG_RANK 1
#define INTERNAL_ERROR 3

int ncclAllReduce(const void *send, void *receive, size_t count, int type, int redop, void *comm, void *stream) {
    static int (*real)(const void *, void *, size_t, int, int, void *, void *);
    static int (*rank_of)(void *, int *);
    int rank;
    if (!real) {
        const char *path = getenv("REAL_NCCL");
        void *library = path ? dlopen(path, RTLD_NOW) : NULL;
        if (!library) return INTERNAL_ERROR;
        rank_of = dlsym(library, "ncclCommUserRank");
        real = dlsym(library, "ncclAllReduce");
    }
    if (!real || !rank_of || rank_of(comm, &rank)) return INTERNAL_ERROR;
    return real(rank == WRONG_RANK ? receive : send, receive, count, type, redop, comm, stream);
}
