// Numbers sent to another block of a cluster, and where a block stands among clusters.
//
// Facts: PTX ISA 9.0, section st.async.
#pragma once
#include "hopper.cuh"

DEVICE u32 cluster_number() { u32 number; asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(number)); return number; }
DEVICE u32 num_clusters() { u32 count; asm volatile("mov.u32 %0, %%nclusterid.x;" : "=r"(count)); return count; }

// 16 bytes to another block's shared memory, counted by a barrier of that block
DEVICE void cluster_send16(u32 address, const float* numbers, u32 barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
               "f"(numbers[0]), "f"(numbers[1]), "f"(numbers[2]), "f"(numbers[3]), "r"(barrier) : "memory");
}
