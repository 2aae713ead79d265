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

#ifndef K  // w2, narrow
#define K 2304
#define N_OUT 5120
#define FUSED 0
#define TILE_ROWS 64
#define PRODUCTS 1
#define SLOTS 6
#define DELAY 2
#endif
#include "cuda_fp4_experts_load.cuh"

constexpr u32 DESCRIPTOR_HIGH = 0x40000040;  // 128-byte swizzle, 1,024 bytes from 8 rows of x to the next 8
constexpr int COLUMNS = FUSED ? N_OUT / 2 : N_OUT;  // of the output
// from one unit of a slot to the next: the other 64 columns, or the warpgroup's other product
constexpr u32 UNIT_CODES = PRODUCTS == 1 ? W_BYTES : 2048, UNIT_SCALES = PRODUCTS == 1 ? W_BYTES : 128;
typedef float Sums[PRODUCTS][TILE_ROWS / 2];

// 8 codes in the bit order of fp4_expert_tiles.py as bf16 pairs; scales: rows g and g + 8 in bytes 0 and 1
DEVICE void decode(u32 (&a)[4], u32 word, u32 scale_low, u32 scale_high) {
  constexpr u32 CODE = 0x81C081C0;  // sign, two exponent bits, one mantissa bit: a bf16 of 2^-126 times the value
  a[0] = mul_bf16x2((word << 6) & CODE, scale_low);
  a[1] = mul_bf16x2((word << 2) & CODE, scale_high);
  a[2] = mul_bf16x2(__funnelshift_r(word, word, 4) & CODE, scale_low);
  a[3] = mul_bf16x2((word >> 8) & 0x00400040 | word & 0x81808180, scale_high);
}

// the four K steps of one block for one M of 64
DEVICE void decode_block(u32 (&a)[4][4], const uint4& code, u32 scales) {
  u32 multiplier[4];  // byte + 126 is a bf16's exponent field: 2^(byte - 1)
#pragma unroll
  for (int i = 0; i < 4; ++i) multiplier[i] = __byte_perm(scales, 0, 0x4040 + i * 0x101) << 7;
  decode(a[0], code.x, multiplier[0], multiplier[1]);
  decode(a[1], code.y, multiplier[0], multiplier[1]);
  decode(a[2], code.z, multiplier[2], multiplier[3]);
  decode(a[3], code.w, multiplier[2], multiplier[3]);
}

DEVICE uint4 load_shared16(u32 address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
  return v;
}
DEVICE u32 load_shared4(u32 address) {
  u32 v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}
// sum[.., N] += the 64 weight rows of `a` · 64 columns of x at `b`; sums of every N begin at the same registers
template <int N> DEVICE void product(float (&sum)[TILE_ROWS / 2], const u32 (&a)[4][4], u32 b) {
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step)
    Wgmma<N>::rs(*(float(*)[N / 2])sum, a[step], (u64)(b + 2 * step) | (u64)DESCRIPTOR_HIGH << 32, 1);
  wgmma_commit();
}

// the narrowest product that holds `rows`: chosen inside the loop, so that all widths share one set of registers
DEVICE void product_of(int rows, float (&sum)[TILE_ROWS / 2], const u32 (&a)[4][4], u32 b) {
#define UP_TO(N) if (TILE_ROWS <= N || rows <= N)
  UP_TO(32) {
    UP_TO(16) {
      UP_TO(8) product<8>(sum, a, b);
      else product<16>(sum, a, b);
    } else {
      UP_TO(24) product<24>(sum, a, b);
      else product<32>(sum, a, b);
    }
  } else UP_TO(80) {
    UP_TO(48) product<48>(sum, a, b);
    else UP_TO(64) product<64>(sum, a, b);
    else product<80>(sum, a, b);
  } else {
    UP_TO(96) product<96>(sum, a, b);
    else UP_TO(112) product<112>(sum, a, b);
    else product<128>(sum, a, b);
  }
#undef UP_TO
}

struct Raw {
  uint4 code;
  u32 scales;
};

DEVICE Raw fetch(u32 codes, u32 scales, u32 slot, int unit) {
  return {load_shared16(codes + slot * PIECES * W_BYTES + unit * UNIT_CODES),
          load_shared4(scales + slot * PIECES * W_BYTES + unit * UNIT_SCALES)};
}

// One item. A unit's codes are fetched and decoded while the products of the unit before it run.
DEVICE void multiply(Shared& s, Ring& ring, int rows, Sums& sum) {
  const int thread = threadIdx.x % 128, group = threadIdx.x / 128;
  const u32 codes = shared_address(s.w) + group * PRODUCTS * 2048 + thread * 16;
  const u32 scales = shared_address(s.w) + CODE_BYTES + group * PRODUCTS * 128 + thread / 32 * 32 + thread % 32 / 4 * 4;
  u32 a[2][4][4], slot_now = 0;
  Raw raw[2] = {fetch(codes, scales, ring.slot, 0), fetch(codes, scales, ring.slot, 1)};
#pragma unroll 1
  for (int step = 0; step < STEPS; ++step) {
    const u32 b = (shared_address(s.x[ring.slot]) & 0x3ffff) >> 4 | 1 << 16;
    const u32 slot_before = slot_now;
    slot_now = ring.slot;
    ring.step();
#pragma unroll
    for (int unit = 0; unit < 2; ++unit) {
      wgmma_wait<1>();  // the products that read a[unit] are done
      if (unit == 1 && step > 0 && thread % 32 == 0) barrier_arrive(shared_address(&s.empty[slot_before]));
      decode_block(a[unit], raw[unit].code, raw[unit].scales);
      product_of(rows, sum[unit % PRODUCTS], a[unit], b + unit / PRODUCTS * (X_BYTES / 16));
      if (step + 1 < STEPS) {
        if (unit == 0) barrier_wait(shared_address(&s.full[ring.slot]), ring.parity);
        raw[unit] = fetch(codes, scales, ring.slot, unit);
      }
    }
  }
  wgmma_wait<0>();
  if (thread % 32 == 0) barrier_arrive(shared_address(&s.empty[slot_now]));
}

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
    barrier_wait(shared_address(&s.full[ring.slot]), ring.parity);
    const Item item = s.item[ring.slot];
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
// out bf16 [P, COLUMNS]; counter: two zeros, and zeros again afterwards
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fp4_experts(const u16* x, const int* rows, const int* starts, const u8* weights, const float* weight, u16* out,
                u32* counter, int experts) {
  extern __shared__ __align__(1024) u8 memory[];
  Shared& s = *(Shared*)memory;
  for (int e = threadIdx.x; e <= experts; e += THREADS) s.starts[e] = starts[e];
  if (threadIdx.x < SLOTS) {
    barrier_init(shared_address(&s.full[threadIdx.x]), LOADERS + 1);
    barrier_init(shared_address(&s.empty[threadIdx.x]), CONSUMER_WARPS);
    barrier_init_fence();
  }
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
