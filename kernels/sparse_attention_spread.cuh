// Sparse attention of few rows: eight thread blocks, a cluster, share one row and give the very bits that one block
// gives.
//
// Block c multiplies the queries by key blocks c and c + 8, and sums dims 64 c … of the result over all keys in their
// order. In between, every block learns the largest logits of each key block (from which all follow the same peaks),
// then the weights and this row's masses. Included by cuda_sparse_attention.cu; packed rows only.
#pragma once

constexpr int SPREAD = 8, BLOCKS = WINDOW_BLOCKS + SELECTED_BLOCKS;
constexpr u32 VALUES = KEYS + TILE_BYTES;  // 64 dims of all keys, where a second tile of keys may lie before
constexpr u32 TOPS = BARRIERS + 240, MASSES = TOPS + BLOCKS * 256, SPREAD_BARRIERS = MASSES + BLOCKS * 1024;
enum { SPREAD_QUERIES = 0, SPREAD_KEYS = 1, SPREAD_USED = 3, SPREAD_VALUES = 4, SPREAD_WEIGHTS = 5 };
DEVICE u32 spread_barrier(int which) { return shared_base() + SPREAD_BARRIERS + which * 8; }

// ---- producers ----------------------------------------------------------------------------------------------------
DEVICE void expand_block(const Arguments& a, int row, int block, int which, int thread) {
  const int group = (thread & 31) >> 3, slot = (thread >> 5) * 8 + (thread & 7);
  const Cursor c{row, block, BLOCKS};
  const int number = load_number(a, c, slot);
  const u8* from = row_at(a, c, unit_of(a, c, number));
  const u32 tile = shared_base() + KEYS + which * TILE_BYTES;
  Unit unit;
  load_unit(unit, from, is_fp4(c), group);
  if (is_fp4(c))
    expand_row<true>(tile, slot, unit, from, number >= 0, group);
  else
    expand_row<false>(tile, slot, unit, from, number >= 0, group);
  tell_hidden(which, slot, number >= 0, thread & 31);
  fence_shared_for_async();
  barrier_arrive(spread_barrier(SPREAD_KEYS + which));
}
// 64 dims of the listed keys: each thread takes 16-byte pieces, of 32 FP4 dims or 16 FP8 dims
template <int FORMAT, int SLOTS>
DEVICE void expand_values(const Store& store, const int* list, u32 tile, int column, int thread) {
  constexpr int PIECES = FORMAT == 2 ? 2 : 4, ROWS = PRODUCERS / PIECES, PASSES = SLOTS / ROWS;
  const int lane = thread & 31, piece = lane >> 3 & (PIECES - 1);
  const int first = (thread >> 5) * (32 / PIECES) + (lane & 7) + (FORMAT == 2 ? lane >> 4 << 3 : 0);
  uint4 codes[PASSES];
  u32 scales[PASSES];
  int numbers[PASSES];
#pragma unroll
  for (int i = 0; i < PASSES; ++i) numbers[i] = list[i * ROWS + first];
#pragma unroll
  for (int i = 0; i < PASSES; ++i) {
    const u8* row = store.at(store.unit(numbers[i]));
    codes[i] = load16(row + (column * PIECES + piece) * 16);
    scales[i] = load2(row + (FORMAT == 2 ? 256 + column * 4 + piece * 2 : 512 + column * 2));
  }
#pragma unroll
  for (int i = 0; i < PASSES; ++i) {
    const u32 slot = i * ROWS + first, mask = numbers[i] >= 0 ? ~0u : 0;
    const u32 line = tile + (slot >> 6) * COLUMN_BYTES, at = piece_at(line, slot & 63, piece * (8 / PIECES));
    if (FORMAT == 2) {
      const u32 factors = fp4_factors(scales[i]) & mask;
      const u32 low = __byte_perm(factors, 0, 0x1010), high = __byte_perm(factors, 0, 0x3232);
      expand_fp4(at, codes[i].x, low);
      expand_fp4(at ^ 16, codes[i].y, low);
      expand_fp4(at ^ 32, codes[i].z, high);
      expand_fp4(at ^ 48, codes[i].w, high);
    } else {
      const u32 factor = fp8_factor(scales[i] >> (piece >> 1) * 8 & 0xff) & mask;
      expand_fp8(at, codes[i].x, codes[i].y, factor);
      expand_fp8(at ^ 16, codes[i].z, codes[i].w, factor);
    }
  }
}
DEVICE void produce_spread(const Arguments& a, int row, int rank, int count) {
  const int thread = threadIdx.x - 256;
  request_queries(shared_base() + QUERIES, a.q + (u64)row * TILE_BYTES, thread);
  if (rank < count) expand_block(a, row, rank, 0, thread);
  async_wait<0>();
  finish_queries(shared_base() + QUERIES, a.rope + row * 64, thread);
  fence_shared_for_async();
  barrier_arrive(spread_barrier(SPREAD_QUERIES));
  if (rank + SPREAD < count) {
    expand_block(a, row, rank + SPREAD, 1, thread);
    barrier_wait(spread_barrier(SPREAD_USED), 0);
  }
  cluster_wait();
  cluster_arrive();
  const u32 values = shared_base() + VALUES;
  expand_values<WINDOW_FORMAT, WINDOW>(a.window, a.window_rows + (u64)row * a.window_list_stride, values, rank, thread);
  if constexpr (SELECTED > 0)
    expand_values<SELECTED_FORMAT, SELECTED>(a.selected, a.selected_rows + (u64)row * a.selected_list_stride,
                                             values + WINDOW_BLOCKS * COLUMN_BYTES, rank, thread);
  fence_shared_for_async();
  barrier_arrive(spread_barrier(SPREAD_VALUES));
  cluster_wait();
  cluster_arrive();
  cluster_wait();
}

// ---- consumers ----------------------------------------------------------------------------------------------------
// shared memory of this block → the same place of another one, which counts the bytes
DEVICE void copy_to_block(u32 at, u32 bytes, u32 rank) {
  const u32 to = cluster_address(at, rank), counter = cluster_address(spread_barrier(SPREAD_WEIGHTS), rank);
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "r"(at), "r"(bytes), "r"(counter) : "memory");
}
// Logits and weights of key block rank + 8 · which, in its warpgroup; all blocks of the cluster get them.
DEVICE void weigh_block(int rank, int which, int count, const float (&sink)[2], float scale, u32 head) {
  const int thread = threadIdx.x & 127, lane = thread & 31, quarter = lane & 3, block = rank + SPREAD * which;
  const bool mine = block < count;
  float logits[32], top[2], fade[2];
  barrier_wait(spread_barrier(SPREAD_QUERIES), 0);
  cluster_wait();  // every block has begun
  if (mine) {
    barrier_wait(spread_barrier(SPREAD_KEYS + which), 0);
    wgmma_fence();
    multiply_queries(logits, which);
    wgmma_commit();
    wgmma_wait<0>();
    hide(logits, which, quarter);
    find_tops(logits, top);
    for (int to = quarter; to < SPREAD; to += 4) {
      const u32 at = cluster_address(shared_base() + TOPS + block * 256 + head * 4, to);
      cluster_store(at, __float_as_uint(top[0]));
      cluster_store(at + 32, __float_as_uint(top[1]));
    }
  }
  __syncwarp();
  if (lane == 0) barrier_arrive(spread_barrier(SPREAD_USED));
  cluster_arrive();
  cluster_wait();  // nobody needs queries and keys any more: weights may lie there
  if (!mine) return;
  Softmax s{{sink[0], sink[1]}, {0, 0}};
  for (int before = 0; before < block; ++before) {
    raise_peak(s.peak[0], shared_float(TOPS + before * 256 + head * 4), scale);
    raise_peak(s.peak[1], shared_float(TOPS + before * 256 + head * 4 + 32), scale);
  }
  step(s, logits, top, fade, scale);
  const u32 tile = shared_base() + block * WEIGHT_BYTES, masses = MASSES + block * 1024;
  u32 weights[16];
  round_weights(weights, logits);
  store_weights(weights, tile, head, lane);
  shared_float(masses + thread * 8) = s.mass[0], shared_float(masses + thread * 8 + 4) = s.mass[1];
  fence_shared_for_async();
  named_sync(1 + which, 128);
  if (thread < SPREAD && thread != rank) {
    copy_to_block(tile, WEIGHT_BYTES, thread);
    copy_to_block(shared_base() + masses, 1024, thread);
  }
}
// 64 dims of the result, block after block as one block does it
DEVICE void sum_values(const Arguments& a, int row, int rank, int count, const float (&sink)[2], float scale,
                       u32 head) {
  const int thread = threadIdx.x & 127, lane = thread & 31, quarter = lane & 3;
  float sum[32], fade[2];
  Softmax s{{sink[0], sink[1]}, {quarter == 0 ? 1.0f : 0.0f, quarter == 0 ? 1.0f : 0.0f}};
  barrier_wait(spread_barrier(SPREAD_VALUES), 0);
  barrier_wait(spread_barrier(SPREAD_WEIGHTS), 0);
  for (int block = 0; block < count; ++block) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      fade[r] = raise_peak(s.peak[r], shared_float(TOPS + block * 256 + (head + 8 * r) * 4), scale);
      s.mass[r] = fmaf(s.mass[r], fade[r], shared_float(MASSES + block * 1024 + thread * 8 + r * 4));
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) sum[i] = block ? sum[i] * fade[i >> 1 & 1] : 0.0f;
    settle(sum);
    wgmma_fence();
    const u64 w = wgmma_descriptor(shared_base() + block * WEIGHT_BYTES, 1024);
    const u64 v = wgmma_descriptor(shared_base() + VALUES + block * COLUMN_BYTES, 1024, COLUMN_BYTES);
#pragma unroll
    for (int i = 0; i < 4; ++i) Wgmma<64>::ss<0, 1>(sum, w + (i * 32 >> 4), v + (i * 2048 >> 4), block > 0 || i > 0);
    wgmma_commit();
    wgmma_wait<0>();
  }
  invert_mass(s);
  u8* out = a.out + (u64)row * TILE_BYTES + rank * 128;
  const float* angles = rank == SPREAD - 1 ? a.rope + row * 64 : nullptr;
  write_dims(sum, s.mass, out, angles, head, quarter);
  write_dims(sum + 16, s.mass, out + 64, angles ? angles + 16 : nullptr, head, quarter);
}
DEVICE void consume_spread(const Arguments& a, int row, int rank, int count) {
  const int thread = threadIdx.x & 127, which = threadIdx.x >> 7, lane = thread & 31;
  const u32 head = (thread >> 5) * 16 + (lane >> 2);
  const float sink[2] = {a.sink[head] * LOG2E, a.sink[head + 8] * LOG2E}, scale = a.scale * (float)(1 << KEY_SHIFT);
  weigh_block(rank, which, count, sink, scale, head);
  named_sync(3, 256);  // what this block has weighed itself; the rest is counted
  if (which == 0) sum_values(a, row, rank, count, sink, scale, head);
  else barrier_wait(spread_barrier(SPREAD_WEIGHTS), 0);
  cluster_arrive();
  cluster_wait();  // everything has arrived everywhere
}
