// Kernels that write deterministic data and verify received data. The expected memory is a table of bytes, repeated.
// A thread keeps its 16 bytes of the table in registers and strides over the memory by whole repetitions. So it reads little more than the memory.
#include "vectors.h"

// Memory divided into vectors of 16 bytes and the remaining bytes at both ends.
struct Span {
  u64 head, vectors, tail;  // bytes, vectors, bytes
  __device__ Span(const u8 *address, u64 n_bytes) {
    head = (16 - (u64)address % 16) % 16;
    if (head > n_bytes) head = n_bytes;
    vectors = (n_bytes - head) / 16;
    tail = n_bytes - head - 16 * vectors;
  }
};

// The repeated table, cut into vectors, has a period of `columns` vectors; `lanes` threads share a column.
struct Columns {
  u64 columns, lanes;
  __device__ Columns(u64 table_bytes) {
    const u64 power_of_two = table_bytes & (~table_bytes + 1);
    columns = table_bytes / (power_of_two < 16 ? power_of_two : 16);
    lanes = all_threads() / columns;
    if (lanes == 0) lanes = 1;
  }
  __device__ u64 stride() const { return columns * lanes; }
};

// Returns the `width` (at most 8) bytes at `offset` of the repeated table, the first one in the lowest bits.
__device__ inline u64 wanted_at(const u8 *table, u64 table_bytes, u64 offset, int width) {
  u64 at = offset % table_bytes, word = 0;
#pragma unroll
  for (int k = 0; k < width; k++) {
    word |= (u64)table[at] << (8 * k);
    at = at + 1 == table_bytes ? 0 : at + 1;
  }
  return word;
}

__device__ inline Vector vector_at(const u8 *table, u64 table_bytes, u64 offset) {
  return {{wanted_at(table, table_bytes, offset, 8), wanted_at(table, table_bytes, offset + 8, 8)}};
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE) fill(u8 *out, u64 n_bytes, const u8 *table, u64 table_bytes) {
  const Span span(out, n_bytes);
  const Columns table_in(table_bytes);
  Vector *vectors = (Vector *)(out + span.head);
  for (u64 i = this_thread(); i < span.vectors && i < table_in.stride(); i += all_threads()) {
    const Vector value = vector_at(table, table_bytes, span.head + 16 * (i % table_in.columns));
    for (u64 v = i; v < span.vectors; v += table_in.stride()) vectors[v] = value;
  }
  for (u64 i = this_thread(); i < span.head + span.tail; i += all_threads()) {
    const u64 at = i < span.head ? i : i + 16 * span.vectors;
    out[at] = table[at % table_bytes];
  }
}

// The result of a thread: the number of wrong elements, and the first of them.
struct Found {
  u64 count, first, width, tolerance, head;

  // Returns the first element of a vector.
  __device__ u64 first_at(u64 vector) const { return (head + 16 * vector) / width; }

  // Returns the steps between two values with a sign bit, in the order of floating-point bit patterns; 0 and -0 are equal.
  __device__ u64 steps(u64 a, u64 b) const {
    const u64 sign = 1ull << (8 * width - 1);
    a = a & sign ? sign - (a - sign) : sign + a;
    b = b & sign ? sign - (b - sign) : sign + b;
    return a > b ? a - b : b - a;
  }

  __device__ void add(u64 element) {
    count++;
    if (element < first) first = element;
  }

  __device__ void look(u64 wanted, u64 got, u64 element) {
    if (wanted != got && (tolerance == 0 || steps(wanted, got) > tolerance)) add(element);
  }

  __device__ void look(const Vector &wanted, const Vector &got, u64 vector) {
    const u64 mask = ~0ull >> (64 - 8 * width), in_word = 8 / width, element = first_at(vector);
    for (u64 k = 0; k < in_word; k++) {
      const u64 shift = 8 * width * k;
      look((wanted.words[0] >> shift) & mask, (got.words[0] >> shift) & mask, element + k);
      look((wanted.words[1] >> shift) & mask, (got.words[1] >> shift) & mask, element + in_word + k);
    }
  }
};

// Returns the different bits of two vectors, combined by OR; 0: none.
__device__ inline u64 difference(const Vector &a, const Vector &b) { return (a.words[0] ^ b.words[0]) | (a.words[1] ^ b.words[1]); }

// Compares one column of the table with every vector that must equal it, from `begin` by `stride`. If one of a batch differs, the batch
// is read again by element, so that the main loop needs fewer registers. A difference that has disappeared by then counts as one.
__device__ inline void verify_column(const Vector *vectors, u64 n, const Vector &wanted, u64 begin, u64 stride, Found &found) {
  constexpr int UNROLLED = 8;
  const Vector *const end = vectors + n;
  for (const Vector *batch = vectors + begin; batch < end; batch += UNROLLED * stride) {
    u64 differs = 0;
    if (batch + (UNROLLED - 1) * stride < end) {
      Vector got[UNROLLED];
#pragma unroll
      for (int k = 0; k < UNROLLED; k++) got[k] = batch[k * stride];
#pragma unroll
      for (int k = 0; k < UNROLLED; k++) differs |= difference(wanted, got[k]);
      if (differs == 0) continue;
    }
    const u64 before = found.count;
    for (const Vector *at = batch; at < end && at < batch + UNROLLED * stride; at += stride) found.look(wanted, *at, at - vectors);
    if (differs && found.count == before) found.add(found.first_at(batch - vectors));
  }
}

// Result: result[0] += wrong elements of `width` (1, 2, 4, 8) bytes, result[1] = the smallest index of one. Address and n_bytes are
// multiples of the width. tolerance: allowed steps of the bit pattern; with 0, also 0 and -0 differ.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE)
    verify(const u8 *in, u64 n_bytes, const u8 *table, u64 table_bytes, u64 width, u64 tolerance, u64 *result) {
  const Span span(in, n_bytes);
  const Columns table_in(table_bytes);
  Found found = {0, ~0ull, width, tolerance, span.head};
  const Vector *vectors = (const Vector *)(in + span.head);
  for (u64 i = this_thread(); i < span.vectors && i < table_in.stride(); i += all_threads()) {
    const Vector wanted = vector_at(table, table_bytes, span.head + 16 * (i % table_in.columns));
    verify_column(vectors, span.vectors, wanted, i, table_in.stride(), found);
  }
  for (u64 i = this_thread() * width; i < span.head + span.tail; i += all_threads() * width) {
    const u64 at = i < span.head ? i : i + 16 * span.vectors;
    found.look(wanted_at(table, table_bytes, at, (int)width), wanted_at(in, n_bytes, at, (int)width), at / width);
  }
  if (found.count == 0) return;
  atomicAdd(&result[0], found.count);
  atomicMin(&result[1], found.first);
}

// Sets the result to which verify adds: no wrong element, and no index.
extern "C" __global__ void no_errors(u64 *result) {
  if (this_thread() != 0) return;
  result[0] = 0;
  result[1] = ~0ull;
}

// Flips the bits of `mask` in one byte, to prove that verify detects it.
extern "C" __global__ void corrupt(u8 *address, u64 offset, u64 mask) {
  if (this_thread() == 0) address[offset] ^= (u8)mask;
}
