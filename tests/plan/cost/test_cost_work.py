"""FLOPs and bytes of V4.1-Flash against a count that was made independently, within 1 %."""

from collections.abc import Callable

import msgspec
import pytest

from deepinfer.arch.cache import CacheLayout
from deepinfer.plan.cost.links import Group
from deepinfer.plan.cost.shape import KeyScan, Shape
from deepinfer.plan.cost.work import Prompt, decode_work, expected_experts, prefill_work
from deepinfer.plan.sizes import Weights

WITHIN = 0.01
K4, K32, K64, K128, M1 = 4096, 32_768, 65_536, 131_072, 1_048_576
BF16_EQUIVALENT = {"tf32": 2.0, "bf16": 1.0, "f8_e4m3": 0.5, "f4_e2m1": 0.25}

DECODE_GFLOP = {  # context → FP4, all, all in BF16 equivalents; FP8, BF16 and TF32 do not depend on it
    K4: (0.218, 35.72, 20.32),
    K32: (1.208, 36.71, 20.57),
    K128: (3.221, 38.72, 21.07),
    M1: (22.012, 57.51, 25.77),
}
COMPACT_GFLOP = {  # prompt → FP8, BF16, FP4, all, all in BF16 equivalents, of each token with keep=140
    K4: (16.148, 1.559, 0.031, 17.79, 9.74),
    K32: (15.698, 1.648, 0.205, 17.60, 9.65),
    K128: (15.650, 1.657, 0.807, 18.16, 9.78),
    M1: (15.636, 1.660, 6.444, 23.79, 11.19),
}
WHOLE_GFLOP = {K4: (34.04, 18.73), K32: (34.88, 19.10), K128: (36.01, 19.40), M1: (45.45, 21.76)}
# what the FLOPs estimator of DeepSeek's DeepInfer 0.1.0 counts for this model, in GFLOP of FP8
PREFILL_GF8 = {K4: 19.5, K32: 19.3, K128: 19.6, M1: 22.4}
DECODE_GF8 = {K4: 40.7, K64: 41.5, M1: 51.5}


@pytest.fixture
def alone(chip_of) -> Group:
    return Group(chip=chip_of("h200"))


def gflop(flops: dict[str, float], tokens: int = 1) -> dict[str, float]:
    return {dtype: count / tokens / 1e9 for dtype, count in flops.items()}


def bf16_equivalent(flops: dict[str, float]) -> float:
    return sum(BF16_EQUIVALENT[dtype] * count for dtype, count in flops.items())


def test_active_weights(active_weights: Callable[..., float], flash: Shape):
    assert active_weights(flash, "row", "kept", "sampled") == pytest.approx(16.13e9, rel=WITHIN)
    assert active_weights(flash, "row") == pytest.approx(7.90e9, rel=WITHIN)


@pytest.mark.parametrize("context", DECODE_GFLOP)
def test_decode_flops(flash: Shape, alone: Group, context: int):
    fp4, total, equivalent = DECODE_GFLOP[context]
    found = gflop(decode_work(flash, alone, 1, context).flops())
    wanted = {"f8_e4m3": 30.66, "bf16": 4.742, "tf32": 0.098, "f4_e2m1": fp4}
    assert found == {dtype: pytest.approx(count, rel=WITHIN) for dtype, count in wanted.items()}
    assert sum(found.values()) == pytest.approx(total, rel=WITHIN)
    assert bf16_equivalent(found) == pytest.approx(equivalent, rel=WITHIN)


@pytest.mark.parametrize("tokens", COMPACT_GFLOP)
def test_prefill_flops_when_the_later_layers_see_kept_rows_only(flash: Shape, alone: Group, tokens: int):
    fp8, bf16, fp4, total, equivalent = COMPACT_GFLOP[tokens]
    found = gflop(prefill_work(flash, alone, Prompt(tokens=tokens, keep=140), 1).flops(), tokens)
    for dtype, count in (("f8_e4m3", fp8), ("bf16", bf16), ("f4_e2m1", fp4)):
        assert found[dtype] == pytest.approx(count, rel=WITHIN, abs=5e-4)  # the table has three decimals
    assert sum(found.values()) == pytest.approx(total, rel=WITHIN)
    assert bf16_equivalent(found) == pytest.approx(equivalent, rel=WITHIN)


@pytest.mark.parametrize("tokens", WHOLE_GFLOP)
def test_prefill_flops_without_truncation(flash: Shape, alone: Group, tokens: int):
    found = gflop(prefill_work(flash, alone, Prompt(tokens=tokens), 1).flops(), tokens)
    total, equivalent = WHOLE_GFLOP[tokens]
    assert sum(found.values()) == pytest.approx(total, rel=WITHIN)
    assert bf16_equivalent(found) == pytest.approx(equivalent, rel=WITHIN)


def test_another_estimator_agrees(flash: Shape, alone: Group):
    for tokens, wanted in PREFILL_GF8.items():
        found = gflop(prefill_work(flash, alone, Prompt(tokens=tokens, keep=140), 1).flops(), tokens)
        assert 2 * bf16_equivalent(found) == pytest.approx(wanted, rel=WITHIN)
    for context, wanted in DECODE_GF8.items():
        assert 2 * bf16_equivalent(gflop(decode_work(flash, alone, 1, context).flops())) == pytest.approx(
            wanted, rel=WITHIN
        )


def test_a_prompt_in_chunks_or_over_ranks_takes_what_it_takes_whole(flash: Shape, alone: Group):
    prompt = Prompt(tokens=K32, keep=140)
    whole = prefill_work(flash, alone, prompt, 1).flops()
    chunk = prefill_work(flash, alone, prompt, 1 / 4).flops()
    assert chunk == {dtype: pytest.approx(flops / 4) for dtype, flops in whole.items()}
    shared = prefill_work(flash, msgspec.structs.replace(alone, num_ranks=2, context=2), prompt, 1)
    heads = prefill_work(flash, alone, prompt, 1).parts
    head = sum(part.flops["bf16"] for part in heads if part.part == "head")  # every rank's last row is sampled once
    assert shared.flops()["f8_e4m3"] == pytest.approx(whole["f8_e4m3"] / 2)
    assert shared.flops()["bf16"] == pytest.approx((whole["bf16"] - head) / 2 + head)


def test_cached_tokens_are_not_computed_but_seen(flash: Shape, alone: Group):
    cold = prefill_work(flash, alone, Prompt(tokens=K32), 1).flops()
    first_half = prefill_work(flash, alone, Prompt(tokens=K32 // 2), 1).flops()
    second = prefill_work(flash, alone, Prompt(tokens=K32, cached=K32 // 2), 1).flops()
    assert second["f4_e2m1"] == pytest.approx(cold["f4_e2m1"] - first_half["f4_e2m1"])
    assert second["f8_e4m3"] == pytest.approx(cold["f8_e4m3"] / 2)


@pytest.mark.parametrize("context", (K4, K32, K128))
def test_keys_that_a_decoded_token_reads(flash: Shape, alone: Group, context: int):
    work = decode_work(flash, alone, 1, context)
    candidates = 4 * min(context, 16_384) * 68
    wanted = 40 * 128 * 528 + 38 * 512 * 288 + 170 * context + candidates
    written = 890 + 40 * 528
    assert work.num_bytes("cache") - written == pytest.approx(wanted, rel=WITHIN)


def test_weights_that_a_step_reads(flash: Shape, flash_config, alone: Group):
    work = decode_work(flash, alone, 1, K4)
    held = {item.name: item.num_bytes for item in Weights(flash_config).classes()}
    parts = {part.part: part.weight_bytes for part in work.parts}
    assert parts["head"] == pytest.approx(held["head"], rel=WITHIN)
    assert parts["experts"] == pytest.approx(40 * 6 * 18_800_640)
    dense = sum(num_bytes for part, num_bytes in parts.items() if part not in ("head", "experts"))
    assert dense == pytest.approx(held["dense"], rel=WITHIN)


def test_the_n_gram_memory_adds_48_rows_a_token(flash: Shape, alone: Group):
    engram = next(part for part in decode_work(flash, alone, 10, K4).parts if part.part == "engram")
    assert engram.table_bytes == 10 * 48 * 264


def test_distinct_experts_of_a_batch():
    for rows, wanted in {8: 45.5, 32: 152, 64: 243.8, 128: 332.8, 256: 377}.items():
        assert expected_experts(384, 384, 6, rows) == pytest.approx(wanted, rel=WITHIN)


def test_what_drafting_takes(active_weights: Callable[..., float], flash: Shape, drafting_flash: Shape, alone: Group):
    assert active_weights(drafting_flash, "draft") == pytest.approx(0.809e9 + 0.662e9 + 33.1e6, rel=WITHIN)
    assert active_weights(drafting_flash, "accepted") == pytest.approx(78.6e6 + 3 * 5120 * 512, rel=WITHIN)
    plain = decode_work(flash, alone, 1, K4).flops()
    round_ = decode_work(drafting_flash, alone, 1, K4, drafts=5, accepted=0).flops()
    extra = sum(round_.values()) - sum(plain.values())
    assert extra == pytest.approx(15e9, rel=0.05)  # "about 15 GFLOP a round of five"


def test_keys_are_counted_as_if_one_by_one():
    for scan in (
        KeyScan(part="a", dtype="bf16", flops=1, key_bytes=1, window=7),
        KeyScan(part="a", dtype="bf16", flops=1, key_bytes=1, window=None),
        KeyScan(part="a", dtype="bf16", flops=1, key_bytes=1, ratio=2, limit=5),
        KeyScan(part="a", dtype="bf16", flops=1, key_bytes=1, ratio=4),
        KeyScan(part="a", dtype="bf16", flops=1, key_bytes=1, ratio=3, limit=0, window=2),
    ):
        for start, stop in ((0, 1), (0, 40), (13, 29), (5, 5)):
            assert scan.keys_between(start, stop) == sum(scan.keys(position + 1) for position in range(start, stop))


def test_rows_of_one_sequence_share_their_window():
    window = KeyScan(part="a", dtype="bf16", flops=1, key_bytes=1, window=128)
    chosen = KeyScan(part="a", dtype="bf16", flops=1, key_bytes=1, ratio=1, limit=512)
    assert window.distinct(6, 10_000) == 133
    assert chosen.distinct(6, 10_000) == 6 * 512
    assert chosen.distinct(6, 1000) == 1000


def test_a_shape_can_be_written_by_hand(alone: Group):
    import yaml

    shape = msgspec.convert(
        yaml.safe_load("""
name: toy
layers: 2
products:
  - {part: ffn, dtype: bf16, inputs: 10, outputs: 20, layers: 2}
  - {part: head, dtype: bf16, inputs: 10, outputs: 100, scope: sampled}
scans:
  - {part: attention, dtype: bf16, flops: 4, key_bytes: 8, layers: 2, window: null}
experts:
  - {layers: 2, experts: 4, chosen: 2, dtype: f8_e4m3, weights: 600, num_bytes: 600, dispatch_bytes: 10, combine_bytes: 20}
"""),
        Shape,
    )
    flops = decode_work(shape, alone, 3, 100).flops()
    assert flops == {"bf16": 3 * (2 * 400 + 2 * 1000 + 2 * 100 * 4), "f8_e4m3": 3 * 2 * 2 * 2 * 600}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"name": "toy", "layers": 1, "products": [], "widht": 3}, Shape)


def test_wider_weights_are_read_and_multiplied_wider(flash: Shape, alone: Group):
    from deepinfer.plan.cost.v41 import widened

    wide = widened(flash, "f32", 4, dense=True, experts=True, engram=True)
    narrow, plain = decode_work(flash, alone, 1, K4), decode_work(wide, alone, 1, K4)
    assert plain.flops() == {"f32": pytest.approx(sum(narrow.flops().values()))}
    assert plain.num_bytes("weights") > 3.8 * narrow.num_bytes("weights")


def test_growing_and_fixed_cache_travel(flash: Shape, flash_config):
    assert flash.cache_token_bytes == 890
    assert flash.cache_sequence_bytes == CacheLayout.of(flash_config, dtype="bfloat16").state_bytes
