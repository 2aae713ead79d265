// Index scores over paged FP4 keys: score(t, j) = Σ_i weight(t, i) · relu(q(t, i) · key(j)).
//
// Keys are the rows of a wgmma, heads its columns; products are exact (index_queries.cuh says how), so the bits of a score depend
// on nothing but t and j. A persistent grid: some warps copy key blocks into a ring; each warpgroup takes every WARPGROUPS-th tile
// of 128 keys and decodes it into registers, once for all rows of an item.
//
// Macros: ROWS rows an item at most · WARPGROUPS that multiply, 2 to 4 · STAGES of the ring, a multiple of them ·
// CANDIDATES 1: keys are gathered by blocks of 8 entries.
#include "index_copies.cuh"
#include "index_products.cuh"
#include "tensor_copies.cuh"

struct Ring {
  const u8* stages;
  u32 full, empty;
};

DEVICE const u32* await_tile(const Ring& ring, int count) {
  int stage = count % STAGES;
  barrier_wait(ring.full + stage * 8, count / STAGES & 1);
  return (const u32*)(ring.stages + stage * STAGE_BYTES);
}

DEVICE void release_tile(u32 empty) {
  __syncwarp();
  if ((threadIdx.x & 31) == 0) barrier_arrive(empty);
}

// whether `holds` for all keys of this warpgroup's tile
DEVICE bool whole_tile(bool holds) {
  u32 result;
  asm volatile("{ .reg .pred p, q; setp.ne.b32 p, %1, 0; barrier.cta.red.and.pred q, %2, 128, p; selp.u32 %0, 1, 0, q; }"
               : "=r"(result) : "r"((u32)holds), "r"(2 + threadIdx.x / 128) : "memory");
  return __shfl_sync(~0u, result, 0);
}

// the candidate block that a place belongs to; a place's score is not its entry's where that is not visible
DEVICE int block_of(const Problem& p, const Item& item, int place) {
  return CANDIDATES && place < item.longest ? p.blocks[(long long)item.row * (p.width / SMALL) + place / SMALL] : 0;
}

DEVICE void store_score(const Problem& p, int row, int shown, int entry, float score) {
  if (entry < shown) p.out[(long long)row * p.width + entry] = score;
}

// All tiles of this warpgroup, of an item of one row, on the e4m3 form.
DEVICE void score_row(const Problem& p, const Item& item, int tile, int last, int count, const Queries& queries, const Ring& ring) {
  u32 query = shared_address(queries.floats);
  int visible = CANDIDATES ? p.visible[item.row] : 0;
#pragma unroll 1
  for (; tile < last; tile += WARPGROUPS, count += WARPGROUPS) {
    int entry = tile * TILE + (threadIdx.x & 127), block = block_of(p, item, entry);
    const u32* keys = await_tile(ring, count);
    u32 bytes = scale_bytes(keys), codes[GROUPS][4];
    float total[4], dots[16];
    share_scales(queries.scales, bytes);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      decode_half(codes, half, keys);
      if (half) release_tile(ring.empty + count % STAGES * 8);
      dot_products(dots, codes, shared_scales(queries.scales, half), query);
      float2 weight[4];
      load_weights(queries.weights, weight);
#pragma unroll
      for (int side = 0; side < 2; side++) total[half * 2 + side] = weighted(dots, side, weight);
    }
    float score = times_unit(across_lanes(total), FLOAT_BITS, bytes);
    if (CANDIDATES && (block < 0 || block * SMALL + entry % SMALL >= visible)) score = __uint_as_float(0xff800000);
    store_score(p, item.row, item.longest, entry, score);
  }
}

// The rows in `chosen`, on the e4m3 form.
DEVICE void score_floats(const Problem& p, const Item& item, u32 chosen, int entry, const u32* keys, u32 bytes, u32 query,
                         const Queries& queries) {
  u32 codes[2][GROUPS][4];
  share_scales(queries.scales, bytes);
  decode_half(codes[0], 0, keys);
  decode_half(codes[1], 1, keys);
#pragma unroll 1
  for (int r = 0; r < ROWS; r++) {
    if (!(chosen >> r & 1)) continue;
    float total[4], dots[16];
    float2 weight[4];
    load_weights(queries.weights + r * HEADS, weight);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      dot_products(dots, codes[half], shared_scales(queries.scales, half), query + r * QUERY_BYTES);
      for (int side = 0; side < 2; side++) total[half * 2 + side] = weighted(dots, side, weight);
    }
    store_score(p, item.row + r, queries.visible[r], entry, times_unit(across_lanes(total), FLOAT_BITS, bytes));
  }
}

DEVICE void issue_integers(int (&d)[PACK * 16], const u32 (&keys)[GROUPS][4], u32 query) {
  wgmma_fence();
#pragma unroll
  for (int g = 0; g < GROUPS; g++) integer_product(d, keys[g], query_group(query, g), g);
  wgmma_commit();
}

// The rows in `chosen`, on the int8 form: the products of one half run while the other half is folded.
DEVICE void score_integers(const Problem& p, const Item& item, u32 chosen, int entry, const u32* tile, u32 bytes, u32 query,
                           const Queries& queries) {
  constexpr int PACKS = (ROWS + PACK - 1) / PACK;
  u32 keys[2][GROUPS][4];
  int d[2][PACK * 16];
  decode_integers(keys, tile);
  issue_integers(d[0], keys[0], query);
  issue_integers(d[1], keys[1], query);
#pragma unroll
  for (int pack = 0; pack < PACKS; pack++) {
    float total[PACK][4];
    float2 weight[PACK][4];
    u32 next = query + (pack + 1) * PACK * QUERY_BYTES;
#pragma unroll
    for (int r = 0; r < PACK; r++) load_weights(queries.weights + (pack * PACK + r) * HEADS, weight[r]);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      if (pack + 1 == PACKS && half == 1)
        await<0>(d[half]);
      else
        await<1>(d[half]);
#pragma unroll
      for (int r = 0; r < PACK; r++)
        for (int side = 0; side < 2; side++) total[r][half * 2 + side] = fold_integers(d[half] + r * 16, side, weight[r]);
      if (pack + 1 < PACKS) issue_integers(d[half], keys[half], next);
    }
#pragma unroll
    for (int r = 0; r < PACK; r++) {
      int row = pack * PACK + r, shown = chosen >> row & 1 ? queries.visible[row] : 0;
      store_score(p, item.row + row, shown, entry, times_unit(across_lanes(total[r]), INTEGER_BITS, bytes));
    }
  }
}

// All tiles of this warpgroup, of an item of several rows, on the int8 form where scales allow.
DEVICE void score_rows(const Problem& p, const Item& item, int tile, int last, int count, const Queries& queries, const Ring& ring) {
  u32 floats = shared_address(queries.floats), integers = shared_address(queries.integers);
  int lane = threadIdx.x & 31;
  u32 all = (1u << item.rows) - 1, integral = __ballot_sync(~0u, lane < item.rows && queries.integral[min(lane, ROWS - 1)]);
  for (; tile < last; tile += WARPGROUPS, count += WARPGROUPS) {
    const u32* keys = await_tile(ring, count);
    u32 bytes = scale_bytes(keys), fast = whole_tile(within_spread(bytes)) ? integral : 0;
    int entry = tile * TILE + (threadIdx.x & 127);
    if (fast) score_integers(p, item, fast, entry, keys, bytes, integers, queries);
    if (fast != all) score_floats(p, item, all & ~fast, entry, keys, bytes, floats, queries);
    release_tile(ring.empty + count % STAGES * 8);
  }
}

DEVICE void score_tiles(const Problem& p, const Share& share, const Queries& queries, const Ring& ring) {
  int group = __shfl_sync(~0u, threadIdx.x / 128, 0), done = 0;
  for_items(p, share, [&](Item item, int first, int last) {
    load_queries(p, item, queries);
    int ahead = (group - done % WARPGROUPS + WARPGROUPS) % WARPGROUPS;
    if constexpr (ROWS == 1)
      score_row(p, item, first + ahead, last, done + ahead, queries, ring);
    else
      score_rows(p, item, first + ahead, last, done + ahead, queries, ring);
    done += last - first;
  });
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) index_scores(
    const u16* q, const void* weight, const u8* store, const int* tables, const int* sequence, const int* visible,
    const int* blocks, float* out, long long block_bytes, int rows, int table_width, int entries_a_block, int width,
    int weight_is_bf16) {
  extern __shared__ __align__(1024) u8 shared[];
  constexpr int INTEGER_ROWS = ROWS > 1 ? (ROWS + PACK - 1) / PACK * PACK : 0, WEIGHT_ROWS = ROWS > 1 ? INTEGER_ROWS : 1;
  u8* integers = shared + ROWS * QUERY_BYTES;
  u8* stages = integers + INTEGER_ROWS * QUERY_BYTES;
  float4* scales = (float4*)(stages + STAGES * STAGE_BYTES);
  float* weights = (float*)(scales + CONSUMERS);
  u64* barriers = (u64*)(weights + WEIGHT_ROWS * HEADS);
  int* flags = (int*)(barriers + 2 * STAGES);
  int* scratch = flags + 2 * WEIGHT_ROWS;
  Queries queries{shared, integers, scales, weights, flags, flags + WEIGHT_ROWS};
  Problem p{q, weight, store, tables, sequence, visible, blocks, out, block_bytes, rows, table_width, entries_a_block, width,
            weight_is_bf16};
  Ring ring{stages, shared_address(barriers), shared_address(barriers + STAGES)};
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) barrier_init(ring.full + s * 8, 1), barrier_init(ring.empty + s * 8, 4);
    barrier_init_fence();
  }
  earlier_launches_wait();
  later_launches_allow();
  Share share = find_share(p, scratch);
  if (share.low >= share.high) return;
  if (threadIdx.x >= CONSUMERS) {
    registers_less<COPIER_REGISTERS>();
    if (threadIdx.x < CONSUMERS + COPIERS * 32) copy_tiles(p, share, shared_address(stages), ring.full, ring.empty);
  } else {
    registers_more<CONSUMER_REGISTERS>();
    score_tiles(p, share, queries, ring);
  }
}
