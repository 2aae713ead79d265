// Floats as integers of the same order, and tokens as keys in the order of sampling.
#pragma once
#include "hopper.cuh"

// no NaN; -0 lies below 0
DEVICE u32 ordered(float x) {
  u32 bits = __float_as_uint(x);
  return bits ^ ((u32)((int)bits >> 31) | 0x80000000u);
}
DEVICE float unordered(u32 bits) { return __uint_as_float(bits & 0x80000000u ? bits ^ 0x80000000u : ~bits); }
DEVICE u64 ordered64(double x) {
  u64 bits = (u64)__double_as_longlong(x);
  return bits ^ ((u64)((long long)bits >> 63) | 0x8000000000000000ull);
}

// Keys order tokens as sampling does: the larger logit first, then the lower id. 49 bits. No NaN; -0 as 0.
constexpr int ID_BITS = 17;
constexpr u32 LAST_ID = (1u << ID_BITS) - 1;
DEVICE u64 key_of(float logit, int id) { return (u64)ordered(logit + 0.f) << ID_BITS | (LAST_ID - (u32)id); }
DEVICE float logit_of(u64 key) { return unordered((u32)(key >> ID_BITS)); }
DEVICE int id_of(u64 key) { return (int)(LAST_ID - (u32)(key & LAST_ID)); }
