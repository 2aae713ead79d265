"""Numbers with units."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.config.units import UNITS, parse_quantity


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("64k", "count", 64_000),
        ("64K", "count", 64_000),
        ("64Ki", "count", 65_536),
        ("1M", "count", 1_000_000),
        ("4096", "count", 4096),
        ("1_000", "count", 1000),
        ("5e8", "count", 500_000_000),
        ("80GiB", "bytes", 80 * 2**30),
        ("1.5GB", "bytes", 1_500_000_000),
        ("1.5 GiB", "bytes", 3 * 2**29),
        ("512B", "bytes", 512),
        ("0.5KiB", "bytes", 512),
        ("3.35TB/s", "bytes/s", 3_350_000_000_000),
        ("4.5PFLOP/s", "flop/s", 4_500_000_000_000_000),
        ("1979TFLOPS", "flop/s", 1_979_000_000_000_000),
        ("250ms", "s", 0.25),
        ("1500us", "s", 0.0015),
        ("2min", "s", 120),
        ("1h", "s", 3600),
        ("0.1s", "s", 0.1),
        (".5s", "s", 0.5),
        ("155T", "flop/s", 155 * 10**12),
        ("155T", "count", 155 * 10**12),
        ("80G", "bytes", 80 * 10**9),
        ("80Gi", "bytes", 80 * 2**30),
        ("2.5T", "bytes/s", 2_500_000_000_000),
        ("96%", "share", 0.96),
        ("100%", "share", 1),
        ("0.1 %", "share", 0.001),
        ("1e-3", "share", 0.001),
    ],
)
def test_reads(text: str, unit: str, value: float) -> None:
    found = parse_quantity(text, unit)
    assert found == value
    assert isinstance(found, int) == (value == int(value))


@pytest.mark.parametrize(
    ("text", "unit", "says"),
    [
        ("80gib", "bytes", "spelled GiB"),
        ("80gb", "bytes", "spelled GB"),
        ("250MS", "s", "spelled ms"),
        ("64GB", "count", "64k"),
        ("eighty", "bytes", "not a number"),
        ("", "bytes", "not a number"),
        ("1..5GB", "bytes", "not a number"),
        ("1GB2", "bytes", "not a number"),
        ("5 furlongs", "s", "no unit that fits"),
        ("3TB", "bytes/s", "3.35TB/s"),
        ("nan", "s", "not a number"),
        ("96%", "count", "no unit that fits"),
        ("96 percent", "share", "no unit that fits"),
        ("1e999", "flop/s", "more than anything there is"),
        ("1e999999999", "bytes", "not a number"),
    ],
)
def test_refuses(text: str, unit: str, says: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        parse_quantity(text, unit)
    assert says in str(refused.value)
    assert repr(text) in str(refused.value)


@given(st.integers(0, 2**60), st.sampled_from(sorted(UNITS["bytes"])))
def test_whole_sizes_are_exact(number: int, suffix: str) -> None:
    assert parse_quantity(f"{number}{suffix}", "bytes") == number * UNITS["bytes"][suffix]
