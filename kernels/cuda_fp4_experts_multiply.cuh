// Codes to bf16 in registers and their products with rows of x: what the consuming warpgroups of cuda_fp4_experts.cu repeat.

constexpr u32 DESCRIPTOR_HIGH = 0x40000040;  // 128-byte swizzle, 1,024 bytes from 8 rows of x to the next 8
// from one unit of a slot to the next: the other 64 columns, or the warpgroup's other product
constexpr u32 UNIT_CODES = PRODUCTS == 1 ? W_BYTES : 2048, UNIT_SCALES = PRODUCTS == 1 ? W_BYTES : 128;
constexpr int LAST = PRODUCTS - 1;  // the product of a slot's second unit, which reads x UNIT_X · 16 bytes further
constexpr u32 UNIT_X = PRODUCTS == 1 ? X_BYTES / 16 : 0;

// a · the low or the high half of b
DEVICE u32 mul_low(u32 a, u32 b) {
  u32 product;
  asm("{ .reg .b16 l, h; .reg .b32 t; mov.b32 {l, h}, %2; mov.b32 t, {l, l}; mul.rn.bf16x2 %0, %1, t; }" : "=r"(product) : "r"(a), "r"(b));
  return product;
}
DEVICE u32 mul_high(u32 a, u32 b) {
  u32 product;
  asm("{ .reg .b16 l, h; .reg .b32 t; mov.b32 {l, h}, %2; mov.b32 t, {h, h}; mul.rn.bf16x2 %0, %1, t; }" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// 16 codes in the bit order of fp4_expert_tiles.py as bf16 pairs of two K steps; scales: of rows g and g + 8, a bf16 each.
// Three pairs of each word are a shift (or none) and a mask away, the fourth pairs lie in the bits that both words leave.
DEVICE void decode(u32 (&a)[4], u32 (&b)[4], u32 word, u32 other, u32 scales) {
  constexpr u32 CODE = 0x81C081C0;  // sign, two exponent bits, one mantissa bit: a bf16 of 2^-126 times the value
  const u32 rest = word & 0x60306030 | other & 0x9fcf9fcf;
  a[0] = mul_low(word & CODE, scales);
  a[1] = mul_high((word << 6) & CODE, scales);
  a[2] = mul_low(__funnelshift_r(word, word, 4) & CODE, scales);
  a[3] = mul_high((rest << 2) & CODE, scales);
  b[0] = mul_low(__funnelshift_r(other, other, 2) & CODE, scales);
  b[1] = mul_high((other << 4) & CODE, scales);
  b[2] = mul_low(__funnelshift_r(other, other, 6) & CODE, scales);
  b[3] = mul_high(__funnelshift_r(rest, rest, 8) & CODE, scales);
}

// the codes and scales of one unit: 64 columns for one M of 64
struct Raw {
  uint4 code;
  u32 scales;
};

// the four K steps of one unit
DEVICE void decode_unit(u32 (&a)[4][4], const Raw& raw) {
  // byte + 126 is a bf16's exponent field: 2^(byte - 1)
  const u32 first = __byte_perm(raw.scales, 0, 0x4140) << 7, second = __byte_perm(raw.scales, 0, 0x4342) << 7;
  decode(a[0], a[1], raw.code.x, raw.code.y, first);
  decode(a[2], a[3], raw.code.z, raw.code.w, second);
}

DEVICE u32 load_shared4(u32 address) {
  u32 v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}
DEVICE Raw fetch(u32 codes, u32 scales, u32 slot, int unit) {
  return {load_shared16(codes + slot * PIECES * W_BYTES + unit * UNIT_CODES),
          load_shared4(scales + slot * PIECES * W_BYTES + unit * UNIT_SCALES)};
}
DEVICE u32 rows_at(const Shared& s, u32 slot) { return (shared_address(s.x[slot]) & 0x3ffff) >> 4 | 1 << 16; }

// sum[.., N] += the 64 weight rows of `a` · 64 columns of x at `b`; sums of every N begin at the same registers
template <int N> DEVICE void product(float (&sum)[TILE_ROWS / 2], const u32 (&a)[4][4], u32 b) {
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step)
    Wgmma<N>::rs(*(float(*)[N / 2])sum, a[step], (u64)(b + 2 * step) | (u64)DESCRIPTOR_HIGH << 32, 1);
  wgmma_commit();
}

// One item, by products of N rows of x. A unit's codes are decoded, and the next one's fetched,
// while the products of the unit before it run; with N known the compiler sets decoding between one product and the next.
template <int N> DEVICE void multiply_as(Shared& s, Ring& ring, int steps, Sums& sum) {
  const int thread = threadIdx.x % 128, group = threadIdx.x / 128;
  const u32 codes = shared_address(s.w) + group * PRODUCTS * 2048 + thread * 16;
  const u32 scales = shared_address(s.w) + CODE_BYTES + group * PRODUCTS * 128 + thread / 32 * 32 + thread % 32 / 4 * 4;
  u32 a[2][4][4], before = ring.stage;
  Raw raw = fetch(codes, scales, ring.stage, 0);
  decode_unit(a[0], raw);
  raw = fetch(codes, scales, ring.stage, 1);
#pragma unroll 1
  for (int step = 0; step < steps - 1; ++step) {
    const u32 b = rows_at(s, ring.stage);
    product<N>(sum[0], a[0], b);
    wgmma_wait<1>();  // the products that read a[1], and the slot before, are done
    if (step > 0 && thread % 32 == 0) barrier_arrive(shared_address(&s.empty[before]));
    decode_unit(a[1], raw);
    before = ring.stage;
    ring.next();
    barrier_wait(shared_address(&s.full[ring.stage]), ring.parity);
    raw = fetch(codes, scales, ring.stage, 0);
    product<N>(sum[LAST], a[1], b + UNIT_X);
    wgmma_wait<1>();
    decode_unit(a[0], raw);
    raw = fetch(codes, scales, ring.stage, 1);
  }
  const u32 b = rows_at(s, ring.stage);
  product<N>(sum[0], a[0], b);
  wgmma_wait<1>();
  if (steps > 1 && thread % 32 == 0) barrier_arrive(shared_address(&s.empty[before]));
  decode_unit(a[1], raw);
  product<N>(sum[LAST], a[1], b + UNIT_X);
  wgmma_wait<0>();
  if (thread % 32 == 0) barrier_arrive(shared_address(&s.empty[ring.stage]));
  ring.next();
}

// Widths in loops of their own: the compiler counts the sums of all loops together, and has registers for two or three.
DEVICE void multiply(Shared& s, Ring& ring, int rows, int steps, Sums& sum) {
  const int width = width_of(rows);
#if TILE_ROWS <= 40
  if (width == 8) return multiply_as<8>(s, ring, steps, sum);
#endif
  if constexpr (FEWER_ROWS < TILE_ROWS)
    if (width == FEWER_ROWS) return multiply_as<FEWER_ROWS>(s, ring, steps, sum);
  multiply_as<TILE_ROWS>(s, ring, steps, sum);
}
