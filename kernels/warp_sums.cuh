// Sums over the lanes of a warp.
#pragma once
#include "hopper.cuh"

// of a lane's value and those of all lanes before it
template <class Number> DEVICE Number inclusive_sum(Number value, int lane) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    Number before = __shfl_up_sync(~0u, value, step);
    if (lane >= step) value += before;
  }
  return value;
}
