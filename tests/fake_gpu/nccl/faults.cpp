/* The variables that make the double misbehave, read at each use: a test may set them late.
 *
 *   FAKE_NCCL_VERSION 23203        (RCCL: 22707) what ncclGetVersion says; before 22400 there is no fp8, before 22700 no window
 *   FAKE_NCCL_DROP_RANK r          what rank r brings is left out of every reduction
 *   FAKE_NCCL_HANG r:k             the k-th call (from 1) of rank r never ends, until the communicator is aborted
 *   FAKE_NCCL_ASYNC_ERROR r:k:e    the same, and ncclCommGetAsyncError says e
 *   FAKE_NCCL_INIT_ERROR r:e       rank r's communicator cannot be made, error e; the others get ncclRemoteError */
#include "nccl.hpp"

#include <cstdio>
#include <cstdlib>

namespace fake {

int64_t variable(const char *name, int64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? atoll(text) : otherwise;
}

#ifdef FAKE_RCCL
constexpr int64_t kVersion = 22707; // RCCL of ROCm 7.2
#else
constexpr int64_t kVersion = 23203;
#endif

int version() { return int(variable("FAKE_NCCL_VERSION", kVersion)); }

bool dropped(int rank) { return variable("FAKE_NCCL_DROP_RANK", -1) == rank; }

bool hangs(int rank, uint64_t call, int *error) {
    const char *hang = getenv("FAKE_NCCL_HANG"), *fails = getenv("FAKE_NCCL_ASYNC_ERROR");
    int who, code;
    unsigned long which;
    if (hang && sscanf(hang, "%d:%lu", &who, &which) == 2 && who == rank && which == call) return true;
    if (!fails || sscanf(fails, "%d:%lu:%d", &who, &which, &code) != 3 || who != rank || which != call) return false;
    *error = code;
    return true;
}

int init_error(int rank) {
    const char *text = getenv("FAKE_NCCL_INIT_ERROR");
    int who, code;
    return text && sscanf(text, "%d:%d", &who, &code) == 2 && who == rank ? code : int(ncclSuccess);
}

} // namespace fake
