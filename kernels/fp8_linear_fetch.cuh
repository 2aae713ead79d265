// The thread that brings weights and tokens to shared memory: part of cuda_fp8_linear.cu.
#pragma once
#include "fp8_linear_tiles.cuh"
#include "tensor_copies.cuh"

// What one thread keeps bringing: the codes of a tile and its tokens, from one step on.
struct Source {
  const u8* codes;
  long long pair_bytes;                               // from 128 rows to the next
  int column, token;
  bool once;                                          // nobody else reads these weights

  DEVICE_MEMBER Source(const Problem& p, const u8* weight, const Unit& unit) {
    pair_bytes = (long long)p.num_steps * PAIR;
    codes = weight + unit.row * (WARPGROUPS / 2) * pair_bytes + (long long)unit.step * PAIR;
    column = (unit.row * ROWS / p.rows_per_group * p.num_steps + unit.step) * STEP;
    token = unit.token * TOKENS;
    once = token_tiles(p) == 1;
  }
  DEVICE_MEMBER void fetch_codes(const Shared& s, int stage) const {
    u32 full = s.full + 8 * stage;
    barrier_expect(full, DEPTH * (CODES + X));
#pragma unroll
    for (int pair = 0; pair < WARPGROUPS / 2; pair++) {
      u32 to = shared_address(pair_at(s, stage, 0, pair));
      if (once) bulk_load_once(to, codes + pair * pair_bytes, DEPTH * PAIR, full);
      else bulk_load(to, codes + pair * pair_bytes, DEPTH * PAIR, full);
    }
  }
  DEVICE_MEMBER void fetch_tokens(const Shared& s, const TensorMap* map, int stage) const {
#pragma unroll
    for (int i = 0; i < DEPTH; i++)
      box_load(s.x + (stage * DEPTH + i) * X, map, column + i * STEP, token, s.full + 8 * stage);
  }
  DEVICE_MEMBER void next() { codes += DEPTH * PAIR, column += DEPTH * STEP; }
};

DEVICE int stages_ahead(const Unit& unit) { return min(STAGES, (unit.end - unit.step) / DEPTH); }

// Weights depend on no launch, tokens do: the first stages get their weights before the launches that write the tokens end.
DEVICE void fetch_ahead(const Problem& p, const Shared& s, const u8* weight) {
  Unit unit = unit_at(p, cluster_number());
  Source source(p, weight, unit);
  for (int i = 0; i < stages_ahead(unit); i++, source.next()) source.fetch_codes(s, i);
}

// One thread keeps the stages filled.
DEVICE void fetch(const Problem& p, const Shared& s, const TensorMap* map, const u8* weight) {
  Pipe pipe = {0, 1};
  int ahead = stages_ahead(unit_at(p, cluster_number()));
  earlier_launches_wait();
  for (int tile = cluster_number(); tile < num_tiles(p); tile += num_clusters()) {
    Unit unit = unit_at(p, tile);
    Source source(p, weight, unit);
#pragma unroll 1
    for (int step = unit.step; step < unit.end; step += DEPTH, source.next(), pipe.next(), ahead--) {
      if (ahead <= 0) {
        barrier_wait(s.empty + 8 * pipe.stage, pipe.parity);
        source.fetch_codes(s, pipe.stage);
      }
      source.fetch_tokens(s, map, pipe.stage);
    }
  }
}
