// How work and numbers reach the blocks of cuda_fp4_experts.cu: shared memory, tiles of experts, the loading warpgroup.
#pragma once
#include "ring.cuh"

// A unit is 64 weight rows. Stored pieces hold four, an item takes UNITS of them from anywhere.
constexpr int MAX_EXPERTS = 384, PIECE = 64, PIECES = 2 / PRODUCTS, STEPS = K / (PIECE * PIECES);
constexpr int UNITS = GROUPS * PRODUCTS, N_UNITS = N_OUT / 64, M_TILES = (N_UNITS + UNITS - 1) / UNITS;
constexpr int MOST_ITEMS = 8, LEAST_STEPS = STEPS / 10;  // of a block, on a line; of a part of an item
constexpr int EARLY_PIECES = 4;
constexpr u32 UNIT_BYTES = 64 * PIECE / 2, UNIT_SCALE_BYTES = 128, STORED_BYTES = 4 * (UNIT_BYTES + UNIT_SCALE_BYTES);
constexpr u32 X_BYTES = TILE_ROWS * PIECE * 2, CODE_BYTES = UNITS * UNIT_BYTES, W_BYTES = CODE_BYTES + UNITS * UNIT_SCALE_BYTES;
constexpr int CONSUMER_WARPS = 4 * GROUPS, CONSUMERS = 32 * CONSUMER_WARPS, LOADERS = 128, THREADS = CONSUMERS + LOADERS;
constexpr int LINES = (TILE_ROWS + 15) / 16;  // rows of x that a loading thread brings parts of

#include "cuda_fp4_experts_share.cuh"

struct Shared {
  u8 x[SLOTS][PIECES][X_BYTES];
  u8 w[SLOTS][PIECES][W_BYTES];
  Item item[SLOTS];  // the item whose first step lies in this slot
  u64 full[SLOTS], empty[SLOTS];
  Plan plan;
  u32 next_item[2];
#if FUSED
  u8 power[UNITS][TILE_ROWS][4];  // E8M0 of each product's 32 columns, by warp
#endif
};
static_assert(sizeof(Shared) <= 232448, "a block has 227 KB");
static_assert(DELAY < SLOTS - 2, "a slot is given back while the next is read");

using Ring = RingPlace<SLOTS>;

// the rows of x that this thread brings parts of
DEVICE void find_rows(int (&row)[LINES], const Item& item, const int* rows) {
  const int line = (threadIdx.x - CONSUMERS) / 8;
#pragma unroll
  for (int i = 0; i < LINES; ++i) {
    const int r = line + 16 * i;
    row[i] = 0;
    if (r < item.rows) row[i] = rows ? __ldg(rows + item.row + r) : item.row + r;
  }
}

// Weights of a step: where they lie as one stretch by one thread, else codes and scales of two stored pieces by four warps.
struct WeightPart {
  const u8* source;  // of the item's first step
  u32 target, bytes;  // in a slot
};

DEVICE WeightPart weight_part(const Item& item, const u8* weights) {
  const int tile = item.unit / 4, within = item.unit % 4, own = min(UNITS, 4 - within);
  const u8* first = weights + (((u64)item.expert * (N_UNITS / 4) + tile) * (K / PIECE) + item.first * PIECES) * STORED_BYTES;
  if (UNITS == 4) return {first, 0, 0};
  const int part = (threadIdx.x - CONSUMERS) / 32;
  const bool next = part / 2, scales = part % 2;
  const u32 unit_bytes = scales ? UNIT_SCALE_BYTES : UNIT_BYTES;
  first += (next ? (u64)(K / PIECE) * STORED_BYTES : within * unit_bytes) + (scales ? 4 * UNIT_BYTES : 0);
  return {first, (scales ? CODE_BYTES : 0) + (next ? own * unit_bytes : 0),
          threadIdx.x % 32 == 0 ? (next ? UNITS - own : own) * unit_bytes : 0};
}

// 8 threads bring the 128 bytes of a row of x; a slot counts as full once its rows, `sent` steps on their way, have landed
DEVICE void load_item(Shared& s, Ring& ring, int& sent, const Item& item, const u16* (&source)[LINES], WeightPart part) {
  const int thread = threadIdx.x - CONSUMERS, line = thread / 8;
  const u32 target = shared_address(s.x) + line * 128 + (thread % 8 ^ line % 8) * 16;
  const int steps = CUT ? item.steps : STEPS;
  barrier_wait(shared_address(&s.empty[ring.stage]), ring.parity ^ 1);
  if (thread == 0) s.item[ring.stage] = item;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const u32 full = shared_address(&s.full[ring.stage]);
    barrier_wait(shared_address(&s.empty[ring.stage]), ring.parity ^ 1);
    const u32 slot = shared_address(s.w[ring.stage]);
    if (thread == 0) {
      barrier_expect(full, PIECES * W_BYTES);
      if (UNITS == 4) bulk_load(slot, part.source + (u64)step * PIECES * STORED_BYTES, PIECES * W_BYTES, full);
    }
    if (UNITS != 4 && part.bytes > 0)
#pragma unroll
      for (int piece = 0; piece < PIECES; ++piece, part.source += STORED_BYTES)
        bulk_load(slot + part.target + piece * W_BYTES, part.source, part.bytes, full);
#pragma unroll
    for (int i = 0; i < LINES; ++i)
      if (line + 16 * i < item.rows)
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece)
          async_copy16(target + (ring.stage * PIECES + piece) * X_BYTES + i * 2048, source[i] + piece * PIECE);
#pragma unroll
    for (int i = 0; i < LINES; ++i) source[i] += PIECES * PIECE;
    async_commit();
    async_wait<DELAY>();
    fence_shared_for_async();
    if (sent == DELAY) barrier_arrive(shared_address(&s.full[ring.before(DELAY)]));
    else ++sent;
    ring.next();
  }
}

// waits for all rows on their way
DEVICE void land(Shared& s, const Ring& ring, int& sent) {
  async_wait<0>();
  fence_shared_for_async();
#pragma unroll
  for (int i = DELAY; i > 0; --i)
    if (i <= sent) barrier_arrive(shared_address(&s.full[ring.before(i)]));
  sent = 0;
}

// Weights do not change: the first pieces of what the block will do if all experts have as many rows may come to the second-level
// cache while earlier launches still run.
DEVICE void fetch_early(const u8* weights, int experts) {
  const int items = experts * M_TILES, blocks = gridDim.x;
  const int item = items > blocks ? ((blockIdx.x + 1) * items + blocks - 1) / blocks - 1 : blockIdx.x;
  if (item >= items) return;
  const int tile = unit_of(item % M_TILES) / 4;
  const u8* pieces = weights + ((u64)(item / M_TILES) * (N_UNITS / 4) + tile) * (K / PIECE) * STORED_BYTES;
  bulk_prefetch(pieces, min(K / PIECE, EARLY_PIECES) * STORED_BYTES);
}

// AHEAD: the next item's rows are looked up while this one loads, which helps where products bind. Where bytes bind, their
// answers would hold up the fences of slots that have landed.
DEVICE void produce(Shared& s, const u8* weights, const u16* x, const int* rows, u32* counter, int experts) {
  constexpr bool AHEAD = PRODUCTS == 2 || GROUPS == 4 && CUT;
  const bool first = threadIdx.x == CONSUMERS, shared = CUT && s.plan.share > 0;
  auto item_at = [&](int at) { return shared ? shared_item(s.plan, experts, at) : drawn_item(s.plan, experts, at); };
  Ring ring = {0, 0};
  Item item = item_at(shared ? min((blockIdx.x + 1) * s.plan.share, s.plan.total) : blockIdx.x), next;
  int row[LINES], sent = 0, number = shared ? item.place : blockIdx.x + gridDim.x;
  find_rows(row, item, rows);
  for (int turn = 0; item.rows > 0; turn ^= 1) {
    u32 drawn = 0;
    if (first && !shared) drawn = (AHEAD ? 2 : 1) * gridDim.x + atomicAdd(counter, 1u);  // needed a whole item later
    const u16* source[LINES];
#pragma unroll
    for (int i = 0; i < LINES; ++i) source[i] = x + (u64)row[i] * K + item.first * PIECES * PIECE + threadIdx.x % 8 * 8;
    if (AHEAD) {
      next = item_at(number);
      find_rows(row, next, rows);
    }
    load_item(s, ring, sent, item, source, weight_part(item, weights));
    if (!AHEAD) land(s, ring, sent);
    if (!shared) {
      if (first) s.next_item[turn] = drawn;
      named_sync(5, LOADERS);
      number = s.next_item[turn];
    }
    if (!AHEAD) {
      next = item_at(number);
      find_rows(row, next, rows);
    }
    if (shared) number = next.place;
    item = next;
  }
  land(s, ring, sent);
  barrier_wait(shared_address(&s.empty[ring.stage]), ring.parity ^ 1);
  if (first) {
    s.item[ring.stage] = {0, -1, 0, 0, 0, 0, 0};
    if (!shared && atomicAdd(counter + 1, 1u) == gridDim.x - 1) counter[0] = counter[1] = 0;  // as the next launch wants them
    barrier_arrive(shared_address(&s.full[ring.stage]));
  }
  barrier_arrive(shared_address(&s.full[ring.stage]));
}
