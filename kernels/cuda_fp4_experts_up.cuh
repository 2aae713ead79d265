// The end of an item of w13: SwiGLU of its 128 gate and 128 up columns, routing weight, FP8 grid per 32 columns.
// Included by cuda_fp4_experts.cu.
#pragma once
#include "fp8_grid.cuh"

#ifndef LIMIT
#define LIMIT 10.0f
#endif
constexpr int WEIGHTS = (TILE_ROWS + 31) / 32;  // routing weights of a lane
constexpr int EIGHTS = TILE_ROWS / 8;
constexpr int TOGETHER = 2 * PRODUCTS;  // groups of 8 rows whose instructions interleave
static_assert(TILE_ROWS % 8 == 0, "rows are activated by 8");

// byte of the smallest power of two s with largest <= 448 · s, for the bf16 bits of |largest|, raised to 1e-4; 255 for no number
DEVICE u32 power_of(u32 largest_bits) {
  const u32 carry = 0x7fffff - 0x600000;  // 448 = 1.75 · 2^8
  const u32 bits = max(largest_bits << 16, 0x38d1b717u);
  return largest_bits >= 0x7f80 ? 255 : (bits + carry >> 23) - 8;
}

DEVICE float activate(float gate, float up, float weight) {
  gate = min_or_nan(gate, LIMIT);
  up = min_or_nan(max_or_nan(up, -LIMIT), LIMIT);
  return __fdividef(gate, 1.0f + __expf(-gate)) * up * weight;
}

// SwiGLU of one product: packed pairs of columns, and the power of each row's part in this warp
DEVICE void activate_rows(Shared& s, const Item& item, const float (&sum)[TILE_ROWS / 2], const float (&weight)[WEIGHTS],
                          u32 (&act)[EIGHTS], int product) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
  for (int first = 0; first < EIGHTS; first += TOGETHER) {
    if (8 * first >= item.rows) break;
    u32 v[TOGETHER][2], largest[TOGETHER];
#pragma unroll
    for (int i = 0; i < TOGETHER && first + i < EIGHTS; ++i) take_rows(v[i], sum, first + i);
#pragma unroll
    for (int i = 0; i < TOGETHER && first + i < EIGHTS; ++i) {
      const float factor = __shfl_sync(~0u, weight[(first + i) / 4], (first + i) % 4 * 8 + lane / 4);
      const u32 gate = v[i][0], up = v[i][1];
      const u32 pair = bf16x2(activate(bf16_low(gate), bf16_low(up), factor), activate(bf16_high(gate), bf16_high(up), factor));
      largest[i] = max(pair & 0x7fff, pair >> 16 & 0x7fff);
      act[first + i] = pair;
    }
#pragma unroll
    for (int distance = 1; distance <= 2; ++distance)
#pragma unroll
      for (int i = 0; i < TOGETHER && first + i < EIGHTS; ++i) largest[i] = max(largest[i], __shfl_xor_sync(~0u, largest[i], distance));
#pragma unroll
    for (int i = 0; i < TOGETHER && first + i < EIGHTS; ++i)
      if (lane % 4 == 0) s.power[product][8 * (first + i) + lane / 4][warp] = power_of(largest[i]);
  }
}

// four powers of one row's 32 columns to the greatest
DEVICE u32 greatest_power(u32 four) { return max(max(four & 255, four >> 8 & 255), max(four >> 16 & 255, four >> 24)); }

DEVICE void store(Shared& s, const Item& item, const Sums& sum, u16* out, const float* weights) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, group = threadIdx.x / 128;
  float weight[WEIGHTS];
#pragma unroll
  for (int i = 0; i < WEIGHTS; ++i)
    weight[i] = 32 * i + lane < item.rows ? __ldg(weights + item.row + 32 * i + lane) : 0.0f;
  u32 act[PRODUCTS][EIGHTS];
#pragma unroll
  for (int p = 0; p < PRODUCTS; ++p) activate_rows(s, item, sum[p], weight, act[p], group * PRODUCTS + p);
  named_sync(1 + group, 128);
  u16* target = out + (u64)(item.row + lane / 4) * COLUMNS + item.unit * 32 + group * PRODUCTS * 32 + warp * 8 + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < EIGHTS; ++i) {
    if (i % TOGETHER == 0 && 8 * i >= item.rows) break;
#pragma unroll
    for (int p = 0; p < PRODUCTS; ++p) {
      const u32 power = greatest_power(*(const u32*)s.power[group * PRODUCTS + p][8 * i + lane / 4]);
      const float scale = power == 255 ? __uint_as_float(0x7fc00000) : __uint_as_float(power << 23);
      const float inverse = power == 255 ? scale : __uint_as_float(254 - power << 23);
      const u32 pair = on_fp8_grid(act[p][i], scale, inverse);
      if (8 * i + lane / 4 < item.rows) *(u32*)(target + (u64)(8 * i) * COLUMNS + p * 32) = pair;
    }
  }
  named_sync(1 + group, 128);  // before the next item's
}
