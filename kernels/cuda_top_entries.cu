// The best entries of a row by ascending number; among equals the lowest number; -inf and NaN never.
//
// Scores become integers of the same order, held in registers: a warp has a run of neighbours, a lane fours of them, 128 apart.
// Three passes count digits of 11, 11 and 10 bits in shared memory and so find the count-th largest; what the first leaves in
// question is put into a list, where it fits, and the others look at that. What lies above the count-th, and the first of its
// equals, keep their order by prefix sums. A cluster of blocks shares a row: digit counts and totals are read from the
// neighbours' shared memory. Counts are sums of integers, so results do not depend on the order of anything.
//
// Macros: CLUSTER blocks a row · ELEMENTS a thread, a multiple of 4 · GROUP scores an element (1, or 8: an element is a block's
// best score, and the newest visible entry's block is forced in) · MAPPED 1: numbers are places among candidate blocks of 8 ·
// BLOCKS of a multiprocessor at a time: two where there are rows enough, though some registers spill.
#include "tensor_copies.cuh"
#include "top_entry_keys.cuh"
#include "warp_sums.cuh"

// The sum of the values of all warps before this one, and of all; `value` is a warp's, known to its last lane.
DEVICE u32 warps_before(Shared& shared, int slot, u32 value, u32& total) {
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  if (lane == 31) shared.warp_sums[slot][warp] = value;
  __syncthreads();
  u32 warps = inclusive_sum(lane < WARPS ? shared.warp_sums[slot][lane] : 0, lane);
  total = __shfl_sync(~0u, warps, 31);
  u32 before = __shfl_sync(~0u, warps, (warp - 1) & 31);
  return warp ? before : 0;
}

DEVICE void meet() {
  if (CLUSTER == 1) {
    __syncthreads();
  } else {
    cluster_arrive();
    cluster_wait();
  }
}

// digits of pass 0, 1, 2: bits 31 … 21, 20 … 10, 9 … 0
DEVICE int digit_shift(int pass) { return pass == 0 ? 21 : pass == 1 ? 10 : 0; }

DEVICE void count_digit(Shared& shared, int pass, u32 key, u32 prefix) {
  u32 address = shared_address(shared.counts[pass] + (key >> digit_shift(pass) & (pass == 2 ? BINS / 2 - 1 : BINS - 1)));
  u32 counted = pass == 0 || key >> digit_shift(max(pass - 1, 0)) == prefix;
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 0; @p red.shared.add.u32 [%1], 1; }" ::"r"(counted), "r"(address) : "memory");
}

// The digit in which the `need`-th largest of the counted keys lies, and how many are above that digit. False: there are fewer.
DEVICE bool find_digit(Shared& shared, int pass, u32 need, u32& digit, u32& above) {
  int top = BINS - 1 - EACH_BINS * (int)threadIdx.x;
  const u32* counts = shared.counts[pass] + top - (EACH_BINS - 1);
  uint4 four = {0, 0, 0, 0};
  if (CLUSTER == 1) {
    four = *(const uint4*)counts;
  } else {
#pragma unroll
    for (int rank = 0; rank < CLUSTER; rank++) {
      const uint4 part = cluster_load16(cluster_address(shared_address(counts), rank));
      four.x += part.x, four.y += part.y, four.z += part.z, four.w += part.w;
    }
  }
  if (pass == 0 && top <= (int)LOWEST_DIGIT) four = {0, 0, 0, 0};  // -inf
  u32 descending[4] = {four.w, four.z, four.y, four.x}, total;
  u32 own = four.x + four.y + four.z + four.w, sum = inclusive_sum(own, threadIdx.x & 31);
  u32 before = sum - own + warps_before(shared, 0, sum, total);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if (before < need && need <= before + descending[i]) shared.digit = top - i, shared.above = before;
    before += descending[i];
  }
  __syncthreads();
  digit = shared.digit, above = shared.above;
  return total >= need;
}

// How many of the keys that `test` counts come before each of this thread's chunks in the block; returns how many there are.
// Sums over lanes go by bytes, four chunks a word: a warp's chunk has 128 keys.
template <int N, class Test> DEVICE u32 places(Shared& shared, int slot, const u32 (&keys)[N], u32 (&before)[N / 4], Test test) {
  constexpr int WORDS = (N / 4 + 3) / 4;
  u32 own[WORDS] = {}, running = 0, total;
#pragma unroll
  for (int i = 0; i < N; i++) own[i / 16] += test(keys[i]) ? 1u << (i / 4 % 4 * 8) : 0;
#pragma unroll
  for (int w = 0; w < WORDS; w++) {
    u32 sums = inclusive_sum(own[w], threadIdx.x & 31), last = __shfl_sync(~0u, sums, 31);
    sums -= own[w];
#pragma unroll
    for (int k = 4 * w; k < min(4 * w + 4, N / 4); k++) {
      before[k] = running + (sums >> (k % 4 * 8) & 255);
      running += last >> (k % 4 * 8) & 255;
    }
  }
  u32 base = warps_before(shared, slot, running, total);
#pragma unroll
  for (int k = 0; k < N / 4; k++) before[k] += base;
  return total;
}

// Puts the keys from `least` on into the list, in order. Returns how many there are; more than LIST: the list is not to be used.
DEVICE u32 make_list(Shared& shared, const u32 (&keys)[ELEMENTS], u32 least, int first) {
  u32 before[ELEMENTS / 4], total = places(shared, 1, keys, before, [&](u32 key) { return key >= least; });
  if (total <= LIST)
#pragma unroll
    for (int i = 0; i < ELEMENTS; i++)
      if (keys[i] >= least) {
        u32 place = before[i / 4]++;
        shared.list.keys[place] = keys[i];
        shared.list.numbers[place] = first + chunk_place<ELEMENTS>(i / 4) + i % 4;
      }
  __syncthreads();
  return total;
}

// Writes the taken elements in order; returns how many there are in the whole row. number(i) is an element's.
template <int N, class Number>
DEVICE u32 write_taken(Shared& shared, const u32 (&keys)[N], u32 threshold, u32 equals, const int* blocks, int* out,
                       Number number) {
  u32 higher[N / 4], equal[N / 4], above = 0, same = 0;
  u32 all_above = places(shared, 1, keys, higher, [&](u32 key) { return key > threshold; });
  u32 all_same = places(shared, 2, keys, equal, [&](u32 key) { return key == threshold && equals; });
  if (CLUSTER > 1) {
    if (threadIdx.x == 0) shared.total = all_above << 16 | all_same;
    meet();
    all_above = all_same = 0;
    for (int rank = 0; rank < CLUSTER; rank++) {
      u32 total = cluster_load(cluster_address(shared_address(&shared.total), rank));
      if (rank < (int)cluster_rank()) above += total >> 16, same += total & 0xffff;
      all_above += total >> 16, all_same += total & 0xffff;
    }
  }
#pragma unroll
  for (int i = 0; i < N; i++) {
    bool is_above = keys[i] > threshold, is_equal = keys[i] == threshold && equals;
    u32 rank = same + equal[i / 4];
    if (is_above || (is_equal && rank < equals)) {
      int chosen = number(i);
      if (MAPPED) chosen = blocks[chosen / SMALL] * SMALL + chosen % SMALL;
      out[above + higher[i / 4] + min(rank, equals)] = chosen;
    }
    higher[i / 4] += is_above, equal[i / 4] += is_equal;
  }
  return all_above + min(all_same, equals);
}

// Chooses among this block's keys and its neighbours'; returns how many numbers the row has.
DEVICE u32 choose(Shared& shared, const u32 (&keys)[ELEMENTS], u32 count, int first, const int* blocks, int* out) {
  auto number = [&](int i) { return first + chunk_place<ELEMENTS>(i / 4) + i % 4; };
  u32 need = count, prefix, above, few[LIST_EACH];
#pragma unroll
  for (int i = 0; i < ELEMENTS; i++) count_digit(shared, 0, keys[i], 0);
  meet();
  if (!find_digit(shared, 0, need, prefix, above)) return write_taken(shared, keys, LOWEST, 0, blocks, out, number);
  need -= above;
  u32 listed = make_list(shared, keys, prefix << digit_shift(0), first);
  int place = threadIdx.x * LIST_EACH;
#pragma unroll
  for (int i = 0; i < LIST_EACH; i++) few[i] = listed <= LIST && place + i < listed ? shared.list.keys[place + i] : LOWEST;
#pragma unroll
  for (int pass = 1; pass < PASSES; pass++) {
    if (listed <= LIST) {
#pragma unroll
      for (int i = 0; i < LIST_EACH; i++) count_digit(shared, pass, few[i], prefix);
    } else {
#pragma unroll
      for (int i = 0; i < ELEMENTS; i++) count_digit(shared, pass, keys[i], prefix);
    }
    meet();
    u32 digit;
    find_digit(shared, pass, need, digit, above);
    need -= above;
    prefix = prefix << (pass == 2 ? 10 : 11) | digit;
  }
  if (listed > LIST) return write_taken(shared, keys, prefix, need, blocks, out, number);
  return write_taken(shared, few, prefix, need, blocks, out, [&](int i) { return shared.list.numbers[place + i]; });
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) top_entries(
    const float* scores, const int* visible, const int* blocks, int* out, int width, int count) {
  __shared__ Shared shared;
  int row = blockIdx.x / CLUSTER, rank = CLUSTER == 1 ? 0 : (int)cluster_rank();
  for (int i = threadIdx.x; i < PASSES * BINS / 4; i += THREADS) ((uint4*)shared.counts)[i] = {0, 0, 0, 0};
  earlier_launches_wait();
  later_launches_allow();
  int length = max(0, min(visible[row], width)), first = rank * THREADS * ELEMENTS;
  u32 keys[ELEMENTS];
  load_keys(shared, scores + (long long)row * width, first, length, keys);
  __syncthreads();
  int* line = out + (long long)row * count;
  u32 taken = choose(shared, keys, count, first, MAPPED ? blocks + (long long)row * (width / SMALL) : nullptr, line);
  if (rank == 0)
    for (int i = (int)taken + (int)threadIdx.x; i < count; i += THREADS) line[i] = -1;
  if (CLUSTER > 1) meet();  // nobody leaves while a neighbour may still read its shared memory
}
