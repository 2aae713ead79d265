// The roles of the two summing warpgroups of sparse attention; included by cuda_sparse_attention.cu.
#pragma once
#include "sparse_attention_consume.cuh"

DEVICE void multiply_own(Sums& sum, const u32 (&weights)[16], u32 slot, u32 half, bool begun) {
  const u64 v = value_descriptor(slot, half);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const u32 a[4] = {weights[4 * i], weights[4 * i + 1], weights[4 * i + 2], weights[4 * i + 3]};
    Wgmma<128>::rs<1>(sum.low, a, v + (i * 2048 >> 4), begun || i > 0);
    Wgmma<128>::rs<1>(sum.high, a, v + ((i * 2048 + 2 * COLUMN_BYTES) >> 4), begun || i > 0);
  }
}
DEVICE void multiply_others(Sums& sum, u32 parity, u32 slot, u32 half, bool begun) {
  const u64 w = wgmma_descriptor(shared_base() + WEIGHTS + parity * WEIGHT_BYTES, 1024);
  const u64 v = value_descriptor(slot, half);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    Wgmma<128>::ss<0, 1>(sum.low, w + (i * 32 >> 4), v + (i * 2048 >> 4), begun || i > 0);
    Wgmma<128>::ss<0, 1>(sum.high, w + (i * 32 >> 4), v + ((i * 2048 + 2 * COLUMN_BYTES) >> 4), begun || i > 0);
  }
}
// Fades the sums and begins to add to them: own weights or the other warpgroup's, times half of the dims of a tile.
DEVICE void sum_own(Sums& sum, const u32 (&weights)[16], const float (&fade)[2], u32 slot, u32 half, bool begun) {
  if (begun) fade_sums(sum, fade);
  wgmma_fence();
  multiply_own(sum, weights, slot, half, begun);
  wgmma_commit();
}
DEVICE void sum_others(Sums& sum, u32 parity, const float (&fade)[2], u32 slot, u32 half, bool begun) {
  if (begun) fade_sums(sum, fade);
  wgmma_fence();
  multiply_others(sum, parity, slot, half, begun);
  wgmma_commit();
}

// ---- from block to block ------------------------------------------------------------------------------------------
// Logits of a block → its weights, and where the softmax stands after it, for both warpgroups.
DEVICE void weigh(Softmax& s, float (&logits)[32], u32 (&weights)[16], float (&fade)[2], u32 slot, float scale,
                  bool first, int lane) {
  float top[2];
  hide(logits, slot, lane & 3);
  find_tops(logits, top);
  step(s, logits, top, fade, scale, first);
  round_weights(weights, logits);
}
DEVICE void publish(const Softmax& s, const u32 (&weights)[16], u32 parity, u32 uses, u32 head, int thread) {
  barrier_wait(barrier(WEIGHTS_FREE + parity), ~uses & 1);
  store_weights(weights, shared_base() + WEIGHTS + parity * WEIGHT_BYTES, head, thread & 31);
  *(float4*)(shared_bytes + STATES + parity * 2048 + thread * 16) = {s.peak[0], s.peak[1], s.mass[0], s.mass[1]};
  barrier_arrive(barrier(WEIGHTS_FULL + parity));
}
// what the other warpgroup has published, and how sums fade before its weights
DEVICE void take(Softmax& s, float (&fade)[2], u32 parity, u32 uses, int thread) {
  barrier_wait(barrier(WEIGHTS_FULL + parity), uses & 1);
  fence_shared_for_async();
  const float4 state = *(const float4*)(shared_bytes + STATES + parity * 2048 + thread * 16);
  fade[0] = power_of_two(s.peak[0] - state.x), fade[1] = power_of_two(s.peak[1] - state.y);
  s = {{state.x, state.y}, {state.z, state.w}};
}
DEVICE void begin_logits(float (&logits)[32], u32 done) {
  const u32 slot = done & 1, parity = done >> 1 & 1;
  barrier_wait(barrier(KEYS_FULL + 2 * slot), parity);
  fence_shared_for_async();  // not by producers: there it would wait for the keys that they have asked for
  wgmma_fence();
  multiply_queries<0, 16>(logits, slot);
  barrier_wait(barrier(KEYS_FULL + 2 * slot + 1), parity);
  fence_shared_for_async();
  wgmma_fence();
  multiply_queries<16, 32>(logits, slot);
  wgmma_commit();
}

// Turns the queries of the next row, with both warpgroups; returns how many blocks of keys it has.
DEVICE int begin_row(u32 turn) {
  barrier_wait(barrier(QUERIES_FULL), turn & 1);
  finish_queries<256>(shared_base() + QUERIES, angles_at(turn), threadIdx.x);
  named_sync(1, 256);
  return *(const int*)(shared_bytes + COUNTS + (turn & 1) * 4);
}

// ---- roles --------------------------------------------------------------------------------------------------------
// Weighs the blocks 0, 2, … of a row and sums dims 0..255.
DEVICE void lead(const Arguments& a) {
  const int thread = threadIdx.x & 127, lane = thread & 31, quarter = lane & 3;
  const u32 head = (thread >> 5) * 16 + (lane >> 2);
  const float sink[2] = {a.sink[head] * LOG2_E, a.sink[head + 8] * LOG2_E}, scale = a.scale * (float)(1 << KEY_SHIFT);
  u32 done = 0, turn = 0, own = 0, taken = 0;
  for (int row = blockIdx.x; row < a.rows; row += gridDim.x, ++turn) {
    Sums sum;
    float logits[32], fade[2];
    u32 weights[16];
    Softmax s = begin_softmax(sink, quarter);
    const int count = begin_row(turn);
    for (int block = 0; block < count; ++block) {
      u32 slot = done & 1;
      begin_logits(logits, done++);
      wgmma_wait<0>();
      if (block + 2 >= count) release(QUERIES_FREE, lane);
      weigh(s, logits, weights, fade, slot, scale, block == 0, lane);
      publish(s, weights, 0, own++, head, thread);
      sum_own(sum, weights, fade, slot, 0, block > 0);
      wgmma_wait<0>();
      release(KEYS_FREE + 2 * slot, lane);
      if (++block == count) break;
      take(s, fade, 1, taken++, thread);
      slot = done++ & 1;
      sum_others(sum, 1, fade, slot, 0, true);
      wgmma_wait<0>();
      release(KEYS_FREE + 2 * slot, lane);
      release(WEIGHTS_FREE + 1, lane);
    }
    invert_mass(s);
    write_half(sum, s.mass, a.out + (u64)row * TILE_BYTES, 0, head, quarter);
  }
}
// Weighs the blocks 1, 3, … of a row and sums dims 256..511.
DEVICE void follow(const Arguments& a) {
  const int thread = threadIdx.x & 127, lane = thread & 31, quarter = lane & 3;
  const u32 head = (thread >> 5) * 16 + (lane >> 2);
  const float sink[2] = {a.sink[head] * LOG2_E, a.sink[head + 8] * LOG2_E}, scale = a.scale * (float)(1 << KEY_SHIFT);
  u32 done = 0, turn = 0, own = 0, taken = 0;
  for (int row = blockIdx.x; row < a.rows; row += gridDim.x, ++turn) {
    Sums sum;
    float logits[32], fade[2];
    u32 weights[16];
    Softmax s = begin_softmax(sink, quarter);
    const int count = begin_row(turn);
    if (count == 1) release(QUERIES_FREE, lane);
    for (int block = 1; block < count; block += 2, done += 2) {
      const u32 slot = done & 1;
      begin_logits(logits, done + 1);
      take(s, fade, 0, taken++, thread);
      wgmma_wait<0>();
      if (block + 2 >= count) release(QUERIES_FREE, lane);
      sum_others(sum, 0, fade, slot, 1, block > 1);
      weigh(s, logits, weights, fade, slot ^ 1, scale, false, lane);
      wgmma_wait<0>();
      release(KEYS_FREE + 2 * slot + 1, lane);
      release(WEIGHTS_FREE, lane);
      publish(s, weights, 1, own++, head, thread);
      sum_own(sum, weights, fade, slot ^ 1, 1, true);
      wgmma_wait<0>();
      release(KEYS_FREE + 2 * (slot ^ 1) + 1, lane);
    }
    if (count & 1) {
      const u32 slot = done & 1;
      ++done;
      take(s, fade, 0, taken++, thread);
      sum_others(sum, 0, fade, slot, 1, count > 1);
      wgmma_wait<0>();
      release(KEYS_FREE + 2 * slot + 1, lane);
      release(WEIGHTS_FREE, lane);
    }
    invert_mass(s);
    write_half(sum, s.mass, a.out + (u64)row * TILE_BYTES + HEAD_DIM, angles_at(turn), head, quarter);
  }
}
