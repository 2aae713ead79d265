// Where to cut a row's tokens, best first: behind a count of them (top-k), or behind the fewest that hold a share of the weight
// (top-p). A histogram over the distance from the best finds the bin of the cut, its few tokens are ranked exactly; a bin that
// holds more than the list is divided again by keys, so that ties and odd distributions cost time and nothing else.
#pragma once
#include "sample_lists.cuh"
#include "warp_sums.cuh"

struct Window {       // where the cut lies: tokens of one bin, and of those the keys from low to high
  float ceiling;      // tokens above it are accounted for
  float scale, skip;  // bins per unit of distance from the best; bins' worth of distance that all fall into the first bin
  int bin;
  bool deep;          // divided by keys
  u64 low, high;
  u64 origin;         // the key where digits begin
  int shift;
};

// grows with the distance, so equal logits meet in one bin
DEVICE int distance_bin(const Window& w, float top, float x) {
  return (int)min(__float2uint_rz((top - x) * w.scale - w.skip), (u32)(BINS - 1));
}
DEVICE int digit_of(const Window& w, u64 key) {
  u64 digit = key >= w.origin ? 0 : (w.origin - key) >> w.shift;
  return digit < BINS ? (int)digit : BINS - 1;
}

// the cluster's counts of this thread's own bins, added to `counts`
template <int PER> DEVICE void add_bins(const Shared& s, u32 (&counts)[PER]) {
  u32 mine = shared_address(&s.bins[threadIdx.x * PER]);
#pragma unroll
  for (int b = 0; b < BLOCKS; b++) {
    u32 there = cluster_address(mine, b);
#pragma unroll
    for (int i = 0; i < PER; i += 2) {
      u64 pair = cluster_load8(there + 4 * i);
      counts[i] += (u32)pair, counts[i + 1] += (u32)(pair >> 32);
    }
  }
}

// the first bin where the running sum reaches `target` → shared.found_bin, and the sum before it → shared.found_before; returns
// the sum of all
DEVICE u32 find_bin(Row& row, u32 target) {
  constexpr int PER = BINS / THREADS;
  Shared& s = *row.shared;
  u32 sums[PER] = {}, own = 0;
  add_bins(s, sums);
#pragma unroll
  for (int i = 0; i < PER; i++) own += sums[i];
  u32 lane = threadIdx.x % 32, running = inclusive_sum(own, lane);
  if (lane == 31) s.scan[threadIdx.x / 32] = running;
  __syncthreads();
  u32 total = 0;
  for (int w = 0; w < WARPS; w++) {
    if (w == threadIdx.x / 32) running += total;
    total += s.scan[w];
  }
  target = min(target, total);
  u32 before = running - own;
  if (before < target && target <= running) {
    int i = 0;
#pragma unroll
    for (int j = 0; j < PER - 1; j++)
      if (i == j && before + sums[j] < target) before += sums[j], i = j + 1;
    s.found_bin = threadIdx.x * PER + i, s.found_before = before;
  }
  __syncthreads();
  return total;
}

DEVICE void clear_bins(Shared& s) {
  for (int i = threadIdx.x; i < BINS; i += THREADS) s.bins[i] = 0;
  __syncthreads();
}

// a histogram of the window's tokens from `least` up, over the whole cluster; weights are in units of 2^-31 of the total
template <bool MASS> DEVICE void fill_bins(Row& row, Floor floor, float least, const Window& w, float unit) {
  Shared& s = *row.shared;
  clear_bins(s);
  u32 first = 0;  // what falls into the first bin, which may be most of the weight
  each_from(row, least, [&](float x, int id) {
    if (x < least || x > w.ceiling || !is_kept(floor, x, id)) return;
    u32 amount = MASS ? __float2uint_rn(weight_of(row, x) * unit) : 1;
    if (amount == 0) return;
    int bin = distance_bin(w, row.top, x);
    if (w.deep) {
      u64 key = key_of(x, id);
      if (bin != w.bin || key < w.low || key > w.high) return;
      bin = digit_of(w, key);
    }
    if (bin == 0) first += amount;
    else atomicAdd(&s.bins[bin], amount);
  });
  if (first) atomicAdd(&s.bins[0], first);
  cluster_sync();
}

// a logit that nothing in this bin or a nearer one is below
DEVICE float far_end(const Window& w, float top, int bin) {
  float far = (bin + 1 + w.skip) / w.scale;
  return bin == BINS - 1 ? -INFINITY_F : top - far - 1e-5f * (fabsf(top) + far);
}

DEVICE void narrow(Window& w, int bin) {
  if (!w.deep) {
    w.bin = bin;
    return;
  }
  u64 high = bin == 0 ? w.high : w.origin - ((u64)bin << w.shift);
  w.low = bin == BINS - 1 ? w.low : w.origin - (((u64)bin + 1) << w.shift) + 1;
  w.high = high;
}

// digits over what is left of the window
DEVICE void deepen(Window& w, float top) {
  if (!w.deep) {
    float near = w.bin == 0 ? 0 : (w.bin + w.skip) / w.scale, room = 1e-5f * (fabsf(top) + near);
    w.deep = true;
    w.high = min(w.high, key_of(top - near + room, 0));
    w.low = key_of(far_end(w, top, w.bin), LAST_ID);
  }
  w.origin = w.high;
  w.shift = max(0, 64 - __clzll((long long)(w.high - w.low)) - 10);
}

// the tokens of the window onto the blocks' lists: how much weight stands above them (a, in 2^-40), how many they are (b)
DEVICE Triple gather(Row& row, Floor floor, const Window& w, bool mass) {
  Shared& s = *row.shared;
  clear_count(s);
  u64 above = 0;  // in units of 2^-40, so that the sum has no order
  each_from(row, fmaxf(floor.x, far_end(w, row.top, w.bin)), [&](float x, int id) {
    if (x > w.ceiling || !is_kept(floor, x, id)) return;
    int bin = distance_bin(w, row.top, x);
    if (bin > w.bin) return;
    bool inside = bin == w.bin, higher = bin < w.bin;
    u64 key = key_of(x, id);
    if (inside && w.deep) {
      if (key < w.low) return;
      higher = key > w.high, inside = !higher;
    }
    if (higher && mass) above += __float2ull_rn(weight_of(row, x) * 0x1p40f);
    if (inside) append(s, key);
  });
  __syncthreads();
  return reduce<Whole>(row, {above, threadIdx.x == 0 ? s.count : 0, 0});
}

// A logit that the `count` best kept tokens do not lie below, or -inf: as many threads' best tokens lie above it.
DEVICE float count_bound(Row& row, Floor floor, u32 count) {
  Window w = {INFINITY_F, 32, 0, 0, false, 0, 0, 0, 0};
  clear_bins(*row.shared);
  if (row.best > floor.x) atomicAdd(&row.shared->bins[distance_bin(w, row.top, row.best)], 1);
  cluster_sync();
  bool enough = find_bin(row, count) >= count;
  return enough ? far_end(w, row.top, row.shared->found_bin) : -INFINITY_F;
}

// A list that holds the `count` best kept tokens and few others: how many, or more than LIST where a list cannot.
DEVICE u32 list_best(Row& row, Floor floor, u32 count) {
  if (count > LIST) return LIST + 1;
  return list_from(row, floor, fmaxf(floor.x, count_bound(row, floor, count)));
}

struct Part {  // where to look for a cut
  float least;        // it does not lie below
  float scale, skip;  // of the first window
  float ceiling;      // nor above; what weighs `above` stands there
  double above;
};
DEVICE Part part_from(float least, float scale) { return {least, scale, 0, INFINITY_F, 0}; }

// The key of the last token that is kept of those above the floor. `amount`: a count, or a share of `total`.
template <bool MASS> DEVICE u64 cut(Row& row, Floor floor, const Part& part, double amount, double total) {
  float unit = MASS ? (float)(0x1p31 / total) : 0;
  Window w = {part.ceiling, part.scale, part.skip, 0, false, 0, key_of(row.top, 0), 0, 0};
  double target = MASS ? amount * total : 0;
  u32 left = max(1u, MASS ? (u32)((target - part.above) * unit) : (u32)amount);
  while (true) {
    fill_bins<MASS>(row, floor, part.least, w, unit);
    find_bin(row, left);
    narrow(w, (int)row.shared->found_bin);
    if (!MASS) left -= row.shared->found_before;
    Triple found = gather(row, floor, w, MASS);
    double above = part.above + (double)found.a * 0x1p-40;
    if (found.b <= LIST) return rank_list<MASS>(row, (int)found.b, left, above, target);
    if (MASS) left = (u32)fmax(1.0, (target - above) * unit);
    deepen(w, row.top);
  }
}

DEVICE u64 cut_count(Row& row, Floor floor, u32 count) {
  u32 listed = list_best(row, floor, count);
  return listed <= LIST ? rank_list<false>(row, listed, count, 0, 0) : cut<false>(row, floor, part_from(floor.x, 32), count, 0);
}
