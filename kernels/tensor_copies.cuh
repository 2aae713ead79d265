// Copies of boxes of a row-major matrix through a tensor map; stores of 8 × 8 tiles.
//
// Facts: PTX ISA 9.0, sections cp.async.bulk.tensor, griddepcontrol, stmatrix.
#pragma once
#include "hopper.cuh"

struct alignas(64) TensorMap {
  u64 words[16];
};

// the box whose first element is (row, column); bytes outside the matrix come as zeros and count as copied
DEVICE void box_load(u32 to_shared, const TensorMap* map, int column, int row, u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to_shared),
      "l"(map), "r"(column), "r"(row), "r"(barrier) : "memory");
}

// Launches that overlap with the one before (programmatic dependent launch). After `earlier_launches_wait` everything that they
// write is there, and nobody reads any more what this launch overwrites.
DEVICE void earlier_launches_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// the next launch may begin, up to where it waits
DEVICE void later_launches_allow() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Tiles of 8 × 8 16-bit numbers in the layout of wgmma's accumulators, stored transposed: lane 8 i + j holds the address of the
// 16 bytes that become column j of tile i.
DEVICE void store_turned(u32 address, u32 tile0, u32 tile1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(tile0), "r"(tile1) : "memory");
}
DEVICE void store_turned(u32 address, u32 tile0, u32 tile1, u32 tile2, u32 tile3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(tile0), "r"(tile1),
               "r"(tile2), "r"(tile3) : "memory");
}
