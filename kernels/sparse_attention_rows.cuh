// The producers of sparse attention: queries turned and keys expanded into swizzled bf16 tiles of shared memory.
//
// A tile holds 64 rows (heads or keys) of 512 numbers as 8 columns of [64 rows, 128 bytes], each swizzled by 128
// bytes. Packed rows are expanded with dims i and i + 4 of every eight side by side (ORDERED 0): that is how FP4
// nibbles come apart in 16-bit lanes. Queries take the same order and the result goes back. Expanded keys are
// 2^-KEY_SHIFT of their value, so that one bf16 factor (2^exponents of the format, times the scale) never overflows.
#pragma once
#include "hopper.cuh"

constexpr int ORDERED = WINDOW_FORMAT == 0;
constexpr int TILE = 64, HEAD_DIM = 512, TILE_BYTES = TILE * HEAD_DIM * 2, COLUMN_BYTES = TILE * 128;
constexpr int KEY_SHIFT = ORDERED ? 0 : 24;

constexpr int PRODUCERS = 256;

struct Store {
  const u8* bytes;
  u64 block_stride;
  u32 row_stride, block_rows, inverse, shift;  // row / block_rows = row · inverse >> shift, below 2^31
  DEVICE_MEMBER u32 unit(int number) const {  // where a row begins, in 16 bytes; row 0 for hidden slots
    const u32 row = number < 0 ? 0 : number, block = (u64)row * inverse >> shift;
    return (u32)((block * block_stride + (row - block * block_rows) * row_stride) >> 4);
  }
  DEVICE_MEMBER const u8* at(u32 unit) const { return bytes + ((u64)unit << 4); }
};
// by value: a pointer to either would put both into local memory
DEVICE Store choose(bool first, const Store& a, const Store& b) {
  return {first ? a.bytes : b.bytes, first ? a.block_stride : b.block_stride, first ? a.row_stride : b.row_stride,
          first ? a.block_rows : b.block_rows, first ? a.inverse : b.inverse, first ? a.shift : b.shift};
}

DEVICE uint4 load16(const u8* from) {
  uint4 v;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
}
DEVICE u32 load2(const u8* from) {
  u32 v;  // of 32 bits at once: a conversion would wait for this load and for all behind it
  asm volatile("ld.global.nc.u16 %0, [%1];" : "=r"(v) : "l"(from));
  return v;
}
// where 8 numbers of a row lie in a tile
DEVICE u32 piece_at(u32 tile, u32 row, u32 piece) {
  return tile + (piece >> 3) * COLUMN_BYTES + row * 128 + (((piece ^ row) & 7) << 4);
}

// ---- numbers ------------------------------------------------------------------------------------------------------
// 16 codes of FP4 (8 bytes: low, high) times two group factors are 2 pieces; here one word: 8 codes
DEVICE void expand_fp4(u32 to, u32 codes, u32 factor) {
  u32 r[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    u32 magnitude = i < 2 ? codes << (6 - 4 * i) : codes >> (4 * i - 6);
    r[i] = mul_bf16x2((magnitude & 0x01c001c0) | (codes << (12 - 4 * i) & 0x80008000), factor);
  }
  store_shared16(to, r[0], r[1], r[2], r[3]);
}
// 8 codes of E4M3 in two words
DEVICE void expand_fp8(u32 to, u32 first, u32 second, u32 factor) {
  u32 r[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    u32 pair = __byte_perm(first, second, 0x4000 + i * 0x1010);  // byte i of both, in the high bytes
    r[i] = mul_bf16x2(((pair >> 4) & 0x07f007f0) | (pair & 0x80008000), factor);
  }
  store_shared16(to, r[0], r[1], r[2], r[3]);
}
// factors of a pair of E4M3 scales (two bytes): scale · 2^(126 - KEY_SHIFT); a NaN scale becomes infinite
DEVICE u32 fp4_factors(u32 bytes) {
  u32 spread = __byte_perm(bytes, 0, 0x4140) & 0x007f007f;
  u32 nan = (spread + 0x00010001) & 0x00800080;
  u32 product = mul_bf16x2(mul_bf16x2(spread << 4, power_bf16x2(120)), power_bf16x2(126 - KEY_SHIFT));
  return product | ((nan << 8) - nan);
}
// 2^(byte - 127 + 120 - KEY_SHIFT) twice; beyond bf16 infinite
DEVICE u32 fp8_factor(u32 byte) { return min(byte + 120 - KEY_SHIFT, 255u) * 0x00800080; }

// ---- queries ------------------------------------------------------------------------------------------------------
// 64 heads of one row: each thread copies the same 8 dims of 16 heads, and later turns and orders what it copied.
// Heads eight apart lie a kilobyte apart in a column of the tile.
template <int THREADS = PRODUCERS> DEVICE void request_queries(u32 tile, const u8* q, int thread) {
  const u32 piece = thread & 63;
#pragma unroll
  for (u32 first = thread >> 6; first < 8; first += THREADS / 64) {
    const u32 to = piece_at(tile, first, piece);
    const u8* from = q + first * (HEAD_DIM * 2) + piece * 16;
#pragma unroll
    for (int i = 0; i < 8; ++i) async_copy16(to + i * 1024, from + i * 8 * (HEAD_DIM * 2));
  }
  async_commit();
}
// cosines and sines of the last 64 dims, by every thread that turns dims
DEVICE void request_angles(u32 angles, const float* rope, int thread) {
  const int piece = (thread & 63) - 56;
  if (piece < 0) return;
  async_copy16(angles + piece * 16, rope + piece * 4);
  async_copy16(angles + 128 + piece * 16, rope + 32 + piece * 4);
  async_commit();
}
DEVICE void load_words(u32 at, u32 (&w)[4]) {
  const uint4 v = load_shared16(at);
  w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
}
template <int THREADS = PRODUCERS> DEVICE void finish_queries(u32 tile, u32 angles, int thread) {
  const u32 piece = thread & 63;
  const bool turned = piece >= 56;
  if (ORDERED && !turned) return;
  u32 cos[4], sin[4];
  if (turned) load_words(angles + (piece - 56) * 16, cos), load_words(angles + 128 + (piece - 56) * 16, sin);
#pragma unroll 1
  for (u32 first = thread >> 6; first < 8; first += THREADS / 64) {
    const u32 start = piece_at(tile, first, piece);
#pragma unroll 4
    for (u32 at = start; at < start + 8 * 1024; at += 1024) {
      u32 w[4];
      load_words(at, w);
      if (turned) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float even = bf16_low(w[i]), odd = bf16_high(w[i]);
          const float c = __uint_as_float(cos[i]), s = __uint_as_float(sin[i]);
          w[i] = bf16x2(even * c - odd * s, odd * c + even * s);
        }
      }
      if (ORDERED)
        store_shared16(at, w[0], w[1], w[2], w[3]);
      else
        store_shared16(at, __byte_perm(w[0], w[2], 0x5410), __byte_perm(w[0], w[2], 0x7632), __byte_perm(w[1], w[3], 0x5410),
                __byte_perm(w[1], w[3], 0x7632));
    }
  }
}

// ---- packed keys --------------------------------------------------------------------------------------------------
// The producers keep 64 whole FP4 rows, or half of 64 FP8 rows, in registers while these arrive. Lane l takes row l %
// 8 of its warp's eight and 16-byte pieces l / 8, l / 8 + 4, …: 64 bytes in a row for memory, 8 rows for the banks.
// Scales: two E4M3 of a piece of 32 FP4 dims; two E8M0, of which one is that of a piece of 16 FP8 dims.
struct Unit {
  uint4 codes[4];
  u32 scales[4];
};
DEVICE void load_piece(Unit& unit, int i, const u8* row, bool fp4, int half, int group) {
  unit.codes[i] = load16(row + half * 256 + (group + i * 4) * 16);
  unit.scales[i] = load2(row + (fp4 ? 256 + (group + i * 4) * 2 : 512 + half * 8 + i * 2));
}
// A piece that has arrived → its place in a row of the tile, at `at` + its columns.
template <bool FP4> DEVICE void expand_piece(u32 at, const uint4& codes, u32 scales, u32 mask, int group) {
  if (FP4) {
    const u32 factors = fp4_factors(scales) & mask;
    const u32 low = __byte_perm(factors, 0, 0x1010), high = __byte_perm(factors, 0, 0x3232);
    expand_fp4(at, codes.x, low);
    expand_fp4(at ^ 16, codes.y, low);
    expand_fp4(at ^ 32, codes.z, high);
    expand_fp4(at ^ 48, codes.w, high);
  } else {
    const u32 factor = fp8_factor(scales >> (group >> 1) * 8 & 0xff) & mask;
    expand_fp8(at, codes.x, codes.y, factor);
    expand_fp8(at ^ 16, codes.z, codes.w, factor);
  }
}
// Expands dims 256 · half … of what has arrived into a row of the tile; of FP8 rows, `from` where they begin, the second
// half takes the place of the first, piece by piece.
template <bool FP4>
DEVICE void expand_half(u32 tile, u32 row, Unit& unit, int half, bool seen, const u8* from, int group) {
  const u32 mask = seen ? ~0u : 0;
  const u32 at = piece_at(tile, row, group * (FP4 ? 4 : 2)) + half * 4 * COLUMN_BYTES;
#pragma unroll
  for (int i = 0; i < (FP4 ? 2 : 4); ++i) {
    const int piece = FP4 ? half * 2 + i : i;
    expand_piece<FP4>(at + i * (FP4 ? 2 : 1) * COLUMN_BYTES, unit.codes[piece], unit.scales[piece], mask, group);
    if (!FP4 && half == 0) load_piece(unit, piece, from, false, 1, group);
  }
}
