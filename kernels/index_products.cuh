// Products of 64 keys with queries, and what is made of them.
#pragma once
#include "index_queries.cuh"

constexpr int PACK = 2;  // rows of an integer product

// d[heads] = 64 keys · 32 heads of one group of dims
DEVICE void float_product(float (&d)[16], const u32* a, u64 b) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, p, 1, 1; }"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7]), "=f"(d[8]), "=f"(d[9]),
        "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]), "=f"(d[14]), "=f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// d[PACK rows · heads] += 64 keys · heads of PACK rows, of one group; from zero unless `more`
DEVICE void integer_product(int (&d)[PACK * 16], const u32* a, u64 b, int more) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29"
      ",%30,%31}, "
      "{%32,%33,%34,%35}, %36, p; }"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]), "+r"(d[8]),
        "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15]), "+r"(d[16]),
        "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]), "+r"(d[21]), "+r"(d[22]), "+r"(d[23]), "+r"(d[24]),
        "+r"(d[25]), "+r"(d[26]), "+r"(d[27]), "+r"(d[28]), "+r"(d[29]), "+r"(d[30]), "+r"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));
}

// The descriptor of one group of dims of the queries at `query`, 128-byte swizzle, 1024 bytes from 8 heads to the next.
DEVICE u64 query_group(u32 query, int g) { return (u64)((query >> 4) + 2 * g | 1 << 16) | (u64)(1024 >> 4 | 1 << 30) << 32; }

template <int PENDING, class Sums> DEVICE void await(Sums& d) {
  wgmma_wait<PENDING>();
  settle(d);
}

DEVICE void load_weights(const float* weights, float2 (&weight)[4]) {
#pragma unroll
  for (int n = 0; n < 4; n++) weight[n] = *(const float2*)(weights + n * 8 + (threadIdx.x & 3) * 2);
}

DEVICE void issue_group(float (&d)[16], const u32 (&codes)[4], u64 query) {
  wgmma_fence();
  float_product(d, codes, query);
  wgmma_commit();
}

DEVICE float fma_saturated(float a, float b, float c) {
  float result;
  asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(result) : "f"(a), "f"(b), "f"(c));
  return result;
}

// dots += products of a group, scaled. The last one cuts negative sums to 0 by saturation: all are below 1.
template <int G> DEVICE void fold_group(const float (&d)[16], float (&dots)[16], const float4 (&scales)[2]) {
#pragma unroll
  for (int i = 0; i < 16; i++) {
    float4 four = scales[i >> 1 & 1];
    if (G == 0) dots[i] = d[i] * four.x;
    if (G == 1) dots[i] = fmaf(d[i], four.y, dots[i]);
    if (G == 2) dots[i] = fmaf(d[i], four.z, dots[i]);
    if (G == 3) dots[i] = fma_saturated(d[i], four.w, dots[i]);
  }
}

// relu of the dot products of 64 keys with 32 heads. Each version fits the registers that its number of warpgroups leaves.
#if WARPGROUPS < 4
DEVICE void dot_products(float (&dots)[16], const u32 (&codes)[GROUPS][4], const float4* scales, u32 query) {
  float d[GROUPS][16];
  wgmma_fence();
#pragma unroll
  for (int g = 0; g < GROUPS; g++) float_product(d[g], codes[g], query_group(query, g));
  wgmma_commit();
  float4 scale[2] = {scales[0], scales[1]};
#pragma unroll
  for (int g = 0; g < GROUPS; g++) await<0>(d[g]);
  fold_group<0>(d[0], dots, scale);
  fold_group<1>(d[1], dots, scale);
  fold_group<2>(d[2], dots, scale);
  fold_group<3>(d[3], dots, scale);
}
#else  // two groups at a time: one is multiplied while the other is folded
DEVICE void dot_products(float (&dots)[16], const u32 (&codes)[GROUPS][4], const float4* scales, u32 query) {
  float d[2][16];
  issue_group(d[0], codes[0], query_group(query, 0));
  issue_group(d[1], codes[1], query_group(query, 1));
  float4 scale[2] = {scales[0], scales[1]};
  await<1>(d[0]);
  fold_group<0>(d[0], dots, scale);
  issue_group(d[0], codes[2], query_group(query, 2));
  await<1>(d[1]);
  fold_group<1>(d[1], dots, scale);
  issue_group(d[1], codes[3], query_group(query, 3));
  await<1>(d[0]);
  fold_group<2>(d[0], dots, scale);
  await<0>(d[1]);
  fold_group<3>(d[1], dots, scale);
}
#endif

// Σ weight · dot over this thread's eight heads, in order.
DEVICE float weighted(const float (&dots)[16], int side, const float2 (&weight)[4]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; i++)
    sum = fmaf(dots[(i >> 1) * 4 + side * 2 + (i & 1)], i & 1 ? weight[i >> 1].y : weight[i >> 1].x, sum);
  return sum;
}

// The same from integers. An integer's bits read as a float are n · 2^-149 for n ≥ 0 and NaN for n < 0, which saturates to 0:
// one multiplication by 2^127 is conversion and relu.
DEVICE float fold_integers(const int* d, int side, const float2 (&weight)[4]) {
  float sum = 0;
#pragma unroll
  for (int n = 0; n < 4; n++)
#pragma unroll
    for (int b = 0; b < 2; b++) {
      float shown;
      asm("mul.rn.sat.f32 %0, %1, %2;" : "=f"(shown) : "f"(__int_as_float(d[n * 4 + side * 2 + b])), "f"(0x1p127f));
      sum = fmaf(shown, b ? weight[n].y : weight[n].x, sum);
    }
  return sum;
}

// Four sums of four lanes, one a lane.
DEVICE float across_lanes(const float* total) {
  bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
  float low = (odd ? total[1] : total[0]) + __shfl_xor_sync(~0u, odd ? total[0] : total[1], 1);
  float high = (odd ? total[3] : total[2]) + __shfl_xor_sync(~0u, odd ? total[2] : total[3], 1);
  return (upper ? high : low) + __shfl_xor_sync(~0u, upper ? low : high, 2);
}
