// One row of logits in the shared memory of a cluster of 8 blocks: its parts, its passes, its reductions.
//
// Each holds an eighth of the tokens, whole eights of them, the last one what is left. Every sum has a fixed order (a thread's tokens rising, then a tree over
// lanes, then a tree over the warps of all blocks), so a row's bits depend on the row alone.
#pragma once
#include "ordered_keys.cuh"
#include "philox.cuh"

constexpr int BLOCKS = 8, WARPS = THREADS / 32, CHUNKS = 4, BINS = 1024, LIST = 256, QUEUE = 1280;

struct Triple { u64 a, b, c; };
struct Shared {
  u64 arrived[CHUNKS];
  Triple slots[2][BLOCKS * WARPS];  // what the warps of all blocks tell each other; two in turn
  u64 list[LIST];
  union {
    u32 bins[BINS];
    struct { u64 keys[LIST], weights[LIST]; } merged;
  };
  u16 queue[QUEUE];  // tokens of this block that are looked at again and again, in any order
  u64 found_key;
  u32 scan[WARPS], count, found_bin, found_before, guess[4];
  float bound;
};
static_assert(sizeof(Shared) <= STATE_BYTES && STATE_BYTES % 16 == 0, "the logits lie behind it");
static_assert(THREADS == LIST && BLOCKS * WARPS == 64 && BINS / THREADS % 2 == 0, "two slots a lane, a thread per list entry");

struct Row {
  float* x;        // this block's logits
  Shared* shared;
  int width;       // tokens of every block but the last
  int groups;      // of 4 tokens
  int base;        // first token
  u32 rank, turn;
  int queued;      // tokens in the queue: all from `queue_end` up; -1 where they are too many
  float queue_end;
  float best;      // largest logit of this thread
  int best_id;     // and where it is
  float top;       // largest logit
  int top_id;
  float per;       // log2(e) / temperature
  double temperature;
};

DEVICE int part_of(int vocabulary) { return (vocabulary + 8 * BLOCKS - 1) / (8 * BLOCKS) * 8; }

// tokens from the best down to this one are kept
struct Floor {
  float x;
  int id;
};
DEVICE Floor no_floor() { return {-INFINITY_F, -1}; }  // but -inf is never kept
DEVICE Floor floor_of(u64 key) { return {logit_of(key), id_of(key)}; }
DEVICE bool is_kept(Floor floor, float x, int id) { return x > floor.x || (x == floor.x && id <= floor.id); }
// what is kept of N neighbours from `id` on is what does not lie below this, but where the floor's own token is among them
DEVICE float level_of(Floor floor, int id) { return id > floor.id ? unordered(ordered(floor.x) + 1) : floor.x; }
template <int N> DEVICE bool holds(Floor floor, int id) { return (u32)(floor.id - id) < N - 1; }

DEVICE float weight_of(const Row& row, float x) { return power_of_two((x - row.top) * row.per); }

DEVICE float4 group_of(const Row& row, int g) { return ((const float4*)row.x)[g]; }
DEVICE float at(const float4& x, int j) { return j == 0 ? x.x : j == 1 ? x.y : j == 2 ? x.z : x.w; }

DEVICE float most_or_nan(const float4& x) { return max_or_nan(max_or_nan(x.x, x.y), max_or_nan(x.z, x.w)); }
DEVICE float most_of(const float4& x) { return fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w)); }

// body(4 logits, the first one's id) for this thread's groups with a logit from `least` up, ids rising
template <class Body> DEVICE void each_group(const Row& row, float least, Body body) {
  constexpr int AHEAD = 2;
  for (int g0 = threadIdx.x; g0 < row.groups; g0 += AHEAD * THREADS) {
    float4 x[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
      if (g0 + i * THREADS < row.groups) x[i] = group_of(row, g0 + i * THREADS);
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      int g = g0 + i * THREADS;
      if (g < row.groups && most_of(x[i]) >= least) body(x[i], row.base + 4 * g);
    }
  }
}
// body(logit, id) for this thread's tokens from `least` up, and some below it: those of its groups, or of the queue if it can
template <class Body> DEVICE void each_from(const Row& row, float least, Body body) {
  if (row.queued >= 0 && least >= row.queue_end) {
    for (int i = threadIdx.x; i < row.queued; i += THREADS) {
      int local = row.shared->queue[i];
      body(row.x[local], row.base + local);
    }
    return;
  }
  each_group(row, least, [&](const float4& x, int id) {
#pragma unroll
    for (int j = 0; j < 4; j++) body(at(x, j), id + j);
  });
}

// the sum of the kept tokens' weights
DEVICE float weight_of_group(const Row& row, Floor floor, const float4& x, int id) {
  float sum = 0, level = level_of(floor, id);
#pragma unroll
  for (int j = 0; j < 4; j++) sum += at(x, j) >= level ? weight_of(row, at(x, j)) : 0;
  if (holds<4>(floor, id)) {
    sum = 0;
    for (int j = 0; j < 4; j++) sum += is_kept(floor, at(x, j), id + j) ? weight_of(row, at(x, j)) : 0;
  }
  return sum;
}
// how many are kept
DEVICE u32 count_of_group(Floor floor, const float4& x, int id) {
  float level = level_of(floor, id);
  u32 count = 0;
#pragma unroll
  for (int j = 0; j < 4; j++) count += at(x, j) >= level;
  if (holds<4>(floor, id)) {
    count = 0;
    for (int j = 0; j < 4; j++) count += is_kept(floor, at(x, j), id + j);
  }
  return count;
}

struct Largest {  // the largest a; c are flags
  static constexpr int USED = 3;
  DEVICE Triple of(Triple x, Triple y) { return {x.a > y.a ? x.a : y.a, 0, x.c | y.c}; }
};
DEVICE u64 add_doubles(u64 x, u64 y) {
  return (u64)__double_as_longlong(__longlong_as_double((long long)x) + __longlong_as_double((long long)y));
}
DEVICE u64 add_floats(u64 x, u64 y) {
  u32 low = __float_as_uint(__uint_as_float((u32)x) + __uint_as_float((u32)y));
  u32 high = __float_as_uint(__uint_as_float((u32)(x >> 32)) + __uint_as_float((u32)(y >> 32)));
  return (u64)high << 32 | low;
}
struct Sum {  // a float64 and whole numbers
  static constexpr int USED = 2;
  DEVICE Triple of(Triple x, Triple y) { return {add_doubles(x.a, y.a), x.b + y.b, 0}; }
};
struct Whole {  // two whole numbers
  static constexpr int USED = 2;
  DEVICE Triple of(Triple x, Triple y) { return {x.a + y.a, x.b + y.b, 0}; }
};
struct Tiers {  // a float64 and four float32
  static constexpr int USED = 3;
  DEVICE Triple of(Triple x, Triple y) { return {add_doubles(x.a, y.a), add_floats(x.b, y.b), add_floats(x.c, y.c)}; }
};
struct Best {  // the larger a, then the smaller b; c is summed
  static constexpr int USED = 3;
  DEVICE Triple of(Triple x, Triple y) {
    bool second = y.a > x.a || (y.a == x.a && y.b < x.b);
    return {second ? y.a : x.a, second ? y.b : x.b, x.c + y.c};
  }
};
DEVICE u64 bits_of(double x) { return (u64)__double_as_longlong(x); }
DEVICE double double_of(u64 x) { return __longlong_as_double((long long)x); }

DEVICE void cluster_sync() {
  __syncwarp();
  cluster_arrive();
  cluster_wait();
}

template <class Op> DEVICE Triple reduce_warp(Triple x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    Triple y = {__shfl_xor_sync(~0u, x.a, step), __shfl_xor_sync(~0u, x.b, step), 0};
    if (Op::USED > 2) y.c = __shfl_xor_sync(~0u, x.c, step);
    x = Op::of(x, y);
  }
  return x;
}

// over all threads of the cluster; every thread gets it. What blocks wrote to shared memory before is seen by all afterwards.
template <class Op> DEVICE Triple reduce(Row& row, Triple x) {
  Triple* slots = row.shared->slots[row.turn++ & 1];
  int lane = threadIdx.x % 32;
  x = reduce_warp<Op>(x);
  if (lane < BLOCKS) {
    u32 there = cluster_address(shared_address(&slots[row.rank * WARPS + threadIdx.x / 32]), lane);
    cluster_store8(there, x.a), cluster_store8(there + 8, x.b), cluster_store8(there + 16, x.c);
  }
  cluster_sync();
  return reduce_warp<Op>(Op::of(slots[lane], slots[lane + 32]));
}
