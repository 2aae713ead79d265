// The two summing warpgroups of sparse attention; included by cuda_sparse_attention.cu after the layout of shared
// memory.
#pragma once
#include "sparse_attention_write.cuh"

constexpr float LOG2E = 1.4426950408889634f;

DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Values in registers of their own from here on: copies that the compiler makes later, between products, would
// serialise them.
template <int N> DEVICE void settle(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i]));
}
DEVICE void multiply_queries(float (&logits)[32], u32 slot) {
  const u64 q = wgmma_descriptor(shared_base() + QUERIES, 1024);
  const u64 k = wgmma_descriptor(shared_base() + KEYS + slot * TILE_BYTES, 1024);
#pragma unroll
  for (int i = 0; i < 32; ++i) {
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
DEVICE float raise_peak(float& peak, float top, float scale) {  // returns how much older sums fade
  const float old = peak;
  peak = fmaxf(old, top * scale);
  return exp2_fast(old - peak);
}
// logits → weights
DEVICE void step(Softmax& s, float (&x)[32], const float (&top)[2], float (&fade)[2], float scale) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    fade[r] = raise_peak(s.peak[r], top[r], scale);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 32; ++i)
      if ((i >> 1 & 1) == r) sum += x[i] = exp2_fast(fmaf(x[i], scale, -s.peak[r]));
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
// the weights of a block for the follower, and how sums fade before it
DEVICE void publish(const u32 (&weights)[16], const float (&fade)[2], u32 slot, u32 row, int lane) {
  store_weights(weights, shared_base() + WEIGHTS + slot * WEIGHT_BYTES, row, lane);
  float& first = shared_float(FADES + slot * 256 + row * 4);
  if ((lane & 3) == 0) first = fade[0], (&first)[8] = fade[1];
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
// Most peaks come early; from then on nothing fades.
DEVICE void fade_sums(Sums& sum, const float (&fade)[2]) {
  if (!__any_sync(ALL, fade[0] != 1.0f || fade[1] != 1.0f)) return;
#pragma unroll
  for (int i = 0; i < 64; ++i) sum.low[i] *= fade[i >> 1 & 1], sum.high[i] *= fade[i >> 1 & 1];
}

// ---- roles --------------------------------------------------------------------------------------------------------
DEVICE void multiply_values(Sums& sum, const u32 (&weights)[16], u32 slot, bool first) {
  const u64 v = value_descriptor(slot, 0);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const u32 a[4] = {weights[4 * i], weights[4 * i + 1], weights[4 * i + 2], weights[4 * i + 3]};
    Wgmma<128>::rs<1>(sum.low, a, v + (i * 2048 >> 4), !first || i > 0);
    Wgmma<128>::rs<1>(sum.high, a, v + ((i * 2048 + 2 * COLUMN_BYTES) >> 4), !first || i > 0);
  }
}

// Logits of block number `done` → its weights, for both warpgroups; with the last one, the inverse masses.
DEVICE void weigh(Softmax& s, float (&logits)[32], u32 (&weights)[16], float (&fade)[2], u32 done, float scale,
                  u32 head, int lane, bool last) {
  const u32 slot = done & 1;
  float top[2];
  hide(logits, slot, lane & 3);
  find_tops(logits, top);
  step(s, logits, top, fade, scale);
  round_weights(weights, logits);
  barrier_wait(barrier(WEIGHTS_FREE + slot), ~(done >> 1) & 1);
  publish(weights, fade, slot, head, lane);
  if (last) {
    invert_mass(s);
    float& first = shared_float(INVERSES + head * 4);
    if ((lane & 3) == 0) first = s.mass[0], (&first)[8] = s.mass[1];
  }
  fence_shared_for_async();
  barrier_arrive(barrier(WEIGHTS_FULL + slot));
}
// The tile of a block is free as soon as its values are summed, so these come first: while the next logits are
// computed and weighed, the tile fills again.
DEVICE void lead(const Arguments& a) {
  const int thread = threadIdx.x & 127, lane = thread & 31, quarter = lane & 3;
  const u32 head = (thread >> 5) * 16 + (lane >> 2);
  const float sink[2] = {a.sink[head] * LOG2E, a.sink[head + 8] * LOG2E};
  const float scale = a.scale * (float)(1 << KEY_SHIFT);
  u32 done = 0, turn = 0;
  for (int row = blockIdx.x; row < a.rows; row += gridDim.x, ++turn) {
    Sums sum;
    float logits[32], fade[2];
    u32 weights[16];
    Softmax s{{sink[0], sink[1]}, {quarter == 0 ? 1.0f : 0.0f, quarter == 0 ? 1.0f : 0.0f}};
    barrier_wait(barrier(QUERIES_FULL), turn & 1);
    const int last = *(const int*)(shared_bytes + COUNTS + (turn & 1) * 4) - 1;
    barrier_wait(barrier(KEYS_FULL + (done & 1)), done >> 1 & 1);
    wgmma_fence();
    multiply_queries(logits, done & 1);
    wgmma_commit();
    wgmma_wait<0>();
    for (int block = 0; block < last; ++block, ++done) {
      const u32 slot = done & 1, ahead = slot ^ 1;
      weigh(s, logits, weights, fade, done, scale, head, lane, false);
      if (block) fade_sums(sum, fade);
      wgmma_fence();
      multiply_values(sum, weights, slot, block == 0);
      wgmma_commit();
      barrier_wait(barrier(KEYS_FULL + ahead), (done + 1) >> 1 & 1);
      multiply_queries(logits, ahead);
      wgmma_commit();
      wgmma_wait<1>();
      release(KEYS_FREE + slot, lane);
      wgmma_wait<0>();
    }
    release(QUERIES_FREE, lane);
    weigh(s, logits, weights, fade, done, scale, head, lane, true);
    fade_sums(sum, fade);
    wgmma_fence();
    multiply_values(sum, weights, done & 1, false);
    wgmma_commit();
    wgmma_wait<0>();
    release(KEYS_FREE + (done & 1), lane);
    ++done;
    write_half(sum, s.mass, a.out + (u64)row * TILE_BYTES, nullptr, head, quarter);
  }
}

DEVICE void follow(const Arguments& a) {
  const int thread = threadIdx.x & 127, lane = thread & 31, quarter = lane & 3;
  const u32 head = (thread >> 5) * 16 + (lane >> 2);
  u32 done = 0, turn = 0;
  for (int row = blockIdx.x; row < a.rows; row += gridDim.x, ++turn) {
    Sums sum;
    float fade[2], inverse[2];
    barrier_wait(barrier(QUERIES_FULL), turn & 1);
    const int count = *(const int*)(shared_bytes + COUNTS + (turn & 1) * 4);
    release(QUERIES_FREE, lane);
    for (int block = 0; block < count; ++block, ++done) {
      const u32 slot = done & 1, parity = done >> 1 & 1;
      barrier_wait(barrier(KEYS_FULL + slot), parity);
      barrier_wait(barrier(WEIGHTS_FULL + slot), parity);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        fade[r] = shared_float(FADES + slot * 256 + (head + 8 * r) * 4);
        inverse[r] = shared_float(INVERSES + (head + 8 * r) * 4);
      }
      if (block) fade_sums(sum, fade);
      wgmma_fence();
      const u64 w = wgmma_descriptor(shared_base() + WEIGHTS + slot * WEIGHT_BYTES, 1024);
      const u64 v = value_descriptor(slot, 1);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        Wgmma<128>::ss<0, 1>(sum.low, w + (i * 32 >> 4), v + (i * 2048 >> 4), block > 0 || i > 0);
        Wgmma<128>::ss<0, 1>(sum.high, w + (i * 32 >> 4), v + ((i * 2048 + 2 * COLUMN_BYTES) >> 4), block > 0 || i > 0);
      }
      wgmma_commit();
      wgmma_wait<0>();
      release(KEYS_FREE + slot, lane);
      release(WEIGHTS_FREE + slot, lane);
    }
    write_half(sum, inverse, a.out + (u64)row * TILE_BYTES + HEAD_DIM, a.rope + row * 64, head, quarter);
  }
}
