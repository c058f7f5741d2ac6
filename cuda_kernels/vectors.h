// Common code of the kernels. It includes no CUDA header, so that nvcc, NVRTC and, with tests/cuda_kernels/shim.h, g++ compile it.
// Every argument of a kernel is one word of 64 bits. Threads of a launch do not wait for each other.
#pragma once

typedef unsigned char u8;
typedef unsigned long long u64;

#define THREADS 256       // of a block; the same number as in device/kernels.py
#define BLOCKS_AT_ONCE 4  // of a multiprocessor: 1024 threads with 64 registers each, which every GPU from sm_75 on supports

// 16 bytes: the most that one load or store of a thread transfers.
union alignas(16) Vector {
  u64 words[2];
  double doubles[2];
  float floats[4];
};

#ifdef __CUDACC__
__device__ inline u64 nanoseconds() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
#endif

__device__ inline u64 all_threads() { return (u64)gridDim.x * blockDim.x; }

__device__ inline u64 this_thread() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }

// Runs step.store(i, step.load(i)) for every vector i < n, UNROLLED loads of a thread before their stores.
// `block` of `blocks`: the blocks of the grid that share this work.
template <int UNROLLED, class Step>
__device__ inline void sweep(u64 n, Step &step, u64 block, u64 blocks) {
  const u64 tile = (u64)blockDim.x * UNROLLED;
  for (u64 begin = block * tile; begin < n; begin += blocks * tile) {
    u64 at = begin + threadIdx.x;
    if (begin + tile <= n) {
      Vector held[UNROLLED];
#pragma unroll
      for (int k = 0; k < UNROLLED; k++) held[k] = step.load(at + (u64)k * blockDim.x);
#pragma unroll
      for (int k = 0; k < UNROLLED; k++) step.store(at + (u64)k * blockDim.x, held[k]);
    } else {
      for (; at < n; at += blockDim.x) step.store(at, step.load(at));
    }
  }
}

template <int UNROLLED, class Step>
__device__ inline void sweep(u64 n, Step &step) {
  sweep<UNROLLED>(n, step, blockIdx.x, gridDim.x);
}

struct Copy {
  Vector *out;
  const Vector *in;
  __device__ Vector load(u64 i) const { return in[i]; }
  __device__ void store(u64 i, const Vector &value) const { out[i] = value; }
};
