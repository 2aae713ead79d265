// A row into shared memory, its edits and its mask, and its best token.
#pragma once
#include "sample_row.cuh"

struct Edits {  // of all rows; see deepinfer.ops.sampling_rows for what they mean
  const double *repetitions, *frequencies, *presences;
  const int *starts, *ids;
  const double* biases;
  const int* counts;
};

constexpr u32 BROKEN = 1, ANY_FINITE = 2;

#if BF16
typedef uint2 Raw;  // four logits as they lie in device memory
DEVICE Raw load_raw(const void* logits, int g) {
  Raw x;
  asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"((const uint2*)logits + g));
  return x;
}
DEVICE float4 wide(Raw x) { return make_float4(bf16_low(x.x), bf16_high(x.x), bf16_low(x.y), bf16_high(x.y)); }
#else
typedef float4 Raw;
DEVICE Raw load_raw(const void* logits, int g) {
  Raw x;
  asm("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
      : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"((const float4*)logits + g));
  return x;
}
DEVICE float4 wide(Raw x) { return x; }
#endif

// this block's part through registers. Ends with a block barrier.
DEVICE void load(const Row& row, const void* logits) {
  constexpr int AHEAD = 8;
  for (int g0 = threadIdx.x; g0 < row.groups; g0 += AHEAD * THREADS) {
    Raw x[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
      if (g0 + i * THREADS < row.groups) x[i] = load_raw(logits, row.base / 4 + g0 + i * THREADS);
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
      if (g0 + i * THREADS < row.groups) ((float4*)row.x)[g0 + i * THREADS] = wide(x[i]);
  }
  __syncthreads();
}

DEVICE int chunk_groups(const Row& row) { return (row.groups + 2 * CHUNKS - 1) / (2 * CHUNKS) * 2; }

// this block's part by the copy engine, chunk by chunk; float32 only. Ends with a block barrier.
DEVICE void begin_load(const Row& row, const char* logits) {
  if (threadIdx.x == 0) {
    for (int c = 0; c < CHUNKS; c++) barrier_init(shared_address(&row.shared->arrived[c]), 1);
    barrier_init_fence();
    for (int c = 0; c < CHUNKS; c++) {
      int first = c * chunk_groups(row), bytes = (min(row.groups, first + chunk_groups(row)) - first) * 16;
      u32 barrier = shared_address(&row.shared->arrived[c]);
      barrier_expect(barrier, bytes);
      bulk_load_once(shared_address(row.x + 4 * first), logits + 4ll * row.base + 16 * first, bytes, barrier);
    }
  }
  __syncthreads();
}

// what is not legal becomes -inf
DEVICE void mask_group(const Row& row, const u32* mask, int g, float4& x) {
  int id = row.base + 4 * g;
  u32 legal = mask[id >> 5] >> (id & 31);
  x.x = legal & 1 ? x.x : -INFINITY_F, x.y = legal & 2 ? x.y : -INFINITY_F;
  x.z = legal & 4 ? x.z : -INFINITY_F, x.w = legal & 8 ? x.w : -INFINITY_F;
  ((float4*)row.x)[g] = x;
}
DEVICE void find_best_id(Row& row, int where) {
  float4 x = group_of(row, where);
  row.best_id = row.base + 4 * where + (x.x == row.best ? 0 : x.y == row.best ? 1 : x.z == row.best ? 2 : 3);
}
DEVICE u32 flags_of(bool fine, bool finite) { return (fine ? 0 : BROKEN) | (finite ? ANY_FINITE : 0); }

// This thread's best logit and where it is. Flags come back: whether there is a NaN or +inf, and whether anything is finite,
// before the mask is written.
template <bool FIRST> DEVICE u32 scan(Row& row, const u32* mask) {
  bool fine = true, finite = false;
  int where = 0;
  row.best = -INFINITY_F;
  for (int c = 0; c < CHUNKS; c++) {
    if (FIRST && !BF16) barrier_wait(shared_address(&row.shared->arrived[c]), 0);
    int end = min(row.groups, (c + 1) * chunk_groups(row));
#pragma unroll 4
    for (int g = c * chunk_groups(row) + threadIdx.x; g < end; g += THREADS) {
      float4 x = group_of(row, g);
      float most = most_or_nan(x);
      if (FIRST) fine = fine && most < INFINITY_F;
      if (FIRST && mask) {
        finite = finite || most > -INFINITY_F;
        mask_group(row, mask, g, x);
        most = most_of(x);
      }
      if (most > row.best) row.best = most, where = g;
    }
  }
  find_best_id(row, where);
  return flags_of(fine, finite || row.best > -INFINITY_F);
}

// the row's best token, the lowest id among equals; returns the flags of all
DEVICE u32 agree(Row& row, u32 flags) {
  bool any = row.best > -INFINITY_F;
  u32 key = any ? ordered(row.best + 0.f) : 0, id = any ? row.best_id : ~0u;
  u32 most = __reduce_max_sync(~0u, key);
  id = __reduce_min_sync(~0u, key == most ? id : ~0u);
  u64 best = most ? (u64)most << ID_BITS | (LAST_ID - id) : 0;
  Triple found = reduce<Largest>(row, {best, 0, __reduce_or_sync(~0u, flags)});
  row.top = found.a ? logit_of(found.a) : -INFINITY_F;
  row.top_id = id_of(found.a);
  return (u32)found.c;
}

// bias, repetition, frequency and presence penalty of the tokens listed for this row, rounded to float32 once
DEVICE void edit(const Row& row, const Edits& edits, int r) {
  int first = edits.starts[r], end = edits.starts[r + 1];
  double repetition = edits.repetitions[r], frequency = edits.frequencies[r], presence = edits.presences[r];
  __syncthreads();
#pragma unroll 1
  for (int i = first + threadIdx.x; i < end; i += THREADS) {
    int local = edits.ids[i] - row.base, count = edits.counts[i];
    if (local < 0 || local >= row.groups * 4) continue;
    double x = (double)row.x[local] + edits.biases[i];
    if (count != 0) x = x > 0 ? x / repetition : x * repetition;
    count >>= 1;  // the lowest bit: in the prompt
    x -= __dadd_rn(__dmul_rn(frequency, count), count > 0 ? presence : 0.0);
    row.x[local] = (float)x;
  }
  __syncthreads();
}
