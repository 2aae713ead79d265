// The producing warpgroup of sparse attention; included by cuda_sparse_attention.cu after the layout of shared memory.
#pragma once

// Which keys of a tile are hidden: what to add to their logits, and whether a warp has one among its own (one byte a
// warp).
DEVICE void tell_hidden(u32 which, u32 key, bool seen, int lane) {
  constexpr int KEYS_A_WARP = ORDERED ? 16 : 8;
  const bool all = __all_sync(ALL, seen);
  if (lane < KEYS_A_WARP) shared_float(BIASES + which * 256 + key * 4) = seen ? 0.0f : -INFINITE;
  if (lane == 0) shared_bytes[HIDDEN + which * 8 + key / KEYS_A_WARP] = !all;
}
// what request_queries has asked for is there for the consumers, and how many blocks of keys the row has
DEVICE void publish_queries(const Arguments& a, int row, u32 turn, int count, int thread) {
  finish_queries(shared_base() + QUERIES, a.rope + row * 64, thread);
  if (thread == 0) *(int*)(shared_bytes + COUNTS + (turn & 1) * 4) = count;
  fence_shared_for_async();
  barrier_arrive(barrier(QUERIES_FULL));
}

#if WINDOW_FORMAT == 0
// Four warps a tile: each group fills its own, so that one copies while the other waits for its tile to be free. A
// warp copies sixteen rows, 32 pieces of 16 bytes at once.
DEVICE void copy_rows(const Store& store, u32 unit, u32 tile, u32 first, int lane) {
  const u32 to = piece_at(tile, first, lane);  // rows below: the same line eight rows on, another piece in between
#pragma unroll
  for (int start = 0; start < 16; start += 4) {
    const u8* rows[4];
    u32 bytes[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const u32 from = __shfl_sync(ALL, unit, start + i);
      rows[i] = store.at(from) + lane * 16, bytes[i] = from == ~0u ? 0 : 16;
      asm volatile("" : "+l"(rows[i]));  // four addresses in registers of their own: a copy holds its own for a while
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const u32 at = (to ^ ((start + i & 7) << 4)) + (start + i) * 128;
      async_copy16(at, rows[i], bytes[i]);
      async_copy16(at + 4 * COLUMN_BYTES, rows[i] + 512, bytes[i]);
    }
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
    barrier_wait(barrier(QUERIES_FREE), ~turn & 1);
    request_queries(shared_base() + QUERIES, a.q + (u64)row * TILE_BYTES, thread);
    bool asked = true;
    for (int block = 0; block < count; ++block, ++done) {
      if ((done & 1) != mine) continue;
      const bool near = block < WINDOW_BLOCKS;
      const Store store = choose(near, a.window, a.selected);
      const int* list = near ? a.window_rows + (u64)row * a.window_list_stride + block * TILE
                             : a.selected_rows + (u64)row * a.selected_list_stride + (block - WINDOW_BLOCKS) * TILE;
      const int number = list[first + (lane & 15)];
      const u32 unit = number < 0 ? ~0u : store.unit(number);
      barrier_wait(barrier(KEYS_FREE + mine), ~(done >> 1) & 1);
      copy_rows(store, unit, shared_base() + KEYS + mine * TILE_BYTES, first, lane);
      tell_hidden(mine, first + (lane & 15), number >= 0, lane);
      if (asked) {
        async_wait<1>();
        publish_queries(a, row, turn, count, thread);
        asked = false;
      }
      async_wait<0>();
      fence_shared_for_async();
      barrier_arrive(barrier(KEYS_FULL + mine));
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
  Unit unit;
  int number = load_number(a, now, slot);
  u32 place = unit_of(a, now, number);
  load_unit(unit, row_at(a, now, place), is_fp4(now), group);
  u32 done = 0, turn = 0;
  while (now.row < a.rows) {
    const bool seen = number >= 0;
    Cursor next = now;
    advance(a, next, begins, lane);
    number = load_number(a, next, slot);
    if (now.block == 0) {
      barrier_wait(barrier(QUERIES_FREE), ~turn & 1);
      request_queries(shared_base() + QUERIES, a.q + (u64)now.row * TILE_BYTES, thread);
    }
    const u32 which = done & 1, tile = shared_base() + KEYS + which * TILE_BYTES;
    barrier_wait(barrier(KEYS_FREE + which), ~(done >> 1) & 1);
    tell_hidden(which, slot, seen, lane);
    if (is_fp4(now))
      expand_row<true>(tile, slot, unit, nullptr, seen, group);
    else
      expand_row<false>(tile, slot, unit, row_at(a, now, place), seen, group);
    fence_shared_for_async();
    barrier_arrive(barrier(KEYS_FULL + which));
    ++done;
    place = unit_of(a, next, number);
    load_unit(unit, row_at(a, next, place), is_fp4(next), group);
    if (now.block == 0) {  // the first keys of a row were expanded while its queries arrived
      async_wait<0>();
      publish_queries(a, now.row, turn++, now.count, thread);
    }
    now = next;
  }
}
#endif
