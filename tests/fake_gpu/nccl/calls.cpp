/* The collective and point-to-point functions. */
#include "api.hpp"

#include <cstdio>
#include <cstring>

using namespace fake;

namespace {

ncclResult_t refuse(const CommPtr &comm, const char *name, const char *what) {
    warn(comm->device, "%s : invalid %s", name, what);
    return ncclInvalidArgument;
}

/* The connections are made, and told of, at the first call, as NCCL does. */
void connect(const Comm &comm) {
    bool near = variable("FAKE_GPU_PEER", 1) && variable("NCCL_P2P_DISABLE", 0) == 0;
    auto &mine = comm.shared->places[comm.rank];
    int next = (comm.rank + 1) % comm.ranks;
    auto &other = comm.shared->places[next];
    const char *way = other.host != mine.host ? "/0 : %d[%d] -> %d[%d] [send] via NET/Socket/0"
                      : near                  ? "/0 : %d[%d] -> %d[%d] via P2P/CUMEM"
                                              : " : %d[%d] -> %d[%d] via SHM/direct/direct";
    for (int channel = 0; channel < 2 && comm.ranks > 1; channel++) {
        char line[128];
        snprintf(line, sizeof line, way, comm.rank, mine.device, next, other.device);
        info(comm.device, kInit | kP2p, "Channel %02d%s", channel, line);
    }
    info(comm.device, kInit, "Connected all rings, use ring PXN 0 GDR 0");
}

ncclResult_t tell(const CommPtr &comm, const Call &call, void *stream, size_t bytes) {
    std::string algorithm, protocol;
    if (!is_point_to_point(call) && !chosen(*comm, call.name, bytes, &algorithm, &protocol)) {
        warn(comm->device, "No algorithm/protocol available for function %s with datatype %d. NCCL_ALGO or NCCL_PROTO leave nothing.", call.name,
             call.type);
        return comm->asked ? ncclInvalidUsage : ncclInternalError;
    }
    if (!comm->connected.exchange(true)) connect(*comm);
    info(comm->device, kColl, "%s: opCount %lx sendbuff %p recvbuff %p count %zu datatype %d op %d root %d comm %p [nranks=%d] stream %p",
         call.name, comm->calls, call.send, call.recv, call.count, call.type, call.op, call.root, static_cast<void *>(comm.get()), comm->ranks,
         stream);
    if (!algorithm.empty())
        info(comm->device, kTuning, "%s: %ld Bytes -> Algo %s proto %s channel{Lo..Hi}={0..1}", call.name, long(bytes), algorithm.c_str(),
             protocol.c_str());
    return ncclSuccess;
}

bool is_one_of(const Call &call, const char *one, const char *other) { return !strcmp(call.name, one) || !strcmp(call.name, other); }

bool lacks_buffer(const Call &call, bool root) {
    bool sends = strcmp(call.name, "Recv") && (root || !is_one_of(call, "Broadcast", "Scatter"));
    bool receives = strcmp(call.name, "Send") && (root || !is_one_of(call, "Reduce", "Gather"));
    return call.count && ((sends && !call.send) || (receives && !call.recv));
}

ncclResult_t make(ncclComm_t handle, void *stream, const Call &one) {
    auto comm = comm_of(handle, one.name);
    if (!comm) return ncclInvalidArgument;
    if (comm->aborted || comm->async_error) return comm->async_error ? ncclResult_t(int(comm->async_error)) : ncclInvalidUsage;
    int types = version() < 22400 ? int(ncclFloat8e4m3) : int(ncclNumTypes);
    if (one.type < 0 || one.type >= types) return refuse(comm, one.name, "type");
    if (one.op < 0 || one.op >= ncclNumOps) return refuse(comm, one.name, "reduction operation");
    if (one.root < 0 || one.root >= comm->ranks) return refuse(comm, one.name, "root or peer");
    if (lacks_buffer(one, one.root == comm->rank)) return refuse(comm, one.name, "buffer: NULL");
    if (!one.count) return ncclSuccess;
    // The bytes that NCCL tells of: one rank's block, times the ranks where blocks are gathered.
    bool gathers = is_one_of(one, "AllGather", "ReduceScatter");
    if (auto error = tell(comm, one, stream, one.count * width(one.type) * (gathers ? size_t(comm->ranks) : 1))) return error;
    return call(comm, stream, one);
}

} // namespace

EXPORTED ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, int type, int op, ncclComm_t comm, void *stream) {
    return make(comm, stream, {"AllReduce", send, recv, count, type, op, 0});
}

EXPORTED ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, int type, int root, ncclComm_t comm, void *stream) {
    return make(comm, stream, {"Broadcast", send, recv, count, type, 0, root});
}

EXPORTED ncclResult_t ncclBcast(void *buffer, size_t count, int type, int root, ncclComm_t comm, void *stream) {
    return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

EXPORTED ncclResult_t ncclReduce(const void *send, void *recv, size_t count, int type, int op, int root, ncclComm_t comm, void *stream) {
    return make(comm, stream, {"Reduce", send, recv, count, type, op, root});
}

EXPORTED ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, int type, ncclComm_t comm, void *stream) {
    return make(comm, stream, {"AllGather", send, recv, count, type, 0, 0});
}

EXPORTED ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, int type, int op, ncclComm_t comm, void *stream) {
    return make(comm, stream, {"ReduceScatter", send, recv, count, type, op, 0});
}

#ifdef FAKE_RCCL
#define ncclAlltoAll ncclAllToAll // its name before NCCL had the function
#endif
EXPORTED ncclResult_t ncclAlltoAll(const void *send, void *recv, size_t count, int type, ncclComm_t comm, void *stream) {
    return make(comm, stream, {"AlltoAll", send, recv, count, type, 0, 0});
}

EXPORTED ncclResult_t ncclGather(const void *send, void *recv, size_t count, int type, int root, ncclComm_t comm, void *stream) {
    return make(comm, stream, {"Gather", send, recv, count, type, 0, root});
}

EXPORTED ncclResult_t ncclScatter(const void *send, void *recv, size_t count, int type, int root, ncclComm_t comm, void *stream) {
    return make(comm, stream, {"Scatter", send, recv, count, type, 0, root});
}

EXPORTED ncclResult_t ncclSend(const void *send, size_t count, int type, int peer, ncclComm_t comm, void *stream) {
    return make(comm, stream, {"Send", send, nullptr, count, type, 0, peer});
}

EXPORTED ncclResult_t ncclRecv(void *recv, size_t count, int type, int peer, ncclComm_t comm, void *stream) {
    return make(comm, stream, {"Recv", nullptr, recv, count, type, 0, peer});
}

EXPORTED ncclResult_t ncclGroupStart() { return group_start(); }

EXPORTED ncclResult_t ncclGroupEnd() { return group_end(); }

#ifdef FAKE_RCCL
EXPORTED ncclResult_t ncclAllToAllv(const void *send, const size_t counts[], const size_t places[], void *recv, const size_t recv_counts[],
                                    const size_t recv_places[], int type, ncclComm_t handle, void *stream) {
    auto comm = comm_of(handle, "AllToAllv");
    if (!comm || type < 0 || type >= int(ncclNumTypes)) return ncclInvalidArgument;
    size_t each = width(type);
    group_start();
    for (int rank = 0; rank < comm->ranks; rank++) {
        ncclSend(static_cast<const char *>(send) + places[rank] * each, counts[rank], type, rank, handle, stream);
        ncclRecv(static_cast<char *>(recv) + recv_places[rank] * each, recv_counts[rank], type, rank, handle, stream);
    }
    return group_end();
}
#endif
