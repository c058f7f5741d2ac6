// Kernels that measure the rate of a GPU's memory, in vectors of 16 bytes. n_bytes and the addresses are multiples of 16.
#include "vectors.h"

struct Sum {
  const Vector *in;
  u64 total;
  __device__ Vector load(u64 i) const { return in[i]; }
  __device__ void store(u64, const Vector &value) { total += value.words[0] + value.words[1]; }
};

struct Write {
  Vector *out;
  Vector value;
  __device__ Vector load(u64) const { return value; }
  __device__ void store(u64 i, const Vector &held) const { out[i] = held; }
};

struct Triad {
  Vector *a;
  const Vector *b, *c;
  double scale;
  __device__ Vector load(u64 i) const {
    Vector left = b[i], right = c[i];
    for (int k = 0; k < 2; k++) left.doubles[k] += scale * right.doubles[k];
    return left;
  }
  __device__ void store(u64 i, const Vector &value) const { a[i] = value; }
};

struct Reduce {
  Vector *out;
  const Vector *a, *b;
  __device__ Vector load(u64 i) const {
    Vector left = a[i], right = b[i];
    for (int k = 0; k < 4; k++) left.floats[k] += right.floats[k];
    return left;
  }
  __device__ void store(u64 i, const Vector &value) const { out[i] = value; }
};

// Each thread stores the sum (modulo 2^64) of its 64-bit words in sums[thread]. The total proves that all words were read.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE) read_memory(const Vector *in, u64 n_bytes, u64 *sums) {
  Sum step = {in, 0};
  sweep<8>(n_bytes / sizeof(Vector), step);
  sums[this_thread()] = step.total;
}

// Writes value, ~value to every 16 bytes.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE) write_memory(Vector *out, u64 n_bytes, u64 value) {
  Write step = {out, {{value, ~value}}};
  sweep<4>(n_bytes / sizeof(Vector), step);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE) copy(Vector *out, const Vector *in, u64 n_bytes) {
  Copy step = {out, in};
  sweep<4>(n_bytes / sizeof(Vector), step);
}

// Computes a = b + scale · c in float64; `scale` has the bits of a float64.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE)
    triad(Vector *a, const Vector *b, const Vector *c, u64 n_bytes, u64 scale) {
  Vector bits = {{scale, 0}};
  Triad step = {a, b, c, bits.doubles[0]};
  sweep<4>(n_bytes / sizeof(Vector), step);
}

// Computes out = a + b in float32: one step of a ring, in which b may be in a peer's memory.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE)
    reduce_copy(Vector *out, const Vector *a, const Vector *b, u64 n_bytes) {
  Reduce step = {out, a, b};
  sweep<4>(n_bytes / sizeof(Vector), step);
}
