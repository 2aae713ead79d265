// One slot of a block of drafts: logits = base + head · embed[previous], the choice of the next token, its evidence.
//
// A block's producer warps bring tiles of 32 tokens into shared memory: their weights, read from device memory once for all rows,
// and every row's base logits. Four warpgroups multiply: each keeps the embeddings of 64 rows in registers. Where there are fewer
// rows, they take tiles in turn. A tile's tokens lie so that a thread ends up with eight neighbours of a row, which share a block
// of random numbers. A row's best key (ordered score, then the lower token) is a maximum of whole numbers, so its order does not
// matter; blocks tell each other through device memory what is to be beaten. K has one order for every number of rows.
// Macros: ROW_BLOCKS of 64 rows (1, 2 or 4), STAGES, STATE_BYTES of shared memory before them, BF16 base logits.
#include "cuda_markov_step.cuh"
#include "hopper_wgmma.cuh"

// ---- producers -----------------------------------------------------------------------------------------------------------------
// Token t of a tile is row 8 (t / 2 % 4) + 2 (t / 8) + t % 2 of the product's operand, four panels of 64 k, swizzled.
DEVICE void load_weights(u32 to, const char* head, int first_token) {
  int thread = threadIdx.x - CONSUMERS, piece = thread % 32;
  const char* from = head + (long long)first_token * (RANK * 2) + piece * 16;
#pragma unroll 2
  for (int i = 0; i < TILE * 32 / PRODUCERS; i++) {
    int token = PRODUCERS / 32 * i + thread / 32, line = 8 * (token / 2 % 4) + 2 * (token / 8) + token % 2;
    async_copy16(to + piece / 8 * (TILE * 128) + line * 128 + (piece % 8 ^ line % 8) * 16, from + token * (RANK * 2));
  }
}
// pieces of 16 bytes; float32 lines are swizzled
DEVICE u32 base_place(int row, int piece) { return row * BASE_LINE + (BF16 ? piece : piece ^ row % 8) * 16; }
DEVICE void load_base(u32 to, const char* base, long long line_bytes, int num_rows) {
  constexpr int PIECES = BASE_LINE / 16, STEP = PRODUCERS / PIECES;
  int thread = threadIdx.x - CONSUMERS, piece = thread % PIECES;
#pragma unroll 2
  for (int row = thread / PIECES; row < num_rows; row += STEP)
    async_copy16(to + base_place(row, piece), base + row * line_bytes + piece * 16);
}
DEVICE void produce(Shared& s, u32 stages, const char* base, long long line_bytes, const char* head, int num_rows, int num_tiles) {
  int i = 0;
  for (int tile = blockIdx.x; tile < num_tiles; tile += gridDim.x, i++) {
    int stage = i % STAGES;
    u32 to = stages + stage * STAGE_BYTES;
    if (i >= STAGES) barrier_wait(shared_address(&s.empty[stage]), (i / STAGES - 1) & 1);
    load_weights(to, head, tile * TILE);
    load_base(to + WEIGHT_BYTES, base + (long long)tile * BASE_LINE, line_bytes, num_rows);
    async_arrive(shared_address(&s.full[stage]));
  }
}

// ---- consumers -----------------------------------------------------------------------------------------------------------------
// the embeddings of 16 rows as a warp's part of the left operand; rows that are not there are zero
DEVICE void load_rows(u32 a[16][4], const char* embed, const int* previous, int stride, int row, int num_rows) {
  int q = threadIdx.x % 4;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    bool there = row + 8 * h < num_rows;
    int token = there ? max(previous[(row + 8 * h) * stride], 0) : 0;
    const u32* from = (const u32*)(embed + (long long)token * (RANK * 2)) + q;
#pragma unroll
    for (int k = 0; k < 16; k++) {
      a[k][h] = there ? from[8 * k] : 0;
      a[k][2 + h] = there ? from[8 * k + 4] : 0;
    }
  }
}

DEVICE void add_base(float x[8], const char* line, int row, int q) {
#if BF16
  uint4 b = *(const uint4*)(line + base_place(row, q));
  const u32 pairs[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
  for (int i = 0; i < 4; i++) x[2 * i] += bf16_low(pairs[i]), x[2 * i + 1] += bf16_high(pairs[i]);
#else
#pragma unroll
  for (int i = 0; i < 2; i++) {
    float4 b = *(const float4*)(line + base_place(row, 2 * q + i));
    x[4 * i] += b.x, x[4 * i + 1] += b.y, x[4 * i + 2] += b.z, x[4 * i + 3] += b.w;
  }
#endif
}

// the best of eight neighbours for the row `at`, if it is there; one of the row's four threads `tells` what beats the best so far
DEVICE void choose(Shared& s, const float x[8], float most, int id, const u32 words[4], int at, bool tells, bool there) {
  const RowNoise& noise = s.rows[at];
  bool greedy = noise.inverse == 0;
  u64 so_far = s.keys[at], key = so_far;
  if (__any_sync(~0u, greedy && !(most < logit_of(key)))) {
    u64 found = best_greedy(x, most, id, key);
    if (greedy) key = found;
  }
  if (__any_sync(~0u, !greedy)) {
    u64 found = best_drawn(noise, x, most, id, words, greedy ? BAD : key);
    if (!greedy) key = found;
  }
  if (tells && key > so_far && there) atomicMax(&s.keys[at], key);
}

// a tile against 64 rows by one warpgroup; `row` and `row` + 8 are this thread's
DEVICE void consume(Shared& s, const u32 a[16][4], const char* stage, u32 empty, int first_token, int row, int num_rows) {
  int lane = threadIdx.x % 32, q = lane % 4;
  float d[16];
  int id = first_token + 8 * q;
  u64 weights = wgmma_descriptor(shared_address(stage), 1024);
  __syncwarp();
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 16; k++)
    Wgmma<TILE>::rs(d, *(const u32(*)[4])a[k], weights + (k / 4 * (TILE * 128) + k % 4 * 32) / 16, k > 0);
  wgmma_commit();
  u32 words[2][4];  // drawn while the product is on its way
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const RowNoise& noise = s.rows[min(row + 8 * h, num_rows - 1)];
    if (row - lane / 4 + 8 * h < num_rows && __any_sync(~0u, noise.inverse > 0)) high_bits(noise.philox, id, words[h]);
  }
  wgmma_wait<0>();
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float x[8], most;
#pragma unroll
    for (int j = 0; j < 4; j++) x[2 * j] = d[4 * j + 2 * h], x[2 * j + 1] = d[4 * j + 2 * h + 1];
    int at = min(row + 8 * h, num_rows - 1);
    add_base(x, stage + WEIGHT_BYTES, at, q);
    if (h == 1) {
      __syncwarp();
      if (lane == 0) barrier_arrive(empty);
    }
    if (row - lane / 4 + 8 * h >= num_rows) continue;  // none of the warp's
    most = x[0];
#pragma unroll
    for (int j = 1; j < 8; j++) most = max_or_nan(most, x[j]);
    if (row + 8 * h >= num_rows) most = -INFINITY_F;
    choose(s, x, most, id, words[h], at, q == 0, row + 8 * h < num_rows);
  }
}

DEVICE float dot8(uint4 x, uint4 y, float sum) {
  const u32 a[4] = {x.x, x.y, x.z, x.w}, b[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
  for (int i = 0; i < 4; i++) sum += bf16_low(a[i]) * bf16_low(b[i]) + bf16_high(a[i]) * bf16_high(b[i]);
  return sum;
}

// proj · [hidden, embed[previous]] of one row by the producers, a warp a quarter of it
DEVICE void weigh(Shared& s, const char* hidden, int width, const char* embedding, const char* projection, float* evidence) {
  int thread = threadIdx.x - CONSUMERS;
  float sum = 0;
#pragma unroll 2
  for (int i = thread * 16; i < width * 2; i += PRODUCERS * 16)
    sum = dot8(*(const uint4*)(hidden + i), *(const uint4*)(projection + i), sum);
  if (thread < 32) sum = dot8(*(const uint4*)(embedding + thread * 16), *(const uint4*)(projection + width * 2 + thread * 16), sum);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (thread % 32 == 0) s.quarters[thread / 32] = sum;
  named_sync(2, PRODUCERS);
  if (thread == 0) *evidence = (s.quarters[0] + s.quarters[1]) + (s.quarters[2] + s.quarters[3]);
  named_sync(2, PRODUCERS);
}

// This block's keys to all blocks'; the last block writes the tokens and leaves the workspace zero
DEVICE void finish(Shared& s, const int* previous, int previous_stride, int num_rows, u64* best, u32* finished, int* tokens,
                   int tokens_stride) {
  named_sync(1, CONSUMERS);
  for (int row = threadIdx.x; row < num_rows; row += CONSUMERS)
    if (s.keys[row] > NOTHING) atomicMax(&best[row], s.keys[row]);
  __threadfence();
  named_sync(1, CONSUMERS);
  if (threadIdx.x == 0) s.is_last = add_acq_rel(finished, 1) == gridDim.x - 1;
  named_sync(1, CONSUMERS);
  if (!s.is_last) return;
  for (int row = threadIdx.x; row < num_rows; row += CONSUMERS) {
    u64 key = atomicExch(&best[row], 0);
    bool chosen = key != 0 && key != BAD && previous[row * previous_stride] >= 0;
    tokens[row * tokens_stride] = chosen ? (int)(LAST_ID - (u32)(key & LAST_ID)) : -1;
  }
  if (threadIdx.x == 0) *finished = 0;
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + PRODUCERS, 1)
markov_step(const char* base, int base_stride, const char* head, const char* embed, const int* previous, int previous_stride,
            const char* hidden, int hidden_stride, int width, const char* projection, const u64* seeds, const u64* positions,
            int ahead, const double* temperatures, int stream, int num_rows, int vocabulary, u64* best, u32* finished,
            int* tokens, int tokens_stride, float* evidence, int evidence_stride) {
  extern __shared__ __align__(1024) char memory[];
  Shared& s = *(Shared*)memory;
  const char* stages = memory + STATE_BYTES;
  int num_tiles = vocabulary / TILE;
  if (threadIdx.x < STAGES) {
    barrier_init(shared_address(&s.full[threadIdx.x]), PRODUCERS);
    barrier_init(shared_address(&s.empty[threadIdx.x]), ROW_BLOCKS * 4);
    barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x >= CONSUMERS) {
    registers_less<PRODUCER_REGISTERS>();
    produce(s, shared_address(stages), base, (long long)base_stride * (BF16 ? 2 : 4), head, num_rows, num_tiles);
    for (int row = blockIdx.x; row < num_rows; row += gridDim.x) {  // while the last tiles are multiplied
      const char* embedding = embed + (long long)max(previous[row * previous_stride], 0) * (RANK * 2);
      weigh(s, hidden + (long long)row * hidden_stride * 2, width, embedding, projection, evidence + row * evidence_stride);
    }
  } else {
    registers_more<CONSUMER_REGISTERS>();
    for (int row = threadIdx.x; row < num_rows; row += CONSUMERS) {
      float temperature = (float)temperatures[row];
      s.keys[row] = NOTHING;
      s.rows[row] = {philox_row(seeds[row], positions[row] + ahead, stream), temperature < 1e-5f ? 0 : 1 / temperature};
    }
    int warp = threadIdx.x / 32, group = warp / 4, block = group % ROW_BLOCKS, lane = threadIdx.x % 32;
    int row = block * 64 + warp % 4 * 16 + lane / 4;
    u32 a[16][4];
    load_rows(a, embed, previous, previous_stride, row, num_rows);
    named_sync(1, CONSUMERS);
    int i = group / ROW_BLOCKS;
    for (int tile = blockIdx.x + i * gridDim.x; tile < num_tiles; tile += TEAMS * gridDim.x, i += TEAMS) {
      int stage = i % STAGES, done = i / TEAMS, told = row_told(s, block * 64, num_rows);
      u64 heard = is_power(done) ? ask(best, told) : 0;
      barrier_wait(shared_address(&s.full[stage]), i / STAGES & 1);
      fence_shared_for_async();
      consume(s, a, stages + stage * STAGE_BYTES, shared_address(&s.empty[stage]), tile * TILE, row, num_rows);
      if (is_power(done)) hear(s, told, heard);
      if (i % TEAMS == 0 && is_power(done + 1)) tell(s, best, told);
    }
    finish(s, previous, previous_stride, num_rows, best, finished, tokens, tokens_stride);
  }
}
