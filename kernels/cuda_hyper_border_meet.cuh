// What the blocks of a tile have in common: waiting for each other, fetching weights.
#pragma once
#include "cuda_hyper_border.cuh"

DEVICE bool wanted(int value) { return value == SQUARES_U || (COEFFICIENTS && value < SQUARES_U); }

// waits until all blocks of the tile have come here; what they wrote before is seen after. The counter goes round in two laps of
// `blocks`, one a launch, so it never overflows and needs no reset.
DEVICE void meet(u32* arrivals, u32 blocks) {
  __syncthreads();
  if (threadIdx.x == 0) {
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(arrivals), "r"(2 * blocks - 1) : "memory");
    const bool first_lap = before < blocks;
    while ((load_acquire(arrivals) < blocks) == first_lap) {
    }
  }
  __syncthreads();
}

DEVICE void fetch_weights(u32 to, u32 barrier, const u8* from) {
  barrier_expect(barrier, PAIR_BYTES);
  bulk_load(to, from, PAIR_BYTES, barrier);
}
