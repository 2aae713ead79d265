// Bands of 16 rows in the wide schedule: what its warps share, how bands are fetched, and how their sums go around the blocks.
#pragma once
#include "cuda_hyper_border_meet.cuh"
#include "cuda_hyper_border_row.cuh"
#include "tensor_copies.cuh"

#ifndef WIDE_SHARED_BYTES
#define WIDE_SHARED_BYTES 232448
#endif
#define GROUP_COLUMNS (GROUP_UNITS * UNIT)
#define PIECES (GROUP_COLUMNS / 8)
#define ROW_BYTES (GROUP_COLUMNS * 2)  // of one stream
#define LINES (STREAMS + MIX)          // streams, then the sublayer's output
#define LINE_BYTES (BAND * ROW_BYTES)
#define FACTOR_BYTES (BAND * 4 * (STREAMS + MIX * STREAMS * (STREAMS + 1)))
#define STAGE_BYTES (LINES * LINE_BYTES + FACTOR_BYTES)
#define STAGES 3
#define SETS 2
#define MIX_WARPS (SETS * GROUP_UNITS)
#define ADD_WARPS 3
#define ADD_THREADS (32 * ADD_WARPS)
#define WIDE_THREADS (32 * (MIX_WARPS + ADD_WARPS + SETS + 1))
#define LAG 2                // turns of a set from mixing a band to its norm
#define RING (LAG + 1)       // of a set's bands: collapsed rows are kept until the norm, LAG turns later
#define SLOTS (SETS * 2 * (LAG + 1))  // bands whose sums are kept in global memory: see norm_band
#define BAND_SUMS (BAND * SUMS)
#define SLOT_FLOATS (BAND * GROUPS * (SUMS + 1))  // squares of collapsed rows [BAND][GROUPS], then sums [BAND][GROUPS][SUMS]

struct WideShared {
  u8 weights[GROUP_UNITS * 2 * PAIR_BYTES];
  u8 stages[STAGES][STAGE_BYTES];  // [LINES][BAND][ROW_BYTES], then read, write and mixing factors of the rows
  uint4 collapsed[SETS][RING][BAND][PIECES];
  float unit_sums[SETS][GROUP_UNITS][BAND_SUMS];
  float row_sums[SETS][SUMS], constants[28], inverse_rms[SLOTS][BAND];
  u64 full[STAGES], empty[STAGES];              // a band is there; its last reader has gone
  u64 weights_there[GROUP_UNITS];
  u64 mixed[SETS], added[SETS];                 // a set's unit_sums are written; are read
  u64 published[SLOTS], met[SLOTS];             // this block's sums are on their way; inverse_rms are there
  u32 first_lap[SLOTS];                         // of the counters of arrivals
};
static_assert(sizeof(WideShared) <= WIDE_SHARED_BYTES, "more than a block may have");
struct Band {
  int first_row, here;  // rows of it that exist
};
DEVICE int num_bands(const Border& b) { return ((b.rows + BAND - 1) / BAND - (int)blockIdx.y + gridDim.y - 1) / gridDim.y; }
DEVICE Band band_at(const Border& b, int i) {
  const int first_row = (blockIdx.y + i * gridDim.y) * BAND;
  return {first_row, min(BAND, b.rows - first_row)};
}

// one lane fetches whole bands; rows that do not exist come as zeros
DEVICE void fetch_bands(WideShared& s, const Border& b, const TensorMap* x_map, const TensorMap* f_map) {
  const int column = blockIdx.x * GROUP_COLUMNS, bands = num_bands(b);
  for (int i = 0; i < bands; i++) {
    const int stage = i % STAGES;
    const u32 full = shared_address(&s.full[stage]), to = shared_address(s.stages[stage]), factors = to + LINES * LINE_BYTES;
    const Band band = band_at(b, i);
    if (i >= STAGES) barrier_wait(shared_address(&s.empty[stage]), i / STAGES - 1 & 1);
    barrier_expect(full, LINES * LINE_BYTES + band.here * (FACTOR_BYTES / BAND));
#pragma unroll
    for (int n = 0; n < STREAMS; n++) box_load(to + n * LINE_BYTES, x_map, n * HIDDEN + column, band.first_row, full);
    bulk_load(factors, b.read + band.first_row * STREAMS, band.here * STREAMS * 4, full);
#if MIX
    box_load(to + STREAMS * LINE_BYTES, f_map, column, band.first_row, full);
    bulk_load(factors + BAND * 16, b.write + band.first_row * STREAMS, band.here * STREAMS * 4, full);
    bulk_load(factors + BAND * 32, b.mixing + band.first_row * STREAMS * STREAMS, band.here * STREAMS * STREAMS * 4, full);
#endif
  }
}

// the units' sums of a band become the group's, which every block may read from global memory
DEVICE void add_bands(WideShared& s, const Border& b, float* meeting, u32* arrivals, int thread) {
  const int bands = num_bands(b);
  for (int i = 0; i < bands; i++) {
    const int set = i % SETS, here = band_at(b, i).here;
    float* slot = meeting + i % SLOTS * SLOT_FLOATS;
    barrier_wait(shared_address(&s.mixed[set]), i / SETS & 1);
    for (int k = thread; k < here * SUMS; k += ADD_THREADS) {
      const int row = k / SUMS, value = k % SUMS;
      float total = 0.f;
#pragma unroll
      for (int unit = 0; unit < GROUP_UNITS; unit++) total = __fadd_rn(total, s.unit_sums[set][unit][k]);
      if (value < SQUARES_U) slot[BAND * GROUPS + (row * GROUPS + blockIdx.x) * SUMS + value] = total;
      if (value == SQUARES_U) slot[row * GROUPS + blockIdx.x] = total;
    }
    named_sync(1, ADD_THREADS);
    if (thread == 0) {
      barrier_arrive(shared_address(&s.added[set]));
      arrive(arrivals + i % SLOTS, GROUPS);
      barrier_arrive(shared_address(&s.published[i % SLOTS]));
    }
    __syncwarp();
  }
}

// the sum of one value over the groups, two of which make a slice
DEVICE float add_groups(const float (&groups)[GROUPS]) {
  float total = 0.f;
#pragma unroll
  for (int g = 0; g < GROUPS; g += 2) total = __fadd_rn(total, __fadd_rn(groups[g], groups[g + 1]));
  return total;
}
// Bands with the parity of `set`. Blocks below SLICES finish a row of each band of every second turn, the others of the other turns.
DEVICE void meet_bands(WideShared& s, const Border& b, const float* meeting, const u32* arrivals, int set, int lane) {
  const int bands = num_bands(b);
  for (int i = set; i < bands; i += SETS) {
    const Band band = band_at(b, i);
    const int slot = i % SLOTS, own = i / SETS % 2 == blockIdx.x / SLICES ? blockIdx.x % SLICES : BAND;
    const float* sums = meeting + slot * SLOT_FLOATS;
    barrier_wait(shared_address(&s.published[slot]), i / SLOTS & 1);
    if (lane == 0) wait_for_others(arrivals + slot, GROUPS, s.first_lap[slot] ^ (i / SLOTS & 1));
    __syncwarp();
    float squares[GROUPS], values[GROUPS];
    if (lane < band.here) {
#pragma unroll
      for (int g = 0; g < GROUPS; g += 4) *(float4*)(squares + g) = __ldcg((const float4*)(sums + lane * GROUPS + g));
    }
    if (own < band.here && lane < SQUARES_U) {
#pragma unroll
      for (int g = 0; g < GROUPS; g++) values[g] = __ldcg(sums + BAND * GROUPS + (own * GROUPS + g) * SUMS + lane);
      s.row_sums[set][lane] = add_groups(values);
    }
    if (lane < band.here) s.inverse_rms[slot][lane] = reciprocal_rms(add_groups(squares), b.norm_eps);
    __syncwarp();
    if (lane == 0) {
      barrier_arrive(shared_address(&s.met[slot]));
      if (own < band.here) finish(b, s.row_sums[set], s.constants, band.first_row + own);
    }
    __syncwarp();
  }
}
