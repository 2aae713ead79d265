// The border between two hyper-connection sites, in two schedules with the same bits.
//
// hyper_border_wide:   a tile of 64 rows has 16 blocks, one a slice of the columns.
// hyper_border_narrow: a tile of 16 rows has a block for every 64 columns.
// Collapsed rows wait in shared memory while the tile's blocks meet in global memory for the sums. A block waits for others of its
// tile only, and blocks start in the order of their numbers, so those that it waits for have started or are the next to start.
// `arrivals` of both kernels: a counter for every tile, zero before the first launch.
#include "cuda_hyper_border_narrow.cuh"
#include "cuda_hyper_border_wide.cuh"
