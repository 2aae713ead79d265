// LOSSY weights: out[T, N] = x[T, K] · weightᵀ[K, N], both E4M3, x with one scale per row and 128 columns, weight with one per
// 128 × 128 block, out bf16. Computed as outᵀ = weight · xᵀ by FP8 wgmma, whose sums keep fewer bits than float32: after every
// 128 columns they are scaled and added to float32 sums, while the tensor cores do the next 128.
//
// Every row's order of addition is the same: columns from first to last.
#include "hopper_wgmma.cuh"
#include "out_tiles.cuh"
#include "ring.cuh"

constexpr int TOKENS = 128, STEP = 128, STAGES = 5, WARPGROUPS = 2;
constexpr int CODES = 64 * STEP * WARPGROUPS;         // bytes of weight a stage, the block's scale behind them
constexpr int RECORD = CODES + 16;
constexpr int X = TOKENS * STEP, SCALES = TOKENS * 4;
constexpr int NUMBERS = TOKENS / 2, CHUNK = 64, PLACE = CHUNK * 128, TOKEN_GROUP = 16;
constexpr int STAGE = X + CODES + 1024;               // scales of tokens, then the block's, behind the codes

struct Problem {
  int num_tokens, num_rows, num_steps, scale_row;     // T, N, K / 128, tokens a row of scales
};

struct Tile {
  int row, token;                                     // in blocks of 128 and 128
};

DEVICE Tile tile_at(const Problem& p, int index) {
  int rows = p.num_rows / 128, tiles = (p.num_tokens + TOKENS - 1) / TOKENS;
  int group = index / (rows * TOKEN_GROUP), rest = index % (rows * TOKEN_GROUP);
  int width = min(TOKEN_GROUP, tiles - group * TOKEN_GROUP);
  return {rest / width, group * TOKEN_GROUP + rest % width};
}
DEVICE int num_tiles(const Problem& p) { return p.num_rows / 128 * ((p.num_tokens + TOKENS - 1) / TOKENS); }

struct Shared {
  u32 stages, place, full, empty;
};

using Pipe = RingPlace<STAGES>;

DEVICE void fetch(const Problem& p, const Shared& s, const TensorMap* map, const u8* weight, const float* scales) {
  Pipe pipe = {0, 1};
  for (int index = blockIdx.x; index < num_tiles(p); index += gridDim.x) {
    Tile tile = tile_at(p, index);
    for (int step = 0; step < p.num_steps; step++, pipe.next()) {
      u32 full = s.full + 8 * pipe.stage, to = s.stages + pipe.stage * STAGE;
      barrier_wait(s.empty + 8 * pipe.stage, pipe.parity);
      barrier_expect(full, X + RECORD + SCALES);
      box_load(to, map, step * STEP / 2, tile.token * TOKENS, full);
      const u8* record = weight + ((long long)tile.row * p.num_steps + step) * RECORD;
      bulk_load(to + X, record, CODES, full);
      bulk_load(to + X + CODES, scales + (long long)step * p.scale_row + tile.token * TOKENS, SCALES, full);
      bulk_load(to + X + CODES + SCALES, record + CODES, 16, full);
    }
  }
}

DEVICE float2 shared_pair(u32 address) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address));
  return v;
}

DEVICE void promote(u32 stage, int thread, const float (&acc)[NUMBERS], float (&total)[NUMBERS]) {
  u32 scales = stage + X + CODES;
  float block = shared_pair(scales + SCALES).x;
#pragma unroll
  for (int i = 0; i < NUMBERS / 4; i++) {
    float2 token = shared_pair(scales + (8 * i + thread % 4 * 2) * 4);
    float first = token.x * block, second = token.y * block;
    total[4 * i] = fmaf(acc[4 * i], first, total[4 * i]);
    total[4 * i + 1] = fmaf(acc[4 * i + 1], second, total[4 * i + 1]);
    total[4 * i + 2] = fmaf(acc[4 * i + 2], first, total[4 * i + 2]);
    total[4 * i + 3] = fmaf(acc[4 * i + 3], second, total[4 * i + 3]);
  }
}

// total = weight rows · tokens. One warpgroup scales and adds while the tensor cores work for the other.
DEVICE void accumulate(const Problem& p, const Shared& s, Pipe& pipe, int warpgroup, int thread, float (&total)[NUMBERS]) {
  float acc[NUMBERS];
#pragma unroll
  for (int i = 0; i < NUMBERS; i++) total[i] = 0.0f;
#pragma unroll 1
  for (int step = 0; step < p.num_steps; step++, pipe.next()) {
    u32 stage = s.stages + pipe.stage * STAGE;
    u64 a = wgmma_descriptor(stage + X + warpgroup * (CODES / 2), 1024), b = wgmma_descriptor(stage, 1024);
    barrier_wait(s.full + 8 * pipe.stage, pipe.parity);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) Wgmma8<TOKENS>::ss(acc, a + 2 * k, b + 2 * k, k > 0);
    wgmma_commit();
    wgmma_wait<0>();
    settle(acc);
    promote(stage, thread, acc, total);
    __syncwarp();                                     // the warp has read the scales
    if (thread % 32 == 0) barrier_arrive(s.empty + 8 * pipe.stage);
  }
}

extern "C" __global__ void __launch_bounds__(384, 1)
fp8_linear_128(const __grid_constant__ TensorMap map, const u8* weight, const float* scales, u16* out, int num_tokens, int num_rows,
               int num_steps, int scale_row) {
  extern __shared__ u8 memory[];
  Shared s;
  s.stages = (shared_address(memory) + 1023) & ~1023u;
  s.place = s.stages + STAGES * STAGE;
  s.full = s.place + WARPGROUPS * PLACE;
  s.empty = s.full + 8 * STAGES;
  Problem p = {num_tokens, num_rows, num_steps, scale_row};
  if (threadIdx.x < STAGES) {
    barrier_init(s.full + 8 * threadIdx.x, 1);
    barrier_init(s.empty + 8 * threadIdx.x, WARPGROUPS * 4);
    barrier_init_fence();
  }
  __syncthreads();
  earlier_launches_wait();
  later_launches_allow();
  if (threadIdx.x < WARPGROUPS * 128) {
    registers_more<232>();
    int warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128;
    Pipe pipe = {0, 0};
    for (int index = blockIdx.x; index < num_tiles(p); index += gridDim.x) {
      float total[NUMBERS];
      Tile tile = tile_at(p, index);
      accumulate(p, s, pipe, warpgroup, thread, total);
      int token = tile.token * TOKENS;
      u16* to = out + (long long)token * num_rows + tile.row * 128 + warpgroup * 64;
      write_turned<TOKENS, CHUNK>(to, num_rows, num_tokens - token, s.place + warpgroup * PLACE, thread, total);
    }
  } else {
    registers_less<40>();
    if (threadIdx.x == WARPGROUPS * 128) fetch(p, s, &map, weight, scales);
  }
}
