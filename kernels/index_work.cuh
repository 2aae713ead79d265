// Work of the index score kernel: which rows share keys, and which tiles are a block's.
//
// Rows are cut at multiples of ROWS and where the sequence changes; the rows of a cut ("item") share key reads. Tiles of 128 keys
// of all items, weighed by their rows, are dealt out in equal contiguous shares over a persistent grid.
#pragma once
#include "warp_sums.cuh"

constexpr int HEADS = 32, DIMS = 128, ROW_BYTES = 68, ROW_WORDS = 17, TILE_BITS = 7, TILE = 1 << TILE_BITS, GROUPS = 4;
constexpr int STAGE_BYTES = TILE * ROW_BYTES, QUERY_BYTES = HEADS * DIMS;
constexpr int CONSUMERS = WARPGROUPS * 128, THREADS = CONSUMERS + 128;
constexpr int CONSUMER_REGISTERS = WARPGROUPS == 4 ? 104 : 152, COPIER_REGISTERS = WARPGROUPS == 4 ? 64 : 56;
constexpr int SMALL = 8;  // entries of a candidate block

struct Problem {
  const u16* q;        // bf16 [T, 32, 128]
  const void* weight;  // [T, 32] float32 or bf16
  const u8* store;
  const int *tables, *sequence, *visible, *blocks;
  float* out;
  long long block_bytes;
  int rows, table_width, entries_a_block, width, weight_is_bf16;
};

struct Item {
  int row, rows, longest;
  DEVICE_MEMBER int tiles() const { return (longest + TILE - 1) / TILE; }
  DEVICE_MEMBER int cost() const { return rows + 1; }  // of a tile, in rows; the keys count as one
};

DEVICE int visible_of(const Problem& p, int row) { return max(0, min(p.visible[row], p.width)); }

DEVICE Item item_at(const Problem& p, int row) {
  Item item{row, 1, visible_of(p, row)};
  int own = p.sequence[row], other[ROWS], seen[ROWS];
#pragma unroll
  for (int r = 1; r < ROWS; r++) {
    int next = min(row + r, p.rows - 1);
    other[r] = p.sequence[next];
    seen[r] = visible_of(p, next);
  }
  bool same = true;
#pragma unroll
  for (int r = 1; r < ROWS; r++) {
    same = same && row + r < p.rows && (row + r) % ROWS != 0 && other[r] == own;
    if (same) item.rows++, item.longest = max(item.longest, seen[r]);
  }
  return item;
}

DEVICE bool leads(const Problem& p, int row) { return row % ROWS == 0 || p.sequence[row] != p.sequence[row - 1]; }

struct Share {
  int row, before, low, high;  // the first item, the cost before it, and this block's part of all cost
};

// total · block / blocks, in 32 bits
DEVICE int part_of(u32 total, u32 block) { return total / gridDim.x * block + total % gridDim.x * block / gridDim.x; }

// every thread calls; `scratch` holds 40 ints
DEVICE Share find_share(const Problem& p, int* scratch) {
  int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  int each = (p.rows + THREADS - 1) / THREADS, begin = min(thread * each, p.rows), end = min(begin + each, p.rows);
  int own = 0;
  for (int row = begin; row < end; row++)
    if (leads(p, row)) {
      Item item = item_at(p, row);
      own += item.tiles() * item.cost();
    }
  int sum = inclusive_sum(own, lane);
  if (lane == 31) scratch[warp] = sum;
  __syncthreads();
  int before = sum - own, total = 0;
  for (int w = 0; w < THREADS / 32; w++) {
    int part = scratch[w];
    if (w < warp) before += part;
    total += part;
  }
  Share share{0, 0, part_of(total, blockIdx.x), part_of(total, blockIdx.x + 1)};
  if (share.low < share.high && before <= share.low && share.low < before + own)
    for (int row = begin; row < end; row++)
      if (leads(p, row)) {
        Item item = item_at(p, row);
        int cost = item.tiles() * item.cost();
        if (share.low < before + cost) {
          scratch[32] = row, scratch[33] = before;
          break;
        }
        before += cost;
      }
  __syncthreads();
  share.row = scratch[32], share.before = scratch[33];
  return share;
}

// body(item, first tile, last tile) over the items of a share
template <class Body> DEVICE void for_items(const Problem& p, const Share& share, Body body) {
  int row = share.row, before = share.before;
  while (before < share.high) {
    Item item = item_at(p, row);
    int cost = item.cost(), tiles = item.tiles();
    int first = max(0, (share.low - before + cost - 1) / cost), last = min(tiles, (share.high - before + cost - 1) / cost);
    if (share.low <= before) first = 0;
    if (first < last) body(item, first, last);
    before += tiles * cost;
    row += item.rows;
  }
}
