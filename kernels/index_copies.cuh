// The warps of the index score kernel that copy keys into the ring.
//
// A place of the ring always belongs to the same warpgroup and to the same copying warp: STAGES is a multiple of their number,
// which is one number. Each then sees every phase of the place's barriers in turn. Whoever came to a place only now and then could
// be a whole turn of the ring ahead of a late copy, where parity cannot tell the phases apart, and would take bytes that are not there.
#pragma once
#include "index_work.cuh"

constexpr int COPIERS = WARPGROUPS;  // warps
static_assert(STAGES % WARPGROUPS == 0 && COPIERS <= 4, "places of the ring have owners");

// how a piece lies: a cache block of 64 or 128 entries, or a candidate block of 8
struct Pieces {
  int entry_bits, block_bits;  // log2 of the entries of a piece and of a cache block
  DEVICE_MEMBER int bytes() const { return ROW_BYTES << entry_bits; }
  DEVICE_MEMBER int tile_bits() const { return TILE_BITS - entry_bits; }  // log2 of the pieces of a tile
};

// Where piece `piece` of an item's keys lies; null past the end.
DEVICE const u8* piece_address(const Problem& p, const Item& item, const int* table, Pieces pieces, int piece) {
  if (piece << pieces.entry_bits >= item.longest) return nullptr;
  int number = CANDIDATES ? p.blocks[(long long)item.row * (p.width / SMALL) + piece] : piece;
  if (number < 0) return nullptr;
  int entry = number << pieces.entry_bits, inside = entry & (p.entries_a_block - 1);
  return p.store + table[entry >> pieces.block_bits] * p.block_bytes + inside * ROW_BYTES;
}

// A copying warp has every COPIERS-th tile; a lane fetches the address of one piece, a window of 32 pieces ahead.
DEVICE void copy_tiles(const Problem& p, const Share& share, u32 ring, u32 full, u32 empty) {
  int lane = threadIdx.x & 31, warp = (threadIdx.x - CONSUMERS) / 32, done = 0, block_bits = 31 - __clz(p.entries_a_block);
  Pieces pieces{CANDIDATES ? 3 : block_bits, block_bits};
  int bits = pieces.tile_bits(), own = lane & (1 << bits) - 1, tiles = 32 >> bits;
  for_items(p, share, [&](Item item, int first, int last) {
    const int* table = p.tables + (long long)p.sequence[item.row] * p.table_width;
    auto fetch = [&](int window) {
      int tile = window + (lane >> bits) * COPIERS;
      return tile < last ? piece_address(p, item, table, pieces, (tile << bits) + own) : nullptr;
    };
    int skipped = (warp - done % COPIERS + COPIERS) % COPIERS, tile = first + skipped, count = done + skipped;
    const u8 *address = nullptr, *ahead = fetch(tile);
    for (int turn = 0; tile < last; tile += COPIERS, count += COPIERS, turn++) {
      int stage = count % STAGES, slot = turn & (tiles - 1);
      if (slot == 0) address = ahead, ahead = fetch(tile + tiles * COPIERS);
      const u8* from = (const u8*)__shfl_sync(~0u, (u64)address, (slot << bits) + own);
      bool copies = lane == own && from != nullptr;
      barrier_wait(empty + stage * 8, count / STAGES & 1 ^ 1);
      int total = __popc(__ballot_sync(~0u, copies)) * pieces.bytes();
      if (lane == 0) barrier_expect(full + stage * 8, total);
      __syncwarp();
      if (copies) bulk_load(ring + stage * STAGE_BYTES + lane * pieces.bytes(), from, pieces.bytes(), full + stage * 8);
    }
    done += last - first;
  });
}
