// Numbers on the grid of FP8 (E4M3) with a power-of-two scale a group.
#pragma once
#include "hopper.cuh"

// two bf16 divided by `scale`, rounded to E4M3, and multiplied by it again; `inverse` is 1 / scale
DEVICE u32 on_fp8_grid(u32 pair, float scale, float inverse) {
  u16 codes;
  u32 halves;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(bf16_high(pair) * inverse), "f"(bf16_low(pair) * inverse));
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
  float low, high;
  asm("{ .reg .f16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }" : "=f"(low), "=f"(high) : "r"(halves));
  return bf16x2(low * scale, high * scale);
}
