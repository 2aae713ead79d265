// The choice of a token: the largest score + Gumbel noise. In float32 first; where two are closer than its error, in float64.
#pragma once
#include "sample_share.cuh"

constexpr float UNSURE = 1e-4f;  // scores are relative to the best token's and above -40: float32 errs by less than 2e-5

struct Front {  // of a thread
  float best, second;
  int id;
};
DEVICE Front no_front() { return {-INFINITY_F, -INFINITY_F, 0}; }
DEVICE void enter(Front& front, float score, int id) {
  front.second = fmaxf(front.second, fminf(front.best, score));
  if (score > front.best) front.best = score, front.id = id;
}

struct Fronts {  // a: key of the best; b: the second's score, ordered; c is summed
  static constexpr int USED = 3;
  DEVICE Triple of(Triple x, Triple y) {
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
static __device__ __noinline__ u64 exact_score(float x, double temperature, u64 bits) {
  return ordered64(x / temperature + gumbel(bits));
}

DEVICE void lower_bound(Row& row, float best) { atomicMin((int*)&row.shared->bound, __float_as_int(bound_of(best))); }

// Every thread draws for its best token first, so that few others are left that may win. False where this block keeps none.
DEVICE bool begin_race(Row& row, const Philox& noise, Floor floor) {
  if (threadIdx.x == 0) row.shared->bound = INFINITY_F;
  bool any = __syncthreads_or(is_kept(floor, row.best, row.best_id));
  float best = -INFINITY_F;
  if (is_kept(floor, row.best, row.best_id)) best = relative_score(row, row.best) + gumbel32(noise_bits(noise, row.best_id));
  u32 most = __reduce_max_sync(~0u, ordered(best));
  if (threadIdx.x % 32 == 0 && most > ordered(-INFINITY_F)) lower_bound(row, unordered(most));
  __syncthreads();
  return any;
}

// eight neighbours, of which one may win
DEVICE void enter_eight(Row& row, const Philox& noise, Floor floor, int g, const u32 words[4], float bound, Front& front) {
  int id = row.base + 4 * g;
  u32 left = 0;
#pragma unroll 1
  for (int j = 0; j < 8; j++) {
    float x = row.x[4 * g + j];
    bool may = may_win(reach_of(bound * weight_of(row, x)), high_of(words, j)) && is_kept(floor, x, id + j);
    left |= (u32)may << j;
  }
#pragma unroll 1
  for (; left != 0; left &= left - 1) {
    int j = __ffs(left) - 1;
    float score = relative_score(row, row.x[4 * g + j]) + gumbel32(with_low_bits(noise, id + j, high_of(words, j)));
    enter(front, score, id + j);
    lower_bound(row, front.best);
  }
}

// every token of this thread, 8 neighbours at a time and two such together; how many are kept → kept, where there is a floor
template <bool FLOOR> DEVICE Front race_all(Row& row, const Philox& noise, Floor floor, u32& kept) {
  constexpr int STEP = 2 * THREADS;  // groups
  const volatile float* shared_bound = &row.shared->bound;
  Front front = no_front();
  kept = 0;
  for (int g0 = 2 * (threadIdx.x & ~31); g0 < row.groups; g0 += 2 * STEP) {
    u32 words[2][4];
    float4 x[2][2];
    float most[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      int g = g0 + i * STEP + 2 * (threadIdx.x & 31);
      x[i][0] = x[i][1] = make_float4(-INFINITY_F, -INFINITY_F, -INFINITY_F, -INFINITY_F);
      if (g < row.groups) x[i][0] = group_of(row, g), x[i][1] = group_of(row, g + 1);
      most[i] = fmaxf(most_of(x[i][0]), most_of(x[i][1]));
    }
    if (FLOOR && !__any_sync(~0u, fmaxf(most[0], most[1]) >= floor.x)) continue;
#pragma unroll
    for (int i = 0; i < 2; i++) high_bits(noise, row.base + 4 * (g0 + i * STEP + 2 * (threadIdx.x & 31)), words[i]);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      int g = g0 + i * STEP + 2 * (threadIdx.x & 31);
      if (FLOOR) kept += count_of_group(floor, x[i][0], row.base + 4 * g) + count_of_group(floor, x[i][1], row.base + 4 * g + 4);
      float bound = *shared_bound;
      if (most[i] > -INFINITY_F && (!FLOOR || most[i] >= floor.x) && one_may_win(reach_of(bound * weight_of(row, most[i])), words[i]))
        enter_eight(row, noise, floor, g, words[i], bound, front);
    }
  }
  return front;
}

// only those of the queue
DEVICE Front race_queue(Row& row, const Philox& noise, Floor floor, u32& kept) {
  Front front = no_front();
  float bound = row.shared->bound;
  kept = 0;
  for (int i = threadIdx.x; i < row.queued; i += THREADS) {
    int local = row.shared->queue[i], id = row.base + local;
    float x = row.x[local];
    if (!is_kept(floor, x, id)) continue;
    kept++;
    u32 high = high_bits(noise, id);
    if (may_win(reach_of(bound * weight_of(row, x)), high))
      enter(front, relative_score(row, x) + gumbel32(with_low_bits(noise, id, high)), id);
  }
  return front;
}

// exactly, among all tokens above the floor that come near a score, which is relative to the best token's
DEVICE int race_exactly(Row& row, const Philox& noise, Floor floor, float score) {
  float least = bound_of(score);
  Triple best = {0, ~0ull, 0};
#pragma unroll 1
  for (int i = threadIdx.x; i < row.groups * 4; i += THREADS) {
    float x = row.x[i];
    int id = row.base + i;
    if (!is_kept(floor, x, id)) continue;
    u32 high = high_bits(noise, id);
    if (may_win(reach_of(least * weight_of(row, x)), high))
      best = Best::of(best, {exact_score(x, row.temperature, with_low_bits(noise, id, high)), (u64)id, 0});
  }
  return (int)reduce<Best>(row, best).b;
}

// the winner among all tokens above the floor; how many they are → kept, where there is a floor
DEVICE int race(Row& row, const Philox& noise, Floor floor, bool filtered, int& kept) {
  u32 here = 0;
  Front front = no_front();
  bool queued = row.queued >= 0 && floor.x >= row.queue_end;
  if (begin_race(row, noise, floor))
    front = !filtered ? race_all<false>(row, noise, floor, here)
            : queued  ? race_queue(row, noise, floor, here)
                      : race_all<true>(row, noise, floor, here);
  Triple found = reduce<Fronts>(row, triple_of(front, here));
  if (filtered) kept = (int)found.c;
  return is_unsure(found) ? race_exactly(row, noise, floor, logit_of(found.a)) : id_of(found.a);
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
  Front front = no_front();
  u64 bits = noise_bits(noise, id_of(key));
  if (kept) enter(front, relative_score(row, x) + gumbel32(bits), id_of(key));
  Triple found = reduce_warp<Fronts>(triple_of(front, 0));
  Triple* partial = s.slots[(row.turn - 1) & 1];  // read, and not yet written to by others
  if (i % 32 == 0) partial[i / 32] = found;
  __syncthreads();
  found = partial[0];
  for (int w = 1; w < WARPS; w++) found = Fronts::of(found, partial[w]);
  floor = floor_of(s.found_key);
  if (!is_unsure(found)) return id_of(found.a);
  __syncthreads();
  s.merged.weights[i] = kept ? exact_score(x, row.temperature, bits) : 0;
  s.merged.keys[i] = (u64)id_of(key);
  __syncthreads();
  Triple best = {0, ~0ull, 0};
  for (int j = 0; j < n; j++) best = Best::of(best, {s.merged.weights[j], s.merged.keys[j], 0});
  return (int)best.b;
}
