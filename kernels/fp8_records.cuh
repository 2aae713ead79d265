// Records of 64 × 64 E4M3 codes with four power-of-two scales, and their way into wgmma's A operand in registers.
//
// A record: for each half of the 64 columns, 16 bytes of each of a warpgroup's 128 threads; then, for each half of the rows, the two
// scales of its 32 × 32 blocks as bf16 pairs, times 2^120.
#pragma once
#include "hopper.cuh"

constexpr int STEP = 64;                              // columns
constexpr int RECORD = 64 * STEP + 16;                // bytes

// volatile: it stays between the products where it is put
DEVICE u32 scaled(u32 a, u32 scale) {
  u32 product;
  asm volatile("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(scale));
  return product;
}

// Four codes as bf16: exponent and mantissa go to bf16's own places, `scale` is 2^120 times the block's scale. Subnormal codes are
// subnormal bf16 then, and come out right too. `upper` has its bits in place; those of `lower` fill the gaps between them.
DEVICE void decode(u32 word, u32 scale, u32& upper, u32& lower) {
  u32 turned = __funnelshift_r(word, word, 4);
  upper = scaled(word & 0x87f087f0u, scale);
  lower = scaled((turned & 0x87808780u) | ((word << 4) & 0x00700070u), scale);
}

// one thread's part of a record
struct Words {
  uint4 half[2];
  uint2 scales;

  DEVICE_MEMBER void load(const u8* record, int thread) {
    half[0] = *(const uint4*)(record + thread * 16);
    half[1] = *(const uint4*)(record + 2048 + thread * 16);
    scales = *(const uint2*)(record + 64 * STEP + thread / 64 * 8);
  }
  // the operand of the k-th 16 columns
  DEVICE_MEMBER void decode_at(int k, u32 (&a)[4]) const {
    uint4 words = half[k / 2];
    u32 scale = k / 2 ? scales.y : scales.x;
    decode(k % 2 ? words.z : words.x, scale, a[0], a[1]);
    decode(k % 2 ? words.w : words.y, scale, a[2], a[3]);
  }
};
