// Kernels on another GPU's memory, mapped here (peer access or IPC): loads and stores of the multiprocessors, not the copy engine.
// The two waiting kernels end after timeout_ns. The words of both sides must be 0 before.
#include "vectors.h"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE) peer_read(Vector *here, const Vector *there, u64 n_bytes) {
  Copy step = {here, there};
  sweep<4>(n_bytes / sizeof(Vector), step);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE) peer_write(Vector *there, const Vector *here, u64 n_bytes) {
  Copy step = {there, here};
  sweep<4>(n_bytes / sizeof(Vector), step);
}

// Copies n_bytes in both directions at the same time: even blocks read, odd ones write. The grid has an even number of blocks.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE)
    peer_both(Vector *here_out, const Vector *there_in, Vector *there_out, const Vector *here_in, u64 n_bytes) {
  const bool reads = blockIdx.x % 2 == 0;
  Copy step = reads ? Copy{here_out, there_in} : Copy{there_out, here_in};
  sweep<4>(n_bytes / sizeof(Vector), step, blockIdx.x / 2, gridDim.x / 2);
}

// Waits until *word is at least `value`. Returns false after `deadline`.
__device__ inline bool arrives(const volatile u64 *word, u64 value, u64 deadline) {
  for (u64 look = 1; *word < value; look++)
    if (look % 64 == 0 && nanoseconds() > deadline) return false;
  return true;
}

// Exchanges a word: launched on both sides, one of them with starts = 1. This side reads `mine`, the other side reads `theirs`.
// The first round trip waits for the other side's start and is not timed. Result: timed round trips, their nanoseconds.
extern "C" __global__ void pingpong(volatile u64 *mine, volatile u64 *theirs, u64 rounds, u64 starts, u64 timeout_ns, u64 *result) {
  if (this_thread() != 0) return;
  u64 begin = nanoseconds(), end = begin, done = 0;
  const u64 deadline = begin + timeout_ns;
  for (u64 round = 1; round <= rounds + 1; round++) {
    if (starts) *theirs = round;
    if (!arrives(mine, round, deadline)) break;
    if (!starts) *theirs = round;
    end = nanoseconds();
    if (round == 1) begin = end;
    done = round - 1;
  }
  result[0] = done;
  result[1] = end - begin;
}

// Follows `steps` links of a chain of indices; each load waits for the previous one. Result: the final index, nanoseconds.
extern "C" __global__ void pointer_chase(const volatile u64 *chain, u64 start, u64 steps, u64 *result) {
  if (this_thread() != 0) return;
  const u64 begin = nanoseconds();
  u64 at = start;
  for (u64 step = 0; step < steps; step++) at = chain[at];
  result[0] = at;
  result[1] = nanoseconds() - begin;
}
