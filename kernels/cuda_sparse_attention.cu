// Attention of 64 heads over listed cache rows: one row of queries at a time, blocks of 64 keys in list order.
//
// Four warpgroups. Two `produce`: they copy queries and expand keys into two tiles of shared memory. Of every two blocks
// `lead` multiplies the first by the queries and keeps its softmax, `follow` the second; `lead` sums dims 0..255 of both
// and `follow` dims 256..511, each with its own weights in registers and the other's in shared memory. So one weighs
// while the other multiplies. A half of a tile is filled again as soon as its values are summed.
// Clocks of a block of keys: tensor cores 1024 (logits) + 1024 (values); shared memory 1024 (both operands of the
// logits) + 640 (values) + 512 (expanded keys) + 64; integer pipes about 900 (expansion) + 300 (softmax).
//
// Macros: WINDOW, SELECTED slots of a list; WINDOW_FORMAT, SELECTED_FORMAT of their rows: 0 bf16 (both), 1 FP8, 2
// FP4.
#ifndef WINDOW
#define WINDOW 128
#define SELECTED 512
#define WINDOW_FORMAT 1
#define SELECTED_FORMAT 2
#endif
#include "hopper.cuh"
#include "hopper_wgmma.cuh"
#include "sparse_attention_rows.cuh"
#include "tensor_copies.cuh"

constexpr int WINDOW_BLOCKS = WINDOW / TILE, SELECTED_BLOCKS = SELECTED / TILE;
constexpr u32 WEIGHT_BYTES = TILE * 128, ALL = 0xffffffffu;
constexpr u32 QUERIES = 0, KEYS = TILE_BYTES, WEIGHTS = 3 * TILE_BYTES, STATES = WEIGHTS + 2 * WEIGHT_BYTES;
constexpr u32 BIASES = STATES + 4096, HIDDEN = BIASES + 512, COUNTS = HIDDEN + 16;
constexpr u32 ANGLES = COUNTS + 16, BARRIERS = ANGLES + 512;
// KEYS: of tile t, dims 256 h …, at 2 · t + h
enum { KEYS_FULL = 0, KEYS_FREE = 4, WEIGHTS_FULL = 8, WEIGHTS_FREE = 10, QUERIES_FULL = 12, QUERIES_FREE = 13 };

struct Arguments {
  const u8* q;
  Store window, selected;
  const int *window_rows, *selected_rows;
  const float *sink, *rope;
  u8* out;
  int rows, window_list_stride, selected_list_stride;
  float scale;  // of logits, times log2(e)
  u8* exchange;
};

extern __shared__ __align__(1024) u8 shared_bytes[];
DEVICE u32 shared_base() { return shared_address(shared_bytes); }
DEVICE u32 barrier(int which) { return shared_base() + BARRIERS + which * 8; }
DEVICE float& shared_float(u32 at) { return *(float*)(shared_bytes + at); }

// selected blocks that hold a visible slot: every lane asks about one of the next row's, and all learn the number later
DEVICE bool block_begins(const Arguments& a, int row, int lane) {
  return row < a.rows && lane < SELECTED_BLOCKS &&
         a.selected_rows[(u64)row * a.selected_list_stride + lane * TILE] >= 0;
}

#include "sparse_attention_produce.cuh"
#include "sparse_attention_roles.cuh"
#if WINDOW_FORMAT
#include "sparse_attention_spread.cuh"
#endif

#define PARAMETERS                                                                                                    \
  const u8 *q, const u8 *window, u64 window_block_stride, int window_row_stride, int window_block_rows,               \
      u32 window_inverse, int window_shift, const u8 *selected, u64 selected_block_stride, int selected_row_stride,   \
      int selected_block_rows, u32 selected_inverse, int selected_shift, const int *window_rows,                      \
      const int *selected_rows, int window_list_stride, int selected_list_stride, const float *sink,                  \
      const float *rope, u8 *out, int rows, float scale, u8 *exchange
#define ARGUMENTS                                                                                                     \
  {q, {window, window_block_stride, (u32)window_row_stride, (u32)window_block_rows, window_inverse, (u32)window_shift},\
   {selected, selected_block_stride, (u32)selected_row_stride, (u32)selected_block_rows, selected_inverse,            \
    (u32)selected_shift},                                                                                             \
   window_rows, selected_rows, sink, rope, out, rows, window_list_stride, selected_list_stride, scale, exchange}

extern "C" __global__ void __launch_bounds__(512, 1) attend(PARAMETERS) {
  const Arguments a = ARGUMENTS;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 4; ++i) {
      barrier_init(barrier(KEYS_FULL + i), ORDERED ? PRODUCERS / 2 : PRODUCERS);
      barrier_init(barrier(KEYS_FREE + i), 4);
    }
    for (int i = 0; i < 2; ++i) {
      barrier_init(barrier(WEIGHTS_FULL + i), 128);
      barrier_init(barrier(WEIGHTS_FREE + i), 4);
    }
    barrier_init(barrier(QUERIES_FULL), PRODUCERS + 1);
    barrier_init(barrier(QUERIES_FREE), 8);
    barrier_init_fence();
  }
  __syncthreads();
  earlier_launches_wait();
  later_launches_allow();
  const int group = threadIdx.x >> 7;
  if (group == 0) {
    registers_more<192>();
    lead(a);
  } else if (group == 1) {
    registers_more<192>();
    follow(a);
  } else {
    registers_less<64>();
    produce(a);
  }
}

#if WINDOW_FORMAT
extern "C" __global__ void __launch_bounds__(512, 1) attend_spread(PARAMETERS) {
  const Arguments a = ARGUMENTS;
  const int row = blockIdx.x / SPREAD, rank = blockIdx.x % SPREAD;
  if (threadIdx.x == 0) {
    barrier_init(spread_barrier(SPREAD_QUERIES), THREADS);
    barrier_init(spread_barrier(SPREAD_KEYS), PRODUCERS);
    barrier_init(spread_barrier(SPREAD_KEYS + 1), PRODUCERS);
    barrier_init(spread_barrier(SPREAD_USED), 8);
    barrier_init(spread_barrier(SPREAD_VALUES), PRODUCERS);
    barrier_init(spread_barrier(SPREAD_TOPS), 1);
    barrier_init(spread_barrier(SPREAD_WEIGHTS), 1);
    barrier_init_fence();
    barrier_expect(spread_barrier(SPREAD_TOPS), BLOCKS * 256);
    barrier_expect(spread_barrier(SPREAD_WEIGHTS),
                   (BLOCKS - has_block(rank, 0) - has_block(rank, 1)) * SHARE_BYTES);
  }
  __syncthreads();
  cluster_arrive();
  earlier_launches_wait();
  later_launches_allow();
  if (threadIdx.x < 256)
    consume_spread(a, row, rank);
  else
    produce_spread(a, row, rank);
}
#endif
