// Items that are cut: the sums of their first steps go from one block of cuda_fp4_experts.cu to the next through memory.
#pragma once

// Sums of an item that is cut: written by one block, read by the next one's warp of the same number, whose threads hold the same.
DEVICE float4* carried(float* carry, int block) {
  return (float4*)carry + (u64)(block * CONSUMER_WARPS + threadIdx.x / 32) * (PRODUCTS * TILE_ROWS / 8 * 32) + threadIdx.x % 32;
}
DEVICE u32* carried_flag(u32* counter, int block) { return counter + 2 + block * CONSUMER_WARPS + threadIdx.x / 32; }

DEVICE void hand_on(float* carry, u32* counter, int rows, const Sums& sum) {
  float4* target = carried(carry, blockIdx.x);
#pragma unroll
  for (int i = 0; i < TILE_ROWS / 8; ++i)
    if (8 * i < rows)
#pragma unroll
      for (int p = 0; p < PRODUCTS; ++p)
        __stcg(target + (i * PRODUCTS + p) * 32, make_float4(sum[p][4 * i], sum[p][4 * i + 1], sum[p][4 * i + 2], sum[p][4 * i + 3]));
  __syncwarp();
  if (threadIdx.x % 32 == 0) add_acq_rel(carried_flag(counter, blockIdx.x), 1);
}

// four sums, where `there` is not 0: without a branch, in which the compiler would see products that have to wait
DEVICE void load_sums(float* sum, const float4* source, u32 there) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %5, 0; @p ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4]; }"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) : "l"(source), "r"(there) : "memory");
}

DEVICE void take_over(const float* carry, u32* counter, const Item& item, Sums& sum) {
  if (item.first > 0) {
    u32* flag = carried_flag(counter, blockIdx.x - 1);
    while (load_acquire(flag) == 0) {
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) *flag = 0;  // as the next launch wants it
  }
  const float4* source = carried((float*)carry, blockIdx.x - 1);
#pragma unroll
  for (int i = 0; i < TILE_ROWS / 8; ++i)
#pragma unroll
    for (int p = 0; p < PRODUCTS; ++p)
      load_sums(sum[p] + 4 * i, source + (i * PRODUCTS + p) * 32, item.first > 0 && 8 * i < item.rows);
}
