// The sampler: a cluster of 8 blocks takes one row of logits into its shared memory, so device memory is read once.
//
// Load → grammar mask → edits of single tokens → best token → filters → score + Gumbel noise → log probabilities.
// Where the filters leave few tokens, these go onto a list and one block ends the row; otherwise top-k, top-p and min-p become
// one floor that all blocks find together. Macros: THREADS a block, RESIDENT blocks a multiprocessor, STATE_BYTES of
// shared memory before the logits, BF16 logits.
#include "sample_race.cuh"

// top-k, then top-p of what it leaves, then min-p
DEVICE Floor filter(Row& row, int top_k, double top_p, float least, const Share& share) {
  Floor floor = no_floor();
  if (top_k > 0) floor = floor_of(cut_count(row, floor, top_k));
  if (top_p < 1) floor = floor_of(top_k > 0 ? cut_share(row, top_p, floor) : cut_share(row, top_p, share));
  return least > floor.x ? Floor{least, (int)LAST_ID} : floor;
}

// Lists of all tokens that the filters may keep: how many they are, or more than LIST where they are too many.
DEVICE u32 list_candidates(Row& row, int top_k, double top_p, float least, Share& share) {
  if (top_k > LIST) return LIST + 1;
  if (top_k > 0) {
    float bound = count_bound(row, no_floor(), top_k);
    return list_from(row, no_floor(), top_p < 1 ? bound : fmaxf(least, bound));  // top-p counts what min-p drops
  }
  return top_p < 1 ? list_share(row, top_p, share) : LIST + 1;
}

// the chosen token's log probability and rank, then the best others; of tokens above the floor, the rest counting as -inf
DEVICE void write_logprobs(Row& row, Floor floor, int token, int n, int* ids, float* logprobs, int* rank_out) {
  Shared& s = *row.shared;
  int owner = token / row.width;
  cluster_sync();
  float chosen = __uint_as_float(cluster_load(cluster_address(shared_address(row.x + token - owner * row.width), owner)));
  Floor better = {chosen, token - 1};
  float weight = 0;
  u32 num_better = 0;
  each_group(row, floor.x, [&](const float4& x, int id) {
    weight += weight_of_group(row, floor, x, id);
    num_better += count_of_group(better, x, id);
  });
  Triple sums = reduce<Sum>(row, {bits_of((double)weight), num_better, 0});
  double scale = (double)row.per / LOG2_E, rest = log(double_of(sums.a));
  num_better = (u32)sums.b;
  if (row.rank == 0 && threadIdx.x == 0)
    ids[0] = token, logprobs[0] = (float)(((double)chosen - row.top) * scale - rest), *rank_out = num_better + 1;
  if (n == 0) return cluster_sync();
  u32 listed = list_best(row, floor, n + 1);
  if (listed > LIST) {
    floor = floor_of(cut<false>(row, floor, part_from(floor.x, 32), n + 1, 0));
    cluster_sync();  // the lists are read
    listed = list_from(row, floor, floor.x);
  }
  u64 key = merge_lists(row, listed);
  cluster_sync();
  if (row.rank != 0) return;
  int place = 1, id = id_of(key);
  for (int j = 0; j < listed; j++) place += s.merged.keys[j] > key;
  if (threadIdx.x < listed && id != token) {
    place -= place > num_better;
    if (place <= n) ids[place] = id, logprobs[place] = (float)(((double)logit_of(key) - row.top) * scale - rest);
  }
  if (threadIdx.x == 0) {  // fewer than asked for are possible: the lowest ids of the others
    for (int i = 0, at = listed; at <= n; i++)
      if (!is_kept(floor, row.x[i], i)) ids[at] = i, logprobs[at++] = -INFINITY_F;
  }
}

// this block's logits behind edits and mask, -inf below the floor
DEVICE void write_kept(const Row& row, Floor floor, float* logits) {
  for (int i = threadIdx.x; i < row.groups * 4; i += THREADS)
    logits[row.base + i] = is_kept(floor, row.x[i], row.base + i) ? row.x[i] : -INFINITY_F;
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
sample_rows(const char* logits, int row_bytes, int vocabulary, int stream, const u64* seeds, const u64* positions,
            const double* temperatures, const double* top_ps, const double* min_ps, const double* repetitions,
            const double* frequencies, const double* presences, const int* top_ks, const int* num_logprobs,
            const int* processed_, const int* mask_rows, const u32* masks, const int* edit_starts, const int* edit_ids,
            const double* edit_biases, const int* edit_counts, int columns, const int* chosen, float* kept_logits,
            const int* kept_rows, int* tokens, int* faults, int* kept, int* ids, float* logprobs, int* ranks) {
  extern __shared__ __align__(16) char memory[];
  int r = blockIdx.x / BLOCKS;
  Row row;
  row.shared = (Shared*)memory, row.x = (float*)(memory + STATE_BYTES);
  row.rank = cluster_rank(), row.width = part_of(vocabulary), row.base = row.rank * row.width;
  row.groups = min(row.width, vocabulary - row.base) / 4;
  row.turn = 0, row.queued = -1;
  const char* from = logits + (long long)r * row_bytes;
#if !BF16
  begin_load(row, from);
#endif
  cluster_arrive_relaxed();  // until all blocks have begun, nobody writes to another's shared memory
  int mask_row = mask_rows[r], n = min(num_logprobs[r], columns - 1);
  bool edited = edit_starts[r + 1] > edit_starts[r], processed = processed_[r];
  Edits edits = {repetitions, frequencies, presences, edit_starts, edit_ids, edit_biases, edit_counts};
  row.temperature = temperatures[r];
  bool greedy = row.temperature < 1e-5;
  if (greedy) row.temperature = 1;
  row.per = (float)(1.4426950408889634 / row.temperature);
  if (row.rank == 0) {
    for (int i = r * columns + threadIdx.x; i < (r + 1) * columns; i += THREADS)
      ids[i] = -1, logprobs[i] = __uint_as_float(0x7fc00000u);
    if (threadIdx.x == 0) ranks[r] = 0;
  }
#if BF16
  load(row, from);
#endif
  u32 flags = scan<true>(row, mask_row < 0 ? nullptr : masks + (long long)mask_row * (vocabulary / 32));
  if (edited) {
    edit(row, edits, r);
    scan<false>(row, nullptr);
  }
  __syncwarp();
  cluster_wait();
  flags = agree(row, flags);
  bool broken = (flags & BROKEN) || !(flags & ANY_FINITE), none = !(row.top > -INFINITY_F);
  bool writes = row.rank == 0 && threadIdx.x == 0;
  if (broken || none) {
    if (writes) tokens[r] = -1, faults[r] = broken ? 1 : 2, kept[r] = 0;
    return;
  }
  int token = row.top_id, num_kept = vocabulary;
  Floor floor = no_floor();
  bool filtered = false;
  if (!greedy) {
    int top_k = top_ks[r];
    double top_p = top_ps[r], min_p = min_ps[r];
    if (top_k >= vocabulary) top_k = 0;
    filtered = top_k > 0 || top_p < 1 || min_p > 0;
    Share share = {};
    float least = min_p > 0 ? __double2float_ru((double)row.top + row.temperature * log(min_p)) : -INFINITY_F;
    u32 listed = filtered ? list_candidates(row, top_k, top_p, least, share) : LIST + 1;
    if (listed <= LIST && row.rank != 0 && n < 0 && !kept_logits) return cluster_sync();  // the first block does the rest
    Philox noise = philox_row(seeds[r], positions[r], stream);
    if (listed <= LIST) {
      token = race_listed(row, noise, listed, top_k, top_p, least, share.total, floor, num_kept);
    } else {
      if (filtered) floor = filter(row, top_k, top_p, least, share);
      token = race(row, noise, floor, filtered, num_kept);
    }
  }
  if (chosen && chosen[r] >= 0) token = chosen[r];
  if (writes) tokens[r] = token, faults[r] = 0, kept[r] = num_kept;
  if (kept_logits) write_kept(row, floor, kept_logits + (long long)(kept_rows ? kept_rows[r] : r) * vocabulary);
  if (n < 0) return;
  if (greedy || !processed) row.per = LOG2_E, floor = no_floor();
  if (!processed && (edited || mask_row >= 0)) {
    load(row, from);  // again: neither edit nor mask is in it
    row.queued = -1;
    scan<false>(row, nullptr);
    agree(row, 0);
  }
  write_logprobs(row, floor, token, n, ids + r * columns, logprobs + r * columns, ranks + r);
}

// the 52 bits of noise at every token of a row, for whoever needs them elsewhere
extern "C" __global__ void draw_noise(u64 seed, u64 position, int stream, int first, int count, u64* bits) {
  Philox noise = philox_row(seed, position, stream);
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    bits[i] = noise_bits(noise, first + i);
}
