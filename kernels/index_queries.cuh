// Queries and keys of the index score kernel in the two forms that the tensor cores multiply exactly.
//
// e4m3: a head's largest element is put at 2^8 or 1.5 · 2^8; e2m1 codes are e4m3 numbers times 2^6. Each group of 32 dims is
//   multiplied apart (its sum is a multiple of one power of two below 2^13 of it) and its scale is applied in float32.
// int8: where the four groups of a key, and of every head of a query, lie within a factor of 8, their codes are integers up to
//   96 on one scale, and the whole product of 128 dims is one exact integer below 2^21.
// Where both apply, the float32 sums of the first are exact too: both give the same bits.
#pragma once
#include "index_work.cuh"

constexpr int CODE_BIAS = 6;       // an e2m1 code in e4m3's bits reads 2^-6 of its value
constexpr int INTEGER_BITS = 14;   // sums of the integer form, 2^22 divided out, times 2^14 are those of the other
constexpr int QUERY_EXPONENT = 8;  // where a head's largest query element is put in e4m3, which ends at 448
constexpr int SPREAD = 3;          // binades between a key's groups that int8 allows

struct Queries {
  u8 *floats, *integers;  // [rows][32 heads][128], swizzled, dims in the order of the keys' decoding
  float* weights;         // [rows][32], times the power of two that a head was divided by
  int *integral, *visible;  // [rows]
};

DEVICE u32 e4m3x4(float a, float b, float c, float d) {
  u16 low, high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
  return low | (u32)high << 16;
}

// four whole numbers as bytes; `whole` is cleared where they are not
DEVICE u32 int8x4(float a, float b, float c, float d, bool& whole) {
  int w = __float2int_rn(a), x = __float2int_rn(b), y = __float2int_rn(c), z = __float2int_rn(d);
  whole = whole && (float)w == a && (float)x == b && (float)y == c && (float)z == d;
  return (w & 255) | (x & 255) << 8 | (y & 255) << 16 | (u32)z << 24;
}

// All consumers call this; barrier 1 is theirs.
DEVICE void load_queries(const Problem& p, const Item& item, const Queries& queries) {
  named_sync(1, CONSUMERS);  // the last item's queries are not read any more
  if (threadIdx.x < ROWS) {
    queries.integral[threadIdx.x] = ROWS > 1;
    queries.visible[threadIdx.x] = (int)threadIdx.x < item.rows ? visible_of(p, item.row + threadIdx.x) : 0;
  }
  named_sync(1, CONSUMERS);
  for (int task = threadIdx.x; task < item.rows * HEADS * 16; task += CONSUMERS) {
    int chunk = task & 15, head = task >> 4 & 31, row = task >> 9;
    long long line = (long long)(item.row + row) * HEADS + head;
    uint4 raw = *(const uint4*)(p.q + line * DIMS + chunk * 8);
    float x[8] = {bf16_low(raw.x), bf16_high(raw.x), bf16_low(raw.y), bf16_high(raw.y),
                  bf16_low(raw.z), bf16_high(raw.z), bf16_low(raw.w), bf16_high(raw.w)};
    u32 largest = 0;  // magnitudes are ordered as their bits are
    for (int i = 0; i < 8; i++) largest = max(largest, __float_as_uint(x[i]) & 0x7fffffff);
    for (int step = 1; step < 16; step *= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, step));
    int exponent = min(QUERY_EXPONENT + 127 - (int)(largest >> 23), 127);
    float factor = __uint_as_float((u32)(exponent + 127) << 23);
    for (int i = 0; i < 8; i++) x[i] *= factor;
    u32 offset = row * QUERY_BYTES + head * DIMS + (chunk >> 2) * 32 + (chunk & 3) * 4;
    u32 first = swizzle128(offset), second = swizzle128(offset + 16);
    *(u32*)(queries.floats + first) = e4m3x4(x[0], x[2], x[4], x[6]);
    *(u32*)(queries.floats + second) = e4m3x4(x[1], x[3], x[5], x[7]);
    if (ROWS > 1) {
      bool whole = true;
      for (int i = 0; i < 8; i++) x[i] *= 0.25f;  // 2^6 or 1.5 · 2^6 at most
      *(u32*)(queries.integers + first) = int8x4(x[0], x[1], x[2], x[3], whole);
      *(u32*)(queries.integers + second) = int8x4(x[4], x[5], x[6], x[7], whole);
      if (!whole) queries.integral[row] = 0;
    }
    if (chunk == 0) {
      float weight = p.weight_is_bf16 ? bf16_low(((const u16*)p.weight)[line]) : ((const float*)p.weight)[line];
      float power = __uint_as_float((u32)(CODE_BIAS - exponent + 127) << 23);
      queries.weights[row * HEADS + head] = largest < 0x7f800000 ? weight * power : __uint_as_float(0x7fc00000);
    }
  }
  fence_shared_for_async();
  named_sync(1, CONSUMERS);
}

// ---- keys: a thread's are number 4·(lane / 4) + c of its warp's 32, c = 0 … 3; two of them a product of 64 ----------------------
DEVICE u32 largest_byte(u32 bytes) { return max(max(bytes & 255, bytes >> 8 & 255), max(bytes >> 16 & 255, bytes >> 24)); }
DEVICE u32 smallest_byte(u32 bytes) { return min(min(bytes & 255, bytes >> 8 & 255), min(bytes >> 16 & 255, bytes >> 24)); }

DEVICE const u32* thread_keys(const u32* tile) {
  return tile + ((threadIdx.x >> 5 & 3) * 32 + (threadIdx.x & 28)) * ROW_WORDS + (threadIdx.x & 3);
}

// The scale byte pattern of key `lane` of this warp's 32.
DEVICE u32 scale_bytes(const u32* tile) { return tile[(threadIdx.x & 127) * ROW_WORDS + 16]; }
DEVICE bool within_spread(u32 bytes) { return largest_byte(bytes) - smallest_byte(bytes) <= SPREAD; }
// what the integer form's sums are multiples of; NaN where the key's bytes say so
DEVICE float unit_of(u32 bytes) {
  u32 byte = largest_byte(bytes);
  return __uint_as_float(byte == 255 ? 0x7fc00000 : byte << 23) * (1 << INTEGER_BITS);
}

struct FloatKeys {
  u32 codes[2][GROUPS][4];
  float scale[2][2][GROUPS];
};

DEVICE void decode_half(FloatKeys& keys, int half, const u32* tile) {
  const u32* first = thread_keys(tile) + half * 2 * ROW_WORDS;
#pragma unroll
  for (int side = 0; side < 2; side++) {
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
      u32 word = first[side * ROW_WORDS + g * 4];
      keys.codes[half][g][side] = (word << 4 & 0x80808080) | (word << 2 & 0x1c1c1c1c);  // even dims
      keys.codes[half][g][side + 2] = (word & 0x80808080) | (word >> 2 & 0x1c1c1c1c);   // odd dims
    }
    u32 bytes = first[side * ROW_WORDS + 16 - (threadIdx.x & 3)];
    float* scale = keys.scale[half][side];
    scale[0] = __uint_as_float(bytes << 23 & 0x7f800000), scale[1] = __uint_as_float(bytes << 15 & 0x7f800000);
    scale[2] = __uint_as_float(bytes << 7 & 0x7f800000), scale[3] = __uint_as_float(bytes >> 1 & 0x7f800000);
  }
}

DEVICE u32 perm(u32 low, u32 high, u32 selector) {
  u32 bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
  return bytes;
}

DEVICE void decode_integers(u32 (&codes)[2][GROUPS][4], const u32* tile) {
#pragma unroll
  for (int c = 0; c < 4; c++) {
    const u32* first = thread_keys(tile) + c * ROW_WORDS;
    u32 bytes = first[16 - (threadIdx.x & 3)], offset = SPREAD - largest_byte(bytes);
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
      u32 word = first[g * 4], other = word ^ 0x88888888, shift = (bytes >> (8 * g) & 255) + offset;
      u32 low = 0x03020100u << shift, high = 0x0c080604u << shift;  // twice the magnitudes 0 … 6
      // a selector's sign bit yields the sign of the table's byte, 0: positive codes here, negative ones there
      u32 left = perm(low, high, word) + 0x80808080 - perm(low, high, other);
      u32 right = perm(low, high, word >> 16) + 0x80808080 - perm(low, high, other >> 16);
      codes[c / 2][g][c % 2] = left ^ 0x80808080;
      codes[c / 2][g][c % 2 + 2] = right ^ 0x80808080;
    }
  }
}
