// Sums of a tile whose parts (segments) the blocks of a cluster have computed: added to zero from first to last, so that the bits are
// those of one block adding them one after another. NUMBERS accumulators a thread, 128 threads.
#pragma once
#include "out_tiles.cuh"

constexpr int MOST_SEGMENTS = 8;

DEVICE float4 cluster_load4(u32 address) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(address));
  return v;
}

// Every block, which has one segment, adds up and writes out every `segments`-th group of 8 tokens.
// `plane(i)`: the address of 2 KB for quadruple i; `out`, `place` as for write_turned. Blocks may not leave before all have read.
template <int NUMBERS, class Plane>
DEVICE void add_in_cluster(Plane plane, int segments, u16* out, int row_width, int num_tokens, u32 place, int thread,
                            const float (&acc)[NUMBERS]) {
  named_sync(1 + threadIdx.x / 128, 128);             // all warps have read what lies in the planes
#pragma unroll
  for (int i = 0; i < NUMBERS / 4; i++)
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(plane(i) + thread * 16), "f"(acc[4 * i]), "f"(acc[4 * i + 1]),
                 "f"(acc[4 * i + 2]), "f"(acc[4 * i + 3]) : "memory");
  cluster_arrive();
  cluster_wait();
#pragma unroll 1
  for (int i = cluster_rank(); i < NUMBERS / 4; i += segments) {
    float4 v[MOST_SEGMENTS];
    float sum[4] = {};
    u32 from = plane(i) + thread * 16;
#pragma unroll
    for (int segment = 0; segment < MOST_SEGMENTS; segment++)
      if (segment < segments) v[segment] = cluster_load4(cluster_address(from, segment));
#pragma unroll
    for (int segment = 0; segment < MOST_SEGMENTS; segment++)
      if (segment < segments)
        sum[0] += v[segment].x, sum[1] += v[segment].y, sum[2] += v[segment].z, sum[3] += v[segment].w;
    write_turned<8, 8>(out + (long long)i * 8 * row_width, row_width, num_tokens - i * 8, place, thread, sum);
  }
}
