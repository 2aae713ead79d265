// The border between two hyper-connection sites: two schedules with the same bits, and what ends the streams.
//
// hyper_border_wide:   persistent blocks, each with a 32nd of the columns, go through bands of 16 rows.
// hyper_border_narrow: a band of 16 rows has a block for every 64 columns.
// hyper_border_end:    no site begins; a block a row.
// The first two wait for other blocks of their launch, which must all be on the device at once: launches are cooperative.
// `arrivals`: counters of theirs, zero before the first launch.
#include "cuda_hyper_border_end.cuh"
#include "cuda_hyper_border_narrow.cuh"
#include "cuda_hyper_border_wide.cuh"
