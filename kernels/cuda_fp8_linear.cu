// out[T, N] = x[T, K] · weightᵀ[K, N], or G such products side by side. Weight E4M3 with one power of two per 32 × 32 block, x and
// out bf16, float32 accumulation. Computed as outᵀ = weight · xᵀ: weight rows are wgmma's M, tokens its N.
//
// A warpgroup owns 64 weight rows: it turns their codes into bf16 in its own registers (exactly) and multiplies them with a tile
// of TOKENS tokens that the copy engine brought to shared memory. A block has WARPGROUPS of them, two or four, and one more warp (or
// warpgroup) that keeps the copies going.
//
// Order of addition, the same for every variant: K is cut into `segments` by pairs of steps of 64; a segment is one chain of wgmma
// from zero, and the segments are added to zero from first to last.
//
// Macros: TOKENS 8 … 256; RESIDENT blocks a processor; STAGES of DEPTH steps (1 or 2). SUMS: CHAIN, one segment; SEQUENCE, a block
// does all segments of a tile; CLUSTER and SENT, they are dealt to the blocks of a cluster, EACH (1 or 2) to a block, and the blocks
// read each other's sums where a tile's operands lay, or send them (SUMS_BYTES a warpgroup) as soon as they have them.
#include "fp8_linear_accumulate.cuh"
#include "fp8_linear_fetch.cuh"
#include "cluster_sums.cuh"

DEVICE int planes_with(int num_tokens) { return min(TOKENS / 8, (num_tokens + 7) / 8); }

DEVICE void consume(const Problem& p, const Shared& s, u16* out) {
  int warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128;
  earlier_launches_wait();                            // they may use `out`
  Pipe pipe = {0, 0};
  for (int tile = cluster_number(); tile < num_tiles(p); tile += num_clusters()) {
    Unit unit = unit_at(p, tile);
    int first = own_rank() * EACH, token = unit.token * TOKENS, num_tokens = p.num_tokens - token;
    u16* to = out + (long long)token * p.num_rows + unit.row * ROWS + warpgroup * 64;
    u32 place = s.place + warpgroup * PLACE;
    if constexpr (SUMS == SEQUENCE) {
      float acc[NUMBERS], total[NUMBERS] = {};
      for (int segment = 0; segment < p.segments; segment++) {
        accumulate(s, pipe, steps_of(p, segment), warpgroup, thread, acc);
#pragma unroll
        for (int i = 0; i < NUMBERS; i++) total[i] += acc[i];
      }
      write_turned<TOKENS, CHUNK>(to, p.num_rows, num_tokens, place, thread, total);
    } else {
      float acc[EACH][NUMBERS];
#pragma unroll
      for (int i = 0; i < EACH; i++) accumulate(s, pipe, SPLIT ? steps_of(p, first + i) : p.num_steps, warpgroup, thread, acc[i]);
      if constexpr (SUMS == CLUSTER) {                // a block has one tile only: the place of its operands is free for sums
        named_sync(1 + WARPGROUPS, CONSUMERS);        // all warpgroups have read them
        add_in_cluster<NUMBERS >= 32 ? 2 : 1>(s.x + warpgroup * EACH * NUMBERS / 4 * PLANE, own_rank(), p.segments, to, p.num_rows,
                                              num_tokens, place, thread, acc);
        return;
      }
      if constexpr (SUMS == SENT) {
        send_and_add(s.sums + warpgroup * SUMS_BYTES, s.summed + 8 * warpgroup, own_rank(), p.segments, planes_with(num_tokens), to,
                     p.num_rows, num_tokens, place, thread, acc[0]);
        return;
      }
      write_turned<TOKENS, CHUNK>(to, p.num_rows, num_tokens, place, thread, acc[0]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + PRODUCERS, RESIDENT)
fp8_linear(const __grid_constant__ TensorMap map, const u8* weight, u16* out, int num_tokens, int num_rows, int num_steps,
           int rows_per_group, int segments) {
  extern __shared__ u8 memory[];
  u8* base = memory + (-shared_address(memory) & 1023);
  Shared s;
  s.place = shared_address(base);
  s.x = s.place + WARPGROUPS * PLACE;
  s.codes = base + WARPGROUPS * PLACE + STAGES * DEPTH * X;
  s.full = shared_address(s.codes) + STAGES * DEPTH * CODES;
  s.empty = s.full + 8 * STAGES;
  s.summed = s.empty + 8 * STAGES;
  s.sums = (s.summed + 8 * WARPGROUPS + 15) & ~15;
  Problem p = {num_tokens, num_rows, num_steps, rows_per_group, segments};
  if (threadIdx.x < STAGES) {
    barrier_init(s.full + 8 * threadIdx.x, 1);
    barrier_init(s.empty + 8 * threadIdx.x, 4 * WARPGROUPS);
    barrier_init_fence();
  }
  if (SUMS == SENT && threadIdx.x < WARPGROUPS) {
    int planes = planes_with(num_tokens - unit_at(p, cluster_number()).token * TOKENS);
    barrier_init(s.summed + 8 * threadIdx.x, 1);
    barrier_init_fence();
    barrier_expect(s.summed + 8 * threadIdx.x, planes_of(own_rank(), segments, planes) * segments * PLANE);
  }
  __syncthreads();
  if (SUMS == SENT) cluster_arrive_relaxed();
  later_launches_allow();
  bool fetches = threadIdx.x == CONSUMERS;
  if (fetches) fetch_ahead(p, s, weight);
  __syncwarp();
  if (SUMS == SENT) cluster_wait();                   // every block's barriers are there
  if (threadIdx.x < CONSUMERS) {
    if (HANDS_OVER) registers_more<CONSUMER_REGISTERS>();
    consume(p, s, out);
  } else {
    if (HANDS_OVER) registers_less<PRODUCER_REGISTERS>();
    if (fetches) fetch(p, s, &map, weight);
    __syncwarp();
    if (SUMS == CLUSTER) cluster_arrive(), cluster_wait();
  }
  if (SUMS == CLUSTER) cluster_arrive_relaxed(), cluster_wait();  // nobody leaves while others read here
}
