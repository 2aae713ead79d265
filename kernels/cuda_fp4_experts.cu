// Grouped product of MXFP4 experts for Hopper: out[p] = x[rows[p]] · W[expert of p]ᵀ, and with FUSED its SwiGLU and quantiser.
//
// The product is computed transposed: 256 weight rows are the M of four products, 8 to TILE_ROWS rows of x are N. Codes become
// bf16 in registers (operand A), x lies in shared memory (operand B). Blocks stay; they draw items (expert, tile of its rows,
// 256 weight rows) from a counter. One warpgroup loads: weights by bulk copies of pieces that lie as the registers want them
// (fp4_expert_tiles.py), x row by row. K goes 16 by 16 from first to last whatever N is, so a row's result does not depend on its
// neighbours, nor on the macros.
//
// Macros: K columns (a multiple of 128), N_OUT weight rows of an expert (of 256), FUSED 0 or 1; TILE_ROWS; PRODUCTS of a
// warpgroup: 1 (four warpgroups, slots of 128 columns: more instructions at a time) or 2 (two, 64: more registers for N);
// SLOTS; DELAY, the slots whose rows of x are on their way.
#include "hopper.cuh"
#include "hopper_wgmma.cuh"
#include "tensor_copies.cuh"

#ifndef K  // w2, few rows
#define K 2304
#define N_OUT 5120
#define FUSED 0
#define TILE_ROWS 40
#define PRODUCTS 1
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
  u16* target = out + (u64)(item.row + lane / 4) * COLUMNS + item.m * 256 + group * PRODUCTS * 64 + warp * 16 + lane % 4 * 4;
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

DEVICE void consume(Shared& s, u16* out, const float* weights) {
  Ring ring = {0, 0};
  while (true) {
    barrier_wait(shared_address(&s.full[ring.stage]), ring.parity);
    const Item item = s.item[ring.stage];
    if (item.rows < 0) return;
    Sums sum;
#pragma unroll
    for (int i = 0; i < PRODUCTS * TILE_ROWS / 2; ++i) sum[i % PRODUCTS][i / PRODUCTS] = 0.0f;
    multiply(s, ring, item.rows, sum);
    store(s, item, sum, out, weights);
    __syncwarp();  // so that the compiler knows the ring to be uniform: descriptors in uniform registers
  }
}

// x bf16 [T, K]; rows [P] or null; starts [experts + 1]; weights: pieces of all experts; weight [P] or null;
// out bf16 [P, COLUMNS]; counter: two zeros, and zeros again afterwards. It may begin before earlier launches end, and waits itself.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fp4_experts(const u16* x, const int* rows, const int* starts, const u8* weights, const float* weight, u16* out,
                u32* counter, int experts) {
  extern __shared__ __align__(1024) u8 memory[];
  Shared& s = *(Shared*)memory;
  if (threadIdx.x < SLOTS) {
    barrier_init(shared_address(&s.full[threadIdx.x]), LOADERS + 1);
    barrier_init(shared_address(&s.empty[threadIdx.x]), CONSUMER_WARPS);
    barrier_init_fence();
  }
  earlier_launches_wait();
  later_launches_allow();
  for (int e = threadIdx.x; e <= experts; e += THREADS) s.starts[e] = starts[e];
  __syncthreads();
  if (threadIdx.x < 32) count_tiles(s, experts, threadIdx.x);
  __syncthreads();
  if (threadIdx.x < CONSUMERS) {  // together as many registers as at the launch: 96 or 168 each
    registers_more<PRODUCTS == 1 ? 112 : 224>();
    consume(s, out, weight);
  } else {
    registers_less<PRODUCTS == 1 ? 32 : 56>();
    produce(s, weights, x, rows, counter, experts);
  }
}
