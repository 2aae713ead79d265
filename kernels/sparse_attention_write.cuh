// How sums become the result of sparse attention: divided, turned back, dims in their order again.
#pragma once

// Sums of 256 dims, as products of 128 (wider ones do not compile where a thread begins with 128 registers).
struct Sums {
  float low[64], high[64];
};
// In four lanes: lane t holds word t of groups 0..3 → all four words of group t.
DEVICE void transpose4(u32 (&w)[4], int quarter) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      u32 &low = w[bit == 1 ? 2 * pair : pair], &high = w[bit == 1 ? 2 * pair + 1 : pair + 2];
      const bool odd = quarter & bit;
      const u32 got = __shfl_xor_sync(ALL, odd ? low : high, bit);
      if (odd) low = got; else high = got;
    }
  }
}
// Cosine and sine of up to two pairs of dims. `at` is in shared memory, the sines 32 later.
struct Angle {
  float cos[2], sin[2];
};
DEVICE float load_angle(u32 at) {
  float x;
  // in its place: all at once would not fit into registers
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at));
  return x;
}
DEVICE Angle load_angles(u32 at, int quarter) {
  const u32 from = at + (ORDERED ? quarter : quarter >> 1) * 4;
  if (ORDERED) return {{load_angle(from)}, {load_angle(from + 128)}};
  return {{load_angle(from), load_angle(from + 8)}, {load_angle(from + 128), load_angle(from + 136)}};
}
// Two dims of one head (and of eight dims), turned back.
DEVICE void turn_back(float (&x)[2], const Angle& angle, int quarter) {
  if (ORDERED) {  // the two are a pair
    const float c = angle.cos[0], s = angle.sin[0], even = x[0], odd = x[1];
    x[0] = fmaf(even, c, odd * s), x[1] = fmaf(odd, c, -even * s);
  } else {  // they are dims t and t + 4, whose partners lie in the neighbouring lane
    const float sign = quarter & 1 ? -1.0f : 1.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float other = __shfl_xor_sync(ALL, x[i], 1) * sign;
      x[i] = fmaf(x[i], angle.cos[i], other * angle.sin[i]);
    }
  }
}
// 32 dims of 16 heads a warp, from four groups of sums; turned back where `angles` (in shared memory) is given.
DEVICE void write_dims(const float* sums, const float (&inverse)[2], u8* out, u32 angles, u32 row, int quarter) {
  u32 w[2][4];
#pragma unroll
  for (int g = 0; g < 4; ++g) {
    Angle angle;
    if (angles) angle = load_angles(angles + g * 16, quarter);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float x[2] = {sums[4 * g + 2 * r] * inverse[r], sums[4 * g + 2 * r + 1] * inverse[r]};
      if (angles) turn_back(x, angle, quarter);
      w[r][g] = bf16x2(x[0], x[1]);
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    u32(&v)[4] = w[r];
    transpose4(v, quarter);
    uint4 line = {v[0], v[1], v[2], v[3]};
    if (!ORDERED)
      line = {__byte_perm(v[0], v[1], 0x5410), __byte_perm(v[2], v[3], 0x5410), __byte_perm(v[0], v[1], 0x7632),
              __byte_perm(v[2], v[3], 0x7632)};
    *(uint4*)(out + (row + r * 8) * (HEAD_DIM * 2) + quarter * 16) = line;
  }
}
// Half of the dims; `out` is at the first of them. `angles` for the second half: its last 64 are turned back.
DEVICE void write_half(const Sums& sum, const float (&inverse)[2], u8* out, u32 angles, u32 row, int quarter) {
#pragma unroll
  for (int i = 0; i < 8; ++i)
    write_dims((i < 4 ? sum.low : sum.high) + 16 * (i & 3), inverse, out + i * 64,
               angles && i >= 6 ? angles + 64 * (i - 6) : 0, row, quarter);
}
