/* Modules and kernels: what the fake NVRTC compiled with g++, run over the grid by the stream's thread, one thread after the other.
 *
 * The module exports `void fakeGpuPlace(const unsigned place[12])`, which sets blockIdx, threadIdx, gridDim and blockDim (x, y, z each).
 * A kernel's arguments are words of 64 bits; `parameters` must hold kWords addresses. */
#include "core.hpp"

#include <cstring>
#include <dlfcn.h>

using namespace fake;

namespace {

constexpr int kWords = 12;
using Word = uint64_t;
using Body = void (*)(Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word);
using PlaceSetter = void (*)(const unsigned *);

struct Kernel {
    Body body;
    PlaceSetter place;
};

struct Launch {
    Kernel kernel;
    unsigned grid[3], block[3];
    Word w[kWords];

    void thread(unsigned *at) const {
        kernel.place(at);
        kernel.body(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11]);
    }

    void one_block(unsigned *at) const {
        for (at[5] = 0; at[5] < block[2]; at[5]++)
            for (at[4] = 0; at[4] < block[1]; at[4]++)
                for (at[3] = 0; at[3] < block[0]; at[3]++) thread(at);
    }

    void run() const {
        unsigned at[12] = {0, 0, 0, 0, 0, 0, grid[0], grid[1], grid[2], block[0], block[1], block[2]};
        for (at[2] = 0; at[2] < grid[2]; at[2]++)
            for (at[1] = 0; at[1] < grid[1]; at[1]++)
                for (at[0] = 0; at[0] < grid[0]; at[0]++) one_block(at);
    }
};

} // namespace

EXPORTED int cuModuleLoad(void **module, const char *file) {
    *module = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    return *module ? kSuccess : kFileNotFound;
}

EXPORTED int cuModuleUnload(void *) { return kSuccess; } // work may still be enqueued

EXPORTED int cuModuleGetFunction(void **function, void *module, const char *name) {
    auto body = reinterpret_cast<Body>(dlsym(module, name));
    auto place = reinterpret_cast<PlaceSetter>(dlsym(module, "fakeGpuPlace"));
    if (!body || !place) return kNotFound;
    *function = new Kernel{body, place};
    return kSuccess;
}

EXPORTED int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                            unsigned block_z, unsigned, void *handle, void **parameters, void **) {
    auto *stream = stream_of(handle);
    if (!stream || !function) return kInvalidHandle;
    if (!grid_x || !grid_y || !grid_z || !block_x || !block_y || !block_z || size_t(block_x) * block_y * block_z > 1024) return kInvalidValue;
    Launch launch{*static_cast<Kernel *>(function), {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, {}};
    for (int i = 0; i < kWords; i++) memcpy(&launch.w[i], parameters[i], sizeof(Word));
    stream->enqueue(task([launch] { launch.run(); }));
    return kSuccess;
}
