// Where no site begins: a block has a row, which waits for no other.
#pragma once
#include "cuda_hyper_border_row.cuh"
#include "tensor_copies.cuh"

#define END_THREADS (HIDDEN / 8)

extern "C" __global__ void __launch_bounds__(END_THREADS) hyper_border_end(BORDER_PARAMETERS) {
  const Border b = BORDER;
  __shared__ float warp_squares[END_THREADS / 32];
  const int row = blockIdx.x, column = threadIdx.x * 8;
  later_launches_allow();
  earlier_launches_wait();
  Loaded loaded;
#pragma unroll
  for (int n = 0; n < STREAMS; n++) loaded.x[n] = *(const uint4*)(b.x + ((u64)row * STREAMS + n) * HIDDEN + column);
#if MIX
  loaded.f = *(const uint4*)(b.f + (u64)row * HIDDEN + column);
#endif
  Mixed mixed;
  float squares_x[2], squares_u;
  mix_row(mixed, 0, loaded, load_factors(b.read + row * STREAMS, b.write + row * STREAMS, b.mixing + row * STREAMS * STREAMS), squares_x,
          squares_u);
#if MIX
#pragma unroll
  for (int n = 0; n < STREAMS; n++)
    store16(b.new_x + ((u64)row * STREAMS + n) * HIDDEN + column, mixed.x[0][n][0], mixed.x[0][n][1], mixed.x[0][n][2], mixed.x[0][n][3]);
#endif
  if (!b.normed) return;
  const uint4 weight = *(const uint4*)(b.norm_weight + column);
  squares_u = quad_sum(squares_u);
#pragma unroll
  for (int distance = 4; distance < 32; distance *= 2) squares_u = __fadd_rn(squares_u, __shfl_xor_sync(~0u, squares_u, distance));
  if (threadIdx.x % 32 == 0) warp_squares[threadIdx.x / 32] = squares_u;
  __syncthreads();
  float total = 0.f;
#pragma unroll
  for (int warp = 0; warp < END_THREADS / 32; warp++) total = __fadd_rn(total, warp_squares[warp]);
  norm_piece(b, make_uint4(mixed.u[0][0], mixed.u[0][1], mixed.u[0][2], mixed.u[0][3]), weight, reciprocal_rms(total, b.norm_eps), row,
             column);
}
