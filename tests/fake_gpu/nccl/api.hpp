/* What a handle points to. Handles are marked dead and never freed: one used after its end is an error and not a crash. */
#pragma once
#include "group.hpp"

struct ncclComm {
    static constexpr uint64_t kMagic = 0x66616b65636f6d6d;
    uint64_t magic = kMagic;
    fake::CommPtr comm;
};
typedef ncclComm *ncclComm_t;

struct ncclConfig_t { // ncclConfig_v23100 up to what the double reads; older and newer ones begin alike
    size_t size;
    unsigned magic, version;
    int blocking;
};

namespace fake {

/* The living communicator of a handle, else null, with a warning. */
inline CommPtr comm_of(ncclComm_t handle, const char *where) {
    if (handle && handle->magic == ncclComm::kMagic) return handle->comm;
    warn(-1, "%s : comm argument is NULL or no communicator", where);
    return nullptr;
}

} // namespace fake
