// The wide schedule of the hyper-connection border: a block keeps the weights of a group's columns and goes through bands of rows.
//
// Its warps: two sets of GROUP_UNITS mix every second band, each warp one unit, and norm it LAG turns later. ADD_WARPS add up the
// units' sums. Two, each for every second band, wait for the sums of all groups, so that nobody else waits for other blocks. One
// fetches.
#pragma once
#include "cuda_hyper_border_bands.cuh"

DEVICE Sums sum_unit(const Mixed& mixed, const float (&squares_x)[2][2], const float (&squares_u)[2], const u8* weights, int lane) {
  Sums sums, more;
  multiply_pair(sums.raw, mixed, 0, weights, lane);
  multiply_pair(more.raw, mixed, 1, weights + PAIR_BYTES, lane);
#pragma unroll
  for (int r = 0; r < 2; r++) {
    sums.x[r] = quad_sum(squares_x[r][0]), more.x[r] = quad_sum(squares_x[r][1]);
    sums.u[r] = quad_sum(squares_u[r]), more.u[r] = 0.f;
  }
  add_sums(sums, more);
  return sums;
}
// Band `turn` of a set, whose lanes norm what they have mixed themselves. That all blocks have published it, and so have normed
// their bands 2 · LAG + 2 turns before, lets every block publish SLOTS bands later in the same place.
DEVICE void norm_band(WideShared& s, const Border& b, int set, int turn, int piece, const uint4 weight, int lane) {
  const int i = turn * SETS + set;
  const Band band = band_at(b, i);
  barrier_wait(shared_address(&s.met[i % SLOTS]), i / SLOTS & 1);
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int row = lane / 4 + 8 * r;
    if (row < band.here)
      norm_piece(b, s.collapsed[set][turn % RING][row][piece], weight, s.inverse_rms[i % SLOTS][row], band.first_row + row,
                 blockIdx.x * GROUP_COLUMNS + piece * 8);
  }
}
DEVICE void mix_bands(WideShared& s, const Border& b, int set, int unit, int lane) {
  const int bands = num_bands(b), piece = unit * (UNIT / 8) + lane % 4, column = blockIdx.x * GROUP_COLUMNS + piece * 8;
  const uint4 norm_weight = *(const uint4*)(b.norm_weight + column);
  const u8* weights = s.weights + unit * 2 * PAIR_BYTES;
  int turn = 0;
  for (int i = set; i < bands; i += SETS, turn++) {
    const Band band = band_at(b, i);
    const u8* stage = s.stages[i % STAGES];
    const float* factors = (const float*)(stage + LINES * LINE_BYTES);
    barrier_wait(shared_address(&s.full[i % STAGES]), i / STAGES & 1);
    Mixed mixed;
    float squares_x[2][2], squares_u[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row = lane / 4 + 8 * r;
      Loaded loaded;
#pragma unroll
      for (int n = 0; n < STREAMS; n++) loaded.x[n] = *(const uint4*)(stage + (n * BAND + row) * ROW_BYTES + piece * 16);
#if MIX
      loaded.f = *(const uint4*)(stage + (STREAMS * BAND + row) * ROW_BYTES + piece * 16);
#endif
      mix_row(mixed, r, loaded, load_factors(factors + row * 4, factors + (BAND + row) * 4, factors + (2 * BAND + row * 4) * 4),
              squares_x[r], squares_u[r]);
      s.collapsed[set][turn % RING][row][piece] = make_uint4(mixed.u[r][0], mixed.u[r][1], mixed.u[r][2], mixed.u[r][3]);
#if MIX
      u16* to = b.new_x + (u64)(band.first_row + row) * STREAMS * HIDDEN + column;
      if (row < band.here)
#pragma unroll
        for (int n = 0; n < STREAMS; n++)
          store16(to + n * HIDDEN, mixed.x[r][n][0], mixed.x[r][n][1], mixed.x[r][n][2], mixed.x[r][n][3]);
#endif
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&s.empty[i % STAGES]));
    if (turn == 0) barrier_wait(shared_address(&s.weights_there[unit]), 0);
    const Sums sums = sum_unit(mixed, squares_x, squares_u, weights, lane);
    if (turn > 0) barrier_wait(shared_address(&s.added[set]), turn - 1 & 1);
    write_sums(s.unit_sums[set][unit], sums, lane);
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&s.mixed[set]));
    if (turn >= LAG) norm_band(s, b, set, turn - LAG, piece, norm_weight, lane);
  }
  for (int last = max(turn - LAG, 0); last < turn; last++) norm_band(s, b, set, last, piece, norm_weight, lane);
}

DEVICE void begin_block(WideShared& s, const Border& b) {
  for (int i = 0; i < GROUP_UNITS; i++) barrier_init(shared_address(&s.weights_there[i]), 1);
  barrier_init_fence();
  for (int i = 0; i < GROUP_UNITS; i++) {
    const u32 there = shared_address(&s.weights_there[i]);
    barrier_expect(there, 2 * PAIR_BYTES);
    bulk_load(shared_address(s.weights) + i * 2 * PAIR_BYTES, b.parts + (u64)(blockIdx.x * GROUP_UNITS + i) * 2 * PAIR_BYTES,
              2 * PAIR_BYTES, there);
  }
  for (int i = 0; i < STAGES; i++) barrier_init(shared_address(&s.full[i]), 1), barrier_init(shared_address(&s.empty[i]), GROUP_UNITS);
  for (int i = 0; i < SETS; i++) barrier_init(shared_address(&s.mixed[i]), GROUP_UNITS), barrier_init(shared_address(&s.added[i]), 1);
  for (int i = 0; i < SLOTS; i++) barrier_init(shared_address(&s.published[i]), 1), barrier_init(shared_address(&s.met[i]), 1);
  barrier_init_fence();
}
extern "C" __global__ void __launch_bounds__(WIDE_THREADS, 1)
    hyper_border_wide(BORDER_PARAMETERS, float* meeting, u32* arrivals, const __grid_constant__ TensorMap x_map,
                      const __grid_constant__ TensorMap f_map) {
  const Border b = BORDER;
  extern __shared__ __align__(128) u8 shared[];
  WideShared& s = *(WideShared*)shared;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  meeting += (u64)blockIdx.y * SLOTS * SLOT_FLOATS;
  arrivals += blockIdx.y * SLOTS;
  if (thread == 0) begin_block(s, b);
  later_launches_allow();
  earlier_launches_wait();
  if (thread < SLOTS) s.first_lap[thread] = lap_of(arrivals + thread, GROUPS);
  if (thread < OUTPUTS) s.constants[thread] = b.base[thread];
  if (thread < 3) s.constants[OUTPUTS + thread] = b.scale[thread];
  __syncthreads();
  if (warp < MIX_WARPS) mix_bands(s, b, warp / GROUP_UNITS, warp % GROUP_UNITS, lane);
  else if (warp < MIX_WARPS + ADD_WARPS) add_bands(s, b, meeting, arrivals, thread - 32 * MIX_WARPS);
  else if (warp < MIX_WARPS + ADD_WARPS + SETS) meet_bands(s, b, meeting, arrivals, warp - MIX_WARPS - ADD_WARPS, lane);
  else if (lane == 0) fetch_bands(s, b, &x_map, &f_map);
}
