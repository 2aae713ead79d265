// How work and numbers reach the blocks of cuda_fp4_experts.cu: shared memory, tiles of experts, the loading warpgroup.
#pragma once
#include "ring.cuh"
#include "warp_sums.cuh"

constexpr int MAX_EXPERTS = 384, PIECE = 64, PIECES = 2 / PRODUCTS, STEPS = K / (PIECE * PIECES), M_TILES = N_OUT / 256;
constexpr u32 X_BYTES = TILE_ROWS * PIECE * 2, CODE_BYTES = 256 * PIECE / 2, W_BYTES = CODE_BYTES + 512;
constexpr int CONSUMER_WARPS = 16 / PRODUCTS, CONSUMERS = 32 * CONSUMER_WARPS, LOADERS = 128, THREADS = CONSUMERS + LOADERS;
constexpr int LINES = (TILE_ROWS + 15) / 16;  // rows of x that a loading thread brings parts of

struct Item {
  int row, rows, m, expert;  // first sorted row, how many (-1: no more items), which 256 weight rows
};

struct Shared {
  u8 x[SLOTS][PIECES][X_BYTES];
  u8 w[SLOTS][PIECES][W_BYTES];
  Item item[SLOTS];  // the item whose first step lies in this slot
  u64 full[SLOTS], empty[SLOTS];
  int starts[MAX_EXPERTS + 1], first_tile[MAX_EXPERTS + 1];
  u32 next_item[2];
#if FUSED
  u8 power[4][TILE_ROWS][4];  // E8M0 of each product's 32 columns, by warp
#endif
};
static_assert(sizeof(Shared) <= 232448, "a block has 227 KB");
static_assert(DELAY < SLOTS - 2, "a slot is given back while the next is read");

using Ring = RingPlace<SLOTS>;

DEVICE int tiles_of(const Shared& s, int e) { return (s.starts[e + 1] - s.starts[e] + TILE_ROWS - 1) / TILE_ROWS; }

// first_tile[e] = tiles of all experts before e; by one warp
DEVICE void count_tiles(Shared& s, int experts, int lane) {
  const int chunk = (experts + 31) / 32, first = min(lane * chunk, experts), last = min(first + chunk, experts);
  int sum = 0;
  for (int e = first; e < last; ++e) sum += tiles_of(s, e);
  int before = inclusive_sum(sum, lane) - sum;
  for (int e = first; e < last; ++e) {
    s.first_tile[e] = before;
    before += tiles_of(s, e);
  }
  if (lane == 31) s.first_tile[experts] = before;
}

DEVICE int expert_of(const Shared& s, int experts, int tile) {
  int low = 0, high = experts;  // first_tile[low] <= tile < first_tile[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (s.first_tile[middle] <= tile) low = middle;
    else high = middle;
  }
  return low;
}

DEVICE Item describe(const Shared& s, int experts, int number) {
  if (number >= s.first_tile[experts] * M_TILES) return {0, -1, 0, 0};
  const int tile = number / M_TILES, expert = expert_of(s, experts, tile);
  const int row = s.starts[expert] + (tile - s.first_tile[expert]) * TILE_ROWS;
  return {row, min(TILE_ROWS, s.starts[expert + 1] - row), number % M_TILES, expert};
}

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

// 8 threads bring the 128 bytes of a row of x; a slot counts as full once its rows, `sent` steps on their way, have landed
DEVICE void load_item(Shared& s, Ring& ring, int& sent, const Item& item, const u16* (&source)[LINES], const u8* weight) {
  const int thread = threadIdx.x - CONSUMERS, line = thread / 8;
  const u32 target = shared_address(s.x) + line * 128 + (thread % 8 ^ line % 8) * 16;
#pragma unroll 1
  for (int step = 0; step < STEPS; ++step) {
    const u32 full = shared_address(&s.full[ring.stage]);
    barrier_wait(shared_address(&s.empty[ring.stage]), ring.parity ^ 1);
    if (thread == 0) {
      if (step == 0) s.item[ring.stage] = item;
      barrier_expect(full, PIECES * W_BYTES);
      bulk_load(shared_address(s.w[ring.stage]), weight + (u64)step * PIECES * W_BYTES, PIECES * W_BYTES, full);
    }
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

// AHEAD: the next item's rows are looked up while this one loads, which helps where products bind. Where bytes bind, their
// answers would hold up the fences of slots that have landed.
DEVICE void produce(Shared& s, const u8* weights, const u16* x, const int* rows, u32* counter, int experts) {
  constexpr bool AHEAD = PRODUCTS == 2;
  const bool first = threadIdx.x == CONSUMERS;
  Ring ring = {0, 0};
  Item item = describe(s, experts, blockIdx.x), next;
  int row[LINES], sent = 0, number = blockIdx.x + gridDim.x;
  find_rows(row, item, rows);
  for (int turn = 0; item.rows > 0; turn ^= 1) {
    u32 drawn = 0;
    if (first) drawn = (AHEAD ? 2 : 1) * gridDim.x + atomicAdd(counter, 1u);  // needed a whole item later
    const u16* source[LINES];
#pragma unroll
    for (int i = 0; i < LINES; ++i) source[i] = x + (u64)row[i] * K + threadIdx.x % 8 * 8;
    if (AHEAD) {
      next = describe(s, experts, number);
      find_rows(row, next, rows);
    }
    load_item(s, ring, sent, item, source, weights + ((u64)item.expert * M_TILES + item.m) * (K / PIECE) * W_BYTES);
    if (!AHEAD) land(s, ring, sent);
    if (first) s.next_item[turn] = drawn;
    named_sync(5, LOADERS);
    number = s.next_item[turn];
    if (!AHEAD) {
      next = describe(s, experts, number);
      find_rows(row, next, rows);
    }
    item = next;
  }
  land(s, ring, sent);
  barrier_wait(shared_address(&s.empty[ring.stage]), ring.parity ^ 1);
  if (first) {
    s.item[ring.stage] = {0, -1, 0, 0};
    if (atomicAdd(counter + 1, 1u) == gridDim.x - 1) counter[0] = counter[1] = 0;  // as the next launch wants them
    barrier_arrive(shared_address(&s.full[ring.stage]));
  }
  barrier_arrive(shared_address(&s.full[ring.stage]));
}
