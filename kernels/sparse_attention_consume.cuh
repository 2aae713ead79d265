// What logits become: weights, peaks, masses, and sums of values; included by cuda_sparse_attention.cu after the layout
// of shared memory.
#pragma once
#include "sparse_attention_write.cuh"

template <int BEGIN = 0, int END = 32> DEVICE void multiply_queries(float (&logits)[32], u32 slot) {
  const u64 q = wgmma_descriptor(shared_base() + QUERIES, 1024);
  const u64 k = wgmma_descriptor(shared_base() + KEYS + slot * TILE_BYTES, 1024);
#pragma unroll
  for (int i = BEGIN; i < END; ++i) {
    const u64 at = ((i >> 2) * COLUMN_BYTES + (i & 3) * 32) >> 4;
    Wgmma<64>::ss(logits, q + at, k + at, i > 0);
  }
}
// logits of hidden keys of a tile become -infinity
DEVICE void hide(float (&logits)[32], u32 slot, int quarter) {
  const uint2 hidden = *(const uint2*)(shared_bytes + HIDDEN + slot * 8);
  if (!(hidden.x | (ORDERED ? 0 : hidden.y))) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float2 bias = *(const float2*)(shared_bytes + BIASES + slot * 256 + i * 32 + quarter * 8);
    logits[4 * i] += bias.x, logits[4 * i + 1] += bias.y, logits[4 * i + 2] += bias.x, logits[4 * i + 3] += bias.y;
  }
}
DEVICE u64 value_descriptor(u32 slot, u32 half) {
  return wgmma_descriptor(shared_base() + KEYS + slot * TILE_BYTES + half * 4 * COLUMN_BYTES, 1024, COLUMN_BYTES);
}
DEVICE void release(int which, int lane) {
  __syncwarp();
  if (lane == 0) barrier_arrive(barrier(which));
}

// Two rows of the softmax in a thread: the peak so far (in log2) and this thread's share of the mass.
struct Softmax {
  float peak[2], mass[2];
};
DEVICE Softmax begin_softmax(const float (&sink)[2], int quarter) {
  const float mass = quarter == 0 ? 1.0f : 0.0f;
  return {{sink[0], sink[1]}, {mass, mass}};
}
// the largest logit of each row in a block
DEVICE void find_tops(const float (&x)[32], float (&top)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    top[r] = x[2 * r];
#pragma unroll
    for (int i = 0; i < 32; ++i)
      if ((i >> 1 & 1) == r) top[r] = fmaxf(top[r], x[i]);
    top[r] = fmaxf(top[r], __shfl_xor_sync(ALL, top[r], 1));
    top[r] = fmaxf(top[r], __shfl_xor_sync(ALL, top[r], 2));
  }
}
// Weights may grow to 2^SLACK before a peak follows, so that sums seldom fade: bf16 and float32 lose nothing by it. The
// first block of a row has no sums yet, so its peak is exact. Returns how much older sums fade.
constexpr float SLACK = 8.0f;
DEVICE float raise_peak(float& peak, float top, float scale, bool first) {
  const float old = peak, next = top * scale;
  if (next > old + (first ? 0.0f : SLACK)) peak = next;
  return power_of_two(old - peak);
}
// logits → weights; a thread adds its pairs of keys in the order of the keys
DEVICE void step(Softmax& s, float (&x)[32], const float (&top)[2], float (&fade)[2], float scale, bool first) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    fade[r] = raise_peak(s.peak[r], top[r], scale, first);
    float sum = 0;
#pragma unroll
    for (int i = 2 * r; i < 32; i += 4) {
      x[i] = power_of_two(fmaf(x[i], scale, -s.peak[r])), x[i + 1] = power_of_two(fmaf(x[i + 1], scale, -s.peak[r]));
      sum += x[i] + x[i + 1];
    }
    s.mass[r] = fmaf(s.mass[r], fade[r], sum);
  }
}
DEVICE void round_weights(u32 (&weights)[16], const float (&x)[32]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    weights[i] = bf16x2(x[2 * i], x[2 * i + 1]);
    asm volatile("" : "+r"(weights[i]));  // here, not between products
  }
}
DEVICE void store_weights(const u32 (&weights)[16], u32 tile, u32 row, int lane) {
  const u32 line = (row & ~7u) + (lane & 7) + (lane >> 3 & 1) * 8;  // a lane tells where a line of an 8 × 8 matrix goes
  const u32 at = tile + line * 128 + (((lane >> 4) ^ (lane & 7)) << 4);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at ^ (i << 5)),
                 "r"(weights[4 * i]), "r"(weights[4 * i + 1]), "r"(weights[4 * i + 2]), "r"(weights[4 * i + 3])
                 : "memory");
}
// mass of every head from its four lanes → its inverse, which also puts back the shift of the keys
DEVICE void invert_mass(Softmax& s) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float mass = s.mass[r];
    mass += __shfl_xor_sync(ALL, mass, 1);
    mass += __shfl_xor_sync(ALL, mass, 2);
    s.mass[r] = (float)(1 << KEY_SHIFT) / mass;
  }
}
DEVICE void fade_sums(Sums& sum, const float (&fade)[2]) {
  if (!__any_sync(ALL, fade[0] != 1.0f || fade[1] != 1.0f)) return;
#pragma unroll
  for (int i = 0; i < 64; ++i) sum.low[i] *= fade[i >> 1 & 1], sum.high[i] *= fade[i >> 1 & 1];
}
