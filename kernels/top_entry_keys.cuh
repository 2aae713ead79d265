// Scores of a row, or of its candidate blocks, as integers of the same order in registers: a part of cuda_top_entries.cu.
#pragma once
#include "ordered_keys.cuh"

constexpr int THREADS = 512, WARPS = THREADS / 32, BINS = 2048, PASSES = 3, SMALL = 8;
constexpr int EACH_BINS = BINS / THREADS, LIST_EACH = 4, LIST = LIST_EACH * THREADS;  // keys that the list holds
static_assert(GROUP == 1 || ELEMENTS * THREADS <= 2 * LIST, "candidate blocks wait where the list will be");
constexpr u32 LOWEST = 0x007fffff, INFINITE = 0xff800000;  // keys of -inf and inf
constexpr u32 LOWEST_DIGIT = LOWEST >> 21;

// ascending with the score; NaN is -inf, both zeros are the same
DEVICE u32 key_of(float score) {
  return ordered(fmaxf(score + 0.0f, -INFINITY_F));
}

struct alignas(16) Shared {
  u32 counts[PASSES][BINS];
  union {
    struct {
      u32 keys[LIST];
      int numbers[LIST];
    } list;
    u32 blocks[2 * LIST];  // keys of candidate blocks, before there is a list
  };
  u32 warp_sums[3][WARPS], digit, above, total;
};

// the place of a thread's chunk of four among its block's N · THREADS keys
template <int N> DEVICE int chunk_place(int chunk) {
  return (threadIdx.x >> 5) * N * 32 + chunk * 128 + (threadIdx.x & 31) * 4;
}

// scores[element … element + 3], -inf from `limit` on
DEVICE float4 load_four(const float* scores, int element, int limit) {
  float lowest = -INFINITY_F;
  float4 four = {lowest, lowest, lowest, lowest};
  if (element + 3 < limit) {
    four = *(const float4*)(scores + element);
  } else if (element < limit) {  // the row's last ones
    four.x = scores[element];
    if (element + 1 < limit) four.y = scores[element + 1];
    if (element + 2 < limit) four.z = scores[element + 2];
  }
  return four;
}

// Keys of this block's elements, from `first` on in the row, whose scores end at `length`.
DEVICE void load_keys(Shared& shared, const float* scores, int first, int length, u32 (&keys)[ELEMENTS]) {
  if constexpr (GROUP == 1) {
#pragma unroll
    for (int k = 0; k < ELEMENTS / 4; k++) {
      float4 four = load_four(scores, first + chunk_place<ELEMENTS>(k), length);
      keys[4 * k] = key_of(four.x), keys[4 * k + 1] = key_of(four.y);
      keys[4 * k + 2] = key_of(four.z), keys[4 * k + 3] = key_of(four.w);
    }
  } else {
#pragma unroll
    for (int k = 0; k < ELEMENTS * 2; k++) {  // two lanes a candidate block
      int half = k * THREADS + threadIdx.x, block = first + half / 2;
      float4 four = load_four(scores, first * SMALL + half * 4, length);
      float best = fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w));
      best = fmaxf(best, __shfl_xor_sync(~0u, best, 1));
      if ((half & 1) == 0) shared.blocks[half / 2] = length > 0 && block == (length - 1) / SMALL ? INFINITE : key_of(best);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ELEMENTS; i++) keys[i] = shared.blocks[chunk_place<ELEMENTS>(i / 4) + i % 4];
    __syncthreads();
  }
}
