// Sums of a tile whose parts (segments) the blocks of a cluster have computed: added to zero from first to last, so that the bits are
// those of one block adding them one after another. NUMBERS accumulators a thread, 128 threads.
#pragma once
#include "cluster_copies.cuh"
#include "out_tiles.cuh"

constexpr int MOST_SEGMENTS = 8;
constexpr int PLANE = 2048;                           // bytes of 64 rows × 8 tokens of sums

// Every block, which has EACH_BLOCK segments one after another, adds up and writes out every so many-th group of 8 · PLANES tokens.
// `planes`: the address of EACH_BLOCK · NUMBERS / 4 · 2 KB, in every block the same, unused by then. `own` is this block's place in the
// cluster. `out`, `place` as for write_turned. Blocks may not leave before all have read.
template <int PLANES, int EACH_BLOCK, int NUMBERS>
DEVICE void add_in_cluster(u32 planes, int own, int segments, u16* out, int row_width, int num_tokens, u32 place, int thread,
                           const float (&acc)[EACH_BLOCK][NUMBERS]) {
  constexpr int COUNT = NUMBERS / 4;
  planes += thread * 16;
#pragma unroll
  for (int i = 0; i < EACH_BLOCK * COUNT; i++) {
    const float* four = acc[i / COUNT] + i % COUNT * 4;
    store_shared16(planes + i * PLANE, __float_as_uint(four[0]), __float_as_uint(four[1]), __float_as_uint(four[2]),
                   __float_as_uint(four[3]));
  }
  cluster_arrive();
  cluster_wait();
#pragma unroll 1
  for (int i = own; i < COUNT / PLANES && i * 8 * PLANES < num_tokens; i += segments / EACH_BLOCK) {
    uint4 v[MOST_SEGMENTS][PLANES];
    float sum[4 * PLANES] = {};
#pragma unroll
    for (int segment = 0; segment < MOST_SEGMENTS; segment++)
      if (segment < segments) {
        u32 from = cluster_address(planes + (segment % EACH_BLOCK * COUNT + i * PLANES) * PLANE, segment / EACH_BLOCK);
#pragma unroll
        for (int j = 0; j < PLANES; j++) v[segment][j] = cluster_load16(from + j * PLANE);
      }
#pragma unroll
    for (int segment = 0; segment < MOST_SEGMENTS; segment++)
      if (segment < segments)
#pragma unroll
        for (int j = 0; j < PLANES; j++)
          sum[4 * j] += __uint_as_float(v[segment][j].x), sum[4 * j + 1] += __uint_as_float(v[segment][j].y),
              sum[4 * j + 2] += __uint_as_float(v[segment][j].z), sum[4 * j + 3] += __uint_as_float(v[segment][j].w);
    int token = i * 8 * PLANES;
    write_turned<8 * PLANES, 8 * PLANES>(out + (long long)token * row_width, row_width, num_tokens - token, place, thread, sum);
  }
}

// Of `planes` groups of 8 tokens, how many block `own` adds up: group i belongs to block i % segments.
DEVICE int planes_of(int own, int segments, int planes) { return (planes - own + segments - 1) / segments; }

// The same without a meeting: every block sends its parts into `sums` of the block that adds them up, 2 KB each, whose `barrier`
// expects them (`planes_of` · segments · 2 KB) and was there before anybody sends.
template <int NUMBERS>
DEVICE void send_and_add(u32 sums, u32 barrier, int own, int segments, int planes, u16* out, int row_width, int num_tokens, u32 place,
                         int thread, const float (&acc)[NUMBERS]) {
  u32 to = sums + own * PLANE + thread * 16;
  int owner = 0;
#pragma unroll
  for (int i = 0; i < NUMBERS / 4; i++)
    if (i < planes) {
      cluster_send16(cluster_address(to, owner), acc + 4 * i, cluster_address(barrier, owner));
      if (++owner == segments) owner = 0, to += segments * PLANE;
    }
  if (own >= planes) return;
  barrier_wait(barrier, 0);
#pragma unroll 1
  for (int i = own; i < planes; i += segments, sums += segments * PLANE) {
    float sum[4] = {};
#pragma unroll
    for (int segment = 0; segment < MOST_SEGMENTS; segment++)
      if (segment < segments) {
        uint4 v = load_shared16(sums + segment * PLANE + thread * 16);
        sum[0] += __uint_as_float(v.x), sum[1] += __uint_as_float(v.y), sum[2] += __uint_as_float(v.z), sum[3] += __uint_as_float(v.w);
      }
    write_turned<8, 8>(out + (long long)i * 8 * row_width, row_width, num_tokens - i * 8, place, thread, sum);
  }
}
