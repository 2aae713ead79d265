// A warpgroup's products of one segment: part of cuda_fp8_linear.cu.
#pragma once
#include "fp8_linear_tiles.cuh"
#include "hopper_wgmma.cuh"

// a warp needs the stage no more
DEVICE void give_back(const Shared& s, int stage, int thread) {
  if (thread % 32 == 0) barrier_arrive(s.empty + 8 * stage);
}

// One segment where a processor has two warpgroups: acc = weight rows · tokens over `steps` steps, an even number. While the
// tensor cores do one step, the codes of the next are turned into the other half of `a`.
DEVICE void accumulate_overlapped(const Shared& s, Pipe& pipe, int steps, int warpgroup, int thread, float (&acc)[NUMBERS]) {
  u32 a[2][4][4];
  int before = 0;
#pragma unroll 1
  for (int step = 0; step < steps; step += 2) {
#pragma unroll
    for (int odd = 0; odd < 2; odd++) {
      Words words;
      barrier_wait(s.full + 8 * pipe.stage, pipe.parity);
      words.load(record_at(s, pipe.stage, 0, warpgroup), thread);
      u64 b = wgmma_descriptor(s.x + pipe.stage * X, 1024);
#pragma unroll
      for (int k = 0; k < 4; k++) words.decode_at(k, a[odd][k]);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; k++) Wgmma<TOKENS>::rs(acc, a[odd][k], b + 2 * k, step > 0 || odd || k > 0);
      wgmma_commit();
      wgmma_wait<1>();                                // the step before: its registers and its stage are free
      if (odd || step > 0) give_back(s, before, thread);
      before = pipe.stage;
      pipe.next();
    }
  }
  wgmma_wait<0>();
  give_back(s, before, thread);
  settle(acc);
}

// the same where it has four, which hide each other's waiting: a stage at a time
DEVICE void accumulate_in_turn(const Shared& s, Pipe& pipe, int steps, int warpgroup, int thread, float (&acc)[NUMBERS]) {
#pragma unroll 1
  for (int step = 0; step < steps; step += DEPTH, pipe.next()) {
    u32 a[4 * DEPTH][4];
    Words words;
    barrier_wait(s.full + 8 * pipe.stage, pipe.parity);
#pragma unroll
    for (int k = 0; k < 4 * DEPTH; k++) {
      if (k % 4 == 0) words.load(record_at(s, pipe.stage, k / 4, warpgroup), thread);
      words.decode_at(k % 4, a[k]);
    }
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4 * DEPTH; k++) {
      u64 b = wgmma_descriptor(s.x + (pipe.stage * DEPTH + k / 4) * X, 1024);
      Wgmma<TOKENS>::rs(acc, a[k], b + 2 * (k % 4), step > 0 || k > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    give_back(s, pipe.stage, thread);
  }
  settle(acc);
}

DEVICE void accumulate(const Shared& s, Pipe& pipe, int steps, int warpgroup, int thread, float (&acc)[NUMBERS]) {
  if constexpr (RESIDENT * WARPGROUPS > 2) accumulate_in_turn(s, pipe, steps, warpgroup, thread, acc);
  else accumulate_overlapped(s, pipe, steps, warpgroup, thread, acc);
}
