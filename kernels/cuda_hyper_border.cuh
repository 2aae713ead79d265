// What both schedules of the hyper-connection border share: the same operations in the same order, so the same bits.
//
// A unit is 32 columns of all four streams. A warp holds 16 rows of it: lane 4g + q holds rows g and g + 8, columns 8q to 8q + 7.
// That is a fragment of two 16 × 8 × 16 products once the k order is permuted, which the prepared weights also are.
// Sums, in float32 and each from first to last: two pairs of streams make a unit, units a group, two groups a slice, slices a row.
#pragma once
#include "hopper.cuh"

#ifndef HIDDEN
#define HIDDEN 5120
#endif
#ifndef MIX
#define MIX 1  // 0: x stays as it is, there is no sublayer's output
#endif

#define STREAMS 4
#define UNIT 32
#define SLICES 16
#define GROUPS (2 * SLICES)
#define UNITS (HIDDEN / UNIT)
#define GROUP_UNITS (UNITS / GROUPS)
#define BAND 16        // rows of a product
#define OUTPUTS 24     // raw coefficients: read, write, mixing
#define TILES 9        // 8 outputs each: three of the high parts of fn, then three of the middle, then three of the low
#define SQUARES_X 24   // places behind the raw coefficients in a row of sums
#define SQUARES_U 25
#define SUMS 28
#define PAIR_BYTES (2 * TILES * 32 * 16)  // prepared weights of two streams of a unit

struct Border {
  const u16 *x, *f;
  const float *read, *mixing, *write;  // of the site that ends here
  const u8* parts;                     // prepared fn of the site that begins here
  const float *base, *scale;
  const u16* norm_weight;
  u16 *new_x, *collapsed, *normed, *quantised;  // any but `normed` may be null
  float *new_read, *new_mixing, *new_write;
  int rows;
  float norm_eps, eps;
  int iterations;
};
#define BORDER_PARAMETERS                                                                                                      \
  const u16 *x, const u16 *f, const float *read, const float *mixing, const float *write, const u8 *parts, const float *base,    \
      const float *scale, const u16 *norm_weight, u16 *new_x, u16 *collapsed_x, u16 *normed, u16 *quantised, float *new_read,    \
      float *new_mixing, float *new_write, int rows, float norm_eps, float eps, int iterations
#define BORDER                                                                                                              \
  { x, f, read, mixing, write, parts, base, scale, norm_weight, new_x, collapsed_x, normed, quantised, new_read, new_mixing,  \
    new_write, rows, norm_eps, eps, iterations }

struct RowFactors {
  float read[STREAMS], write[STREAMS], mixing[STREAMS][STREAMS];
};
struct Loaded {
  uint4 x[STREAMS], f;
};
struct Mixed {
  u32 x[2][STREAMS][4], u[2][4];  // pairs of bf16
};
struct Sums {
  float raw[3][4];     // tile of 8 outputs, element of the fragment
  float x[2], u[2];    // squares, by row
};

// the compiler may move other accesses across this: nothing here reads what it writes
DEVICE void store16(void* address, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(a), "r"(b), "r"(c), "r"(d));
}
DEVICE float quad_sum(float x) {
  x = __fadd_rn(x, __shfl_xor_sync(~0u, x, 1));
  return __fadd_rn(x, __shfl_xor_sync(~0u, x, 2));
}
DEVICE u32 word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

DEVICE void load4(float* to, const float* from) { *(float4*)to = *(const float4*)from; }
// of one row
DEVICE RowFactors load_factors(const float* read, const float* write, const float* mixing) {
  RowFactors factors;
  load4(factors.read, read);
#if MIX
  load4(factors.write, write);
#pragma unroll
  for (int m = 0; m < STREAMS; m++) load4(factors.mixing[m], mixing + m * STREAMS);
#endif
  return factors;
}

// row r of a lane's two, 8 columns: x' = write · f + Σ mixing · x in bf16; u = Σ read · x' in bf16; squares of both: those of x' by
// pair of streams
DEVICE void mix_row(Mixed& mixed, int r, const Loaded& l, const RowFactors& factors, float (&squares_x)[2], float& squares_u) {
  squares_x[0] = squares_x[1] = squares_u = 0.f;
#pragma unroll
  for (int j = 0; j < 4; j++) {
    float u_low = 0.f, u_high = 0.f;
#pragma unroll
    for (int n = 0; n < STREAMS; n++) {
#if MIX
      float low = __fmul_rn(factors.write[n], bf16_low(word(l.f, j)));
      float high = __fmul_rn(factors.write[n], bf16_high(word(l.f, j)));
#pragma unroll
      for (int m = 0; m < STREAMS; m++) {
        low = __fmaf_rn(factors.mixing[m][n], bf16_low(word(l.x[m], j)), low);
        high = __fmaf_rn(factors.mixing[m][n], bf16_high(word(l.x[m], j)), high);
      }
      const u32 pair = bf16x2(low, high);
#else
      const u32 pair = word(l.x[n], j);
#endif
      mixed.x[r][n][j] = pair;
      u_low = __fmaf_rn(factors.read[n], bf16_low(pair), u_low);
      u_high = __fmaf_rn(factors.read[n], bf16_high(pair), u_high);
      squares_x[n / 2] = __fmaf_rn(bf16_low(pair), bf16_low(pair), squares_x[n / 2]);
      squares_x[n / 2] = __fmaf_rn(bf16_high(pair), bf16_high(pair), squares_x[n / 2]);
    }
    const u32 u = bf16x2(u_low, u_high);
    mixed.u[r][j] = u;
    squares_u = __fmaf_rn(bf16_low(u), bf16_low(u), squares_u);
    squares_u = __fmaf_rn(bf16_high(u), bf16_high(u), squares_u);
  }
}

DEVICE void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// raw coefficients of streams 2 · pair and 2 · pair + 1; `weights` are their prepared bytes in shared memory
DEVICE void multiply_pair(float (&raw)[3][4], const Mixed& mixed, int pair, const u8* weights, int lane) {
  float high[3][4] = {}, rest[3][4] = {};
#pragma unroll
  for (int n = 2 * pair; n < 2 * pair + 2; n++)
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
      const uint4 w = *(const uint4*)(weights + ((n % 2 * TILES + tile) * 32 + lane) * 16);
#pragma unroll
      for (int half = 0; half < 2; half++)
        multiply(tile < 3 ? high[tile] : rest[tile % 3], mixed.x[0][n][2 * half], mixed.x[1][n][2 * half],
                 mixed.x[0][n][2 * half + 1], mixed.x[1][n][2 * half + 1], word(w, 2 * half), word(w, 2 * half + 1));
    }
#pragma unroll
  for (int i = 0; i < 12; i++) raw[i / 4][i % 4] = __fadd_rn(rest[i / 4][i % 4], high[i / 4][i % 4]);
}
DEVICE void add_sums(Sums& total, const Sums& more) {
#pragma unroll
  for (int i = 0; i < 12; i++) total.raw[i / 4][i % 4] = __fadd_rn(total.raw[i / 4][i % 4], more.raw[i / 4][i % 4]);
#pragma unroll
  for (int r = 0; r < 2; r++) total.x[r] = __fadd_rn(total.x[r], more.x[r]), total.u[r] = __fadd_rn(total.u[r], more.u[r]);
}
// into rows of SUMS floats in shared memory
DEVICE void write_sums(float* at, const Sums& sums, int lane) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float* row = at + (lane / 4 + 8 * r) * SUMS;
#pragma unroll
    for (int tile = 0; tile < 3; tile++)
      *(float2*)(row + tile * 8 + lane % 4 * 2) = make_float2(sums.raw[tile][2 * r], sums.raw[tile][2 * r + 1]);
    if (lane % 4 == 0) row[SQUARES_X] = sums.x[r];
    if (lane % 4 == 1) row[SQUARES_U] = sums.u[r];
  }
}
