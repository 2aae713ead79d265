// A ring of stages in shared memory, each with a barrier that it is full and one that it is empty.
#pragma once
#include "hopper.cuh"

// Where somebody stands in a ring, and the parity of the phase that he waits for there. Who fills it first begins with parity 1.
template <int LENGTH> struct RingPlace {
  u32 stage, parity;
  DEVICE_MEMBER void next() {
    if (++stage == LENGTH) stage = 0, parity ^= 1;
  }
  DEVICE_MEMBER u32 before(int steps) const { return stage >= steps ? stage - steps : stage + LENGTH - steps; }
};
