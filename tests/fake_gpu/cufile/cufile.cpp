/* A test double of libcufile.so.0: reads a file into the fake GPU's memory, which is the host's. Times say nothing.
 *
 * Written against NVIDIA's API reference of GPUDirect Storage, for the calls that collbench makes. */
#include <cstdlib>
#include <sys/types.h>
#include <unistd.h>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kNotInitialized = 5001, kInvalidFileType = 5021;
int opened = 0;

struct Error {
    int code, cuda;
};

struct Description {
    int type;
    union {
        int fd;
        void *handle;
    };
    const void *operations;
};

struct Handle {
    int fd;
};

} // namespace

EXPORTED Error cuFileDriverOpen() {
    if (const char *code = std::getenv("FAKE_CUFILE_OPEN_ERROR"))
        return {std::atoi(code), 0};
    ++opened;
    return {0, 0};
}

EXPORTED Error cuFileDriverClose() { return {opened-- > 0 ? 0 : kNotInitialized, 0}; }

EXPORTED Error cuFileHandleRegister(void **handle, Description *described) {
    if (opened < 1)
        return {kNotInitialized, 0};
    if (described->type != 1)
        return {kInvalidFileType, 0};
    *handle = new Handle{described->fd};
    return {0, 0};
}

EXPORTED void cuFileHandleDeregister(void *handle) { delete static_cast<Handle *>(handle); }

EXPORTED ssize_t cuFileRead(void *handle, void *base, size_t bytes, off_t file_offset, off_t offset) {
    auto *to = static_cast<char *>(base) + offset;
    ssize_t got = pread(static_cast<Handle *>(handle)->fd, to, bytes, file_offset);
    if (got > 0 && std::getenv("FAKE_CUFILE_WRONG"))
        to[7] ^= 1;
    return got;
}
