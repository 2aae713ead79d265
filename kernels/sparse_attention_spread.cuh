// Sparse attention of few rows: eight thread blocks, a cluster, share one row and give the very bits that one block
// gives.
//
// Block c multiplies the queries by key blocks c and 15 - c, and sums dims 64 c … of the result over all keys in their
// order. In between, every block learns the largest logits of each key block (from which all follow the same peaks),
// then the weights and this row's masses. All that memory holds of keys and values is asked for at once. Blocks of
// hidden keys change no bit, so none is left out. Included by cuda_sparse_attention.cu; packed rows only.
#pragma once

constexpr int SPREAD = 8, THREADS = 512, BLOCKS = WINDOW_BLOCKS + SELECTED_BLOCKS;
constexpr u32 VALUES = KEYS + TILE_BYTES;  // 64 dims of all keys, where a second tile of keys may lie before
constexpr u32 SHARE_BYTES = WEIGHT_BYTES + 1024;  // weights of a key block, then the masses of its threads
constexpr u32 TOPS = BARRIERS + 240, SPREAD_BARRIERS = TOPS + BLOCKS * 256;
enum { SPREAD_QUERIES = 0, SPREAD_KEYS = 1, SPREAD_USED = 3, SPREAD_VALUES = 4, SPREAD_TOPS = 5, SPREAD_WEIGHTS = 6 };
DEVICE u32 spread_barrier(int which) { return shared_base() + SPREAD_BARRIERS + which * 8; }
// Blocks of keys of a thread block: the first eight in order, the others from the last thread block down, whose first one
// came in fewer bytes.
DEVICE int block_of(int rank, int which) { return which ? 2 * SPREAD - 1 - rank : rank; }
DEVICE bool has_block(int rank, int which) { return block_of(rank, which) < BLOCKS; }

#include "sparse_attention_spread_keys.cuh"

// ---- producers ----------------------------------------------------------------------------------------------------
// Queries and angles, by all threads. A thread block without keys leaves the place of the queries alone: the weights of
// others may arrive there at any time.
DEVICE void request_spread_row(const Arguments& a, int row, int rank) {
  request_angles(angles_at(0), a.rope + row * 64, threadIdx.x);
  if (has_block(rank, 0))
    request_queries<THREADS>(shared_base() + QUERIES, a.q + (u64)row * TILE_BYTES, threadIdx.x);
}
// what every thread has asked for, turned and in order
DEVICE void publish_spread_queries(int rank) {
  async_wait<0>();
  if (has_block(rank, 0)) finish_queries<THREADS>(shared_base() + QUERIES, angles_at(0), threadIdx.x);
  barrier_arrive(spread_barrier(SPREAD_QUERIES));
}
DEVICE void produce_spread(const Arguments& a, int row, int rank) {
  const int thread = threadIdx.x - 256;
  Key key;
  request_spread_row(a, row, rank);
  Values<WINDOW_FORMAT, WINDOW> window(a.window_rows + (u64)row * a.window_list_stride, thread);
  Values<SELECTED_FORMAT, SELECTED> selected(a.selected_rows + (u64)row * a.selected_list_stride, thread);
  if (has_block(rank, 0)) request_key(a, key, row, rank, thread);
  window.request(a.window, rank);
  selected.request(a.selected, rank);
  if (has_block(rank, 0)) expand_key(key, rank, 0, thread);
  publish_spread_queries(rank);
  if (has_block(rank, 1)) barrier_wait(spread_barrier(SPREAD_USED), 0);
  const u32 values = shared_base() + VALUES;
  window.expand(values);
  selected.expand(values + WINDOW_BLOCKS * COLUMN_BYTES);
  barrier_arrive(spread_barrier(SPREAD_VALUES));
  cluster_wait();
  cluster_arrive();
  cluster_wait();
}

// ---- consumers ----------------------------------------------------------------------------------------------------
// A share of this block → the same place of all others, which count its bytes. Through global memory, from where one read
// serves all: the way between two blocks is several times slower.
DEVICE void share(u32 at, u8* through, int rank) {
  bulk_store(through, at, SHARE_BYTES);
  bulk_commit();
  bulk_wait<0>();
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(at),
      "l"(through), "r"(SHARE_BYTES), "r"(spread_barrier(SPREAD_WEIGHTS)), "h"((u16)(0xff & ~(1 << rank))) : "memory");
}
DEVICE void store_to_block(u32 at, float value, u32 rank) {
  const u32 to = cluster_address(at, rank), counter = cluster_address(spread_barrier(SPREAD_TOPS), rank);
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
               "r"(__float_as_uint(value)), "r"(counter) : "memory");
}
DEVICE void release_spread(int lane) {
  __syncwarp();
  if (lane == 0) barrier_arrive(spread_barrier(SPREAD_USED));
}
// Logits and weights of a key block, in its warpgroup; all blocks of the cluster get them.
DEVICE void weigh_block(const Arguments& a, int row, int rank, int which, const float (&sink)[2], float scale, u32 head) {
  const int thread = threadIdx.x & 127, lane = thread & 31, quarter = lane & 3, block = block_of(rank, which);
  float logits[32], top[2], fade[2];
  barrier_wait(spread_barrier(SPREAD_QUERIES), 0);
  barrier_wait(spread_barrier(SPREAD_KEYS + which), 0);
  fence_shared_for_async();
  wgmma_fence();
  multiply_queries(logits, which);
  wgmma_commit();
  wgmma_wait<0>();
  release_spread(lane);
  hide(logits, which, quarter);
  find_tops(logits, top);
  for (int to = quarter; to < SPREAD; to += 4) {
    store_to_block(shared_base() + TOPS + block * 256 + head * 4, top[0], to);
    store_to_block(shared_base() + TOPS + block * 256 + head * 4 + 32, top[1], to);
  }
  barrier_wait(spread_barrier(SPREAD_TOPS), 0);  // nobody needs queries and keys any more: weights may lie there
  Softmax s{{sink[0], sink[1]}, {0, 0}};
#pragma unroll
  for (int before = 0; before < BLOCKS - 1; ++before) {
    const float first = shared_float(TOPS + before * 256 + head * 4);
    const float second = shared_float(TOPS + before * 256 + head * 4 + 32);
    if (before >= block) continue;
    raise_peak(s.peak[0], first, scale, before == 0);
    raise_peak(s.peak[1], second, scale, before == 0);
  }
  step(s, logits, top, fade, scale, block == 0);
  const u32 at = block * SHARE_BYTES;
  u32 weights[16];
  round_weights(weights, logits);
  store_weights(weights, shared_base() + at, head, lane);
  *(float2*)(shared_bytes + at + WEIGHT_BYTES + thread * 8) = {s.mass[0], s.mass[1]};
  fence_shared_for_async();
  named_sync(1 + which, 128);
  if (thread == 0) share(shared_base() + at, a.exchange + ((u64)row * BLOCKS + block) * SHARE_BYTES, rank);
}
// Whether a sum of any head fades after the first block: if none does, the tensor cores need not stop.
DEVICE bool sums_fade(const Arguments& a, float scale, int lane) {
  bool fades = false;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float peak = a.sink[lane + 32 * i] * LOG2_E;
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block) {
      const float top = shared_float(TOPS + block * 256 + (lane + 32 * i) * 4);
      fades |= raise_peak(peak, top, scale, block == 0) != 1.0f && block;
    }
  }
  return __any_sync(ALL, fades);
}
DEVICE void multiply_dims(float (&sum)[32], int block) {
  const u64 w = wgmma_descriptor(shared_base() + block * SHARE_BYTES, 1024);
  const u64 v = wgmma_descriptor(shared_base() + VALUES + block * COLUMN_BYTES, 1024, COLUMN_BYTES);
#pragma unroll
  for (int i = 0; i < 4; ++i) Wgmma<64>::ss<0, 1>(sum, w + (i * 32 >> 4), v + (i * 2048 >> 4), block > 0 || i > 0);
}
DEVICE void add_masses(Softmax& s, const float (&fade)[BLOCKS][2], int thread) {
#pragma unroll
  for (int block = 0; block < BLOCKS; ++block) {
    const float2 mass = *(const float2*)(shared_bytes + block * SHARE_BYTES + WEIGHT_BYTES + thread * 8);
    s.mass[0] = fmaf(s.mass[0], fade[block][0], mass.x), s.mass[1] = fmaf(s.mass[1], fade[block][1], mass.y);
  }
}
// 64 dims of the result, block after block as one block does it
DEVICE void sum_values(const Arguments& a, int row, int rank, const float (&sink)[2], float scale, u32 head) {
  const int thread = threadIdx.x & 127, lane = thread & 31, quarter = lane & 3;
  float sum[32], fade[BLOCKS][2];
  Softmax s = begin_softmax(sink, quarter);
  barrier_wait(spread_barrier(SPREAD_TOPS), 0);
  const bool fades = sums_fade(a, scale, lane);
#pragma unroll
  for (int block = 0; block < BLOCKS; ++block)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      fade[block][r] = raise_peak(s.peak[r], shared_float(TOPS + block * 256 + (head + 8 * r) * 4), scale, block == 0);
  barrier_wait(spread_barrier(SPREAD_QUERIES), 0);  // the angles
  barrier_wait(spread_barrier(SPREAD_VALUES), 0);
  barrier_wait(spread_barrier(SPREAD_WEIGHTS), 0);
  fence_shared_for_async();
  cluster_arrive();
  if (!fades) {
    wgmma_fence();
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block) multiply_dims(sum, block);
    wgmma_commit();
    add_masses(s, fade, thread);
    wgmma_wait<0>();
  } else {
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block) {
#pragma unroll
      for (int i = 0; i < 32; ++i) sum[i] = block ? sum[i] * fade[block][i >> 1 & 1] : 0.0f;
      settle(sum);
      wgmma_fence();
      multiply_dims(sum, block);
      wgmma_commit();
      wgmma_wait<0>();
    }
    add_masses(s, fade, thread);
  }
  invert_mass(s);
  u8* out = a.out + (u64)row * TILE_BYTES + rank * 128;
  const u32 angles = rank == SPREAD - 1 ? angles_at(0) : 0;
  write_dims(sum, s.mass, out, angles, head, quarter);
  write_dims(sum + 16, s.mass, out + 64, angles ? angles + 64 : 0, head, quarter);
}
DEVICE void consume_spread(const Arguments& a, int row, int rank) {
  const int thread = threadIdx.x & 127, which = threadIdx.x >> 7, lane = thread & 31;
  const u32 head = (thread >> 5) * 16 + (lane >> 2);
  request_spread_row(a, row, rank);
  const float sink[2] = {a.sink[head] * LOG2_E, a.sink[head + 8] * LOG2_E}, scale = a.scale * (float)(1 << KEY_SHIFT);
  if (has_block(rank, 1)) {
    Key key;
    request_key(a, key, row, block_of(rank, 1), threadIdx.x);
    expand_key(key, block_of(rank, 1), 1, threadIdx.x);
  }
  publish_spread_queries(rank);
  cluster_wait();  // every block has begun
  if (has_block(rank, which)) weigh_block(a, row, rank, which, sink, scale, head);
  else release_spread(lane);
  named_sync(3, 256);  // what this block has weighed itself; the rest is counted
  if (which == 0) sum_values(a, row, rank, sink, scale, head);
  else {
    barrier_wait(spread_barrier(SPREAD_WEIGHTS), 0);
    cluster_arrive();
  }
  cluster_wait();  // everything has arrived everywhere
}
