/* The GPUs: how many, what they are called, who may use them.
 *
 * FAKE_GPU_COUNT (2), FAKE_GPU_MEMORY bytes each (1 GiB), FAKE_GPU_COMPUTE_MODE default|exclusive|prohibited, FAKE_GPU_BUSY "0,1" (another
 * program holds them), FAKE_GPU_ARCH 90, FAKE_CUDA_DRIVER_VERSION 13020, CUDA_VISIBLE_DEVICES as CUDA reads it. In exclusive mode a GPU is
 * held by an abstract socket named with FAKE_GPU_MACHINE, which ends with the process and, like a GPU, belongs to one host. */
#include "core.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace fake {
namespace {

thread_local int current = -1;
#ifdef FAKE_HIP
constexpr const char *kVisible = "HIP_VISIBLE_DEVICES";
#else
constexpr const char *kVisible = "CUDA_VISIBLE_DEVICES";
#endif

std::vector<std::string> words(const std::string &text) {
    std::vector<std::string> found;
    std::stringstream stream(text);
    for (std::string word; std::getline(stream, word, ',');) found.push_back(word);
    return found;
}

std::string uuid(int number) {
    char text[48];
    snprintf(text, sizeof text, "GPU-fa4efa4e-0000-0000-0000-%012d", number);
    return text;
}

int number_of(const std::string &word, int there) {
    int found = -1, fitting = 0;
    if (word.rfind("GPU-", 0) == 0) {
        for (int i = 0; i < there; i++)
            if (uuid(i).rfind(word, 0) == 0) found = i, fitting++;
        return fitting == 1 ? found : -1;
    }
    char *end;
    long number = strtol(word.c_str(), &end, 10);
    return end != word.c_str() && number >= 0 && number < there ? int(number) : -1;
}

std::vector<int> visible() { // everything up to the first name that means nothing; nothing where one is named twice
    int there = int(variable("FAKE_GPU_COUNT", 2));
    std::vector<int> found;
    const char *asked = getenv(kVisible);
    if (!asked) {
        for (int i = 0; i < there; i++) found.push_back(i);
        return found;
    }
    for (auto &word : words(asked)) {
        int number = number_of(word, there);
        if (number < 0) break;
        for (int other : found)
            if (other == number) return {};
        found.push_back(number);
    }
    return found;
}

const std::vector<int> &seen() {
    static auto &seen = *new std::vector<int>(visible());
    return seen;
}

bool hold(int device) {
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un name{AF_UNIX, {}};
    int length = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "collbench-fake-gpu-%s-%d",
                          text_variable("FAKE_GPU_MACHINE", "any").c_str(), physical(device));
    return bind(fd, reinterpret_cast<sockaddr *>(&name), socklen_t(offsetof(sockaddr_un, sun_path) + 1 + length)) == 0;
}

int mode() {
    auto text = text_variable("FAKE_GPU_COMPUTE_MODE", "default");
    return text == "prohibited" ? 2 : text == "exclusive" ? 3 : 0; // enum CUcomputemode
}

int open(int device) { // the primary context: made once per process and GPU
    static auto &opened = *new std::vector<bool>(count());
    static std::mutex mutex;
    std::lock_guard lock(mutex);
    if (opened[device]) return kSuccess;
    for (auto &busy : words(text_variable("FAKE_GPU_BUSY", "")))
        if (atoi(busy.c_str()) == physical(device)) return kDeviceUnavailable;
    if (mode() == 2 || (mode() == 3 && !hold(device))) return kDeviceUnavailable;
    opened[device] = true;
    return kSuccess;
}

} // namespace

int64_t variable(const char *name, int64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? atoll(text) : otherwise;
}

std::string text_variable(const char *name, const char *otherwise) {
    const char *text = getenv(name);
    return text ? text : otherwise;
}

int count() { return int(seen().size()); }
int physical(int device) { return seen()[device]; }
uint64_t memory_limit() { return uint64_t(variable("FAKE_GPU_MEMORY", int64_t(1) << 30)); }
int current_device() { return current; }

std::string bus_id(int device) {
    char text[16];
    snprintf(text, sizeof text, "0000:%02x:00.0", 16 * (physical(device) + 1));
    return text;
}

int use_device(int device) {
    if (device < 0 || device >= count()) return kInvalidDevice;
    int error = open(device);
    if (!error) current = device;
    return error;
}

} // namespace fake

using namespace fake;

EXPORTED int cuInit(unsigned) { return count() ? kSuccess : kNoDevice; }

EXPORTED int cuDriverGetVersion(int *version) {
    *version = int(variable("FAKE_CUDA_DRIVER_VERSION", 13020));
    return kSuccess;
}

EXPORTED int cuDeviceGetCount(int *n) {
    *n = count();
    return kSuccess;
}

EXPORTED int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return ordinal >= 0 && ordinal < count() ? kSuccess : kInvalidDevice;
}

EXPORTED int cuDeviceGetName(char *name, int length, int device) {
    if (device < 0 || device >= count()) return kInvalidDevice;
    snprintf(name, size_t(length), "FAKE GPU (test double)");
    return kSuccess;
}

EXPORTED int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    *bytes = memory_limit();
    return device >= 0 && device < count() ? kSuccess : kInvalidDevice;
}

EXPORTED int cuDeviceGetPCIBusId(char *text, int length, int device) {
    if (device < 0 || device >= count()) return kInvalidDevice;
    snprintf(text, size_t(length), "%s", bus_id(device).c_str());
    return kSuccess;
}

EXPORTED int cuDeviceGetUuid_v2(char *bytes, int device) {
    if (device < 0 || device >= count()) return kInvalidDevice;
    memset(bytes, 0, 16);
    memcpy(bytes, "\xfa\x4e\xfa\x4e", 4);
    bytes[15] = char(physical(device));
    return kSuccess;
}

EXPORTED int cuDeviceGetAttribute(int *value, int attribute, int device) { // enum CUdevice_attribute
    if (device < 0 || device >= count()) return kInvalidDevice;
    int arch = int(variable("FAKE_GPU_ARCH", 90));
    switch (attribute) {
    case 1: *value = 1024; break;                       // threads of a block
    case 2: case 3: *value = 1024; break;               // its sides
    case 4: *value = 64; break;
    case 5: *value = 0x7fffffff; break;                 // sides of the grid
    case 6: case 7: *value = 65535; break;
    case 8: *value = 48 << 10; break;                   // shared memory of a block
    case 10: *value = 32; break;                        // warp
    case 13: *value = 1000000; break;                   // clock, kHz
    case 16: *value = 2; break;                         // multiprocessors
    case 20: *value = mode(); break;
    case 33: *value = 16 * (physical(device) + 1); break; // PCI bus, device, domain
    case 34: case 50: *value = 0; break;
    case 36: *value = 500000; break;                    // memory clock, kHz
    case 37: *value = 128; break;                       // memory bus, bits
    case 38: *value = 1 << 20; break;                   // L2
    case 39: *value = 2048; break;                      // threads of a multiprocessor
    case 75: *value = arch / 10; break;
    case 76: *value = arch % 10; break;
    default: *value = 0;
    }
    return kSuccess;
}

EXPORTED int cuDeviceCanAccessPeer(int *can, int device, int peer) {
    if (device < 0 || device >= count() || peer < 0 || peer >= count()) return kInvalidDevice;
    *can = device != peer && variable("FAKE_GPU_PEER", 1);
    return kSuccess;
}

/* A context is the GPU's number plus one. */
EXPORTED int cuDevicePrimaryCtxRetain(void **context, int device) {
    int before = current, error = use_device(device);
    current = before;
    *context = reinterpret_cast<void *>(intptr_t(device) + 1);
    return error;
}

EXPORTED int cuDevicePrimaryCtxRelease_v2(int) { return kSuccess; }

EXPORTED int cuCtxSetCurrent(void *context) {
    int device = int(reinterpret_cast<intptr_t>(context)) - 1;
    if (device >= 0) return use_device(device);
    current = -1;
    return kSuccess;
}

EXPORTED int cuCtxGetCurrent(void **context) {
    *context = reinterpret_cast<void *>(intptr_t(current) + 1);
    return kSuccess;
}

EXPORTED int cuCtxGetDevice(int *device) {
    *device = current;
    return current < 0 ? kInvalidContext : kSuccess;
}

EXPORTED int cuCtxEnablePeerAccess(void *context, unsigned) {
    static auto &enabled = *new std::vector<bool>(size_t(count()) * count());
    int peer = int(reinterpret_cast<intptr_t>(context)) - 1, can = 0;
    if (current < 0) return kInvalidContext;
    if (int error = cuDeviceCanAccessPeer(&can, current, peer)) return error;
    if (!can) return kInvalidDevice;
    auto is = enabled[size_t(current) * count() + peer];
    if (is) return kPeerAlreadyEnabled;
    is = true;
    return kSuccess;
}
