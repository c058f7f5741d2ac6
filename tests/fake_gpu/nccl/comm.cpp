/* Communicators: made, asked, ended. */
#include "api.hpp"
#include "driver.hpp"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <ctime>

using namespace fake;

namespace {

unsigned long bus_number(const char *bus) { // "0000:10:00.0" is 0x10000 in NCCL's log
    unsigned long domain = 0, number = 0, device = 0, function = 0;
    sscanf(bus, "%lx:%lx:%lx.%lx", &domain, &number, &device, &function);
    return domain << 20 | number << 12 | device << 4 | function;
}

void say(const Comm &comm, const std::string &bus, const char *end) {
    info(comm.device, kInit, "ncclCommInitRankConfig comm %p rank %d nranks %d cudaDev %d nvmlDev %d busId %lx commId 0x%lx - Init %s",
         static_cast<const void *>(&comm), comm.rank, comm.ranks, comm.device, comm.device, bus_number(bus.c_str()), comm.hash, end);
}

/* Meets the other ranks: in the caller's thread, or beside it where the communicator does not block. */
ncclResult_t join(const CommPtr &comm, const std::string &bus) {
    std::string why;
    say(*comm, bus, "START");
    ncclResult_t result = attach(*comm, bus, &why);
    if (result) warn(comm->device, "%s", why.c_str());
    else if (!choose(*comm)) result = ncclInvalidUsage;
    if (!result) {
        info(comm->device, kInit, "Using network Socket");
        start_ras(comm);
        say(*comm, bus, "COMPLETE");
    }
    comm->async_error = result;
    return result;
}

[[maybe_unused]] constexpr uint64_t kBytesOfComm = 3 << 20; // GPU memory that ncclCommMemStats reports of each communicator

CommPtr opened(ncclComm_t *handle, int ranks, const std::string &name, int rank, int device, bool blocking) {
    auto comm = std::make_shared<Comm>();
    comm->name = name;
    comm->hash = strtoul(name.c_str() + name.size() - 16, nullptr, 16);
    comm->rank = rank;
    comm->ranks = ranks;
    comm->device = device;
    comm->blocking = blocking;
    comm->async_error = ncclInProgress;
    *handle = new ncclComm;
    (*handle)->comm = comm;
    return comm;
}

ncclResult_t make(ncclComm_t *handle, int ranks, const ncclUniqueId &id, int rank, bool blocking) {
    if (!handle || ranks < 1 || ranks > kMaxRanks || rank < 0 || rank >= ranks || memchr(id.internal, 0, sizeof id.internal) == nullptr) {
        warn(-1, "Invalid rank requested : %d/%d", rank, ranks);
        return ncclInvalidArgument;
    }
    int device;
    char bus[16] = "";
    if (driver().current(&device) || driver().bus(bus, sizeof bus, device)) {
        warn(-1, "Cuda failure 'no CUDA-capable device is detected'");
        return ncclUnhandledCudaError;
    }
    auto comm = opened(handle, ranks, id.internal, rank, device, blocking);
    return together(blocking, [comm, text = std::string(bus)] { return join(comm, text); });
}

/* Waits as NCCL's commDestroySync and commFree (init.cc) do, by force or not: until no graph holds a call of it, and, since memory is freed,
 * until the GPU has nothing more to do, for other communicators either. A group aborts all before it waits for any. */
ncclResult_t leave(const Comm &comm, bool abort) {
    timespec moment{0, 200000};
    while (comm.held || busy(comm.device)) nanosleep(&moment, nullptr);
    info(comm.device, kInit, "comm %p rank %d nranks %d cudaDev %d busId %lx - %s COMPLETE", static_cast<const void *>(&comm), comm.rank,
         comm.ranks, comm.device, bus_number(comm.shared ? comm.mine().bus : ""), abort ? "Abort" : "Destroy");
    return ncclSuccess;
}

/* A communicator of some ranks of another one. All of them know its name: that of the parent, a kind and a number, and its hash. */
ncclResult_t child(const CommPtr &parent, ncclComm_t *handle, const char *kind, int number, const std::vector<int> &members) {
    int rank = int(std::find(members.begin(), members.end(), parent->rank) - members.begin());
    char name[160];
    snprintf(name, sizeof name, "%.80s-%s%d-%016lx", parent->name.c_str(), kind, number, parent->hash + uint64_t(number));
    return join(opened(handle, int(members.size()), name, rank, parent->device, true), parent->mine().bus);
}

/* Exchanges (color, key) with all ranks of a parent through its shared memory: a round per split. */
std::vector<int> same_color(const CommPtr &parent, int color, int key) {
    auto &shared = *parent->shared;
    auto &mine = parent->mine();
    mine.color = color;
    mine.key = key;
    timespec moment{0, 200000};
    auto all_at = [&](auto field, int round) {
        ++(mine.*field);
        for (int rank = 0; rank < parent->ranks; rank++)
            while ((shared.places[rank].*field).load() < round && !parent->aborted) nanosleep(&moment, nullptr);
    };
    all_at(&Place::brought, parent->children);
    std::vector<int> members;
    for (int rank = 0; rank < parent->ranks; rank++)
        if (shared.places[rank].color == color) members.push_back(rank);
    std::stable_sort(members.begin(), members.end(), [&](int a, int b) { return shared.places[a].key < shared.places[b].key; });
    all_at(&Place::taken, parent->children);
    return members;
}

ncclResult_t end(ncclComm_t handle, const char *where, bool abort) {
    auto comm = comm_of(handle, where);
    if (!comm) return ncclInvalidArgument;
    handle->magic = 0;
    handle->comm.reset();
    if (abort) comm->aborted = true;
    if (comm->shared) ring(comm->mine());
    return together(true, [comm, abort] { return leave(*comm, abort); });
}

} // namespace

EXPORTED ncclResult_t ncclGetVersion(int *number) {
    if (!number) return ncclInvalidArgument;
    *number = version();
    return ncclSuccess;
}

EXPORTED ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    if (!id) return ncclInvalidArgument;
    memset(id, 0, sizeof *id);
    strcpy(id->internal, new_name().c_str());
    return ncclSuccess;
}

EXPORTED ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank) { return make(comm, ranks, id, rank, true); }

EXPORTED ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
    if (config && config->magic != NCCL_API_MAGIC) {
        warn(-1, "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
        return ncclInvalidArgument;
    }
    return make(comm, ranks, id, rank, !config || config->blocking != 0);
}

/* The exchange of colors runs beside the caller, who may drive several ranks. */
EXPORTED ncclResult_t ncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t *made, ncclConfig_t *) {
    auto parent = comm_of(handle, "CommSplit");
    if (!parent || !made || color < -1) return ncclInvalidArgument;
    *made = nullptr;
    parent->children++;
    return together(true, [=] {
        auto members = same_color(parent, color, key);
        return color < 0 ? ncclSuccess : child(parent, made, "split", parent->children * kMaxRanks + color, members);
    });
}

EXPORTED ncclResult_t ncclCommShrink(ncclComm_t handle, int *excluded, int n, ncclComm_t *made, ncclConfig_t *, int flags) {
    auto parent = comm_of(handle, "CommShrink");
    if (!parent || !made || !excluded || n < 1 || flags & ~1) return ncclInvalidArgument;
    std::vector<int> members;
    for (int rank = 0; rank < parent->ranks; rank++)
        if (std::find(excluded, excluded + n, rank) == excluded + n) members.push_back(rank);
    if (members.empty() || std::find(members.begin(), members.end(), parent->rank) == members.end()) {
        warn(parent->device, "CommShrink : rank %d is excluded and must not call", parent->rank);
        return ncclInvalidArgument;
    }
    parent->shrunk++;
    return together(true, [=] { return child(parent, made, "shrink", parent->shrunk, members); });
}

#ifndef FAKE_RCCL
/* ncclStatGpuMemSuspend … ncclStatGpuMemTotal */
EXPORTED ncclResult_t ncclCommMemStats(ncclComm_t handle, int which, uint64_t *value) {
    if (!comm_of(handle, "CommMemStats") || !value || which < 0 || which > 3) return ncclInvalidArgument;
    *value = which == 2 || which == 3 ? kBytesOfComm : 0;
    return ncclSuccess;
}
#endif

EXPORTED ncclResult_t ncclCommFinalize(ncclComm_t comm) { return comm_of(comm, "CommFinalize") ? ncclSuccess : ncclInvalidArgument; }

EXPORTED ncclResult_t ncclCommDestroy(ncclComm_t comm) { return end(comm, "CommDestroy", false); }

EXPORTED ncclResult_t ncclCommAbort(ncclComm_t comm) { return end(comm, "CommAbort", true); }

EXPORTED ncclResult_t ncclCommCount(ncclComm_t handle, int *count) {
    auto comm = comm_of(handle, "CommCount");
    if (comm) *count = comm->ranks;
    return comm ? ncclSuccess : ncclInvalidArgument;
}

EXPORTED ncclResult_t ncclCommUserRank(ncclComm_t handle, int *rank) {
    auto comm = comm_of(handle, "CommUserRank");
    if (comm) *rank = comm->rank;
    return comm ? ncclSuccess : ncclInvalidArgument;
}

EXPORTED ncclResult_t ncclCommCuDevice(ncclComm_t handle, int *device) {
    auto comm = comm_of(handle, "CommCuDevice");
    if (comm) *device = comm->device;
    return comm ? ncclSuccess : ncclInvalidArgument;
}

EXPORTED ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, int *error) {
    auto comm = comm_of(handle, "CommGetAsyncError");
    if (comm) *error = comm->async_error;
    return comm ? ncclSuccess : ncclInvalidArgument;
}

EXPORTED const char *ncclGetErrorString(int code) {
    constexpr const char *kTexts[] = {
        "no error",
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "internal error - please report this issue to the NCCL developers",
        "invalid argument (run with NCCL_DEBUG=WARN for details)",
        "invalid usage (run with NCCL_DEBUG=WARN for details)",
        "remote process exited or there was a network error",
        "NCCL operation in progress",
        "NCCL timeout",
    };
    return code >= 0 && code < ncclNumResults ? kTexts[code] : "unknown result code";
}

EXPORTED const char *ncclGetLastError(ncclComm_t) { return last_warning(); }
