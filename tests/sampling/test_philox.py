"""Counter random numbers: published vectors, one function of four arguments, whatever stands around them."""

import numpy as np
import pytest
from chi_square import p_value
from deepinfer.kernels import cpu_philox

from deepinfer.sampling import philox

# Random123 1.14, tests/kat_vectors, "philox4x32 10": counter, key, result
VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_known_answers(counter: tuple, key: tuple, expected: tuple) -> None:
    got = philox.philox4x32(tuple(map(np.uint64, counter)), tuple(map(np.uint64, key)))
    assert tuple(map(int, got)) == expected


def test_key_and_counter_hold_seed_position_token_and_stream() -> None:
    counter, key, expected = VECTORS[2]
    seed = key[0] | key[1] << 32
    position = counter[0] | counter[1] << 32
    assert tuple(map(int, philox.words(seed, position, counter[2], counter[3]))) == expected


def test_eight_tokens_share_a_block_of_high_bits_and_two_a_block_of_low_ones() -> None:
    seed, position, stream = 2**63 + 5, 2**33 + 9, 6
    for token in (0, 1, 6, 7, 8, 13, 129279):
        coarse = b"".join(int(w).to_bytes(4, "little") for w in philox.words(seed, position, token // 8, stream))
        fine = philox.words(seed, position, 2**31 + token // 2, stream)
        high = int.from_bytes(coarse[token % 8 * 2 :][:2], "little")
        low = (int(fine[token % 2 * 2]) << 32 | int(fine[token % 2 * 2 + 1])) >> 28
        assert int(philox.bits(seed, position, token, stream)) == high << 36 | low


def test_kernel_has_the_bits_of_the_twin() -> None:
    rng = np.random.default_rng(0)
    seeds = rng.integers(0, 2**64, 7, dtype=np.uint64)
    positions = np.array([0, 1, 5, 2**31, 2**32 - 1, 2**32, 2**40 + 3])
    ids = rng.permutation(5000)[:333]
    for stream, size in zip(range(4), (1, 96, 2049, 5003)):
        twin = philox.uniform(seeds[:, None], positions[:, None], ids[None], stream)
        assert np.array_equal(cpu_philox.uniform(seeds, positions, ids, stream), twin)
        twin = philox.uniform(seeds[:, None], positions[:, None], np.arange(size)[None], stream)
        assert np.array_equal(cpu_philox.uniform_of_all(seeds, positions, size, stream), twin)


def test_a_number_does_not_depend_on_row_slice_or_length() -> None:
    seeds, positions = np.arange(5, dtype=np.uint64), np.arange(10, 15)
    whole = philox.gumbel_of(cpu_philox.uniform_of_all(seeds, positions, 203, 0))
    for row in range(5):
        for start in range(17):
            for length in (1, 2, 3, 7, 8, 9, 15, 16, 31, 33, 64, 129):
                ids = np.arange(start, start + length)
                noise = philox.gumbel_of(cpu_philox.uniform(seeds[row : row + 1], positions[row : row + 1], ids, 0))[0]
                assert np.array_equal(noise, whole[row, start : start + length])


def test_neighbours_that_share_blocks_are_independent() -> None:
    """All pairs of the eight, by the chi-square of their joint sixteenths, for high and for low bits."""
    drawn = philox.bits(11, np.arange(20_000)[:, None], np.arange(8)[None])
    for shift in (48, 32):  # the top of the high bits, the top of the low ones
        cell = (drawn >> np.uint64(shift) & np.uint64(15)).astype(np.int64)
        for i in range(8):
            for j in range(i):
                counts = np.bincount(16 * cell[:, i] + cell[:, j], minlength=256)
                assert p_value(counts, np.full(256, 1 / 256)) > 1e-5, (shift, i, j)


def test_uniforms_are_inside_and_even_and_streams_differ() -> None:
    draws = [philox.uniform(3, np.arange(200)[:, None], np.arange(500)[None], stream) for stream in range(4)]
    for u in draws:
        assert u.min() > 0.0 and u.max() < 1.0
        assert abs(u.mean() - 0.5) < 0.003
        assert abs(u.var() - 1 / 12) < 0.001
    assert len(np.unique(np.concatenate([u.ravel() for u in draws]))) == 400_000
    assert np.abs(np.corrcoef(np.stack([u.ravel() for u in draws])) - np.eye(4)).max() < 0.01


def test_noise_is_finite_at_both_ends() -> None:
    ends = philox.gumbel_of(np.array([2.0**-53, 1.0 - 2.0**-53]))
    assert np.isfinite(ends).all() and ends[0] < -3.6 and ends[1] > 36.7
