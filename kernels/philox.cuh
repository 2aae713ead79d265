// Philox4x32-10 at counters (position low, position high, token id, stream) with the seed as key: the first two words of each
// block. What depends on the row alone is computed once: the first two rounds need one product per token instead of two.
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

// word 0 in the low half and word 1 in the high half, of N neighbouring tokens in lockstep
template <int N> DEVICE void philox_words(const Philox& row, u32 token, u64 words[N]) {
  u32 c0[N], c1[N], c2[N], c3[N], key0 = row.key0, key1 = row.key1;
#pragma unroll
  for (int j = 0; j < N; j++) {
    u64 p2 = FACTOR1 * (token + j), p0 = FACTOR0 * ((u32)(p2 >> 32) ^ row.first);
    c0[j] = (u32)p2 ^ row.second, c2[j] = (u32)(p0 >> 32) ^ row.second_low, c3[j] = (u32)p0;
    p0 = FACTOR0 * c0[j], p2 = FACTOR1 * c2[j];
    c0[j] = (u32)(p2 >> 32) ^ row.third, c2[j] = (u32)(p0 >> 32) ^ c3[j] ^ row.third_low;
    c1[j] = (u32)p2, c3[j] = (u32)p0;
  }
#pragma unroll
  for (int round = 4; round < 10; round++) {
    key0 += WEYL0, key1 += WEYL1;
#pragma unroll
    for (int j = 0; j < N; j++) {
      u64 p0 = FACTOR0 * c0[j], p2 = FACTOR1 * c2[j];
      c0[j] = (u32)(p2 >> 32) ^ c1[j] ^ key0, c2[j] = (u32)(p0 >> 32) ^ c3[j] ^ key1;
      c1[j] = (u32)p2, c3[j] = (u32)p0;
    }
  }
  key0 += WEYL0;
#pragma unroll
  for (int j = 0; j < N; j++) {
    u64 p2 = FACTOR1 * c2[j];
    words[j] = p2 << 32 | ((u32)(p2 >> 32) ^ c1[j] ^ key0);
  }
}
DEVICE u64 philox_words(const Philox& row, u32 token) {
  u64 words[1];
  philox_words<1>(row, token, words);
  return words[0];
}

// Gumbel noise in float64 of 52 bits: u is an odd multiple of 2^-53
DEVICE double gumbel(u64 words) {
  u64 bits = (words & 0xffffffffull) << 20 | words >> 44;
  return -log(-log((2.0 * (double)bits + 1.0) * 0x1p-53));
}

// the same in float32: 1 - u keeps its precision where u is near 1, which is where winners are
DEVICE float gumbel32(u64 words) {
  u32 word0 = (u32)words, word1 = (u32)(words >> 32);
  float rest = ((float)~word0 + (float)(~word1 >> 12) * 0x1p-20f + 0x1p-21f) * 0x1p-32f;  // 1 - u
  float wait = rest < 0.03f ? rest * (1 + rest * (0.5f + rest * (1.f / 3 + rest * (0.25f + rest * 0.2f)))) : -logf(1 - rest);
  return -logf(wait);
}

DEVICE float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// -log(u) is at least 1 - u, so a token of this weight = exp(score - reference) can have the largest score + noise only where
// 1 - u < bound * weight, bound = exp(reference - the best so far). What may come within a thousandth of the best is let in.
DEVICE float bound_of(float best) { return expf(-best) * 1.001f; }
DEVICE bool may_win(float limit, u32 word0) { return (float)~word0 * 0x1p-32f < limit; }

// numbers whose order as integers is that of the floats; no NaN
DEVICE u64 ordered64(double x) {
  u64 bits = (u64)__double_as_longlong(x);
  return bits ^ ((u64)((long long)bits >> 63) | 0x8000000000000000ull);
}
