// The wide schedule of the hyper-connection border: a block has 64 rows of a slice of columns, two blocks a multiprocessor.
#pragma once
#include "cuda_hyper_border_meet.cuh"
#include "cuda_hyper_border_row.cuh"

#define WIDE_WARPS 4  // each with 16 rows and one unit at a time; two blocks share a multiprocessor
#define WIDE_ROWS (BAND * WIDE_WARPS)
#define WIDE_THREADS (32 * WIDE_WARPS)
#define BAND 16
#define INPUT_STAGES 2
#define INPUT_BYTES ((STREAMS + 1) * BAND * UNIT * 2)  // of one warp
#define WEIGHT_STAGES 3
#define OWN_ROWS (WIDE_ROWS / SLICES)  // whose coefficients a block makes
#define PIECES (SLICE_COLUMNS / 8)

// where 16-byte piece `piece` of a row of collapsed columns lies: neighbouring rows start in different banks
DEVICE int place(int row, int piece) { return row * PIECES + (piece ^ (row & 1) << 2); }

// 16 bytes to shared memory; the second-level cache fetches the whole 128, whose other half comes next
DEVICE void copy16_of_128(u32 to_shared, const void* from_global) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to_shared), "l"(from_global) : "memory");
}
// a warp's 16 rows of a unit: streams, then the sublayer's output, each [16 rows][64 bytes]; two rows share 128 bytes, whose
// 16-byte pieces are swizzled. A warp reads only what it has fetched itself, so warps need not wait for each other.
DEVICE u32 input_place(int line, int piece) { return line / 2 * 128 + (line % 2 * 4 + piece ^ line / 2 & 7) * 16; }
DEVICE void fetch_inputs(u32 stage, const Border& b, int first_row, int column, int lane) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int line = lane / 4 + 8 * half, piece = lane % 4, row = min(first_row + line, b.rows - 1);
    const u32 to = stage + input_place(line, piece);
    const u16* x = b.x + (u64)row * STREAMS * HIDDEN + column + piece * 8;
#pragma unroll
    for (int n = 0; n < STREAMS; n++) copy16_of_128(to + n * BAND * 64, x + n * HIDDEN);
#if MIX
    copy16_of_128(to + STREAMS * BAND * 64, b.f + (u64)row * HIDDEN + column + piece * 8);
#endif
  }
}
DEVICE Loaded read_inputs(const u8* stage, int lane) {
  Loaded l;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const u8* at = stage + input_place(lane / 4 + 8 * r, lane % 4);
#pragma unroll
    for (int n = 0; n < STREAMS; n++) l.x[r][n] = *(const uint4*)(at + n * BAND * 64);
#if MIX
    l.f[r] = *(const uint4*)(at + STREAMS * BAND * 64);
#endif
  }
  return l;
}
// Warps that have read a stage so far. No order is asked for: what a warp read went into products before it comes here.
DEVICE u32 count_reader(u32* readers) {
  u32 before;
  asm volatile("atom.relaxed.cta.shared::cta.add.u32 %0, [%1], 1;" : "=r"(before) : "r"(shared_address(readers)) : "memory");
  return before;
}
// what was fetched before this is on its way before the values are used
DEVICE void hold(uint4& v) { asm volatile("" : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)); }

extern "C" __global__ void __launch_bounds__(WIDE_THREADS, 2) hyper_border_wide(BORDER_PARAMETERS, float* meeting, u32* arrivals) {
  const Border b = BORDER;
  extern __shared__ __align__(1024) u8 shared[];
  uint4* collapsed = (uint4*)shared;                               // [WIDE_ROWS][PIECES]
  u8* inputs = shared + WIDE_ROWS * SLICE_COLUMNS * 2;             // stages of every warp
  u8* weights = inputs + WIDE_WARPS * INPUT_STAGES * INPUT_BYTES;  // stages, each of two streams of a unit; afterwards sums
  float* inverse_rms = (float*)(weights + WEIGHT_STAGES * PAIR_BYTES);
  float* row_sums = inverse_rms + WIDE_ROWS;                       // [OWN_ROWS][SUMS]
  float* constants = row_sums + OWN_ROWS * SUMS;                   // base, then scale
  u64* barriers = (u64*)(constants + 28);                          // a stage of weights is there
  u32* readers = (u32*)(barriers + WEIGHT_STAGES);                 // warps that have read a stage, ever
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, slice = blockIdx.x;
  const int first_row = blockIdx.y * WIDE_ROWS, first_column = slice * SLICE_COLUMNS, band_row = first_row + warp * BAND;
  const u32 full = shared_address(barriers), to_weights = shared_address(weights);
  const u8* ours = b.parts + (u64)slice * SLICE_UNITS * 2 * PAIR_BYTES;
  u8* own_inputs = inputs + warp * INPUT_STAGES * INPUT_BYTES;
#pragma unroll
  for (int i = 0; i < INPUT_STAGES; i++) {
    fetch_inputs(shared_address(own_inputs) + i * INPUT_BYTES, b, band_row, first_column + i * UNIT, lane);
    async_commit();
  }
#if COEFFICIENTS
  if (thread == 0) {
    for (int i = 0; i < WEIGHT_STAGES; i++) barrier_init(full + i * 8, 1), readers[i] = 0;
    barrier_init_fence();
    for (int i = 0; i < WEIGHT_STAGES && i < 2 * SLICE_UNITS; i++)
      fetch_weights(to_weights + i * PAIR_BYTES, full + i * 8, ours + i * PAIR_BYTES);
  }
  if (thread < OUTPUTS) constants[thread] = b.base[thread];
  if (thread < 3) constants[OUTPUTS + thread] = b.scale[thread];
  __syncthreads();
#endif
  const int row0 = band_row + lane / 4, row1 = row0 + 8;
  const RowFactors factors = load_factors(b, min(row0, b.rows - 1), min(row1, b.rows - 1));
  Sums total = {}, group = {};
#pragma unroll 1
  for (int unit = 0; unit < SLICE_UNITS; unit++) {
    async_wait<INPUT_STAGES - 1>();
    __syncwarp();
    u8* stage = own_inputs + unit % INPUT_STAGES * INPUT_BYTES;
    Loaded loaded = read_inputs(stage, lane);
    __syncwarp();
    if (unit + INPUT_STAGES < SLICE_UNITS)
      fetch_inputs(shared_address(stage), b, band_row, first_column + (unit + INPUT_STAGES) * UNIT, lane);
    async_commit();
#pragma unroll
    for (int i = 0; i < 2 * STREAMS; i++) hold(loaded.x[i / STREAMS][i % STREAMS]);
    float squares_x[2][2];
    Sums sums;
    const Mixed mixed = mix_unit(loaded, factors, squares_x, sums.u);
    const int piece = unit * (UNIT / 8) + lane % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      collapsed[place(warp * BAND + lane / 4 + 8 * r, piece)] = make_uint4(mixed.u[r][0], mixed.u[r][1], mixed.u[r][2], mixed.u[r][3]);
#if MIX
      const int row = r ? row1 : row0;
      u16* to = b.new_x + (u64)row * STREAMS * HIDDEN + first_column + piece * 8;
      if (b.new_x && row < b.rows)
#pragma unroll
        for (int n = 0; n < STREAMS; n++)
          store16(to + n * HIDDEN, mixed.x[r][n][0], mixed.x[r][n][1], mixed.x[r][n][2], mixed.x[r][n][3]);
#endif
    }
#if COEFFICIENTS
    Sums more;
#pragma unroll
    for (int pair = 0; pair < 2; pair++) {
      const int i = unit * 2 + pair, at = i % WEIGHT_STAGES;
      barrier_wait(full + at * 8, i / WEIGHT_STAGES & 1);
      multiply_pair(pair ? more.raw : sums.raw, mixed, pair, weights + at * PAIR_BYTES, lane);
      __syncwarp();
      // the last warp to read a stage has it refilled, so nobody waits for readers
      if (lane == 0 && count_reader(readers + at) % WIDE_WARPS == WIDE_WARPS - 1 && i + WEIGHT_STAGES < 2 * SLICE_UNITS)
        fetch_weights(to_weights + at * PAIR_BYTES, full + at * 8, ours + (u64)(i + WEIGHT_STAGES) * PAIR_BYTES);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) sums.x[r] = squares_x[0][r], more.x[r] = squares_x[1][r], more.u[r] = 0.f;
    add_sums(sums, more);
#endif
    add_sums(group, sums);
    if ((unit + 1) % GROUP_UNITS == 0) {
      add_sums(total, group);
      group = {};
    }
  }
  __syncthreads();
  float* partial = (float*)weights;  // [WIDE_ROWS][SUMS]
  write_sums(partial + warp * BAND * SUMS, total, lane);
  __syncthreads();
  meeting += (u64)blockIdx.y * WIDE_ROWS * SUMS * SLICES;  // [WIDE_ROWS][SUMS][SLICES]
  for (int i = thread; i < WIDE_ROWS * SUMS; i += WIDE_THREADS)
    if (wanted(i % SUMS)) meeting[i * SLICES + slice] = partial[i];
  meet(arrivals + blockIdx.y, SLICES);
  const int first_own = slice * OWN_ROWS;
  for (int i = thread; i < WIDE_ROWS + OWN_ROWS * SQUARES_U * COEFFICIENTS; i += WIDE_THREADS) {
    const int own = i - WIDE_ROWS, row = own < 0 ? i : first_own + own / SQUARES_U, value = own < 0 ? SQUARES_U : own % SQUARES_U;
    const float4* found = (const float4*)(meeting + (row * SUMS + value) * SLICES);
    float slices[SLICES], sum = 0.f;
#pragma unroll
    for (int k = 0; k < SLICES; k += 4) *(float4*)(slices + k) = __ldcg(found + k / 4);
#pragma unroll
    for (int k = 0; k < SLICES; k++) sum = __fadd_rn(sum, slices[k]);
    if (own < 0) inverse_rms[row] = reciprocal_rms(sum, b.norm_eps);
    else row_sums[own / SQUARES_U * SUMS + value] = sum;
  }
  __syncthreads();
#if COEFFICIENTS
  const int finished = first_row + first_own + thread;
  if (thread < OWN_ROWS && finished < b.rows) finish(b, row_sums + thread * SUMS, constants, finished);
  __syncwarp();
#endif
#pragma unroll 4
  for (int i = thread; i < WIDE_ROWS * PIECES; i += WIDE_THREADS) {
    const int row = i / PIECES, piece = i % PIECES, column = first_column + piece * 8;
    const uint4 weight = *(const uint4*)(b.norm_weight + column);
    if (first_row + row < b.rows) norm_piece(b, collapsed[place(row, piece)], weight, inverse_rms[row], first_row + row, column);
  }
}
