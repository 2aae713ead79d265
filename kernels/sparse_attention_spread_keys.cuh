// Keys and values of a row that eight thread blocks share, on their way from memory; included by
// sparse_attention_spread.cuh after its layout of shared memory.
#pragma once

// A quarter of one key of a block on its way: FP4 rows fill `first` alone.
struct Key {
  int number;
  Unit first, second;
};
DEVICE void request_key(const Arguments& a, Key& key, int row, int block, int thread) {
  const int group = (thread & 31) >> 3, slot = (thread >> 5) * 8 + (thread & 7);
  const Cursor c{row, block, BLOCKS};
  key.number = load_number(a, c, slot);
  const u8* from = row_at(a, c, unit_of(a, c, key.number));
  load_unit(key.first, from, is_fp4(c), group);
  if (is_fp4(c)) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) load_piece(key.second, i, from, false, 1, group);
}
DEVICE void expand_key(const Key& key, int block, int which, int thread) {
  const int group = (thread & 31) >> 3, slot = (thread >> 5) * 8 + (thread & 7);
  const u32 tile = shared_base() + KEYS + which * TILE_BYTES, mask = key.number >= 0 ? ~0u : 0;
  const bool fp4 = is_fp4({0, block, BLOCKS});
  const u32 at = piece_at(tile, slot, group * (fp4 ? 4 : 2));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (fp4) {
      expand_piece<true>(at + 2 * i * COLUMN_BYTES, key.first.codes[i], key.first.scales[i], mask, group);
    } else {
      expand_piece<false>(at + i * COLUMN_BYTES, key.first.codes[i], key.first.scales[i], mask, group);
      expand_piece<false>(at + (i + 4) * COLUMN_BYTES, key.second.codes[i], key.second.scales[i], mask, group);
    }
  }
  tell_hidden(which, slot, key.number >= 0, thread & 31);
  barrier_arrive(spread_barrier(SPREAD_KEYS + which));
}
// 64 dims of SLOTS listed keys: each thread takes 16-byte pieces, of 32 FP4 dims or 16 FP8 dims
template <int FORMAT, int SLOTS> struct Values {
  static constexpr int PIECES = FORMAT == 2 ? 2 : 4, ROWS = PRODUCERS / PIECES, PASSES = (SLOTS + ROWS - 1) / ROWS;
  uint4 codes[PASSES + 1];  // the last one is never touched: lists may be empty
  u32 scales[PASSES + 1];
  int numbers[PASSES + 1];
  u32 piece, slot;
  DEVICE_MEMBER Values(const int* list, int thread) {
    const int lane = thread & 31;
    piece = lane >> 3 & (PIECES - 1);
    slot = (thread >> 5) * (32 / PIECES) + (lane & 7) + (FORMAT == 2 ? lane >> 4 << 3 : 0);
#pragma unroll
    for (int i = 0; i < PASSES; ++i) numbers[i] = i * ROWS + slot < SLOTS ? list[i * ROWS + slot] : -1;
  }
  DEVICE_MEMBER void request(const Store& store, int column) {
#pragma unroll
    for (int i = 0; i < PASSES; ++i) {
      const u8* row = store.at(store.unit(numbers[i]));
      codes[i] = load16(row + (column * PIECES + piece) * 16);
      scales[i] = load2(row + (FORMAT == 2 ? 256 + column * 4 + piece * 2 : 512 + column * 2));
    }
  }
  DEVICE_MEMBER void expand(u32 tile) const {
#pragma unroll
    for (int i = 0; i < PASSES; ++i) {
      const u32 key = i * ROWS + slot, line = tile + (key >> 6) * COLUMN_BYTES;
      if (SLOTS % ROWS && key >= SLOTS) continue;
      expand_piece<FORMAT == 2>(piece_at(line, key & 63, piece * (8 / PIECES)), codes[i], scales[i],
                                numbers[i] >= 0 ? ~0u : 0, piece);
    }
  }
};
