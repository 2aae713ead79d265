"""Cases of people who ran other engines with speculation on: what they saw, and that it does not happen here.

These are the verifiers' parts. Whole engines run in tests/engine.
"""

import importlib
import importlib.resources
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from draft_bench import draft_bench
from small_models import k6_model
from toy_rounds import Text, draft, logits_after, new_sampler, plain, requests_for, same_logprobs, verify

from deepinfer.config import specs
from deepinfer.interfaces import Request, SamplingParams
from deepinfer.ops import native
from deepinfer.speculation.allocation import allocate, survival
from deepinfer.speculation.back_off import BackOff
from deepinfer.speculation.budget import ConfidenceBudget, best_budget
from deepinfer.speculation.cost_curve import CostCurve
from deepinfer.speculation.coupled import CoupledVerifier
from deepinfer.speculation.rejection import RejectionVerifier


def rounds(kind: type, requests: list[Request], num_rounds: int = 8) -> list[Text]:
    """Each round checks three drafts of every sequence."""
    verifier = kind(new_sampler(requests))
    texts = [Text(request.prompt_ids.tolist()) for request in requests]
    for _ in range(num_rounds):
        drafts = draft(verifier, texts, 3)
        verify(verifier, texts, drafts, np.full(len(texts), 3))
    return texts


@pytest.mark.parametrize("kind", [CoupledVerifier, RejectionVerifier])
def test_d07_a_requests_seed_decides_alone(kind: type) -> None:
    """vllm#6038, radixark/miles PR#2002: seed 7 at temperature 1.5, with other traffic, after a restart."""
    mine = Request(0, np.array([3, 4, 3]), SamplingParams(temperature=1.5, seed=7), 7)
    others = [Request(i, np.array([5, i]), SamplingParams(temperature=0.5 + i, top_k=i), 100 + i) for i in range(1, 6)]
    (alone,) = rounds(kind, [mine])
    assert rounds(kind, [mine, *others])[0].tokens == alone.tokens
    assert rounds(kind, [*others, mine])[-1].tokens == alone.tokens
    other_seed = Request(0, mine.prompt_ids, mine.params, 8)
    assert rounds(kind, [other_seed])[0].tokens != alone.tokens


def log_softmax(logits_V: np.ndarray) -> np.ndarray:
    shifted_V = logits_V.astype(np.float64) - logits_V.max()
    return shifted_V - np.log(np.exp(shifted_V).sum())


@pytest.mark.parametrize("kind", [CoupledVerifier, RejectionVerifier])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_d08_logprobs_are_the_targets_own(kind: type, temperature: float) -> None:
    """ggml-org/llama.cpp#27972: every one was 0.0."""
    requests = requests_for([SamplingParams(temperature=temperature, logprobs=0)])
    (text,) = rounds(kind, requests)
    for i, (token, found) in enumerate(zip(text.tokens[3:], text.logprobs, strict=True)):
        expected = log_softmax(logits_after(text.tokens[: 3 + i]))[token]
        assert found is not None and found.token_ids.tolist() == [token] and expected < 0
        assert abs(found.logprobs[0] - expected) < 1e-5
    if kind is CoupledVerifier:
        _, (off,) = plain(requests, len(text.logprobs))
        assert all(same_logprobs(on, without) for on, without in zip(text.logprobs, off.logprobs, strict=True))


@pytest.mark.parametrize("kind", [CoupledVerifier, RejectionVerifier])
def test_d09_each_token_of_a_chunk_has_its_own_alternatives(kind: type) -> None:
    """sglang#39260: those of the first were repeated."""
    requests = requests_for([SamplingParams(temperature=0.0, logprobs=2)])
    verifier, text = kind(new_sampler(requests)), Text([3, 4, 3])
    drafts = draft(verifier, [text], 2, drafter=logits_after)
    assert verify(verifier, [text], drafts, np.full(1, 2)).counts.tolist() == [3]
    for i, found in enumerate(text.logprobs):
        best = np.argsort(-logits_after(text.tokens[: 3 + i]))[:3]
        assert found is not None and found.token_ids.tolist() == best.tolist()
    assert len({found.token_ids.tobytes() for found in text.logprobs}) == 3


def stairs(*forward_s: float) -> CostCurve:
    """A step of 1, 2, … rows takes so long."""
    return CostCurve(np.arange(1, len(forward_s) + 1), np.array(forward_s), np.ones(1), np.zeros(1), np.zeros(1))


def test_s08_the_best_budget_beyond_a_step_is_found() -> None:
    """TensorRT-LLM PR#17056: the first draft costs a tile and does not pay; with the tile full, all of them do."""
    curve, confidence = stairs(1.0, 2.0, 2.0, 2.0, 2.0, 2.0), np.full((1, 5), 0.8, np.float32)
    cost_s = curve.predict(np.arange(1, 7), 1)
    rate = (1 + np.concatenate(([0.0], np.cumsum(survival(confidence)[0])))) / cost_s
    assert rate[1] < rate[0] < rate[5] == rate.max(), "a descent would stop at no drafts at all"
    assert ConfidenceBudget(5, curve).budget(confidence, other_rows=0) == (5, True)


@pytest.mark.parametrize("chance", [0.0, 0.01, 1.0, np.nan])
def test_s08_without_a_table_nothing_is_trimmed(chance: float) -> None:
    assert ConfidenceBudget(5).budget(np.full((7, 5), chance, np.float32), other_rows=64) == (35, True)


def test_s09_the_budget_may_be_old_and_the_ranking_is_of_now() -> None:
    """vllm PR#47808: confidences flip between steps; the drafts that are likely now are checked."""
    old, now = np.array([[0.9, 0.9], [0.1, 0.1]], np.float32), np.array([[0.1, 0.1], [0.9, 0.9]], np.float32)
    scheduled = ConfidenceBudget(2, stairs(1.0, 1.0, 1.2, 1.4, 2.2, 3.0))
    budget, _ = scheduled.budget(old, other_rows=0)
    assert budget == 2 == best_budget(survival(old), scheduled.curve.predict(np.arange(2, 7), 2))
    np.testing.assert_array_equal(allocate(now, np.full(2, 2), budget), [0, 2])
    np.testing.assert_array_equal(allocate(old, np.full(2, 2), budget), [2, 0])


def test_d12_speculation_slower_than_none_turns_itself_off() -> None:
    """antirez/ds4#695, #676: 70 % of the drafts are right, yet each rejection replays. No table knows that, the clock does."""
    back_off, rng = BackOff(), np.random.default_rng(0)
    lengths, drafted = ConfidenceBudget(1, stairs(1.0, 1.05, 1.1), back_off), False
    for _ in range(700):
        budget, draft_next = lengths.budget(np.full((1, 1), 0.7, np.float32), other_rows=0)
        checked = budget if drafted else 0
        accepted = checked * int(rng.random() < 0.7)
        lengths.observe(
            num_sequences=1,
            num_rows=1 + checked,
            num_tokens=1 + accepted,
            num_checked=checked,
            drafted=draft_next,
            device_s=1.0 + 0.05 * draft_next + 2.5 * (checked - accepted),
        )
        drafted = draft_next
    assert back_off.state == "off" and back_off.gain is not None and back_off.gain < 0
    notice = back_off.take_notice()
    assert "acceptance" in notice and "drafting is off" in notice and "speculation=none" in notice
    assert not back_off.take_notice(), "said once"


def test_d01_deeper_than_the_checkpoints_block(deepinfer: Callable[..., Any]) -> None:
    """vllm PR#41834: 7 drafts on a block of 5, without a word. Both numbers are named, with one override to type."""
    done = deepinfer("plan", "model=v41_tiny", "model.weights=dummy", "speculation=dspark", "speculation.depth=7")
    assert done.code == 3 and done.out == ""
    assert "speculation.depth=7" in done.err and "blocks of 5" in done.err and "type: speculation.depth=5" in done.err


@pytest.fixture
def one_thread() -> Iterator[None]:
    """What a plan pins for models this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("depth", range(1, 6))
def test_d02_greedy_text_is_the_same_at_every_depth(depth: int) -> None:
    """sglang#33800, #32038: depth 5 corrupted, others were clean. Eight ids over and over, caches of exactly this depth, and as
    many right drafts before the drafter's own as the round's number says: every width, every point of rejection."""
    bench, prompt = (
        draft_bench(k6_model(), native(), "full", "float32", depth=depth),
        [40, 41, 42, 43, 44, 45, 46, 47] * 17,
    )
    off = prompt + bench.engine.greedy(prompt, 5 * (depth + 1), slot=7)
    text = off[: len(prompt) + 1]
    bench.prefill(text, [130], slot=0)
    reached = set()
    for number in range(2 * (depth + 1)):
        drafts = bench.draft((text, 0))[0].token_ids[0].tolist()
        right = off[len(text) : len(text) + number % (depth + 1)]
        drafts = right + drafts[len(right) :]
        hidden_TD = bench.step((text + drafts, len(text) - 1, len(text) + depth, 0))
        said = bench.engine.model.logits(hidden_TD).argmax(-1).tolist()
        accepted = next((i for i, draft in enumerate(drafts) if draft != said[i]), depth)
        reached.add(accepted)
        text = text + said[: accepted + 1]
        assert text[: len(off)] == off[: len(text)]
        if len(text) + depth >= len(off):
            break
    assert {0, depth} <= reached


def speculation_options() -> list[str]:
    folder = importlib.resources.files("deepinfer.conf") / "speculation"
    return sorted(Path(str(file)).stem for file in folder.iterdir() if file.name.endswith(".yaml"))


@pytest.mark.parametrize("option", speculation_options())
def test_d03_every_option_says_what_it_can(option: str) -> None:
    """vllm#50851: code looked at a method's name. What a drafter needs is an attribute of it, whatever it is called."""
    text = (importlib.resources.files("deepinfer.conf") / "speculation" / f"{option}.yaml").read_text()
    kinds = {cls.__struct_config__.tag: cls for cls in specs.Speculation.__subclasses__()}
    spec = kinds[yaml.safe_load(text)["kind"]]
    if spec is specs.NoSpeculation:
        return
    module, _, name = spec.implementation.partition(":")
    drafter = getattr(importlib.import_module(module), name)
    assert drafter.needs_features == (spec in (specs.DSpark, specs.DSparkFixed))
    assert callable(drafter.observe) and callable(drafter.draft)
