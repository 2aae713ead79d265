// Which work a block of cuda_fp4_experts.cu takes: tiles of experts drawn one by one, or its share of a line of all items.
#pragma once
#include "warp_sums.cuh"

struct Item {
  int row, rows, unit, expert;  // first sorted row, how many (-1: no more items), first 64 weight rows
  int first, steps;             // of K; sums before `first` come from the block before, sums before the end go to the next one
  int place;                    // where the item begins on the line
};

struct Plan {
  int starts[MAX_EXPERTS + 1], before[MAX_EXPERTS + 1];  // of experts before this one: tiles, or their costs
  int share, total;  // of a block and of all; share 0: items are drawn, `before` counts tiles
};

// columns of a product for so many rows
DEVICE int width_of(int rows) { return TILE_ROWS <= 40 && rows <= 8 ? 8 : rows <= FEWER_ROWS ? FEWER_ROWS : TILE_ROWS; }
// of a step for a tile of so many rows, as measured: decoding and waiting cost as much as 80 columns
DEVICE int step_cost(int rows) { return 80 + width_of(rows); }

DEVICE int rows_of(const Plan& p, int e) { return p.starts[e + 1] - p.starts[e]; }
DEVICE int tiles_of(const Plan& p, int e) { return (rows_of(p, e) + TILE_ROWS - 1) / TILE_ROWS; }
DEVICE int cost_of(const Plan& p, int e) {
  const int rest = rows_of(p, e) % TILE_ROWS;
  return rows_of(p, e) / TILE_ROWS * step_cost(TILE_ROWS) + (rest > 0 ? step_cost(rest) : 0);
}

#if CUT
// Counts tiles, or their costs where the work is shared out; by one warp.
// On the line every item takes its cost. A block takes a stretch as long as the longest item at least, so that an item is cut
// once at most; it begins with the first steps of the item that leaves the stretch on the right and ends with the last steps of
// the one that comes in on the left, whose sums the block before has by then. Blocks wait for earlier ones alone.
DEVICE void plan_work(Plan& p, int experts, bool may_cut, int lane) {
  const int chunk = (experts + 31) / 32, first = min(lane * chunk, experts), last = min(first + chunk, experts);
  int tiles = 0, cost = 0, most = 0;
  for (int e = first; e < last; ++e) tiles += tiles_of(p, e), cost += cost_of(p, e), most = max(most, rows_of(p, e));
  const int items = __shfl_sync(~0u, inclusive_sum(tiles, lane), 31) * M_TILES, blocks = gridDim.x;
  const bool shared = may_cut && items > blocks && items <= MOST_ITEMS * blocks;
  const int costs = shared ? -1 : 0, mine = cost & costs | tiles & ~costs, upto = inclusive_sum(mine, lane);
  int before = upto - mine;
  for (int e = first; e < last; ++e) {
    p.before[e] = before;
    before += cost_of(p, e) & costs | tiles_of(p, e) & ~costs;  // a branch here, and the consumers' rings are no longer uniform
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) most = max(most, __shfl_xor_sync(~0u, most, distance));
  if (lane == 31) {
    p.before[experts] = upto;
    p.total = upto * M_TILES * STEPS;
    p.share = shared ? max((p.total + blocks - 1) / blocks, step_cost(min(TILE_ROWS, most)) * STEPS) : 0;
  }
}
#else
// counts tiles; by one warp
DEVICE void plan_work(Plan& p, int experts, bool, int lane) {
  const int chunk = (experts + 31) / 32, first = min(lane * chunk, experts), last = min(first + chunk, experts);
  int tiles = 0;
  for (int e = first; e < last; ++e) tiles += tiles_of(p, e);
  int before = inclusive_sum(tiles, lane) - tiles;
  for (int e = first; e < last; ++e) {
    p.before[e] = before;
    before += tiles_of(p, e);
  }
  if (lane == 31) p.before[experts] = before;
}
#endif

// of `before`, ascending, the last that is not above `number`: an expert that has something there
DEVICE int expert_at(const int* before, int experts, int number) {
  int low = 0, high = experts;  // before[low] <= number < before[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (before[middle] <= number) low = middle;
    else high = middle;
  }
  return low;
}

// the last item of an expert may take rows of the one before again
DEVICE int unit_of(int m) { return min(m * UNITS, N_UNITS - UNITS); }

DEVICE Item drawn_item(const Plan& p, int experts, int number) {
  if (number >= p.before[experts] * M_TILES) return {0, -1, 0, 0, 0, 0, 0};
  const int tile = number / M_TILES, expert = expert_at(p.before, experts, tile);
  const int row = p.starts[expert] + (tile - p.before[expert]) * TILE_ROWS;
  return {row, min(TILE_ROWS, p.starts[expert + 1] - row), unit_of(number % M_TILES), expert, 0, STEPS, 0};
}

// how many steps of an item at `place` lie before `end`: no small part of it
DEVICE int steps_before(int place, int cost, int end) {
  const int steps = (end - place + cost / 2) / cost;
  return steps < LEAST_STEPS ? 0 : steps > STEPS - LEAST_STEPS ? STEPS : steps;
}

// the block's work that lies next before `end`, a place in its stretch
DEVICE Item shared_item(const Plan& p, int experts, int end) {
  const int left = blockIdx.x * p.share, right = min(left + p.share, p.total);
  while (end > left) {
    const int expert = expert_at(p.before, experts, (end - 1) / (M_TILES * STEPS));
    const int full = M_TILES * STEPS * step_cost(TILE_ROWS), inside = end - 1 - p.before[expert] * M_TILES * STEPS;
    const int tile = inside / full, row = p.starts[expert] + tile * TILE_ROWS;
    const int rows = min(TILE_ROWS, p.starts[expert + 1] - row), cost = step_cost(rows), m = inside % full / (cost * STEPS);
    const int place = end - 1 - inside % full % (cost * STEPS);
    const int from = place < left ? steps_before(place, cost, left) : 0;
    const int to = place + cost * STEPS > right ? steps_before(place, cost, right) : STEPS;
    if (to > from) return {row, rows, unit_of(m), expert, from, to - from, place};
    end = place;
  }
  return {0, -1, 0, 0, 0, 0, 0};
}
