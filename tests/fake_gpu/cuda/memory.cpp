/* Memory: the host's, counted against FAKE_GPU_MEMORY; another process can map it through a handle, as CUDA's IPC lets it. */
#include "core.hpp"

#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <sys/mman.h>
#include <unistd.h>

EXPORTED int cuCtxSynchronize();

using namespace fake;

namespace {

constexpr size_t kPage = 4096;

struct Block {
    size_t bytes, mapped;
    int device; // -1: the host's, or another process's
    int fd;     // -1: not to be shared
};

struct Blocks {
    std::mutex mutex;
    std::map<char *, Block> all;
    std::map<int, size_t> used;
};

Blocks &blocks() {
    static auto &blocks = *new Blocks;
    return blocks;
}

struct Handle { // CUipcMemHandle, 64 bytes
    int pid, fd;
    size_t bytes;
    char rest[48];
};
static_assert(sizeof(Handle) == 64);

size_t whole_pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

int allocate(void **address, size_t bytes, int device) {
    if (!bytes) return kInvalidValue;
    size_t mapped = whole_pages(bytes);
    std::lock_guard lock(blocks().mutex);
    if (device >= 0 && blocks().used[device] + mapped > memory_limit()) return kOutOfMemory;
    int fd = device >= 0 ? memfd_create("fake-gpu", MFD_CLOEXEC) : -1;
    if (fd >= 0 && ftruncate(fd, off_t(mapped))) return kOutOfMemory;
    void *at = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
    if (at == MAP_FAILED) return kOutOfMemory;
    blocks().all[static_cast<char *>(at)] = {bytes, mapped, device, fd};
    if (device >= 0) blocks().used[device] += mapped;
    *address = at;
    return kSuccess;
}

int release(void *address) {
    if (!address) return kSuccess;
    std::lock_guard lock(blocks().mutex);
    auto found = blocks().all.find(static_cast<char *>(address));
    if (found == blocks().all.end()) return kInvalidValue;
    auto [at, block] = *found;
    if (block.device >= 0) blocks().used[block.device] -= block.mapped;
    munmap(at, block.mapped);
    if (block.fd >= 0) close(block.fd);
    blocks().all.erase(found);
    return kSuccess;
}

/* Memory that begins in a block must end in it; what is in no block is the host's own. */
bool fits(const void *address, size_t bytes) {
    auto *at = static_cast<char *>(const_cast<void *>(address));
    std::lock_guard lock(blocks().mutex);
    auto after = blocks().all.upper_bound(at);
    if (after == blocks().all.begin()) return true;
    auto &[start, block] = *std::prev(after);
    return at >= start + block.mapped || at + bytes <= start + block.bytes;
}

int on_stream(void *handle, std::function<void()> work) {
    auto *stream = stream_of(handle);
    if (!stream) return kInvalidHandle;
    stream->enqueue(task(std::move(work)));
    return kSuccess;
}

} // namespace

EXPORTED int cuMemAlloc_v2(void **address, size_t bytes) {
    if (current_device() < 0) return kInvalidContext;
    return forbidden_in_capture() ? int(kCaptureUnsupported) : allocate(address, bytes, current_device());
}

EXPORTED int cuMemFree_v2(void *address) {
    cuCtxSynchronize(); // as CUDA does
    return release(address);
}

EXPORTED int cuMemHostAlloc(void **address, size_t bytes, unsigned) {
    return current_device() < 0 ? int(kInvalidContext) : allocate(address, bytes, -1);
}

EXPORTED int cuMemFreeHost(void *address) { return release(address); }

EXPORTED int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    if (current_device() < 0) return kInvalidContext;
    std::lock_guard lock(blocks().mutex);
    *total = memory_limit();
    *free_bytes = *total - blocks().used[current_device()];
    return kSuccess;
}

EXPORTED int cuMemcpyAsync(void *to, const void *from, size_t bytes, void *stream) {
    if (!fits(to, bytes) || !fits(from, bytes)) return kInvalidValue;
    return on_stream(stream, [=] { memmove(to, from, bytes); });
}

EXPORTED int cuMemcpy(void *to, const void *from, size_t bytes) {
    if (forbidden_in_capture()) return kCaptureUnsupported;
    if (current_device() < 0) return kInvalidContext;
    synchronize_blocking(current_device());
    int error = cuMemcpyAsync(to, from, bytes, nullptr);
    return error ? error : stream_of(nullptr)->synchronize();
}

EXPORTED int cuMemcpyPeerAsync(void *to, void *, const void *from, void *, size_t bytes, void *stream) {
    return cuMemcpyAsync(to, from, bytes, stream);
}

EXPORTED int cuMemsetD8Async(void *at, unsigned char value, size_t bytes, void *stream) {
    if (!fits(at, bytes)) return kInvalidValue;
    return on_stream(stream, [=] { memset(at, value, bytes); });
}

EXPORTED int cuMemsetD8_v2(void *at, unsigned char value, size_t bytes) {
    if (forbidden_in_capture()) return kCaptureUnsupported;
    if (current_device() < 0) return kInvalidContext;
    synchronize_blocking(current_device());
    int error = cuMemsetD8Async(at, value, bytes, nullptr);
    return error ? error : stream_of(nullptr)->synchronize();
}

EXPORTED int cuIpcGetMemHandle(Handle *handle, void *address) {
    std::lock_guard lock(blocks().mutex);
    auto found = blocks().all.find(static_cast<char *>(address));
    if (found == blocks().all.end() || found->second.fd < 0) return kInvalidValue;
    *handle = {getpid(), found->second.fd, found->second.mapped, {}};
    return kSuccess;
}

EXPORTED int cuIpcOpenMemHandle_v2(void **address, Handle handle, unsigned) {
    if (handle.pid == getpid()) return kInvalidContext; // CUDA refuses one's own memory
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.pid, handle.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return kInvalidValue;
    void *at = mmap(nullptr, handle.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED) return kInvalidValue;
    std::lock_guard lock(blocks().mutex);
    blocks().all[static_cast<char *>(at)] = {handle.bytes, handle.bytes, -1, -1};
    *address = at;
    return kSuccess;
}

EXPORTED int cuIpcCloseMemHandle(void *address) { return release(address); }

EXPORTED int cuMemHostGetDevicePointer_v2(void **device, void *host, unsigned) {
    *device = host;
    return kSuccess;
}
