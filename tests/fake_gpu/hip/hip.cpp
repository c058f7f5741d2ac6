/* HIP's runtime over the fake driver: AMD's names, numbers of attributes, and a current GPU from the start (GPU 0), as its
 * documentation describes. A test double: memory is the host's, and times say nothing. */
#include "../cuda/core.hpp"

#include <cstdio>
#include <cstring>

using namespace fake;

namespace {

constexpr int kComputeMode = 6, kL2Bytes = 19, kBusBits = 59, kClockKhz = 60; // hipDeviceAttribute_t
constexpr int kVersion = 60342131;                                            // HIP 6.3

/* Every thread begins with GPU 0. */
int ready() {
    if (!count()) return kNoDevice;
    return current_device() < 0 ? use_device(0) : int(kSuccess);
}

} // namespace

EXPORTED int hipGetDeviceCount(int *n) {
    *n = count();
    return *n ? kSuccess : kNoDevice;
}

EXPORTED int hipGetDevice(int *device) {
    if (int error = ready()) return error;
    *device = current_device();
    return kSuccess;
}

EXPORTED int hipSetDevice(int device) { return use_device(device); }

EXPORTED int hipDeviceGetName(char *name, int length, int device) {
    if (device < 0 || device >= count()) return kInvalidDevice;
    snprintf(name, size_t(length), "FAKE AMD GPU (test double)");
    return kSuccess;
}

EXPORTED int hipDeviceTotalMem(size_t *bytes, int device) { return cuDeviceTotalMem_v2(bytes, device); }
EXPORTED int hipDeviceGetPCIBusId(char *text, int length, int device) { return cuDeviceGetPCIBusId(text, length, device); }

EXPORTED int hipDeviceGetAttribute(int *value, int attribute, int device) {
    switch (attribute) {
    case kComputeMode: return cuDeviceGetAttribute(value, 20, device);
    case kL2Bytes: return cuDeviceGetAttribute(value, 38, device);
    case kBusBits: return cuDeviceGetAttribute(value, 37, device);
    case kClockKhz: return cuDeviceGetAttribute(value, 36, device);
    default: return kInvalidValue;
    }
}

EXPORTED int hipMalloc(void **address, size_t bytes) { return ready() ? int(kNoDevice) : cuMemAlloc_v2(address, bytes); }
EXPORTED int hipFree(void *address) { return cuMemFree_v2(address); }
EXPORTED int hipHostMalloc(void **address, size_t bytes, unsigned) { return ready() ? int(kNoDevice) : cuMemHostAlloc(address, bytes, 0); }
EXPORTED int hipHostFree(void *address) { return cuMemFreeHost(address); }
EXPORTED int hipMemGetInfo(size_t *free_bytes, size_t *total) { return ready() ? int(kNoDevice) : cuMemGetInfo_v2(free_bytes, total); }

/* Kinds 1 and 2 are copies to and from the GPU; collbench makes no others. */
EXPORTED int hipMemcpy(void *to, const void *from, size_t bytes, int kind) {
    return kind == 1 || kind == 2 ? cuMemcpy(to, from, bytes) : int(kInvalidValue);
}

EXPORTED int hipMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
    return kind == 1 || kind == 2 ? cuMemcpyAsync(to, from, bytes, stream) : int(kInvalidValue);
}

EXPORTED int hipStreamCreateWithFlags(void **stream, unsigned flags) { return ready() ? int(kNoDevice) : cuStreamCreate(stream, flags); }
EXPORTED int hipStreamDestroy(void *stream) { return cuStreamDestroy_v2(stream); }
EXPORTED int hipStreamQuery(void *stream) { return cuStreamQuery(stream); }
EXPORTED int hipStreamSynchronize(void *stream) { return cuStreamSynchronize(stream); }
EXPORTED int hipStreamWaitEvent(void *stream, void *event, unsigned flags) { return cuStreamWaitEvent(stream, event, flags); }
EXPORTED int hipEventCreateWithFlags(void **event, unsigned flags) { return ready() ? int(kNoDevice) : cuEventCreate(event, flags); }
EXPORTED int hipEventDestroy(void *event) { return cuEventDestroy_v2(event); }
EXPORTED int hipEventRecord(void *event, void *stream) { return cuEventRecord(event, stream); }
EXPORTED int hipEventElapsedTime(float *ms, void *start, void *end) { return cuEventElapsedTime(ms, start, end); }
EXPORTED int hipStreamBeginCapture(void *stream, int mode) { return cuStreamBeginCapture_v2(stream, mode); }
EXPORTED int hipStreamEndCapture(void *stream, void **graph) { return cuStreamEndCapture(stream, graph); }

EXPORTED int hipGraphInstantiate(void **executable, void *graph, void *, char *, size_t) {
    return cuGraphInstantiateWithFlags(executable, graph, 0);
}

EXPORTED int hipGraphLaunch(void *executable, void *stream) { return cuGraphLaunch(executable, stream); }
EXPORTED int hipGraphExecDestroy(void *executable) { return cuGraphExecDestroy(executable); }
EXPORTED int hipGraphDestroy(void *graph) { return cuGraphDestroy(graph); }

EXPORTED const char *hipGetErrorString(int error) {
    const char *text = nullptr;
    return cuGetErrorString(error, &text) || !text ? "unknown error" : text;
}

EXPORTED int hipRuntimeGetVersion(int *version) {
    *version = kVersion;
    return kSuccess;
}

EXPORTED int hipDriverGetVersion(int *version) { return hipRuntimeGetVersion(version); }
