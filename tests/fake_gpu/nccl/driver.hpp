/* What the fake NCCL needs of the fake driver, found when first needed: like the real one, it loads where there is no driver.
 * FAKE_RCCL: the library is RCCL, and the driver HIP. */
#pragma once
#include <cstddef>
#include <dlfcn.h>

namespace fake {

struct Driver {
    int (*current)(int *);
    int (*bus)(char *, int, int);
    int (*allocate)(void **, size_t);
    int (*release)(void *);
    int (*enqueue)(void *, void (*)(void *), void (*)(void *), void *);

    Driver() {
#ifdef FAKE_RCCL
        void *library = dlopen("libamdhip64.so.6", RTLD_NOW);
        find(library, "hipGetDevice", &current);
        find(library, "hipDeviceGetPCIBusId", &bus);
        find(library, "hipMalloc", &allocate);
        find(library, "hipFree", &release);
#else
        void *library = dlopen("libcuda.so.1", RTLD_NOW);
        find(library, "cuCtxGetDevice", &current);
        find(library, "cuDeviceGetPCIBusId", &bus);
        find(library, "cuMemAlloc_v2", &allocate);
        find(library, "cuMemFree_v2", &release);
#endif
        find(library, "fakeGpuEnqueue", &enqueue);
    }

  private:
    /* Without the function every call fails with CUDA_ERROR_NO_DEVICE. */
    template <class... Arguments> static void find(void *library, const char *name, int (**function)(Arguments...)) {
        void *found = library ? dlsym(library, name) : nullptr;
        *function = found ? reinterpret_cast<int (*)(Arguments...)>(found) : +[](Arguments...) { return 100; };
    }
};

inline Driver &driver() {
    static auto &driver = *new Driver;
    return driver;
}

} // namespace fake
