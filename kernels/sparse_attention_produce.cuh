// The producing warpgroup of sparse attention; included by cuda_sparse_attention.cu after the layout of shared memory.
#pragma once

// Which keys of a tile are hidden: what to add to their logits, and whether a warp has one among its own (one byte a
// warp).
DEVICE void tell_hidden(u32 which, u32 key, bool seen, int lane) {
  constexpr int KEYS_A_WARP = ORDERED ? 16 : 8;
  const bool all = __all_sync(ALL, seen);
  if (lane < KEYS_A_WARP) shared_float(BIASES + which * 256 + key * 4) = seen ? 0.0f : -INFINITY_F;
  if (lane == 0) shared_bytes[HIDDEN + which * 8 + key / KEYS_A_WARP] = !all;
}
DEVICE u32 angles_at(u32 turn) { return shared_base() + ANGLES + (turn & 1) * 256; }
// A row's queries as they are, and how many blocks of keys it has, for the consumers.
DEVICE void request_row(const Arguments& a, int row, u32 turn, int count, int thread) {
  barrier_wait(barrier(QUERIES_FREE), ~turn & 1);
  request_angles(angles_at(turn), a.rope + row * 64, thread);
  request_queries(shared_base() + QUERIES, a.q + (u64)row * TILE_BYTES, thread);
  async_arrive(barrier(QUERIES_FULL));
  if (thread) return;
  *(int*)(shared_bytes + COUNTS + (turn & 1) * 4) = count;
  barrier_arrive(barrier(QUERIES_FULL));
}
#if WINDOW_FORMAT == 0
// Four warps a tile: each group fills its own, so that one copies while the other waits for its tile to be free. A
// warp copies sixteen rows, 32 pieces of 16 bytes at once.
DEVICE void copy_half(const Store& store, u32 unit, u32 tile, u32 half, u32 first, int lane) {
  const u32 to = piece_at(tile, first, lane) + half * 4 * COLUMN_BYTES;  // rows below: the same line eight rows on
#pragma unroll
  for (int start = 0; start < 16; start += 4) {
    const u8* rows[4];
    u32 bytes[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const u32 from = __shfl_sync(ALL, unit, start + i);
      rows[i] = store.at(from) + half * 512 + lane * 16, bytes[i] = from == ~0u ? 0 : 16;
      asm volatile("" : "+l"(rows[i]));  // four addresses in registers of their own: a copy holds its own for a while
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      async_copy16((to ^ ((start + i & 7) << 4)) + (start + i) * 128, rows[i], bytes[i]);
  }
  async_commit();
}
DEVICE void produce(const Arguments& a) {
  const int thread = threadIdx.x - 256, lane = thread & 31, mine = thread >> 7, first = (thread >> 5 & 3) * 16;
  u32 done = 0, turn = 0;
  bool begins = block_begins(a, blockIdx.x, lane);
  for (int row = blockIdx.x; row < a.rows; row += gridDim.x, ++turn) {
    const int count = WINDOW_BLOCKS + __popc(__ballot_sync(ALL, begins));
    begins = block_begins(a, row + gridDim.x, lane);
    request_row(a, row, turn, count, thread);
    for (int block = 0; block < count; ++block, ++done) {
      if ((done & 1) != mine) continue;
      const bool near = block < WINDOW_BLOCKS;
      const Store store = choose(near, a.window, a.selected);
      const int* list = near ? a.window_rows + (u64)row * a.window_list_stride + block * TILE
                             : a.selected_rows + (u64)row * a.selected_list_stride + (block - WINDOW_BLOCKS) * TILE;
      const int number = list[first + (lane & 15)];
      const u32 unit = number < 0 ? ~0u : store.unit(number);
      const u32 tile = shared_base() + KEYS + mine * TILE_BYTES, parity = ~(done >> 1) & 1;
      barrier_wait(barrier(KEYS_FREE + 2 * mine), parity);
      copy_half(store, unit, tile, 0, first, lane);
      tell_hidden(mine, first + (lane & 15), number >= 0, lane);
      barrier_wait(barrier(KEYS_FREE + 2 * mine + 1), parity);
      copy_half(store, unit, tile, 1, first, lane);
      async_wait<1>();
      barrier_arrive(barrier(KEYS_FULL + 2 * mine));
      async_wait<0>();
      barrier_arrive(barrier(KEYS_FULL + 2 * mine + 1));
    }
  }
}
#else
// Blocks of keys row after row: those of the window, then the selected ones that have a visible slot.
struct Cursor {
  int row, block, count;
};
DEVICE bool is_fp4(const Cursor& c) { return (c.block < WINDOW_BLOCKS ? WINDOW_FORMAT : SELECTED_FORMAT) == 2; }
DEVICE void advance(const Arguments& a, Cursor& c, bool& begins, int lane) {
  if (++c.block < c.count) return;
  c = {c.row + (int)gridDim.x, 0, WINDOW_BLOCKS + __popc(__ballot_sync(ALL, begins))};
  begins = block_begins(a, c.row + gridDim.x, lane);
}
DEVICE int load_number(const Arguments& a, const Cursor& c, int slot) {
  if (c.row >= a.rows) return -1;
  if (c.block < WINDOW_BLOCKS) return a.window_rows[(u64)c.row * a.window_list_stride + c.block * TILE + slot];
  return a.selected_rows[(u64)c.row * a.selected_list_stride + (c.block - WINDOW_BLOCKS) * TILE + slot];
}
DEVICE u32 unit_of(const Arguments& a, const Cursor& c, int number) {
  return choose(c.block < WINDOW_BLOCKS, a.window, a.selected).unit(number);
}
DEVICE const u8* row_at(const Arguments& a, const Cursor& c, u32 unit) {
  return (c.block < WINDOW_BLOCKS ? a.window : a.selected).at(unit);
}
DEVICE void load_unit(Unit& unit, const u8* from, bool fp4, int group) {
#pragma unroll
  for (int i = 0; i < 4; ++i) load_piece(unit, i, from, fp4, 0, group);
}

DEVICE void produce(const Arguments& a) {
  const int thread = threadIdx.x - 256, lane = thread & 31, group = lane >> 3;
  const int slot = (thread >> 5) * 8 + (lane & 7);
  bool begins = block_begins(a, blockIdx.x + gridDim.x, lane);
  Cursor now{(int)blockIdx.x, 0, WINDOW_BLOCKS + __popc(__ballot_sync(ALL, block_begins(a, blockIdx.x, lane)))};
  Cursor next = now;
  advance(a, next, begins, lane);
  int number = load_number(a, now, slot), next_number = load_number(a, next, slot);
  u32 place = unit_of(a, now, number), done = 0, turn = 0;
  Unit unit;
  load_unit(unit, row_at(a, now, place), is_fp4(now), group);
  while (now.row < a.rows) {
    if (now.block == 0) request_row(a, now.row, turn++, now.count, thread);
    const u32 which = done & 1, tile = shared_base() + KEYS + which * TILE_BYTES;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      barrier_wait(barrier(KEYS_FREE + 2 * which + half), ~(done >> 1) & 1);
      if (half == 0) tell_hidden(which, slot, number >= 0, lane);
      if (is_fp4(now))
        expand_half<true>(tile, slot, unit, half, number >= 0, nullptr, group);
      else
        expand_half<false>(tile, slot, unit, half, number >= 0, row_at(a, now, place), group);
      barrier_arrive(barrier(KEYS_FULL + 2 * which + half));
    }
    ++done;
    now = next, number = next_number, place = unit_of(a, now, number);
    load_unit(unit, row_at(a, now, place), is_fp4(now), group);
    advance(a, next, begins, lane);
    next_number = load_number(a, next, slot);
  }
}
#endif
