// The state of a block of the Markov step, and the choice among eight neighbours of a row.
#pragma once
#include "ordered_keys.cuh"
#include "philox.cuh"

constexpr int RANK = 256, TILE = 32, ROWS = 256, GROUPS = 4, CONSUMERS = GROUPS * 128, PRODUCERS = 128;
constexpr int TEAMS = GROUPS / ROW_BLOCKS;  // of warpgroups that share a tile
constexpr int WEIGHT_BYTES = TILE * RANK * 2, BASE_LINE = TILE * (BF16 ? 2 : 4);
constexpr int STAGE_BYTES = WEIGHT_BYTES + ROW_BLOCKS * 64 * BASE_LINE;
constexpr int PRODUCER_REGISTERS = 32, CONSUMER_REGISTERS = 112;
constexpr u64 NOTHING = (u64)0x007fffff << ID_BITS, BAD = ~0ull;  // keys of -inf, and of a row with a NaN or +inf

struct RowNoise {
  Philox philox;
  float inverse;  // of the temperature; 0: greedy
};
struct Shared {
  u64 full[STAGES], empty[STAGES];
  u64 keys[ROWS];
  RowNoise rows[ROWS];
  float quarters[PRODUCERS / 32];
  u32 is_last;
};
static_assert(sizeof(Shared) <= STATE_BYTES && STATE_BYTES % 1024 == 0, "swizzled tiles follow it");

DEVICE float one_of(const float x[8], int j) {
  float low = j & 1 ? (j & 2 ? x[3] : x[1]) : (j & 2 ? x[2] : x[0]), high = j & 1 ? (j & 2 ? x[7] : x[5]) : (j & 2 ? x[6] : x[4]);
  return j & 4 ? high : low;
}
// the larger of the keys of the four threads that share a row
DEVICE u64 best_of_row(u64 key) {
  key = max(key, __shfl_xor_sync(~0u, key, 1));
  return max(key, __shfl_xor_sync(~0u, key, 2));
}
// how near 1 a token's noise must be drawn to beat a row's best so far, with room for rounding
DEVICE u32 reach_at(float score, float level) {
  return reach_of(power_of_two((score - level + fabsf(level) * 0x1p-20f) * LOG2_E) * 1.001f);
}

// The best key of the row of eight neighbours in each of four threads, above `so_far`; else `so_far`, or BAD.
DEVICE u64 best_greedy(const float x[8], float most, int id, u64 so_far) {
  int first = 7;
#pragma unroll
  for (int j = 6; j >= 0; j--) first = x[j] == most ? j : first;
  u64 key = !(most < INFINITY_F) ? BAD : most > -INFINITY_F ? key_of(most, id + first) : NOTHING;
  return max(so_far, best_of_row(key));
}
DEVICE u64 best_drawn(const RowNoise& row, const float x[8], float most, int id, const u32 words[4], u64 so_far) {
  u32 left = 0xff;  // tokens that may still win
  if (!(most < INFINITY_F)) so_far = BAD, left = 0;
  bool some = left && one_may_win(reach_at(most * row.inverse, logit_of(so_far)), words);
  while (__any_sync(~0u, some)) {  // each draw raises the level for what is left
    u64 key = so_far;
    float level = logit_of(so_far);
    u32 may = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      u32 high = j & 1 ? words[j / 2] >> 16 : words[j / 2] & 0xffff;
      may |= (u32)may_win(reach_at(x[j] * row.inverse, level), high) << j;
    }
    left = some ? left & may : 0;
    if (left) {
      int j = __ffs(left) - 1;
      float score = one_of(x, j) * row.inverse;
      left &= left - 1;
      if (score > -INFINITY_F) key = max(key, key_of(score + gumbel32(with_low_bits(row.philox, id + j, high_of(words, j))), id + j));
    }
    so_far = best_of_row(key);
    some = left != 0;
  }
  return so_far;
}

// What this block has drawn for 64 rows to the others, and what they have. Only the level from which on tokens are drawn for
// depends on it, so nobody waits: it is told after 1, 2, 4, … tiles of a warpgroup, and asked for one tile later.
DEVICE bool is_power(int count) { return count > 0 && (count & (count - 1)) == 0; }
DEVICE int row_told(const Shared& s, int first_row, int num_rows) {  // -1: none of this thread's, or it is greedy
  int row = first_row + threadIdx.x % 128;
  return threadIdx.x % 128 < 64 && row < num_rows && s.rows[row].inverse > 0 ? row : -1;
}
DEVICE void tell(const Shared& s, u64* best, int row) {
  if (row >= 0 && s.keys[row] > NOTHING) atomicMax(&best[row], s.keys[row]);
}
DEVICE u64 ask(const u64* best, int row) {
  u64 key = 0;
  if (row >= 0) asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(key) : "l"(best + row) : "memory");
  return key;
}
DEVICE void hear(Shared& s, int row, u64 key) {
  if (row >= 0 && key > s.keys[row]) atomicMax(&s.keys[row], key);
}
