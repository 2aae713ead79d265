// A warpgroup's sums, 64 outputs × WIDTH tokens in wgmma's layout, as bf16 rows of out[T, N].
#pragma once
#include "tensor_copies.cuh"

// Turned through shared memory (AT_ONCE · 128 bytes at `place`), so that 64 neighbouring outputs of a token leave as one line.
// `out` is where the first token's 64 outputs go; tokens from `num_tokens` on go nowhere.
template <int WIDTH, int AT_ONCE>
DEVICE void write_turned(u16* out, int row_width, int num_tokens, u32 place, int thread, const float (&acc)[WIDTH / 2]) {
  int lane = thread % 32, warp = thread / 32, barrier = 1 + threadIdx.x / 128;
#pragma unroll
  for (int chunk = 0; chunk < WIDTH / AT_ONCE; chunk++) {
    named_sync(barrier, 128);                         // the chunk before has left
#pragma unroll
    for (int pair = 0; pair < (AT_ONCE + 15) / 16; pair++) {
      const float* d = acc + (chunk * AT_ONCE / 8 + 2 * pair) * 4;
      int token = AT_ONCE == 8 ? lane % 8 : pair * 16 + lane / 16 * 8 + lane % 8, piece = warp * 2 + lane / 8 % 2;
      u32 to = place + token * 128 + (piece ^ token % 8) * 16;
      if (AT_ONCE == 8) store_turned(to, bf16x2(d[0], d[1]), bf16x2(d[2], d[3]));
      else store_turned(to, bf16x2(d[0], d[1]), bf16x2(d[2], d[3]), bf16x2(d[4], d[5]), bf16x2(d[6], d[7]));
    }
    named_sync(barrier, 128);
#pragma unroll
    for (int i = 0; i < (AT_ONCE + 15) / 16; i++) {
      int in_chunk = i * 16 + thread / 8, piece = thread % 8, token = chunk * AT_ONCE + in_chunk;
      if (in_chunk < AT_ONCE && token < num_tokens) {
        uint4 v = load_shared16(place + in_chunk * 128 + (piece ^ in_chunk % 8) * 16);
        *(uint4*)(out + (long long)token * row_width + piece * 8) = v;
      }
    }
  }
}
