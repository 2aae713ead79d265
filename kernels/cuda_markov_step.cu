// One slot of a block of drafts: logits = base + head · embed[previous], the choice of the next token, its evidence.
//
// A warp takes 16 tokens of the vocabulary at a time: their 16 x 256 weights stay in its registers, read from device memory
// once for all rows, and meet 16 rows at a time. The tokens of a tile are laid so that a thread holds four neighbours of a row,
// and the 256 products are summed in an order that gives every thread 16 bytes at a time of both operands.
// A row's best key (ordered score, then the lower token) is a maximum of whole numbers, so its order does not matter.
// Macros: THREADS a block, BF16 base logits. B rows, V vocabulary.
#include "philox.cuh"

constexpr int RANK = 256, LINE = RANK * 2 + 64;  // bytes of a row's embedding in shared memory: 16-byte reads without conflicts
constexpr int ROWS = 256, WARPS = THREADS / 32, ID_BITS = 17;
constexpr u32 LAST_ID = (1u << ID_BITS) - 1;
constexpr u64 NOTHING = (u64)0x007fffff << ID_BITS, BAD = ~0ull;  // keys of -inf, and of a row with a NaN or +inf
constexpr float LOG2_E = 1.4426950408889634f;

struct RowNoise {
  Philox philox;
  float temperature;  // 0: greedy
};
struct Shared {
  u64 keys[ROWS];
  RowNoise rows[ROWS];
  u32 is_last;
  __align__(16) char embeddings[16];  // and more: a line for each row, rows in sixteens
};

DEVICE u64 key_of(float score, int id) {
  u32 bits = __float_as_uint(score + 0.f);
  return (u64)(bits ^ ((u32)((int)bits >> 31) | 0x80000000u)) << ID_BITS | (LAST_ID - (u32)id);
}
DEVICE float score_of(u64 key) {
  u32 bits = (u32)(key >> ID_BITS);
  return __uint_as_float(bits & 0x80000000u ? bits ^ 0x80000000u : ~bits);
}

DEVICE uint4 load_once(const void* from) {
  uint4 x;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(from));
  return x;
}
DEVICE float4 load_base(const char* base, long long place) {
#if BF16
  u32 low, high;
  asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(low), "=r"(high) : "l"(base + place * 2));
  return make_float4(bf16_low(low), bf16_high(low), bf16_low(high), bf16_high(high));
#else
  uint4 x = load_once(base + place * 4);
  return make_float4(__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z), __uint_as_float(x.w));
#endif
}
DEVICE void multiply(float4& sum, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum.x), "+f"(sum.y), "+f"(sum.z), "+f"(sum.w) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// the best key of four neighbours of a row, 0 where none can beat the row's best so far
DEVICE u64 best_of_four(const RowNoise& row, const float x[4], int id, u64 so_far) {
  float level = score_of(so_far);
  bool good = x[0] < __uint_as_float(0x7f800000) && x[1] < __uint_as_float(0x7f800000) &&
              x[2] < __uint_as_float(0x7f800000) && x[3] < __uint_as_float(0x7f800000);
  if (!good || so_far == BAD) return BAD;
  u64 best = 0;
  if (row.temperature == 0) {
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (x[j] >= level && x[j] > -__uint_as_float(0x7f800000)) best = max(best, key_of(x[j], id + j));
    return best;
  }
  u64 words[4];
  philox_words<4>(row.philox, id, words);
  float inverse = 1 / row.temperature;
  level -= fabsf(level) * 0x1p-20f;  // room for rounding in the test below
#pragma unroll
  for (int j = 0; j < 4; j++) {
    float score = x[j] * inverse;
    if (may_win(power_of_two((score - level) * LOG2_E) * 1.001f, (u32)words[j]) && score > -__uint_as_float(0x7f800000))
      best = max(best, key_of(score + gumbel32(words[j]), id + j));
  }
  return best;
}

DEVICE void enter(u64* keys, int row, u64 key) {
#pragma unroll
  for (int step = 1; step < 4; step *= 2) key = max(key, __shfl_xor_sync(~0u, key, step));
  if (threadIdx.x % 4 == 0 && key > keys[row]) atomicMax(&keys[row], key);
}

// 16 tokens from `token` on against all rows
DEVICE void tile(Shared& s, const char* base, long long base_stride, const char* head, int token, int num_rows) {
  int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  uint4 weights[2][8];
#pragma unroll
  for (int j = 0; j < 2; j++)
#pragma unroll
    for (int k = 0; k < 8; k++)
      weights[j][k] = load_once(head + (long long)(token + g / 2 * 4 + 2 * j + g % 2) * (RANK * 2) + q * 16 + k * 64);
  int id = token + 4 * q;
  float4 zero = make_float4(0, 0, 0, 0), next[2];
#pragma unroll
  for (int h = 0; h < 2; h++) next[h] = g + 8 * h < num_rows ? load_base(base, (g + 8 * h) * base_stride + id) : zero;
  for (int m = 0; m < num_rows; m += 16) {
    float4 now[2] = {next[0], next[1]}, sums[2] = {zero, zero};
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int row = m + 16 + g + 8 * h;
      if (row < num_rows) next[h] = load_base(base, row * base_stride + id);
    }
    const char* line = s.embeddings + (m + g) * LINE + q * 16;
#pragma unroll
    for (int k = 0; k < 8; k++) {
      uint4 x = *(const uint4*)(line + k * 64), y = *(const uint4*)(line + 8 * LINE + k * 64);
#pragma unroll
      for (int j = 0; j < 2; j++) {
        multiply(sums[j], x.x, y.x, x.y, y.y, weights[j][k].x, weights[j][k].y);
        multiply(sums[j], x.z, y.z, x.w, y.w, weights[j][k].z, weights[j][k].w);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int row = m + g + 8 * h;
      u64 key = 0;
      if (row < num_rows) {
        float x[4] = {now[h].x + (h ? sums[0].z : sums[0].x), now[h].y + (h ? sums[0].w : sums[0].y),
                      now[h].z + (h ? sums[1].z : sums[1].x), now[h].w + (h ? sums[1].w : sums[1].y)};
        key = best_of_four(s.rows[row], x, id, s.keys[row]);
      }
      if (__any_sync(~0u, key != 0)) enter(s.keys, row, key);
    }
  }
}

DEVICE float dot8(uint4 x, uint4 y, float sum) {
  const u32 a[4] = {x.x, x.y, x.z, x.w}, b[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
  for (int i = 0; i < 4; i++) sum += bf16_low(a[i]) * bf16_low(b[i]) + bf16_high(a[i]) * bf16_high(b[i]);
  return sum;
}

// proj · [hidden, embed[previous]] of one row, by one warp
DEVICE float weigh(const char* hidden, int width, const char* embedding, const char* projection) {
  int lane = threadIdx.x % 32;
  float sum = 0;
#pragma unroll 4
  for (int i = lane * 16; i < width * 2; i += 512)
    sum = dot8(*(const uint4*)(hidden + i), *(const uint4*)(projection + i), sum);
  sum = dot8(*(const uint4*)(embedding + lane * 16), *(const uint4*)(projection + width * 2 + lane * 16), sum);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
markov_step(const char* base, int base_stride, const char* head, const char* embed, const int* previous, int previous_stride,
            const char* hidden, int hidden_stride, int width, const char* projection, const u64* seeds, const u64* positions,
            int ahead, const double* temperatures, int stream, int num_rows, int vocabulary, u64* best, u32* finished,
            int* tokens, int tokens_stride, float* evidence, int evidence_stride) {
  extern __shared__ __align__(16) char memory[];
  Shared& s = *(Shared*)memory;
  int padded = (num_rows + 15) / 16 * 16;
  for (int i = threadIdx.x; i < padded * 32; i += THREADS) {
    int row = i / 32, token = row < num_rows ? max(previous[row * previous_stride], 0) : 0;
    uint4 piece = *(const uint4*)(embed + (long long)token * (RANK * 2) + i % 32 * 16);
    *(uint4*)(s.embeddings + row * LINE + i % 32 * 16) = row < num_rows ? piece : make_uint4(0, 0, 0, 0);
  }
  for (int row = threadIdx.x; row < num_rows; row += THREADS) {
    float temperature = (float)temperatures[row];
    s.keys[row] = NOTHING;
    s.rows[row] = {philox_row(seeds[row], positions[row] + ahead, stream), temperature < 1e-5f ? 0 : temperature};
  }
  __syncthreads();
  int warp = threadIdx.x / 32 * gridDim.x + blockIdx.x, num_warps = gridDim.x * WARPS;
  for (int at = warp; at < vocabulary / 16; at += num_warps) tile(s, base, base_stride, head, at * 16, num_rows);
  for (int row = num_warps - 1 - warp; row < num_rows; row += num_warps) {  // the warps with fewer tiles
    float sum = weigh(hidden + (long long)row * hidden_stride * 2, width, s.embeddings + row * LINE, projection);
    if (threadIdx.x % 32 == 0) evidence[row * evidence_stride] = sum;
  }
  __syncthreads();
  for (int row = threadIdx.x; row < num_rows; row += THREADS)
    if (s.keys[row] > NOTHING) atomicMax(&best[row], s.keys[row]);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) s.is_last = add_acq_rel(finished, 1) == gridDim.x - 1;
  __syncthreads();
  if (!s.is_last) return;
  for (int row = threadIdx.x; row < num_rows; row += THREADS) {
    u64 key = atomicExch(&best[row], 0);
    bool chosen = key != 0 && key != BAD && previous[row * previous_stride] >= 0;
    tokens[row * tokens_stride] = chosen ? (int)(LAST_ID - (u32)(key & LAST_ID)) : -1;
  }
  if (threadIdx.x == 0) *finished = 0;
}
