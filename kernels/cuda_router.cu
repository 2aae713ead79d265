// The router: which experts a row goes to, and with what weight. A warp serves a row; a lane holds PER_LANE of its logits.
//
// Exact scores of all experts would cost more than reading them. So first an estimate, three steps of the special function unit,
// which is within SLACK / 2 of the biased score. The CHOSEN-th best of the lanes' best estimates, less SLACK, is a bound that
// every expert to be chosen reaches. The few experts that reach it are scored exactly and ranked by score, then by number. Where
// they are too many or too few (many equals), all are scored exactly and taken out one by one. Either way the result is that of
// exact scores. A row with NaN goes to some experts.
//
// Macros: EXPERTS (a multiple of 128) · CHOSEN
#include "tensor_copies.cuh"

constexpr int WARPS = 8, PER_LANE = EXPERTS / 32, LOWEST = -0x7fffffff - 1, NONE = 1 << 30;
constexpr float SLACK = 2e-3f, RELATIVE_SLACK = 1e-5f;

// of a warp
struct Shared {
  u16 reached[EXPERTS];  // lane | k << 5
  u64 order[32];
  int expert[CHOSEN];
  float score[CHOSEN];
};

// sqrt(softplus(x)) + bias: within 6e-4, where exp(x) is lost beside 1, and within 3e-6 of its size elsewhere
DEVICE float estimate(float x, float bias) {
  float z = x * LOG2_E, power = power_of_two(fminf(z, 100.0f)), log, root;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(log) : "f"(1.0f + power));
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(fabsf(fmaxf(log, z))));
  return root * 0.83255461f + bias;  // the root of log 2
}

// within 4e-7 of itself for x > -10. log1p on [0, 1] is a polynomial: within 2e-7 in float32
DEVICE float exact_score(float x) {
  float power = power_of_two(-LOG2_E * fabsf(x)), root;
  float p = 5.232690833508968e-3f;
  p = fmaf(p, power, -2.9505228623747826e-2f);
  p = fmaf(p, power, 7.822594791650772e-2f);
  p = fmaf(p, power, -1.3663245737552643e-1f);
  p = fmaf(p, power, 1.9106008112430573e-1f);
  p = fmaf(p, power, -2.484298199415207e-1f);
  p = fmaf(p, power, 3.331909775733948e-1f);
  p = fmaf(p, power, -4.999949336051941e-1f);
  p = fmaf(p, power, 9.999999403953552e-1f);
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(fmaf(p, power, fmaxf(x, 0.0f))));
  return root;
}

// integers in the order of the numbers
DEVICE int key_of(float value) {
  int bits = __float_as_int(value + 0.0f);
  return value == value ? bits ^ ((bits >> 31) & 0x7fffffff) : 0x7fffffff;
}

DEVICE float value_of(int key) { return __int_as_float(key ^ ((key >> 31) & 0x7fffffff)); }

DEVICE int expert_of(int lane, int k) { return k / 4 * 128 + lane * 4 + k % 4; }

// what every chosen expert's estimate reaches
DEVICE float bound(const float (&estimates)[PER_LANE]) {
  float best = estimates[0];
#pragma unroll
  for (int k = 1; k < PER_LANE; k++) best = fmaxf(best, estimates[k]);
  int key = key_of(best), highest = LOWEST;
#pragma unroll
  for (int slot = 0; slot < CHOSEN; slot++) {
    highest = __reduce_max_sync(~0u, key);
    if (key == highest) key = LOWEST;
  }
  float value = value_of(highest);
  return highest == LOWEST ? -INFINITY_F : value - SLACK - fabsf(value) * RELATIVE_SLACK;
}

// how many experts reach the bound; they are put down, one of every lane at a time
DEVICE int gather(Shared& shared, int lane, const float (&estimates)[PER_LANE]) {
  float least = bound(estimates);
  u32 reached = 0;
#pragma unroll
  for (int k = 0; k < PER_LANE; k++) reached |= estimates[k] >= least ? 1u << k : 0;
  int count = 0;
  u32 before = (1u << lane) - 1;
  for (u32 lanes; (lanes = __ballot_sync(~0u, reached != 0)); count += __popc(lanes)) {
    if (reached) shared.reached[count + __popc(lanes & before)] = lane | (__ffs(reached) - 1) << 5;
    reached &= reached - 1;
  }
  __syncwarp();
  return count;
}

// the chosen experts by rank, where `count` reached the bound
DEVICE void rank_few(Shared& shared, int lane, int count, const float* logits, const float* bias) {
  float score = 0;
  u64 order = 0;  // by score, then by number
  int expert = 0, rank = CHOSEN;
  if (lane < count) {
    int reached = shared.reached[lane];
    expert = expert_of(reached & 31, reached >> 5);
    score = exact_score(logits[expert]);
    order = (u64)((u32)key_of(score + bias[expert]) ^ 0x80000000u) << 32 | (u32)~expert;
    shared.order[lane] = order;
    rank = 0;
  }
  __syncwarp();
  for (int other = 0; other < count; other++) rank += shared.order[other] > order;
  if (lane < count && rank < CHOSEN) shared.score[rank] = score, shared.expert[rank] = expert;
}

// the same by looking at all experts, as often as experts are chosen
DEVICE void rank_all(Shared& shared, int lane, const float (&logits)[PER_LANE], const float* bias) {
  int keys[PER_LANE];
#pragma unroll
  for (int k = 0; k < PER_LANE; k++) keys[k] = key_of(exact_score(logits[k]) + bias[expert_of(lane, k)]);
  u32 taken = 0;
#pragma unroll 1
  for (int slot = 0; slot < CHOSEN; slot++) {
    int best = LOWEST, expert = NONE;
    float logit = 0;
#pragma unroll
    for (int k = 0; k < PER_LANE; k++)
      if (!(taken >> k & 1) && (expert == NONE || keys[k] > best))
        best = keys[k], expert = expert_of(lane, k), logit = logits[k];
    int highest = __reduce_max_sync(~0u, best);
    int winner = __reduce_min_sync(~0u, best == highest ? expert : NONE);
    if (expert == winner) {
      shared.score[slot] = exact_score(logit), shared.expert[slot] = expert;
      taken |= 1u << (winner / 128 * 4 + winner % 4);
    }
  }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    router(const float* logits, const float* bias, int* picks, float* weights, int num_rows, int row_stride, float factor) {
  __shared__ Shared of_warps[WARPS];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x * WARPS + warp;
  later_launches_allow();
  earlier_launches_wait();
  if (row >= num_rows) return;  // a whole warp
  Shared& shared = of_warps[warp];
  logits += (size_t)row * row_stride;
  float own[PER_LANE], estimates[PER_LANE];
#pragma unroll
  for (int k = 0; k < PER_LANE; k += 4) {
    *(float4*)(own + k) = *(const float4*)(logits + expert_of(lane, k));
    *(float4*)(estimates + k) = *(const float4*)(bias + expert_of(lane, k));
  }
#pragma unroll
  for (int k = 0; k < PER_LANE; k++) estimates[k] = estimate(own[k], estimates[k]);
  int count = gather(shared, lane, estimates);
  if (count >= CHOSEN && count <= 32)
    rank_few(shared, lane, count, logits, bias);
  else
    rank_all(shared, lane, own, bias);
  __syncwarp();
  if (lane < CHOSEN) {
    float total = 0;
#pragma unroll
    for (int slot = 0; slot < CHOSEN; slot++) total += shared.score[slot];
    picks[(size_t)row * CHOSEN + lane] = shared.expert[lane];
    weights[(size_t)row * CHOSEN + lane] = __fdividef(shared.score[lane] * factor, total + 1e-20f);
  }
}
