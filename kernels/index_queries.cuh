// Queries and keys of the index score kernel in the two forms that the tensor cores multiply exactly.
//
// e4m3: a head's largest element is put at 2^8 or 1.5 · 2^8; e2m1 codes are e4m3 numbers times 2^6. Each group of 32 dims is
//   multiplied apart (its sum is a multiple of one power of two below 2^13 of it) and its scale is applied in float32. Scales are
//   divided by the key's largest; a group counts nothing where its scale is less than 2^-113 of that.
// int8: where the four groups of a key, and of every head of a query, lie within a factor of 8, their codes are integers up to
//   96 on one scale, and the whole product of 128 dims is one exact integer below 2^21.
// Where both apply, the float32 sums of the first are exact too: both give the same bits.
#pragma once
#include "index_work.cuh"

constexpr int CODE_BIAS = 6;       // an e2m1 code in e4m3's bits reads 2^-6 of its value
constexpr int FLOAT_BITS = 13;     // 2^13 is divided out of the sums of the e4m3 form: they are below 1
constexpr int INTEGER_BITS = 14;   // 2^22 is, of the integer form's, whose numbers are 2^8 times the others
constexpr int QUERY_EXPONENT = 8;  // where a head's largest query element is put in e4m3, which ends at 448
constexpr int SPREAD = 3;          // binades between a key's groups that int8 allows

struct Queries {
  u8 *floats, *integers;  // [rows][32 heads][128], swizzled, dims in the order of the keys' decoding
  float4* scales;         // [consumers]: of a key a thread, of the tile at work
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

// Writes eight elements of a head in both forms; 16 lanes have a head.
DEVICE void convert_piece(const Queries& queries, int task, uint4 raw, float weight) {
  int chunk = task & 15, head = task >> 4 & 31, row = task >> 9;
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
  float power = __uint_as_float((u32)(CODE_BIAS - exponent + 127) << 23);
  if (chunk == 0) queries.weights[row * HEADS + head] = largest < 0x7f800000 ? weight * power : __uint_as_float(0x7fc00000);
}

// All consumers call this; barrier 1 is theirs. Several loads are under way at a time.
DEVICE void load_queries(const Problem& p, const Item& item, const Queries& queries) {
  constexpr int BATCH = ROWS == 1 ? 2 : 4;
  named_sync(1, CONSUMERS);  // the last item's queries are not read any more
  if (threadIdx.x < ROWS) {
    queries.integral[threadIdx.x] = ROWS > 1;
    queries.visible[threadIdx.x] = (int)threadIdx.x < item.rows ? visible_of(p, item.row + threadIdx.x) : 0;
  }
  named_sync(1, CONSUMERS);
  int tasks = item.rows * HEADS * 16;
  for (int first = threadIdx.x; first < tasks; first += BATCH * CONSUMERS) {
    uint4 raw[BATCH];
    float weight[BATCH];
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
      int task = min(first + b * CONSUMERS, tasks - 1);
      long long line = (long long)item.row * HEADS + (task >> 4);
      raw[b] = *(const uint4*)(p.q + line * DIMS + (task & 15) * 8);
      weight[b] = p.weight_is_bf16 ? bf16_low(((const u16*)p.weight)[line]) : ((const float*)p.weight)[line];
    }
#pragma unroll
    for (int b = 0; b < BATCH; b++)
      if (first + b * CONSUMERS < tasks) convert_piece(queries, first + b * CONSUMERS, raw[b], weight[b]);
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
// A sum that had 2^bits divided out, times the key's largest scale; NaN where one of the scales is.
DEVICE float times_unit(float sum, int bits, u32 bytes) {
  u32 byte = largest_byte(bytes);
  return sum * (float)(1 << bits) * __uint_as_float(byte == 255 ? 0x7fc00000 : byte << 23);
}

// The scales of this thread's key, divided by the largest and by 2^FLOAT_BITS, for the four lanes that multiply it.
DEVICE void share_scales(float4* scales, u32 bytes) {
  int lift = (int)((127 - FLOAT_BITS - largest_byte(bytes)) << 23);
  auto scale = [&](u32 exponent) { return __int_as_float(max((int)(exponent & 0x7f800000) + lift, 0)); };
  scales[threadIdx.x] = make_float4(scale(bytes << 23), scale(bytes << 15), scale(bytes << 7), scale(bytes >> 1));
  __syncwarp();
}
// of this thread's two keys of a half
DEVICE const float4* shared_scales(const float4* scales, int half) { return scales + (threadIdx.x & ~3) + half * 2; }

// codes of 64 keys, two a thread
DEVICE void decode_half(u32 (&codes)[GROUPS][4], int half, const u32* tile) {
  const u32* first = thread_keys(tile) + half * 2 * ROW_WORDS;
#pragma unroll
  for (int side = 0; side < 2; side++) {
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
      u32 word = first[side * ROW_WORDS + g * 4];
      codes[g][side] = (word << 4 & 0x80808080) | (word << 2 & 0x1c1c1c1c);  // even dims
      codes[g][side + 2] = (word & 0x80808080) | (word >> 2 & 0x1c1c1c1c);   // odd dims
    }
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
