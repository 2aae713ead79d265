// Few tokens of a row on lists, a part in each block, and their exact order.
#pragma once
#include "sample_load.cuh"

DEVICE bool is_full(const Shared& s, u32 size) { return *(const volatile u32*)&s.count > size; }
DEVICE void append(Shared& s, u64 key) {
  u32 i = atomicAdd(&s.count, 1);
  if (i < LIST) s.list[i] = key;
}
DEVICE void clear_count(Shared& s) {
  if (threadIdx.x == 0) s.count = 0;
  __syncthreads();
}

// all kept tokens from `least` up onto the blocks' lists; how many they are, or more than LIST
DEVICE u32 list_from(Row& row, Floor floor, float least) {
  Shared& s = *row.shared;
  clear_count(s);
  each_from(row, least, [&](float x, int id) {
    if (x >= least && is_kept(floor, x, id) && !is_full(s, LIST)) append(s, key_of(x, id));
  });
  __syncthreads();
  return (u32)reduce<Sum>(row, {0, threadIdx.x == 0 ? s.count : 0, 0}).b;
}

// The blocks' lists as one, `n` keys; this thread's key, or 0. After a reduction whose b were the blocks' counts.
DEVICE u64 merge_lists(Row& row, int n) {
  Shared& s = *row.shared;
  const Triple* slots = s.slots[(row.turn - 1) & 1];
  u64 key = 0;
  int i = threadIdx.x, start = 0;
  if (i < n) {
    int block = 0;
    while (i - start >= (int)slots[block * WARPS].b) start += (int)slots[block++ * WARPS].b;
    key = cluster_load8(cluster_address(shared_address(&s.list[i - start]), block));
    s.merged.keys[i] = key;
  }
  return key;
}

// The key of the last token kept among the `n` listed: the first `count`, or those before which, with what is `above`, less
// than `target` of the weight stands. Where none is kept, a key just above them.
template <bool MASS> DEVICE u64 rank_list(Row& row, int n, u32 count, double above, double target) {
  Shared& s = *row.shared;
  u64 key = merge_lists(row, n), before = 0;
  int i = threadIdx.x, better = 0;
  if (MASS && i < n) {  // whole numbers, so that their sum has no order
    s.merged.weights[i] = (u64)(exp(((double)logit_of(key) - row.top) / row.temperature) * 0x1p40 + 0.5);
  }
  __syncthreads();
  if (i < n) {
    for (int j = 0; j < n; j++) {
      if (s.merged.keys[j] > key) {
        better++;
        if (MASS) before += s.merged.weights[j];
      }
    }
  }
  bool kept = i < n && (MASS ? above + (double)before * 0x1p-40 < target : better < count);
  int num_kept = __syncthreads_count(kept);
  if (i < n && better == max(num_kept - 1, 0)) s.found_key = num_kept > 0 ? key : key + 1;
  __syncthreads();
  return s.found_key;
}
