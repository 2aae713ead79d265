"""Numbers for people."""

import pytest

from deepinfer.plan.quantities import amount, counted, duration, fixed_size, quantity, size


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        (size(0), "0 B"),
        (size(413), "413 B"),
        (size(14_438_496), "14.4 MB"),
        (size(999_999), "1 MB"),
        (size(56_800_808_064, 4), "56.8 GB"),
        (size(2_990_000_000_000), "2.99 TB"),
        (duration(0.0381), "38.1 ms"),
        (duration(0), "0 s"),
        (duration(4.2e-6), "4.2 µs"),
        (amount(86_400), "86.4 k"),
        (amount(0.5), "0.5"),
        (amount(999.6), "1 k"),
        (fixed_size(20_003_661_000, in_mb=True), "20,003.661 MB"),
        (fixed_size(113_833_133_568, in_mb=False), "113.833 GB"),
        (counted(1, "rank"), "1 rank"),
        (counted(1024, "rank"), "1,024 ranks"),
        (quantity(12_345), "12,345"),
        (quantity(1234.56, "tokens/s"), "1,235 tokens/s"),
        (quantity(12_345.6, "tokens/s"), "12,346 tokens/s"),
        (quantity(28.786, "tokens/s"), "28.79 tokens/s"),
        (quantity(0.25, "s"), "250 ms"),
        (quantity(-1_500_000_000, "B"), "-1.5 GB"),
    ],
)
def test_quantities(written: str, wanted: str) -> None:
    assert written == wanted
