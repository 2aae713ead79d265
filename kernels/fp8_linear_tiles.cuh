// How a dense FP8 product is cut into tiles, and where a block keeps what it needs: part of cuda_fp8_linear.cu.
#pragma once
#include "cluster_copies.cuh"
#include "fp8_records.cuh"
#include "ring.cuh"

enum { CHAIN, CLUSTER, SENT, SEQUENCE };
constexpr bool SPLIT = SUMS == CLUSTER || SUMS == SENT;
constexpr int ROWS = 64 * WARPGROUPS;                 // of weight, a block
constexpr int PAIR = 2 * RECORD;                      // bytes of 128 rows, a step
constexpr int CODES = WARPGROUPS * RECORD;            // bytes a step
constexpr int X = TOKENS * STEP * 2;
constexpr int CHUNK = TOKENS <= 32 ? TOKENS : TOKENS % 64 || RESIDENT > 1 || WARPGROUPS > 2 ? 32 : 64;  // tokens that leave together
constexpr int PLACE = CHUNK * 128;                    // bytes of them in shared memory, a warpgroup
constexpr int CONSUMERS = 128 * WARPGROUPS;
constexpr bool HANDS_OVER = TOKENS >= 128 || WARPGROUPS > 2;  // registers change hands, which takes a whole warpgroup
constexpr int PRODUCERS = HANDS_OVER ? 128 : 32;
constexpr int CONSUMER_REGISTERS = WARPGROUPS > 2 ? 112 : 232, PRODUCER_REGISTERS = WARPGROUPS > 2 ? 32 : 40;
constexpr int NUMBERS = TOKENS / 2;                   // accumulators a thread
constexpr int TOKEN_GROUP = 16;                       // token tiles that share weight rows in the second-level cache
static_assert(SUMS != CLUSTER || EACH * ROWS * TOKENS * 4 <= STAGES * DEPTH * (X + CODES), "sums lie where a tile's operands lay");

struct Problem {
  int num_tokens, num_rows, num_steps;                // T, N, K / 64
  int rows_per_group;                                 // N of one group
  int segments;
};

struct Unit {
  int row, token, step, end;                          // row in blocks of ROWS, token in tiles
};

DEVICE int border(const Problem& p, int segment) { return segment * (p.num_steps / 2) / p.segments * 2; }
DEVICE int steps_of(const Problem& p, int segment) { return border(p, segment + 1) - border(p, segment); }
DEVICE int token_tiles(const Problem& p) { return (p.num_tokens + TOKENS - 1) / TOKENS; }
// tiles of ROWS outputs × TOKENS tokens; a cluster has one at a time
DEVICE int num_tiles(const Problem& p) { return p.num_rows / ROWS * token_tiles(p); }
DEVICE int own_rank() { return SPLIT ? cluster_rank() : 0; }

DEVICE Unit unit_at(const Problem& p, int tile) {
  Unit unit;
  unit.row = tile;
  unit.token = 0;
  if (token_tiles(p) > 1) {
    int rows = p.num_rows / ROWS, group = tile / (rows * TOKEN_GROUP), rest = tile % (rows * TOKEN_GROUP);
    int width = min(TOKEN_GROUP, token_tiles(p) - group * TOKEN_GROUP);
    unit.row = rest / width;
    unit.token = group * TOKEN_GROUP + rest % width;
  }
  unit.step = SPLIT ? border(p, own_rank() * EACH) : 0;
  unit.end = SPLIT ? border(p, own_rank() * EACH + EACH) : p.num_steps;
  return unit;
}

struct Shared {
  u32 x, place, full, empty, sums, summed;            // addresses
  u8* codes;
};

using Pipe = RingPlace<STAGES>;

DEVICE u8* pair_at(const Shared& s, int stage, int step, int pair) {
  return s.codes + stage * DEPTH * CODES + (pair * DEPTH + step) * PAIR;
}
DEVICE const u8* record_at(const Shared& s, int stage, int step, int warpgroup) {
  return pair_at(s, stage, step, warpgroup / 2) + warpgroup % 2 * RECORD;
}
