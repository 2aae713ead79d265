// The narrow schedule of the hyper-connection border: a block has 16 rows of 64 columns, so that few rows occupy many blocks.
#pragma once
#include "cuda_hyper_border_meet.cuh"
#include "cuda_hyper_border_row.cuh"
#include "tensor_copies.cuh"

#define NARROW_COLUMNS (2 * UNIT)
#define NARROW_THREADS 256  // of whose 8 warps the first 4 take two streams of a unit each; all of them add up
#define NARROW_BLOCKS (UNITS / 2)

// Units of all blocks → slices: `own_sums` of the row that has the block's number, and the squares of `here` collapsed rows.
DEVICE void add_units(float (*slice_sums)[SLICES], const float* meeting, int here, int own_sums, int thread) {
  for (int i = thread; i < (here + own_sums) * (SLICES / 2); i += NARROW_THREADS) {  // two slices at a time
    const int item = i / (SLICES / 2), s = i % (SLICES / 2) * 2, row = item < own_sums ? blockIdx.x : item - own_sums;
    const int value = item < own_sums ? item : SQUARES_U;
    const float4* found = (const float4*)(meeting + (row * SUMS + value) * UNITS + s * (UNITS / SLICES));
    float units[2 * (UNITS / SLICES)], slices[2] = {};
#pragma unroll
    for (int k = 0; k < 2 * (UNITS / SLICES); k += 4) *(float4*)(units + k) = __ldcg(found + k / 4);
#pragma unroll
    for (int group = 0; group < 4; group++) {
      float total = 0.f;
#pragma unroll
      for (int k = 0; k < GROUP_UNITS; k++) total = __fadd_rn(total, units[group * GROUP_UNITS + k]);
      slices[group / 2] = __fadd_rn(slices[group / 2], total);
    }
    *(float2*)(slice_sums[item] + s) = make_float2(slices[0], slices[1]);
  }
}

extern "C" __global__ void __launch_bounds__(NARROW_THREADS) hyper_border_narrow(BORDER_PARAMETERS, float* sums_of_units, u32* arrivals) {
  const Border b = BORDER;
  extern __shared__ __align__(128) u8 shared[];
  __shared__ uint4 collapsed[BAND][NARROW_COLUMNS / 8];
  __shared__ float pair_sums[4][BAND * SUMS], row_sums[SUMS], constants[28], inverse_rms[BAND];
  __shared__ __align__(8) float slice_sums[BAND + SQUARES_U][SLICES];
  __shared__ __align__(8) u64 barriers[4];
  __shared__ u32 lap;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, pair = warp % 2, unit = blockIdx.x * 2 + warp / 2;
  const int first_row = blockIdx.y * BAND, column = unit * UNIT + lane % 4 * 8;
  if (thread < OUTPUTS) constants[thread] = b.base[thread];
  if (thread < 3) constants[OUTPUTS + thread] = b.scale[thread];
  const int norm_row = thread / 8 % BAND, norm_piece_at = thread % 8, norm_column = blockIdx.x * NARROW_COLUMNS + norm_piece_at * 8;
  const uint4 weight = *(const uint4*)(b.norm_weight + norm_column);  // asked for early
  later_launches_allow();
  if (warp >= 4) {
    earlier_launches_wait();
    if (thread == NARROW_THREADS - 1) lap = lap_of(arrivals + blockIdx.y, NARROW_BLOCKS);
  } else {
    const u32 barrier = shared_address(barriers + warp);
    if (lane == 0) {
      barrier_init(barrier, 1);
      barrier_init_fence();
      barrier_expect(barrier, PAIR_BYTES);
      bulk_load(shared_address(shared) + warp * PAIR_BYTES, b.parts + (u64)(unit * 2 + pair) * PAIR_BYTES, PAIR_BYTES, barrier);
    }
    __syncwarp();
    earlier_launches_wait();
    Loaded loaded[2];
    RowFactors factors[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const u64 row = min(first_row + lane / 4 + 8 * r, b.rows - 1);
#pragma unroll
      for (int n = 0; n < STREAMS; n++) loaded[r].x[n] = *(const uint4*)(b.x + (row * STREAMS + n) * HIDDEN + column);
#if MIX
      loaded[r].f = *(const uint4*)(b.f + row * HIDDEN + column);
#endif
      factors[r] = load_factors(b.read + row * STREAMS, b.write + row * STREAMS, b.mixing + row * STREAMS * STREAMS);
    }
    float squares_x[2][2], squares_u[2];
    Sums sums;
    Mixed mixed;
#pragma unroll
    for (int r = 0; r < 2; r++) mix_row(mixed, r, loaded[r], factors[r], squares_x[r], squares_u[r]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      if (pair == 0)
        collapsed[lane / 4 + 8 * r][warp / 2 * 4 + lane % 4] = make_uint4(mixed.u[r][0], mixed.u[r][1], mixed.u[r][2], mixed.u[r][3]);
#if MIX
      const int row = first_row + lane / 4 + 8 * r;
      u16* to = b.new_x + (u64)row * STREAMS * HIDDEN + column;
      if (b.new_x && row < b.rows)
#pragma unroll
        for (int n = 0; n < STREAMS; n++)
          if (n / 2 == pair) store16(to + n * HIDDEN, mixed.x[r][n][0], mixed.x[r][n][1], mixed.x[r][n][2], mixed.x[r][n][3]);
#endif
    }
    barrier_wait(barrier, 0);
    if (pair == 0) multiply_pair(sums.raw, mixed, 0, shared + warp * PAIR_BYTES, lane);
    else multiply_pair(sums.raw, mixed, 1, shared + warp * PAIR_BYTES, lane);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      sums.x[r] = quad_sum(pair ? squares_x[r][1] : squares_x[r][0]);
      sums.u[r] = pair ? 0.f : quad_sum(squares_u[r]);
    }
    write_sums(pair_sums[warp], sums, lane);
  }
  __syncthreads();
  const int here = min(BAND, b.rows - first_row);  // rows of this tile
  float* meeting = sums_of_units + (u64)blockIdx.y * BAND * SUMS * UNITS;  // [16][SUMS][UNITS]
  for (int at = thread; at < here * SUMS; at += NARROW_THREADS)
    if (at % SUMS <= SQUARES_U)
      *(float2*)(meeting + at * UNITS + blockIdx.x * 2) =
          make_float2(__fadd_rn(pair_sums[0][at], pair_sums[1][at]), __fadd_rn(pair_sums[2][at], pair_sums[3][at]));
  __syncthreads();
  if (thread == 0) {
    arrive(arrivals + blockIdx.y, NARROW_BLOCKS);
    wait_for_others(arrivals + blockIdx.y, NARROW_BLOCKS, lap);
  }
  __syncthreads();
  const bool owner = (int)blockIdx.x < here;  // of this tile's row with the block's number
  const int own_sums = owner ? SQUARES_U : 0;
  add_units(slice_sums, meeting, here, own_sums, thread);
  __syncthreads();
  if (thread < here + own_sums) {
    float total = 0.f;
#pragma unroll
    for (int s = 0; s < SLICES; s++) total = __fadd_rn(total, slice_sums[thread][s]);
    if (thread < own_sums) row_sums[thread] = total;
    else inverse_rms[thread - own_sums] = reciprocal_rms(total, b.norm_eps);
  }
  __syncthreads();
  if (owner && thread == NARROW_THREADS - 1) finish(b, row_sums, constants, first_row + blockIdx.x);
  __syncwarp();
  if (thread / 8 == norm_row && norm_row < here)
    norm_piece(b, collapsed[norm_row][norm_piece_at], weight, inverse_rms[norm_row], first_row + norm_row, norm_column);
}
