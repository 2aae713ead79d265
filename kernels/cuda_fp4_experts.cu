// Grouped product of MXFP4 experts for Hopper: out[p] = x[rows[p]] · W[expert of p]ᵀ, and with FUSED its SwiGLU and quantiser.
//
// The product is computed transposed: units of 64 weight rows are the M of products, 8 to TILE_ROWS rows of x are N. Codes become
// bf16 in registers (operand A), x lies in shared memory (operand B). Blocks stay; they draw items (expert, tile of its rows,
// some units) from a counter, or share them out evenly where there are few rounds (cuda_fp4_experts_share.cuh). One warpgroup
// loads: weights by bulk copies of pieces that lie as the registers want them (fp4_expert_tiles.py), x row by row. K goes 16 by
// 16 from first to last whatever N is and wherever an item is cut, so a row's result does not depend on its neighbours, nor on
// the macros.
//
// Macros: K columns (a multiple of 128), N_OUT weight rows of an expert (of 256), FUSED 0 or 1; GROUPS, the warpgroups that
// multiply; PRODUCTS of each, a unit each: 1 (slots of 128 columns: more instructions at a time) or 2 (64: fewer reads of x);
// TILE_ROWS, and FEWER_ROWS for which narrower products do; CUT 1: work may be shared out; SLOTS; DELAY, the slots whose rows of x
// are on their way.
#include "hopper.cuh"
#include "hopper_wgmma.cuh"
#include "tensor_copies.cuh"

#ifndef K  // w2, few rows
#define K 2304
#define N_OUT 5120
#define FUSED 0
#define GROUPS 4
#define PRODUCTS 1
#define TILE_ROWS 40
#define FEWER_ROWS 24
#define CUT 0
#define SLOTS 8
#define DELAY 2
#endif
#include "cuda_fp4_experts_load.cuh"

constexpr int COLUMNS = FUSED ? N_OUT / 2 : N_OUT;  // of the output
typedef float Sums[PRODUCTS][TILE_ROWS / 2];
#include "cuda_fp4_experts_multiply.cuh"

DEVICE u32 transposed(u32 pair) {
  u32 out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}

// rows 8 · i … of x: for row lane / 4 two pairs of outputs, 4 · (lane % 4) … of the warp's 16 (paired: gates, then ups)
DEVICE void take_rows(u32 (&v)[2], const float (&sum)[TILE_ROWS / 2], int i) {
#pragma unroll
  for (int half = 0; half < 2; ++half) v[half] = transposed(bf16x2(sum[4 * i + 2 * half], sum[4 * i + 2 * half + 1]));
}

#if FUSED
#include "cuda_fp4_experts_up.cuh"
#else
DEVICE void store(Shared&, const Item& item, const Sums& sum, u16* out, const float*) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, group = threadIdx.x / 128;
  u16* target = out + (u64)(item.row + lane / 4) * COLUMNS + item.unit * 64 + group * PRODUCTS * 64 + warp * 16 + lane % 4 * 4;
#pragma unroll
  for (int i = 0; i < TILE_ROWS / 8; ++i) {
    if (8 * i >= item.rows) break;
#pragma unroll
    for (int product = 0; product < PRODUCTS; ++product) {
      u32 v[2];
      take_rows(v, sum[product], i);
      if (8 * i + lane / 4 < item.rows) *(uint2*)(target + (u64)(8 * i) * COLUMNS + product * 64) = make_uint2(v[0], v[1]);
    }
  }
}
#endif

#if CUT
#include "cuda_fp4_experts_carry.cuh"
// the same of all lanes, so that the compiler knows
DEVICE int uniform(int x) { return __shfl_sync(~0u, x, 0); }
#endif

DEVICE void consume(Shared& s, u16* out, const float* weights, float* carry, u32* counter) {
  Ring ring = {0, 0};
  while (true) {
    barrier_wait(shared_address(&s.full[ring.stage]), ring.parity);
    const Item item = s.item[ring.stage];
    if (item.rows < 0) return;
    Sums sum;
#pragma unroll
    for (int i = 0; i < PRODUCTS * TILE_ROWS / 2; ++i) sum[i % PRODUCTS][i / PRODUCTS] = 0.0f;
#if CUT
    take_over(carry, counter, item, sum);
    multiply(s, ring, uniform(item.rows), uniform(item.steps), sum);
    if (item.first + item.steps < STEPS) hand_on(carry, counter, item.rows, sum);
    else store(s, item, sum, out, weights);
#else
    multiply(s, ring, item.rows, STEPS, sum);
    store(s, item, sum, out, weights);
#endif
    __syncwarp();  // so that the compiler knows the ring to be uniform: descriptors in uniform registers
  }
}

// x bf16 [T, K]; rows [P] or null; starts [experts + 1]; weights: pieces of all experts; weight [P] or null;
// out bf16 [P, COLUMNS]; counter: zeros, and zeros again afterwards: two, and one for each consuming warp of each block;
// carry: the sums of each block, or null: no item is cut. It may begin before earlier launches end, and waits itself.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fp4_experts(const u16* x, const int* rows, const int* starts, const u8* weights, const float* weight, u16* out,
                u32* counter, float* carry, int experts) {
  extern __shared__ __align__(1024) u8 memory[];
  Shared& s = *(Shared*)memory;
  if (threadIdx.x < SLOTS) {
    barrier_init(shared_address(&s.full[threadIdx.x]), LOADERS + 1);
    barrier_init(shared_address(&s.empty[threadIdx.x]), CONSUMER_WARPS);
    barrier_init_fence();
  }
  if (threadIdx.x == CONSUMERS) fetch_early(weights, experts);
  earlier_launches_wait();
  later_launches_allow();
  for (int e = threadIdx.x; e <= experts; e += THREADS) s.plan.starts[e] = starts[e];
  __syncthreads();
  if (threadIdx.x < 32) plan_work(s.plan, experts, carry != nullptr, threadIdx.x);
  __syncthreads();
  if (threadIdx.x < CONSUMERS) {  // together as many registers as at the launch: 96, 128 or 168 each
    registers_more<GROUPS == 4 ? 112 : GROUPS == 3 ? 152 : 224>();
    consume(s, out, weight, carry, counter);
  } else {
    registers_less<GROUPS == 4 ? 32 : 56>();
    produce(s, weights, x, rows, counter, experts);
  }
}
