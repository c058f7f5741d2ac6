// Kernels around a measurement: they hold launches until all are queued, clear the cache, and delay ranks.
#include "vectors.h"

// Holds its stream until the host writes *latch (pinned memory), for at most timeout_ns. Result: 1 released, 2 timed out.
extern "C" __global__ void hold(const volatile u64 *latch, u64 timeout_ns, volatile u64 *result) {
  if (this_thread() != 0) return;
  const u64 deadline = nanoseconds() + timeout_ns;
  u64 ended = 1;
  while (*latch == 0) {
    if (nanoseconds() <= deadline) continue;
    ended = 2;
    break;
  }
  *result = ended;
  __threadfence_system();
}

struct Flush {
  Vector *at;
  __device__ Vector load(u64 i) const { return at[i]; }
  __device__ void store(u64 i, const Vector &value) const { at[i] = {{value.words[0] + 1, value.words[1] + 1}}; }
};

// Reads and writes as many bytes as the level-2 cache has, so that no measured data stays in it.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE) flush(Vector *memory, u64 n_bytes) {
  Flush step = {memory};
  sweep<4>(n_bytes / sizeof(Vector), step);
}

// Keeps its stream busy for this time, so that its rank arrives late.
extern "C" __global__ void delay(u64 wait_ns) {
  if (this_thread() != 0) return;
  const u64 end = nanoseconds() + wait_ns;
  while (nanoseconds() < end) {
  }
}
