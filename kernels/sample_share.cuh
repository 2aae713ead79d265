// Top-p where it may keep many tokens: a pass counts tokens by their distance from the best, which tells closely where the cut
// lies; a second pass weighs what is nearer and queues the few thousand tokens around the cut, among which it is found exactly.
#pragma once
#include "sample_select.cuh"

constexpr float BINS_PER_BIT = 32;        // of weight
constexpr float CLOSE = 1.f / 1024;       // the share by which the estimate may err; if it does, everything is looked at again

struct Share {
  double total;     // weight of all tokens
  float low, high;  // the last token kept is likely to lie between
};

struct Masses {  // two float64 and a count
  static constexpr int USED = 3;
  DEVICE Triple of(Triple x, Triple y) { return {add_doubles(x.a, y.a), x.b + y.b, add_doubles(x.c, y.c)}; }
};

// tokens by their distance from the best, over the whole cluster; the total weight comes back
DEVICE double count_bins(Row& row, const Window& w) {
  Shared& s = *row.shared;
  clear_bins(s);
  float total = 0;
  each_group(row, -INFINITY_F, [&](const float4& x, int id) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      int bin = distance_bin(w, row.top, at(x, j));
      total += weight_of(row, at(x, j));
      if (bin < BINS - 1) atomicAdd(&s.bins[bin], 1);
    }
  });
  return double_of(reduce<Sum>(row, {bits_of((double)total), 0, 0}).a);
}

// The bins where the running weight comes near the share, and where the running count is the last that fits onto a list, from
// the counts and the weight in the middle of each bin. Every block finds the same.
struct Guess {
  int near, far, listed;
  float listed_share;  // of the weight
};
DEVICE Guess guess(Row& row, float share) {
  constexpr int PER = BINS / THREADS;
  Shared& s = *row.shared;
  struct Sums { float mass; u32 count; };
  Sums* warps = (Sums*)s.queue;  // not in use yet
  int first = threadIdx.x * PER, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  u32 counts[PER] = {};
  add_bins(s, counts);
  float mass[PER];
  Sums own = {0, 0};
#pragma unroll
  for (int i = 0; i < PER; i++) {
    mass[i] = counts[i] * power_of_two(-(first + i + 0.5f) / BINS_PER_BIT);
    own.mass += mass[i], own.count += counts[i];
  }
  Sums running = own;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    float m = __shfl_up_sync(~0u, running.mass, step);
    u32 c = __shfl_up_sync(~0u, running.count, step);
    if (lane >= step) running.mass += m, running.count += c;
  }
  if (lane == 31) warps[warp] = running;
  if (threadIdx.x == 0) s.guess[0] = s.guess[1] = s.guess[2] = BINS - 2, s.guess[3] = 0;
  __syncthreads();
  Sums all = {0, 0}, before = {0, 0};
  for (int i = 0; i < WARPS; i++) {
    if (i == warp) before = all;
    all.mass += warps[i].mass, all.count += warps[i].count;
  }
  before.mass += running.mass - own.mass, before.count += running.count - own.count;
  float near = (share - CLOSE) * all.mass, far = (share + CLOSE) * all.mass;
  for (int i = 0; i < PER; i++) {
    Sums after = {before.mass + mass[i], before.count + counts[i]};
    if (before.mass < near && near <= after.mass) s.guess[0] = first + i;
    if (before.mass < far && far <= after.mass) s.guess[1] = first + i;
    if (before.count <= LIST && LIST < after.count) s.guess[2] = first + i - 1, s.guess[3] = __float_as_uint(before.mass / all.mass);
    before = after;
  }
  __syncthreads();
  bool short_row = all.count <= LIST;
  return {(int)s.guess[0], (int)s.guess[1], (int)s.guess[2], short_row ? 1 : __uint_as_float(s.guess[3])};
}

// A list of all tokens that the share may keep and few others: how many, or more than LIST where they are too many.
DEVICE u32 list_share(Row& row, float share, Share& found) {
  Window w = {INFINITY_F, BINS_PER_BIT * row.per, 0, 0, false, 0, 0, 0, 0};
  found.total = count_bins(row, w);
  Guess bins = guess(row, share);
  found.high = row.top - bins.near / w.scale;
  found.low = far_end(w, row.top, bins.far);
  if (bins.listed_share < share - 0.03f) return LIST + 1;
  float least = far_end(w, row.top, bins.listed), weight = 0;
  each_group(row, least, [&](const float4& x, int id) {
#pragma unroll
    for (int j = 0; j < 4; j++) weight += at(x, j) >= least ? weight_of(row, at(x, j)) : 0;
  });
  double listed = double_of(reduce<Sum>(row, {bits_of((double)weight), 0, 0}).a);
  return listed > share * found.total * 1.00001 ? list_from(row, no_floor(), least) : LIST + 1;
}

// the key of the last token of the share; the queue is used, and empty afterwards
DEVICE u64 cut_share(Row& row, double share, const Share& guessed) {
  Shared& s = *row.shared;
  float above = 0, inside = 0;
  clear_count(s);
  each_group(row, guessed.low, [&](const float4& x, int id) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      float one = at(x, j), weight = weight_of(row, one);
      if (one > guessed.high) above += weight;
      else if (one >= guessed.low) {
        inside += weight;
        u32 i = atomicAdd(&s.count, 1);
        if (i < QUEUE) s.queue[i] = (u16)(id + j - row.base);
      }
    }
  });
  __syncthreads();
  row.queued = s.count <= QUEUE ? (int)s.count : -1, row.queue_end = guessed.low;
  Triple found = reduce<Masses>(row, {bits_of((double)above), threadIdx.x == 0 ? s.count : 0, bits_of((double)inside)});
  double nearer = double_of(found.a), target = share * guessed.total;
  Part part = part_from(-INFINITY_F, BINS / 40.f * row.per);
  if (nearer < target && target <= nearer + double_of(found.c)) {
    part.scale = (BINS - 4) / fmaxf(guessed.high - guessed.low, 1e-6f * fabsf(row.top));
    part = {guessed.low, part.scale, (row.top - guessed.high) * part.scale - 2, guessed.high, nearer};
  } else {
    row.queued = -1;
  }
  u64 key = cut<true>(row, no_floor(), part, share, guessed.total);
  row.queued = -1;
  return key;
}

// the same among the tokens above a floor, without a guess
DEVICE u64 cut_share(Row& row, double share, Floor floor) {
  float weight = 0;
  each_group(row, floor.x, [&](const float4& x, int id) { weight += weight_of_group(row, floor, x, id); });
  double total = double_of(reduce<Sum>(row, {bits_of((double)weight), 0, 0}).a);
  return cut<true>(row, floor, part_from(floor.x, BINS / 40.f * row.per), share, total);
}
