// Philox4x32-10 at counters (position low, position high, counter, stream) with the seed as key, and the noise of tokens.
//
// A token has 52 bits. The 16 high ones are piece t % 8 of the block at counter t / 8, so a thread of eight neighbours draws one
// block for all of them; the 36 low ones are the top of half t % 2 of the block at counter t / 2 | FINE, and only tokens that may
// win by their high bits need them. What depends on the row alone is computed once.
#pragma once
#include "hopper.cuh"

struct Philox {
  u32 first, second, second_low, third, third_low;  // what the tokens' products of rounds 1 to 3 are combined with
  u32 key0, key1;                                   // of round 3
};

constexpr u32 WEYL0 = 0x9E3779B9u, WEYL1 = 0xBB67AE85u;
constexpr u64 FACTOR0 = 0xD2511F53u, FACTOR1 = 0xCD9E8D57u;

DEVICE Philox philox_row(u64 seed, u64 position, u32 stream) {
  u32 key0 = (u32)seed, key1 = (u32)(seed >> 32);
  u64 product = FACTOR0 * (u32)position;
  Philox row;
  row.first = (u32)(position >> 32) ^ key0;
  u32 c2 = (u32)(product >> 32) ^ stream ^ key1, c3 = (u32)product;
  key0 += WEYL0, key1 += WEYL1;
  product = FACTOR1 * c2;
  row.second = (u32)(product >> 32) ^ key0;
  row.second_low = c3 ^ key1;
  key0 += WEYL0, key1 += WEYL1;
  row.third = (u32)product ^ key0;
  row.third_low = key1;
  row.key0 = key0, row.key1 = key1;
  return row;
}

DEVICE u32 high_half(u64 x) { return (u32)(x >> 32); }

DEVICE void philox_block(const Philox& row, u32 counter, u32 words[4]) {
  u64 p2 = FACTOR1 * counter, p0 = FACTOR0 * (high_half(p2) ^ row.first);
  u32 c0 = (u32)p2 ^ row.second, c2 = high_half(p0) ^ row.second_low, c3 = (u32)p0;
  p0 = FACTOR0 * c0, p2 = FACTOR1 * c2;
  c0 = high_half(p2) ^ row.third, c2 = high_half(p0) ^ c3 ^ row.third_low, c3 = (u32)p0;
  u32 c1 = (u32)p2, key0 = row.key0, key1 = row.key1;
#pragma unroll
  for (int round = 4; round <= 10; round++) {
    key0 += WEYL0, key1 += WEYL1;
    p0 = FACTOR0 * c0, p2 = FACTOR1 * c2;
    c0 = high_half(p2) ^ c1 ^ key0, c2 = high_half(p0) ^ c3 ^ key1;
    c1 = (u32)p2, c3 = (u32)p0;
  }
  words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

constexpr u32 FINE = 1u << 31;

// the high bits of the eight neighbours that `token` is one of, two in each word
DEVICE void high_bits(const Philox& row, u32 token, u32 words[4]) { philox_block(row, token >> 3, words); }
DEVICE u32 high_of(const u32 words[4], int j) {
  u32 low = j & 2 ? words[1] : words[0], high = j & 2 ? words[3] : words[2], word = j & 4 ? high : low;
  return j & 1 ? word >> 16 : word & 0xffff;
}
// all 52 bits of a token with these high ones
DEVICE u64 with_low_bits(const Philox& row, u32 token, u32 high) {
  u32 words[4];
  philox_block(row, token >> 1 | FINE, words);
  u32 first = token & 1 ? words[2] : words[0], second = token & 1 ? words[3] : words[1];
  return (u64)high << 36 | (u64)first << 4 | second >> 28;
}
DEVICE u32 high_bits(const Philox& row, u32 token) {
  u32 words[4];
  high_bits(row, token, words);
  return high_of(words, token & 7);
}
DEVICE u64 noise_bits(const Philox& row, u32 token) { return with_low_bits(row, token, high_bits(row, token)); }

// Gumbel noise in float64: u is an odd multiple of 2^-53
DEVICE double gumbel(u64 bits) { return -log(-log((2.0 * (double)bits + 1.0) * 0x1p-53)); }

// the same in float32: 1 - u keeps its precision where u is near 1, which is where winners are
DEVICE float gumbel32(u64 bits) {
  u32 high = ~(u32)(bits >> 20), low = ~(u32)bits & 0xfffff;
  float rest = ((float)high + (float)low * 0x1p-20f + 0x1p-21f) * 0x1p-32f;  // 1 - u
  float wait = rest < 0.03f ? rest * (1 + rest * (0.5f + rest * (1.f / 3 + rest * (0.25f + rest * 0.2f)))) : -logf(1 - rest);
  return -logf(wait);
}

// -log(u) is at least 1 - u, so a token of this weight = exp(score - reference) can have the largest score + noise only where
// 1 - u < bound * weight, bound = exp(reference - the best so far). What may come within a thousandth of the best is let in.
// 1 - u is taken down to a multiple of 2^-16, which lets in two of 131,072 tokens besides.
DEVICE float bound_of(float best) { return expf(-best) * 1.001f; }
DEVICE u32 reach_of(float limit) { return __float2uint_rz(limit * 0x1p16f); }
DEVICE bool may_win(u32 reach, u32 high) { return 0xffff - high <= reach; }
DEVICE u32 larger_halves(u32 x, u32 y) {
  u32 most;
  asm("max.u16x2 %0, %1, %2;" : "=r"(most) : "r"(x), "r"(y));
  return most;
}
// whether one of the two tokens of a word may, or one of eight
DEVICE bool one_may_win(u32 reach, u32 word) { return may_win(reach, max(word >> 16, word & 0xffff)); }
DEVICE bool one_may_win(u32 reach, const u32 words[4]) {
  return one_may_win(reach, larger_halves(larger_halves(words[0], words[1]), larger_halves(words[2], words[3])));
}
