// The choice of a token: the largest score + Gumbel noise. In float32 first; where two are closer than its error, in float64.
#pragma once
#include "sample_select.cuh"

constexpr float UNSURE = 1e-4f;  // scores are relative to the best token's and above -40: float32 errs by less than 2e-5

struct Front {  // of a thread
  float best, second;
  int id;
  float bound;
};
DEVICE Front no_front(float bound) { return {-INFINITY_F, -INFINITY_F, 0, bound}; }
DEVICE void enter(Front& front, float score, int id) {
  front.second = fmaxf(front.second, fminf(front.best, score));
  if (score > front.best) front.best = score, front.id = id;
}

struct Fronts {  // a: key of the best; b: the second's score, ordered; c is summed
  static constexpr int USED = 3;
  STATIC_DEVICE Triple of(Triple x, Triple y) {
    u64 low = (x.a < y.a ? x.a : y.a) >> ID_BITS;
    return {x.a > y.a ? x.a : y.a, max(low, max(x.b, y.b)), x.c + y.c};
  }
};
DEVICE Triple triple_of(const Front& front, u32 count) {
  return {key_of(front.best, front.id), (u64)ordered(front.second), count};
}
DEVICE bool is_unsure(Triple found) { return logit_of(found.a) - logit_of(found.b << ID_BITS) < UNSURE; }

DEVICE float relative_score(const Row& row, float x) { return (x - row.top) * (row.per / LOG2_E); }

// float64, of few tokens
static __device__ __noinline__ u64 exact_score(float x, double temperature, u64 words) {
  return ordered64(x / temperature + gumbel(words));
}

// every token of this thread, 4 at a time
DEVICE Front race_all(Row& row, const Philox& noise, float bound) {
  volatile float* shared_bound = &row.shared->bound;
  Front front = no_front(bound);
  for (int g0 = threadIdx.x / 32 * 32; g0 < row.groups; g0 += THREADS) {
    int g = g0 + threadIdx.x % 32, id = row.base + 4 * g;
    float4 x = make_float4(-INFINITY_F, -INFINITY_F, -INFINITY_F, -INFINITY_F);
    if (g < row.groups) x = group_of(row, g);
    float limit[4];  // of 1 - u
    bound = *shared_bound;
#pragma unroll
    for (int j = 0; j < 4; j++) limit[j] = bound * weight_of(row, at(x, j));
    if (!__any_sync(~0u, fmaxf(fmaxf(limit[0], limit[1]), fmaxf(limit[2], limit[3])) > 0x1p-54f)) continue;
    u64 words[4];
    philox_words<4>(noise, id, words);
    bool wins = false;
#pragma unroll
    for (int j = 0; j < 4; j++) wins = wins || may_win(limit[j], (u32)words[j]);
    if (!__any_sync(~0u, wins)) continue;
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (may_win(limit[j], (u32)words[j])) enter(front, relative_score(row, at(x, j)) + gumbel32(words[j]), id + j);
    atomicMin((int*)&row.shared->bound, __float_as_int(bound_of(front.best)));
  }
  return front;
}

// only the tokens above the floor, queued first where they are few; `kept` says how many this block has
DEVICE Front race_kept(Row& row, const Philox& noise, Floor floor, float bound, u32& kept) {
  if (row.queued < 0 || row.queue_end > floor.x) fill_queue(row, floor.x);
  kept = 0;
  if (row.queued < 0) {
    for (int g = threadIdx.x; g < row.groups; g += THREADS) {
      float4 x = group_of(row, g);
      int id = row.base + 4 * g;
      bool is[4];
#pragma unroll
      for (int j = 0; j < 4; j++) is[j] = is_kept(floor, at(x, j), id + j);
      kept += is[0] + is[1] + is[2] + is[3];
      ((float4*)row.x)[g] = make_float4(is[0] ? x.x : -INFINITY_F, is[1] ? x.y : -INFINITY_F, is[2] ? x.z : -INFINITY_F,
                                        is[3] ? x.w : -INFINITY_F);
    }
    __syncthreads();
    return race_all(row, noise, bound);
  }
  Front front = no_front(bound);
  for (int i = threadIdx.x; i < row.queued; i += THREADS) {
    int local = row.shared->queue[i];
    float x = row.x[local];
    if (!is_kept(floor, x, row.base + local)) continue;
    kept++;
    u64 words = philox_words(noise, row.base + local);
    if (may_win(bound * weight_of(row, x), (u32)words))
      enter(front, relative_score(row, x) + gumbel32(words), row.base + local);
  }
  return front;
}

// the winner among all tokens above the floor; how many they are → kept, where there is a floor
DEVICE int race(Row& row, const Philox& noise, Floor floor, bool filtered, int& kept) {
  float bound = bound_of(gumbel32(philox_words(noise, row.top_id)));
  row.shared->bound = bound;
  __syncthreads();
  u32 here = 0;
  Front front = filtered ? race_kept(row, noise, floor, bound, here) : race_all(row, noise, bound);
  Triple found = reduce<Fronts>(row, triple_of(front, here));
  if (filtered) kept = (int)found.c;
  if (!is_unsure(found)) return id_of(found.a);
  float least = bound_of(logit_of(found.a));  // once more, and exactly
  Triple best = {0, ~0ull, 0};
  each_from(row, floor.x, [&](float x, int id) {
    if (!is_kept(floor, x, id)) return;
    u64 words = philox_words(noise, id);
    if (may_win(least * weight_of(row, x), (u32)words))
      best = Best::of(best, {exact_score(x, row.temperature, words), (u64)id, 0});
  });
  return (int)reduce<Best>(row, best).b;
}

// The same for the `n` tokens on the lists, which hold all that the filters may keep; every block that calls it does all of it.
// `total` is the weight of all tokens where there is no top-k. The floor comes back.
DEVICE int race_listed(Row& row, const Philox& noise, int n, int top_k, double top_p, float least, double total, Floor& floor,
                       int& num_kept) {
  Shared& s = *row.shared;
  u64 key = merge_lists(row, n), before = 0, weight = 0;
  int i = threadIdx.x, better = 0;
  float x = logit_of(key);
  bool kept = i < n, mass = top_p < 1;
  if (mass && kept) weight = (u64)(exp(((double)x - row.top) / row.temperature) * 0x1p40 + 0.5);
  if (mass) s.merged.weights[i] = weight;
  if (!kept) s.merged.keys[i] = 0;
  cluster_sync();  // the lists are read
  if (kept) {
#pragma unroll 8
    for (int j = 0; j < n; j++) {
      bool behind = s.merged.keys[j] > key;
      better += behind;
      if (mass) before += behind ? s.merged.weights[j] : 0;
    }
  }
  if (top_k > 0) kept = kept && better < top_k;
  if (mass && top_k > 0) {
    __syncthreads();
    if (i == 0) s.found_key = 0;
    __syncthreads();
    if (kept) atomicAdd(&s.found_key, weight);
    __syncthreads();
    total = (double)s.found_key * 0x1p-40;
  }
  kept = kept && (!mass || (double)before * 0x1p-40 < top_p * total) && x >= least;
  __syncthreads();
  num_kept = __syncthreads_count(kept);
  if (kept && better == num_kept - 1) s.found_key = key;
  Front front = no_front(0);
  u64 words = philox_words(noise, id_of(key));
  if (kept) enter(front, relative_score(row, x) + gumbel32(words), id_of(key));
  Triple found = reduce_warp<Fronts>(triple_of(front, 0));
  Triple* partial = s.slots[(row.turn - 1) & 1];  // read, and not yet written to by others
  if (i % 32 == 0) partial[i / 32] = found;
  __syncthreads();
  found = partial[0];
  for (int w = 1; w < WARPS; w++) found = Fronts::of(found, partial[w]);
  floor = floor_of(s.found_key);
  if (!is_unsure(found)) return id_of(found.a);
  __syncthreads();
  s.merged.weights[i] = kept ? exact_score(x, row.temperature, words) : 0;
  s.merged.keys[i] = (u64)id_of(key);
  __syncthreads();
  Triple best = {0, ~0ull, 0};
  for (int j = 0; j < n; j++) best = Best::of(best, {s.merged.weights[j], s.merged.keys[j], 0});
  return (int)best.b;
}
