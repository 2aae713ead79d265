// Sums of a tile whose parts (segments) the blocks of a cluster have computed: added to zero from first to last, so that the bits are
// those of one block adding them one after another. NUMBERS accumulators a thread, 128 threads.
#pragma once
#include "out_tiles.cuh"

constexpr int MOST_SEGMENTS = 8;

// Every block, which has one segment, adds up and writes out every `segments`-th group of 8 tokens.
// `plane(i)`: the address of 2 KB for quadruple i; `out`, `place` as for write_turned. Blocks may not leave before all have read.
template <int NUMBERS, class Plane>
DEVICE void add_in_cluster(Plane plane, int segments, u16* out, int row_width, int num_tokens, u32 place, int thread,
                            const float (&acc)[NUMBERS]) {
  named_sync(1 + threadIdx.x / 128, 128);             // all warps have read what lies in the planes
#pragma unroll
  for (int i = 0; i < NUMBERS / 4; i++)
    store_shared16(plane(i) + thread * 16, __float_as_uint(acc[4 * i]), __float_as_uint(acc[4 * i + 1]),
                   __float_as_uint(acc[4 * i + 2]), __float_as_uint(acc[4 * i + 3]));
  cluster_arrive();
  cluster_wait();
#pragma unroll 1
  for (int i = cluster_rank(); i < NUMBERS / 4; i += segments) {
    uint4 v[MOST_SEGMENTS];
    float sum[4] = {};
    u32 from = plane(i) + thread * 16;
#pragma unroll
    for (int segment = 0; segment < MOST_SEGMENTS; segment++)
      if (segment < segments) v[segment] = cluster_load16(cluster_address(from, segment));
#pragma unroll
    for (int segment = 0; segment < MOST_SEGMENTS; segment++)
      if (segment < segments)
        sum[0] += __uint_as_float(v[segment].x), sum[1] += __uint_as_float(v[segment].y),
            sum[2] += __uint_as_float(v[segment].z), sum[3] += __uint_as_float(v[segment].w);
    write_turned<8, 8>(out + (long long)i * 8 * row_width, row_width, num_tokens - i * 8, place, thread, sum);
  }
}
