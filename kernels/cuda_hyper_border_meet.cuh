// How the blocks of a launch wait for one another.
//
// A counter goes round in two laps of `blocks` arrivals, one a meeting, so it never overflows and needs no reset. It cannot
// leave a lap before the block that asks has arrived.
#pragma once
#include "hopper.cuh"

DEVICE u32 lap_of(const u32* arrivals, u32 blocks) { return load_acquire(arrivals) >= blocks; }
// what the thread and those it has met wrote before is seen by all that find the lap over
DEVICE void arrive(u32* arrivals, u32 blocks) {
  asm volatile("red.release.gpu.global.inc.u32 [%0], %1;" ::"l"(arrivals), "r"(2 * blocks - 1) : "memory");
}
DEVICE void wait_for_others(const u32* arrivals, u32 blocks, u32 lap) {
  while (lap_of(arrivals, blocks) == lap) {
  }
}
