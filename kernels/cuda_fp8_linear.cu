// out[T, N] = x[T, K] · weightᵀ[K, N], or G such products side by side. Weight E4M3 with one power of two per 32 × 32 block, x and
// out bf16, float32 accumulation. Computed as outᵀ = weight · xᵀ: weight rows are wgmma's M, tokens its N.
//
// A warpgroup owns 64 weight rows: it turns their codes into bf16 in its own registers (exactly) and multiplies them with a tile
// of TOKENS tokens that the copy engine brought to shared memory. A block has two warpgroups, and one more warp that keeps the
// copies going.
//
// Order of addition, the same for every variant: K is cut into `segments` by pairs of steps of 64; a segment is one chain of wgmma
// from zero, and the segments are added to zero from first to last.
//
// Macros: TOKENS 8 … 256; RESIDENT blocks a processor; STAGES of DEPTH steps (1: many tokens, 2: few). SUMS: CHAIN, one segment;
// SEQUENCE, a block does all segments of a tile; CLUSTER, they are dealt to the blocks of a cluster.
#include "fp8_records.cuh"
#include "hopper_wgmma.cuh"
#include "cluster_sums.cuh"
#include "ring.cuh"

enum { CHAIN, CLUSTER, SEQUENCE };
constexpr int ROWS = 128;                             // of weight, a block
constexpr int CODES = 2 * RECORD;                     // bytes a step
constexpr int X = TOKENS * STEP * 2;
constexpr int CHUNK = TOKENS <= 32 ? TOKENS : TOKENS % 64 || RESIDENT > 1 ? 32 : 64;  // tokens that leave together
constexpr int PLACE = CHUNK * 128;                    // bytes of them in shared memory, a warpgroup
constexpr int CONSUMERS = 256;
constexpr int PRODUCERS = TOKENS >= 128 ? 128 : 32;   // a whole warpgroup where registers have to change hands
constexpr int NUMBERS = TOKENS / 2;                   // accumulators a thread
constexpr int TOKEN_GROUP = 16;                       // token tiles that share weight rows in the second-level cache

struct Problem {
  int num_tokens, num_rows, num_steps;                // T, N, K / 64
  int rows_per_group;                                 // N of one group
  int segments;
};

struct Unit {
  int row, token, step, end, segment;                 // row in blocks of ROWS, token in tiles
};

DEVICE int border(const Problem& p, int segment) { return segment * (p.num_steps / 2) / p.segments * 2; }
DEVICE int token_tiles(const Problem& p) { return (p.num_tokens + TOKENS - 1) / TOKENS; }
DEVICE int num_units(const Problem& p) {
  return p.num_rows / ROWS * token_tiles(p) * (SUMS == CLUSTER ? p.segments : 1);
}

DEVICE Unit unit_at(const Problem& p, int index) {
  Unit unit;
  unit.segment = SUMS == CLUSTER ? index % p.segments : 0;
  index = SUMS == CLUSTER ? index / p.segments : index;
  int rows = p.num_rows / ROWS, group = index / (rows * TOKEN_GROUP), rest = index % (rows * TOKEN_GROUP);
  int width = min(TOKEN_GROUP, token_tiles(p) - group * TOKEN_GROUP);
  unit.row = rest / width;
  unit.token = group * TOKEN_GROUP + rest % width;
  unit.step = SUMS == CLUSTER ? border(p, unit.segment) : 0;
  unit.end = SUMS == CLUSTER ? border(p, unit.segment + 1) : p.num_steps;
  return unit;
}

struct Shared {
  u32 x, place, full, empty;                          // addresses
  u8* codes;
};

using Pipe = RingPlace<STAGES>;

DEVICE void fetch_codes(const Problem& p, const Shared& s, const u8* weight, const Unit& unit, int step, int stage) {
  u32 full = s.full + 8 * stage, to = shared_address(s.codes) + stage * DEPTH * CODES;
  const u8* from = weight + ((long long)unit.row * p.num_steps + step) * CODES;
  if (token_tiles(p) == 1) bulk_load_once(to, from, DEPTH * CODES, full);  // nobody else reads these weights
  else bulk_load(to, from, DEPTH * CODES, full);
}

DEVICE void fetch_tokens(const Problem& p, const Shared& s, const TensorMap* map, const Unit& unit, int step, int stage) {
  int column = unit.row * ROWS / p.rows_per_group * p.num_steps * STEP;
#pragma unroll
  for (int i = 0; i < DEPTH; i++)
    box_load(s.x + (stage * DEPTH + i) * X, map, column + (step + i) * STEP, unit.token * TOKENS, s.full + 8 * stage);
}

// One thread keeps the stages filled. Weights depend on no launch, tokens do: the first stages get their weights before the
// launches that write the tokens end.
DEVICE void fetch(const Problem& p, const Shared& s, const TensorMap* map, const u8* weight) {
  Pipe pipe = {0, 1};
  for (int index = blockIdx.x; index < num_units(p); index += gridDim.x) {
    Unit unit = unit_at(p, index);
    int ahead = index == blockIdx.x ? min(STAGES, (unit.end - unit.step) / DEPTH) : 0;
    for (int i = 0; i < ahead; i++) {
      barrier_expect(s.full + 8 * i, DEPTH * (CODES + X));
      fetch_codes(p, s, weight, unit, unit.step + i * DEPTH, i);
    }
    if (ahead) earlier_launches_wait();
    for (int step = unit.step; step < unit.end; step += DEPTH, pipe.next(), ahead--) {
      if (ahead <= 0) {
        barrier_wait(s.empty + 8 * pipe.stage, pipe.parity);
        barrier_expect(s.full + 8 * pipe.stage, DEPTH * (CODES + X));
        fetch_codes(p, s, weight, unit, step, pipe.stage);
      }
      fetch_tokens(p, s, map, unit, step, pipe.stage);
    }
  }
}

// a warp needs the stage no more
DEVICE void give_back(const Shared& s, int stage, int thread) {
  if (thread % 32 == 0) barrier_arrive(s.empty + 8 * stage);
}

// One segment with many tokens: acc = weight rows · tokens over `steps` steps, an even number. While the tensor cores do one step,
// the codes of the next are turned into the other half of `a`.
DEVICE void accumulate(const Shared& s, Pipe& pipe, int steps, int warpgroup, int thread, float (&acc)[NUMBERS]) {
  const u8* records = s.codes + warpgroup * RECORD;
  u32 a[2][4][4];
  int before = 0;
#pragma unroll 1
  for (int step = 0; step < steps; step += 2) {
#pragma unroll
    for (int odd = 0; odd < 2; odd++) {
      Words words;
      barrier_wait(s.full + 8 * pipe.stage, pipe.parity);
      words.load(records + pipe.stage * CODES, thread);
#pragma unroll
      for (int k = 0; k < 4; k++) words.decode_at(k, a[odd][k]);
      u64 b = wgmma_descriptor(s.x + pipe.stage * X, 1024);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; k++) Wgmma<TOKENS>::rs(acc, a[odd][k], b + 2 * k, step > 0 || odd || k > 0);
      wgmma_commit();
      wgmma_wait<1>();                                // the step before: its registers and its stage are free
      if (odd || step > 0) give_back(s, before, thread);
      before = pipe.stage;
      pipe.next();
    }
  }
  wgmma_wait<0>();
  give_back(s, before, thread);
  settle(acc);
}

// the same with few tokens, two steps a stage; many warpgroups hide each other's waiting
DEVICE void accumulate_few(const Shared& s, Pipe& pipe, int steps, int warpgroup, int thread, float (&acc)[NUMBERS]) {
#pragma unroll 1
  for (int step = 0; step < steps; step += 2, pipe.next()) {
    u32 a[8][4];
    Words words;
    barrier_wait(s.full + 8 * pipe.stage, pipe.parity);
    const u8* record = s.codes + pipe.stage * 2 * CODES + warpgroup * RECORD;
#pragma unroll
    for (int k = 0; k < 8; k++) {
      if (k % 4 == 0) words.load(record + k / 4 * CODES, thread);
      words.decode_at(k % 4, a[k]);
    }
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 8; k++) {
      u64 b = wgmma_descriptor(s.x + (pipe.stage * 2 + k / 4) * X, 1024);
      Wgmma<TOKENS>::rs(acc, a[k], b + 2 * (k % 4), step > 0 || k > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    give_back(s, pipe.stage, thread);
  }
  settle(acc);
}

DEVICE void consume(const Problem& p, const Shared& s, u16* out) {
  int warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128;
  earlier_launches_wait();                            // they may use `out`
  Pipe pipe = {0, 0};
  float acc[NUMBERS];
  for (int index = blockIdx.x; index < num_units(p); index += gridDim.x) {
    Unit unit = unit_at(p, index);
    int token = unit.token * TOKENS, num_tokens = p.num_tokens - token;
    u16* to = out + (long long)token * p.num_rows + unit.row * ROWS + warpgroup * 64;
    u32 place = s.place + warpgroup * PLACE;
    if constexpr (SUMS == SEQUENCE) {
      float total[NUMBERS] = {};
      for (int segment = 0; segment < p.segments; segment++) {
        accumulate(s, pipe, border(p, segment + 1) - border(p, segment), warpgroup, thread, acc);
#pragma unroll
        for (int i = 0; i < NUMBERS; i++) total[i] += acc[i];
      }
      write_turned<TOKENS, CHUNK>(to, p.num_rows, num_tokens, place, thread, total);
    } else {
      if (DEPTH == 2) accumulate_few(s, pipe, unit.end - unit.step, warpgroup, thread, acc);
      else accumulate(s, pipe, unit.end - unit.step, warpgroup, thread, acc);
      // in a cluster a block has one unit only; its codes are used up, two planes fit in a record's place
      auto plane = [&](int i) { return shared_address(s.codes) + i / 2 * CODES + warpgroup * RECORD + i % 2 * 2048; };
      if constexpr (SUMS == CLUSTER) {
        add_in_cluster(plane, p.segments, to, p.num_rows, num_tokens, place, thread, acc);
        return;
      }
      write_turned<TOKENS, CHUNK>(to, p.num_rows, num_tokens, place, thread, acc);
    }
  }
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + PRODUCERS, RESIDENT)
fp8_linear(const __grid_constant__ TensorMap map, const u8* weight, u16* out, int num_tokens, int num_rows, int num_steps,
           int rows_per_group, int segments) {
  extern __shared__ u8 memory[];
  u8* base = memory + (-shared_address(memory) & 1023);
  Shared s;
  s.x = shared_address(base);
  s.place = s.x + STAGES * DEPTH * X;
  s.codes = base + STAGES * DEPTH * X + 2 * PLACE;
  s.full = shared_address(s.codes) + STAGES * DEPTH * CODES;
  s.empty = s.full + 8 * STAGES;
  Problem p = {num_tokens, num_rows, num_steps, rows_per_group, segments};
  if (threadIdx.x < STAGES) {
    barrier_init(s.full + 8 * threadIdx.x, 1);
    barrier_init(s.empty + 8 * threadIdx.x, 8);
    barrier_init_fence();
  }
  __syncthreads();
  later_launches_allow();
  if (threadIdx.x < CONSUMERS) {
    if (PRODUCERS == 128) registers_more<232>();
    consume(p, s, out);
  } else {
    if (PRODUCERS == 128) registers_less<40>();
    if (threadIdx.x == CONSUMERS) fetch(p, s, &map, weight);
    __syncwarp();
    if (SUMS == CLUSTER) cluster_arrive(), cluster_wait();
  }
  if (SUMS == CLUSTER) cluster_arrive(), cluster_wait();  // nobody leaves while others read here
}
