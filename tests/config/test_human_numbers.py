"""Numbers as people write them, for every numeric key there is: on the command line, and as YAML reads them in a file."""

from typing import Annotated, Any, get_args, get_origin

import msgspec
import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from deepinfer.config.coerce import coerce, union_members
from deepinfer.config.compose import load
from deepinfer.config.keys import leaf_keys

WRITTEN = {  # unit of a key → what is typed, and the number that is meant
    "count": ("64k", 64_000),
    "bytes": ("80GiB", 80 * 2**30),
    "bytes/s": ("2.5TB/s", 2_500_000_000_000),
    "flop/s": ("155T", 155_000_000_000_000),
    "s": ("250ms", 0.25),
}
UNIT_OF_NAME = {  # how a key's name ends → the unit that it is written in
    "_bytes": "bytes",
    "_bytes_per_s": "bytes/s",
    "_s": "s",
    "_tokens": "count",
    "num_blocks": "count",
    "max_model_len": "count",
    "max_num_seqs": "count",
}
RATES = ("_per_s", "_per_s_per_user")  # end in _s as well, and count things
PARSER = OverridesParser.create()


def number_of(kind: Any) -> Any:
    """The number among the types that a key may have; None where it has none, or may be text as well."""
    members = union_members(kind)
    for member in () if str in members else members:
        base = get_args(member)[0] if get_origin(member) is Annotated else member
        if base in (int, float):
            return member
    return None


def meta_of(kind: Any) -> msgspec.Meta:
    notes = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
    return next((note for note in notes if isinstance(note, msgspec.Meta)), msgspec.Meta())


def unit_of(kind: Any) -> str:
    return str((meta_of(kind).extra or {}).get("unit", ""))


def fits(kind: Any, number: float) -> bool:
    """Whether a number lies in the range of a key."""
    meta = meta_of(kind)
    low = meta.ge is None or number >= meta.ge
    return low and (meta.le is None or number <= meta.le) and (meta.gt is None or number > meta.gt)


def both_ways(key: str, text: str) -> list[Any]:
    """What reaches the conversion: from Hydra's grammar, and from YAML."""
    (override,) = PARSER.parse_overrides([f"{key.replace('*', 'x')}={text}"])
    return [override.value(), yaml.safe_load(text)]


NUMBERS = {key: kind for key, whole in leaf_keys().items() if (kind := number_of(whole)) is not None}
WITH_UNIT = [key for key, kind in NUMBERS.items() if unit_of(kind)]
SHARES = [
    key
    for key, kind in NUMBERS.items()
    if 0 in (meta_of(kind).ge, meta_of(kind).gt) and 1 in (meta_of(kind).le, meta_of(kind).lt)
]


@pytest.mark.parametrize("key", WITH_UNIT)
def test_every_key_with_a_unit_takes_it(key: str) -> None:
    text, number = WRITTEN[unit_of(NUMBERS[key])]
    values = both_ways(key, text)
    if fits(NUMBERS[key], number):
        assert [coerce(value, leaf_keys()[key]) for value in values] == [number, number]
    else:
        with pytest.raises(ValueError, match="wanted"):
            coerce(values[0], leaf_keys()[key])


@pytest.mark.parametrize("key", SHARES)
def test_every_share_takes_a_percentage(key: str) -> None:
    for value in both_ways(key, "96%"):
        assert coerce(value, leaf_keys()[key]) == 0.96
    for value in both_ways(key, "1e-3"):
        assert coerce(value, leaf_keys()[key]) == 0.001


@pytest.mark.parametrize("key", [key for key, kind in NUMBERS.items() if fits(kind, 2000) and key not in SHARES])
def test_every_number_may_be_written_with_an_exponent(key: str) -> None:
    """Whole floats are whole numbers; YAML 1.1 reads 2e3 as text and Hydra as a number, and both mean 2000."""
    for text in ("2e3", "2000.0", "2000"):
        for value in both_ways(key, text):
            is_whole_text = (
                isinstance(value, str) and not unit_of(NUMBERS[key]) and get_args(NUMBERS[key])[:1] == (int,)
            )
            if not is_whole_text:  # a seed is no text
                assert coerce(value, leaf_keys()[key]) == 2000


def test_names_and_units_agree() -> None:
    """A key whose name ends in a unit is written in it; a new one without belongs into the type's `extra`."""
    for key, kind in NUMBERS.items():
        name = key.removesuffix(".value").rpartition(".")[2]
        for end, unit in UNIT_OF_NAME.items():
            if name.endswith(end) and not (name.endswith(RATES) and end == "_s"):
                literal = "block_tokens" in name or key.endswith("accepted_tokens")  # one number only; a mean
                assert unit_of(kind) == unit or literal, key


def test_on_the_command_line() -> None:
    spec = load(
        "sampling.max_tokens=4k",
        "model.max_model_len=64Ki",
        "cache.memory_bytes=1.5GB",
        "scheduler.watchdog_s=2min",
        "sampling.top_p=96%",
        "workload.cached_share=96%",
        "hardware.memory_bandwidth_bytes_per_s=2.5TB/s",
        "hardware.memory_bytes=80GiB",
        "workload.tokens_per_day=155T",
        "workload.requests_per_s=20k",
    )
    assert (spec.sampling.max_tokens, spec.model.max_model_len, spec.cache.memory_bytes) == (4000, 65536, 1_500_000_000)
    assert (spec.scheduler.watchdog_s, spec.sampling.top_p) == (120, 0.96)
    assert (spec.workload.cached_share, spec.workload.tokens_per_day) == (0.96, 155e12)  # type: ignore[attr-defined]
    assert spec.hardware.memory_bandwidth_bytes_per_s.value == 2.5e12  # type: ignore[attr-defined]
