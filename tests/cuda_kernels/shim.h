// The words of CUDA that cuda_kernels/ uses, for g++: a launch runs its threads one after the other. A test double, for tests alone.
// Compile with `g++ -std=c++17 -x c++ -include shim.h`, start with `launch`; kernels that wait for each other in two threads of the host.
#pragma once

#include <cstdint>
#include <ctime>
#include <sched.h>

#define __global__
#define __device__
#define __launch_bounds__(...)

struct Place {
  unsigned x, y, z;
};

static thread_local Place gridDim, blockDim, blockIdx, threadIdx;

static inline unsigned long long atomicAdd(unsigned long long *at, unsigned long long value) {
  return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}

static inline unsigned long long atomicMin(unsigned long long *at, unsigned long long value) {
  unsigned long long old = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (old > value && !__atomic_compare_exchange_n(at, &old, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}

static inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// What stands for the GPU's %globaltimer: nanoseconds that rise. Whoever looks at the time may be waiting for another kernel, which needs
// this core: few are here, many on a GPU.
static inline unsigned long long nanoseconds() {
  sched_yield();
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000ull + now.tv_nsec;
}

// Says which thread the next call of a kernel is: blockIdx, threadIdx, gridDim, blockDim, x y z each. For tests/fake_gpu, which has its own launch.
extern "C" void fakeGpuPlace(const unsigned place[12]) {
  blockIdx = {place[0], place[1], place[2]};
  threadIdx = {place[3], place[4], place[5]};
  gridDim = {place[6], place[7], place[8]};
  blockDim = {place[9], place[10], place[11]};
}

// Runs blocks `first` up to `end` of a grid of `blocks` × `threads`. The kernel's arguments are words, at most 8: a callee leaves words alone
// that it does not know.
extern "C" void launch(void (*kernel)(...), uint64_t first, uint64_t end, uint64_t blocks, uint64_t threads, const uint64_t *w) {
  typedef void (*Words)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
  gridDim = {(unsigned)blocks, 1, 1};
  blockDim = {(unsigned)threads, 1, 1};
  for (uint64_t block = first; block < end; block++) {
    blockIdx = {(unsigned)block, 0, 0};
    for (uint64_t thread = 0; thread < threads; thread++) {
      threadIdx = {(unsigned)thread, 0, 0};
      ((Words)kernel)(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]);
    }
  }
}
