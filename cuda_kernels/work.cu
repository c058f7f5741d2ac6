// The computation of `--overlap`: arithmetic on memory, the same amount in each launch, and stamps before and after it.
//
// Unlike `delay`, which ends at a time, it takes longer if something takes its multiprocessors or its memory bandwidth away. The stamps
// are launches of their own on the same stream, so that no thread of `work` waits for another one.
#include "vectors.h"

#define STEPS 8  // multiplications and additions of an element, in registers

// What one computation knows of itself, also in device/computation.py. `spent` and `slice` are of the computation that is not done.
struct Work {
  u64 began, spent, slice, done;
  u64 elapsed_ns[1];  // of the last computations, a ring
};

extern "C" __global__ void work_begins(Work *state) {
  if (this_thread() != 0) return;
  state->began = nanoseconds();
}

// One of `slices` equal parts of a computation of `amount` blocks of THREADS vectors. n_bytes: of the memory, whole blocks.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE)
    work(Vector *memory, u64 n_bytes, u64 amount, u64 slices, const Work *state) {
  const u64 blocks = n_bytes / sizeof(Vector) / THREADS;
  const u64 first = amount * state->slice / slices, end = amount * (state->slice + 1) / slices;
  for (u64 block = first + blockIdx.x; block < end; block += gridDim.x) {
    Vector *at = memory + block % blocks * THREADS + threadIdx.x;
    Vector value = *at;
    for (int k = 0; k < STEPS; k++)
      for (int i = 0; i < 2; i++) value.doubles[i] = value.doubles[i] * 0.999 + 0.001;
    *at = value;
  }
}

extern "C" __global__ void work_ends(Work *state, u64 slices, u64 capacity) {
  if (this_thread() != 0) return;
  state->spent += nanoseconds() - state->began;
  if (++state->slice < slices) return;
  state->elapsed_ns[state->done % capacity] = state->spent;
  state->done++;
  state->slice = state->spent = 0;
}
