// What the border does for a row once its sums are known: the next site's coefficients, the norm, the FP8 grid.
#pragma once
#include "cuda_hyper_border.cuh"
#include "fp8_grid.cuh"

DEVICE float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEVICE float sigmoid(float x) { return reciprocal(1.f + __expf(-x)); }

// the next site's coefficients from a row of sums; one thread a row, and one copy of the code
static __device__ __noinline__ void finish_row(const float* sums, int row, const float* base, const float* scale, float* read,
                                               float* mixing, float* write, float norm_eps, float eps, int iterations) {
  const float r = rsqrtf(sums[SQUARES_X] / (STREAMS * HIDDEN) + norm_eps);
  float m[STREAMS][STREAMS];
#pragma unroll
  for (int n = 0; n < STREAMS; n++) {
    read[row * STREAMS + n] = sigmoid(sums[n] * r * scale[0] + base[n]) + eps;
    write[row * STREAMS + n] = 2.f * sigmoid(sums[STREAMS + n] * r * scale[1] + base[STREAMS + n]);
    float largest = -__int_as_float(0x7f800000);
#pragma unroll
    for (int k = 0; k < STREAMS; k++) {
      const int i = 2 * STREAMS + n * STREAMS + k;
      m[n][k] = sums[i] * r * scale[2] + base[i];
      largest = fmaxf(largest, m[n][k]);
    }
#pragma unroll
    for (int k = 0; k < STREAMS; k++) m[n][k] = __expf(m[n][k] - largest);
    const float total = (m[n][0] + m[n][2]) + (m[n][1] + m[n][3]), inverse = reciprocal(total);
#pragma unroll
    for (int k = 0; k < STREAMS; k++) m[n][k] = m[n][k] * inverse + eps;
  }
  for (int turn = 0;; turn++) {
#pragma unroll
    for (int k = 0; k < STREAMS; k++) {
      const float inverse = reciprocal((m[0][k] + m[2][k]) + (m[1][k] + m[3][k]) + eps);
#pragma unroll
      for (int n = 0; n < STREAMS; n++) m[n][k] *= inverse;
    }
    if (turn + 1 >= iterations) break;
#pragma unroll
    for (int n = 0; n < STREAMS; n++) {
      const float inverse = reciprocal((m[n][0] + m[n][2]) + (m[n][1] + m[n][3]) + eps);
#pragma unroll
      for (int k = 0; k < STREAMS; k++) m[n][k] *= inverse;
    }
  }
#pragma unroll
  for (int n = 0; n < STREAMS; n++)
    *(float4*)(mixing + (row * STREAMS + n) * STREAMS) = make_float4(m[n][0], m[n][1], m[n][2], m[n][3]);
}

// `constants`: base, then scale, in shared memory
DEVICE void finish(const Border& b, const float* sums, const float* constants, int row) {
  finish_row(sums, row, constants, constants + OUTPUTS, b.new_read, b.new_mixing, b.new_write, b.norm_eps, b.eps, b.iterations);
}

DEVICE float reciprocal_rms(float squares, float eps) { return rsqrtf(__fadd_rn(__fdiv_rn(squares, (float)HIDDEN), eps)); }

// 8 columns of a row: normed, and on the FP8 grid; four neighbouring lanes hold the 32 columns of one scale
DEVICE void norm_piece(const Border& b, const uint4 u, const uint4 weight, float r, int row, int column) {
  const u64 at = (u64)row * HIDDEN + column;
  u32 out[4];
  float largest = 1e-4f;
#pragma unroll
  for (int j = 0; j < 4; j++) {
    out[j] = bf16x2(__fmul_rn(__fmul_rn(bf16_low(word(u, j)), r), bf16_low(word(weight, j))),
                    __fmul_rn(__fmul_rn(bf16_high(word(u, j)), r), bf16_high(word(weight, j))));
    largest = fmaxf(largest, fmaxf(fabsf(bf16_low(out[j])), fabsf(bf16_high(out[j]))));
  }
  store16(b.normed + at, out[0], out[1], out[2], out[3]);
  if (b.collapsed) store16(b.collapsed + at, u.x, u.y, u.z, u.w);
  if (!b.quantised) return;
  const u32 together = 0xfu << (threadIdx.x % 32 & ~3);
  largest = fmaxf(largest, __shfl_xor_sync(together, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(together, largest, 2));
  const int exponent = (int)((__float_as_uint(largest) + 0x1fffff) >> 23) - 127 - 8;  // largest <= 448 · 2^exponent
  const float up = __uint_as_float((exponent + 127) << 23), down = __uint_as_float((127 - exponent) << 23);
#pragma unroll
  for (int j = 0; j < 4; j++) out[j] = on_fp8_grid(out[j], up, down);
  store16(b.quantised + at, out[0], out[1], out[2], out[3]);
}
