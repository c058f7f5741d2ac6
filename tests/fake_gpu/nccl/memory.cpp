/* Memory and its registration. */
#include "api.hpp"
#include "driver.hpp"

#include <mutex>
#include <set>

using namespace fake;

namespace {

struct Registered {
    std::mutex mutex;
    std::set<void *> handles, allocated;
};

Registered &registered() {
    static auto &registered = *new Registered;
    return registered;
}

void *add() {
    std::lock_guard lock(registered().mutex);
    auto *handle = new char;
    registered().handles.insert(handle);
    return handle;
}

ncclResult_t remove(ncclComm_t comm, void *handle, const char *where) {
    if (!comm_of(comm, where)) return ncclInvalidArgument;
    std::lock_guard lock(registered().mutex);
    return registered().handles.erase(handle) ? ncclSuccess : ncclInvalidArgument;
}

bool ours(void *address) { // in a block of ncclMemAlloc, which is aligned to pages
    std::lock_guard lock(registered().mutex);
    auto after = registered().allocated.upper_bound(address);
    return after != registered().allocated.begin();
}

} // namespace

EXPORTED ncclResult_t ncclMemAlloc(void **address, size_t bytes) {
    if (!address || !bytes) return ncclInvalidArgument;
    if (driver().allocate(address, bytes)) {
        warn(-1, "Cuda failure 2 'out of memory'");
        return ncclUnhandledCudaError;
    }
    std::lock_guard lock(registered().mutex);
    registered().allocated.insert(*address);
    return ncclSuccess;
}

EXPORTED ncclResult_t ncclMemFree(void *address) {
    {
        std::lock_guard lock(registered().mutex);
        registered().allocated.erase(address);
    }
    return driver().release(address) ? ncclUnhandledCudaError : ncclSuccess;
}

EXPORTED ncclResult_t ncclCommRegister(ncclComm_t handle, void *buffer, size_t bytes, void **made) {
    auto comm = comm_of(handle, "CommRegister");
    if (!comm || !buffer || !bytes || !made) return ncclInvalidArgument;
    info(comm->device, kInit, "register comm %p buffer %p size %zi", static_cast<void *>(comm.get()), buffer, bytes);
    *made = add();
    return ncclSuccess;
}

EXPORTED ncclResult_t ncclCommDeregister(ncclComm_t comm, void *handle) { return remove(comm, handle, "CommDeregister"); }

/* FAKE_NCCL_NO_WINDOWS=1: success and a null window, which is how NCCL says that a GPU cannot have one. */
EXPORTED ncclResult_t ncclCommWindowRegister(ncclComm_t handle, void *buffer, size_t bytes, void **window, int flags) {
    auto comm = comm_of(handle, "CommWindowRegister");
    if (!comm || !buffer || !bytes || !window || flags & ~0xf) return ncclInvalidArgument;
    if (reinterpret_cast<uintptr_t>(buffer) % NCCL_WIN_REQUIRED_ALIGNMENT || !ours(buffer)) {
        warn(comm->device, "CommWindowRegister : %p is not aligned to %d bytes or not from ncclMemAlloc", buffer, NCCL_WIN_REQUIRED_ALIGNMENT);
        return ncclInvalidArgument;
    }
    *window = variable("FAKE_NCCL_NO_WINDOWS", 0) ? nullptr : add();
    return ncclSuccess;
}

EXPORTED ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, void *window) {
    return window ? remove(comm, window, "CommWindowDeregister") : ncclSuccess;
}
