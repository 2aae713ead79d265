// Pairs (row, slot) sorted by expert, in one launch. A cluster serves OWN experts, its blocks share out the pairs, a warp takes
// adjacent ones. Everyone counts the pairs of its experts and of earlier experts; the blocks tell each other; so every warp knows
// where its pairs of an expert belong, and puts them there one after another. Counters are integers: no order shows in them.
//
// Macros: CHOSEN · OWN (32 at most) · BLOCKS of a cluster · WARPS
#include "tensor_copies.cuh"
#include "warp_sums.cuh"

constexpr int AHEAD = 4;  // loads of a lane under way together
constexpr int EARLIER = OWN, LOCAL = OWN + 1, COUNTS = OWN + 2;

struct Shared {
  u32 next[WARPS][OWN];        // pairs of the warp's, then how many of the block's come before
  u32 mine[COUNTS];            // of the block: by own expert, of earlier experts, of all local ones
  u32 counts[BLOCKS][COUNTS];  // of all blocks of the cluster
  u32 begin[OWN];              // where the block's pairs begin
};

// what the pairs of a warp are and where it stands among them
struct Part {
  const int* picks;
  u32 begin, end, first, num_experts;

  // local number of a pair's expert; no local expert has so great a number where it has none
  DEVICE_MEMBER u32 expert(u32 pair) const {
    u32 expert = pair < end ? (u32)picks[pair] - first : ~0u;
    return expert < num_experts ? expert : ~0u;
  }
};

DEVICE void count(Shared& shared, const Part& part, u32 steps, u32 own, int warp, int lane) {
  u32 earlier = 0, local = 0;
  for (u32 step = 0; step < steps; step += AHEAD) {
    u32 experts[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) experts[i] = step + i < steps ? part.expert(part.begin + (step + i) * 32 + lane) : ~0u;
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      earlier += experts[i] < own;
      local += experts[i] != ~0u;
      if (experts[i] - own < OWN) atomicAdd(&shared.next[warp][experts[i] - own], 1);
    }
  }
  earlier = __reduce_add_sync(~0u, earlier), local = __reduce_add_sync(~0u, local);
  if (lane == 0) atomicAdd(&shared.mine[EARLIER], earlier), atomicAdd(&shared.mine[LOCAL], local);
}

// counts of warps become counts of earlier warps; the block's go to all blocks of the cluster
DEVICE void tell(Shared& shared, u32 thread, u32 rank) {
  if (thread < COUNTS) {
    u32 sum = thread < OWN ? 0 : shared.mine[thread];
    if (thread < OWN) {
#pragma unroll 8
      for (int warp = 0; warp < WARPS; warp++) {
        u32 own = shared.next[warp][thread];
        shared.next[warp][thread] = sum, sum += own;
      }
    }
#pragma unroll
    for (u32 block = 0; block < BLOCKS; block++)
      cluster_store(cluster_address(shared_address(&shared.counts[rank][thread]), block), sum);
  }
  cluster_arrive();
  cluster_wait();
}

DEVICE u32 of_all(const Shared& shared, int which, int blocks = BLOCKS) {
  u32 sum = 0;
#pragma unroll
  for (int block = 0; block < BLOCKS; block++) sum += block < blocks ? shared.counts[block][which] : 0;
  return sum;
}

// where the experts begin, and this block's pairs of them; a warp
DEVICE void begin_experts(Shared& shared, int* starts, u32 own, u32 num_experts, int lane, u32 rank) {
  u32 total = lane < OWN ? of_all(shared, lane) : 0, end = inclusive_sum(total, lane);
  u32 start = of_all(shared, EARLIER) + end - total;
  if (lane < OWN) shared.begin[lane] = start + of_all(shared, lane, rank);
  if (rank == 0 && lane < OWN && own + lane < num_experts) starts[own + lane] = start;
  if (rank == 0 && lane == 0 && own + OWN >= num_experts) starts[num_experts] = of_all(shared, LOCAL);
}

struct Sorted {
  int *rows, *places;
  const float* weights;
  float* sorted;
};

// one pair a lane
DEVICE void place(Shared& shared, const Sorted& out, u32 pair, u32 number, float weight, int warp, int lane) {
  bool own = number < OWN;
  if (!__any_sync(~0u, own)) return;
  u32 same = __match_any_sync(~0u, own ? number : ~0u), before = same & ((1u << lane) - 1);
  if (own) {
    u32 to = shared.begin[number] + shared.next[warp][number] + __popc(before);
    out.places[pair] = to;
    out.rows[to] = pair / CHOSEN;
    if (out.weights) out.sorted[to] = weight;
  }
  __syncwarp();
  if (own && !before) shared.next[warp][number] += __popc(same);
  __syncwarp();
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    expert_permutation(const int* picks, const float* weights, int* starts, int* rows, int* places, float* sorted, u32 num_pairs,
                       u32 first, u32 num_experts) {
  __shared__ Shared shared;
  u32 thread = threadIdx.x, rank = cluster_rank(), own = blockIdx.x / BLOCKS * OWN;
  int warp = thread / 32, lane = thread % 32;
  cluster_arrive();  // all blocks are there before one writes into another
  for (u32 i = thread; i < WARPS * OWN; i += WARPS * 32) shared.next[i / OWN][i % OWN] = 0;
  if (thread < COUNTS) shared.mine[thread] = 0;
  earlier_launches_wait();
  later_launches_allow();  // not before: what comes next has large blocks, and would keep a branch beside off the device
  __syncthreads();
  u32 steps = (num_pairs + BLOCKS * WARPS * 32 - 1) / (BLOCKS * WARPS * 32);
  Part part{picks, (rank * WARPS + warp) * steps * 32, num_pairs, first, num_experts};
  count(shared, part, steps, own, warp, lane);
  __syncthreads();
  cluster_wait();
  tell(shared, thread, rank);
  if (warp == 0) begin_experts(shared, starts, own, num_experts, lane, rank);
  u32 num_local = of_all(shared, LOCAL);
  __syncthreads();
  Sorted out{rows, places, weights, sorted};
  for (u32 step = 0; step < steps; step += AHEAD) {
    u32 experts[AHEAD];
    float of_pairs[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      u32 pair = part.begin + (step + i) * 32 + lane;
      experts[i] = step + i < steps ? part.expert(pair) : ~0u;
      of_pairs[i] = weights && experts[i] != ~0u ? weights[pair] : 0;
    }
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      u32 pair = part.begin + (step + i) * 32 + lane;
      place(shared, out, pair, experts[i] - own, of_pairs[i], warp, lane);
      if (own == 0 && step + i < steps && pair < num_pairs) {
        if (experts[i] == ~0u) places[pair] = -1;
        if (pair >= num_local) rows[pair] = -1;
        if (pair >= num_local && weights) sorted[pair] = 0;
      }
    }
  }
}
