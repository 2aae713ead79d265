import numpy as np
import pytest
import torch

from deepinfer.interfaces import Request, SamplingParams
from deepinfer.sampling.sampler import Sampler

V = 40
EOS = 1
RNG = np.random.default_rng(0)
WORDS = [bytes([97 + i % 26]) * (1 + i // 26) for i in range(V)]  # a … z, aa … nn


def make(*params: SamplingParams, prompt=(3, 4, 5), seed: int = 11, **kwargs) -> Sampler:
    sampler = Sampler(V, max(len(params), 4), eos_token_ids=[EOS], token_bytes=WORDS, **kwargs)
    for slot, one in enumerate(params):
        sampler.admit(slot, Request(slot, np.array(prompt), one, seed + slot))
    return sampler


def packed(*token_ids: int, size: int = V) -> np.ndarray:
    """A mask that allows these tokens: bit t % 32 of word t // 32."""
    words = np.zeros(-(-size // 32), np.uint32)
    for token_id in token_ids:
        words[token_id // 32] |= np.uint32(1 << token_id % 32)
    return words


def step(sampler: Sampler, logits: np.ndarray, slots=None, positions=None, masks=None):
    logits = np.atleast_2d(np.asarray(logits, np.float32))
    slots = np.arange(len(logits)) if slots is None else np.array(slots)
    positions = np.full(len(logits), 3) if positions is None else np.array(positions)
    return sampler.sample(logits, slots, positions, masks)


def peaked(*best: int) -> np.ndarray:
    logits = np.zeros(V, np.float32)
    for rank, token in enumerate(best):
        logits[token] = 9 - rank
    return logits


GREEDY = SamplingParams(temperature=0.0)


def test_greedy_takes_the_lowest_of_equals_on_every_path() -> None:
    logits = peaked(7)
    logits[30] = logits[7]
    assert step(make(GREEDY), logits).token_ids[0] == 7
    assert step(make(SamplingParams(temperature=0.0, logprobs=1)), logits).token_ids[0] == 7
    flat = np.zeros(V, np.float32)
    assert step(make(SamplingParams(top_k=1)), flat).token_ids[0] == 0
    assert step(make(SamplingParams(top_p=1e-9)), flat).token_ids[0] == 0


def test_a_tensor_gives_what_an_array_gives() -> None:
    logits = RNG.normal(size=(2, V)).astype(np.float32)
    sampler = make(SamplingParams(), GREEDY)
    expected = step(sampler, logits).token_ids
    where = np.arange(2), np.full(2, 3)
    assert np.array_equal(sampler.sample(torch.from_numpy(logits), *where).token_ids, expected)
    assert np.array_equal(sampler.sample(torch.from_numpy(logits).double(), *where).token_ids, expected)


@pytest.mark.parametrize("temperature", [1e-12, 1e-6, 0.0])
def test_tiny_temperatures_are_greedy_and_finite(temperature: float) -> None:
    out = step(make(SamplingParams(temperature=temperature, logprobs=2, logprobs_mode="processed")), peaked(5))
    assert out.token_ids[0] == 5 and np.isfinite(out.logprobs[0].logprobs).all()
    assert step(make(SamplingParams(temperature=1e-4)), peaked(5)).token_ids[0] == 5


MIXED = [
    SamplingParams(),
    GREEDY,
    SamplingParams(temperature=0.7, top_p=0.9, logprobs=3),
    SamplingParams(top_k=7, min_p=0.01),
    SamplingParams(temperature=2.0),
    SamplingParams(repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=0.2, logprobs=2),
    SamplingParams(temperature=0.0, logit_bias={9: 3.0}, logprobs=1, logprobs_mode="processed"),
]


def test_a_row_is_the_same_alone_and_among_others_in_any_order() -> None:
    """Also for a vocabulary that no vector width divides."""
    logits = RNG.normal(size=(len(MIXED), V)).astype(np.float32) * 3

    def run(order: list[int]) -> dict[int, tuple]:
        sampler = make(*MIXED)
        found: dict[int, list] = {slot: [] for slot in order}
        for position in range(3, 30):
            moved = np.roll(logits, position, axis=1)
            out = step(sampler, moved[order], slots=order, positions=[position] * len(order))
            for row, slot in enumerate(order):
                logprobs = out.logprobs.get(row)
                found[slot].append((int(out.token_ids[row]), None if logprobs is None else logprobs.logprobs.tobytes()))
        return {slot: tuple(news) for slot, news in found.items()}

    together = run(list(range(len(MIXED))))
    assert run(list(range(len(MIXED)))[::-1]) == together
    for slot in range(len(MIXED)):
        assert run([slot])[slot] == together[slot]
    assert len({token for token, _ in together[0]}) > 3


def test_the_choice_is_a_function_of_seed_and_position() -> None:
    flat = np.zeros(V, np.float32)
    first = [int(step(make(SamplingParams(), seed=5), flat, positions=[p]).token_ids[0]) for p in range(3, 60)]
    again = [
        int(step(make(SamplingParams(), seed=5), flat, positions=[p]).token_ids[0]) for p in reversed(range(3, 60))
    ]
    other = [int(step(make(SamplingParams(), seed=6), flat, positions=[p]).token_ids[0]) for p in range(3, 60)]
    assert first == again[::-1] and first != other and len(set(first)) > 15


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_broken_row_fails_alone(bad: float) -> None:
    sampler = make(*MIXED)
    logits = RNG.normal(size=(len(MIXED), V)).astype(np.float32)
    whole = step(make(*MIXED), logits)
    for broken in range(len(MIXED)):
        sampler = make(*MIXED)
        wrong = logits.copy()
        wrong[broken, 17] = bad
        out = step(sampler, wrong)
        others = np.arange(len(MIXED)) != broken
        assert out.failed.tolist() == (~others).tolist() and out.token_ids[broken] == -1
        assert np.array_equal(out.token_ids[others], whole.token_ids[others])
        assert list(out.failures) == [broken] and "logits of this position hold" in out.failures[broken]


def test_rows_without_any_possible_token_fail_with_a_reason() -> None:
    sampler = make(GREEDY, SamplingParams(), GREEDY)
    logits = np.zeros((3, V), np.float32)
    logits[0] = -np.inf
    out = step(sampler, logits, masks={1: packed()})
    assert out.failed.tolist() == [True, True, False]
    assert "all -inf" in out.failures[0] and "grammar" in out.failures[1]
    assert step(sampler, np.zeros((3, V))).failures == {}


def test_logit_bias_forces_and_bans() -> None:
    assert step(make(SamplingParams(temperature=0, logit_bias={33: 100})), peaked(2)).token_ids[0] == 33
    assert step(make(SamplingParams(temperature=0, logit_bias={2: -100})), peaked(2, 6)).token_ids[0] == 6


def test_min_tokens_masks_end_and_stop_ids_until_then() -> None:
    params = SamplingParams(temperature=0, min_tokens=2, stop_token_ids=(6,))
    logits = peaked(EOS, 6, 8)
    sampler = make(params)
    assert [int(step(sampler, logits, positions=[p]).token_ids[0]) for p in (3, 4, 5)] == [8, 8, EOS]
    ignoring = make(SamplingParams(temperature=0, min_tokens=2, stop_token_ids=(6,), ignore_eos=True))
    assert step(ignoring, logits).token_ids[0] == EOS


def test_repetition_penalty_covers_prompt_and_answer_once_each() -> None:
    sampler = make(SamplingParams(temperature=0, repetition_penalty=2.0))
    logits = np.full(V, -1.0, np.float32)
    logits[[4, 20, 21]] = [8.0, 5.0, 4.5]  # 4 is in the prompt: 8 → 4
    chosen = [int(step(sampler, logits, positions=[p]).token_ids[0]) for p in (3, 4, 5, 6)]
    assert chosen == [20, 21, 4, 4]  # 20: 5 → 2.5, 21: 4.5 → 2.25, then nothing changes any more
    negative = make(SamplingParams(temperature=0, repetition_penalty=2.0), prompt=(0, 0))
    assert step(negative, np.full(V, -1.0), positions=[2]).token_ids[0] == 1  # -1 → -2 for the seen token


def test_frequency_and_presence_penalties_count_the_answer_only() -> None:
    logits = np.zeros(V, np.float32)
    logits[[4, 20]] = [3.0, 2.0]
    frequency = make(SamplingParams(temperature=0, frequency_penalty=0.6), prompt=(4, 4, 4))
    assert [int(step(frequency, logits, positions=[p]).token_ids[0]) for p in range(3, 8)] == [4, 4, 20, 4, 20]
    presence = make(SamplingParams(temperature=0, presence_penalty=1.5), prompt=(4, 4, 4))
    assert [int(step(presence, logits, positions=[p]).token_ids[0]) for p in range(3, 7)] == [4, 20, 4, 4]


def test_sampling_a_position_again_counts_nothing_twice() -> None:
    params = SamplingParams(temperature=0, frequency_penalty=0.6, bad_words=("zz",))
    logits = np.zeros(V, np.float32)
    logits[[4, 20]] = [3.0, 2.0]
    plain, repeated = make(params), make(params)
    straight = [int(step(plain, logits, positions=[p]).token_ids[0]) for p in range(3, 11)]
    back_and_forth = {}
    for p in (3, 4, 5, 6, 7, 4, 5, 5, 6, 7, 8, 3, 4, 5, 6, 7, 8, 9, 10):
        back_and_forth[p] = int(step(repeated, logits, positions=[p]).token_ids[0])
    assert list(back_and_forth.values()) == straight


def test_recorded_tokens_count_like_chosen_ones() -> None:
    params = SamplingParams(temperature=0, frequency_penalty=0.6)
    logits = np.zeros(V, np.float32)
    logits[[4, 20]] = [3.0, 2.0]
    chosen = make(params)
    tokens = [int(step(chosen, logits, positions=[p]).token_ids[0]) for p in range(3, 8)]
    resumed = make(params)
    resumed.record(0, 3, tokens[:-1])
    assert step(resumed, logits, positions=[7]).token_ids[0] == tokens[-1]


def test_a_slot_forgets_its_last_owner() -> None:
    sampler = make(SamplingParams(temperature=0, logit_bias={33: 100}, logprobs=3))
    assert step(sampler, peaked(2)).token_ids[0] == 33
    sampler.release(0)
    sampler.admit(0, Request(9, np.array([1]), GREEDY, 0))
    out = step(sampler, peaked(2))
    assert out.token_ids[0] == 2 and out.logprobs == {}


def test_bad_words_never_occur_however_they_are_cut() -> None:
    vocabulary = [b"c", b"a", b"t", b"ca", b"at", b"cat", b"xcatx", b"tx", b" ", b""]
    for word in ("cat", "aa", "tc", "c"):
        sampler = Sampler(10, 1, token_bytes=vocabulary)
        params = SamplingParams(bad_words=(word, "xx"), temperature=5.0)
        sampler.admit(0, Request(0, np.array([0]), params, 3))
        text = b""
        for position in range(1, 400):
            out = sampler.sample(np.zeros((1, 10), np.float32), np.array([0]), np.array([position]))
            text += vocabulary[out.token_ids[0]]
        assert word.encode() not in text and b"xx" not in text and len(set(text)) >= 3


def test_bad_words_rule_out_no_more_than_needed() -> None:
    sampler = Sampler(3, 1, token_bytes=[b"ca", b"t", b"s"])
    sampler.admit(0, Request(0, np.array([0]), SamplingParams(bad_words=("cat",), temperature=0), 3))
    logits = np.array([[3.0, 2.0, 1.0]], np.float32)
    tokens = []
    for position, row in enumerate((logits, logits[:, ::-1] + [[0, 9, 0]], logits - [[9, 0, 0]]), start=1):
        out = sampler.sample(row.astype(np.float32), np.array([0]), np.array([position]))
        tokens.append(int(out.token_ids[0]))
    assert tokens == [0, 2, 1]  # "ca", then not "t" but "s", then "t" is free again


def test_a_mask_is_obeyed_by_all_kinds_of_rows() -> None:
    masks = {r: packed(12, 35) for r in range(len(MIXED))}
    out = step(make(*MIXED), np.tile(peaked(2, 12), (len(MIXED), 1)), masks=masks)
    assert set(out.token_ids.tolist()) <= {12, 35} and not out.failed.any()


def test_raw_logprobs_are_of_the_model_and_ranked() -> None:
    logits = RNG.normal(size=V).astype(np.float32)
    params = SamplingParams(temperature=0.5, top_k=1, logit_bias={int(np.argsort(logits)[-3]): 50.0}, logprobs=2)
    out = step(make(params), logits)
    found = out.logprobs[0]
    expected = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    assert out.token_ids[0] == found.token_ids[0] == np.argsort(logits)[-3] and found.rank == 3
    assert found.token_ids[1:].tolist() == np.argsort(-logits)[:2].tolist()
    assert np.allclose(found.logprobs, expected[found.token_ids], atol=1e-6)


def test_processed_logprobs_are_of_what_was_drawn_from() -> None:
    logits = RNG.normal(size=V).astype(np.float32)
    out = step(make(SamplingParams(temperature=0.5, top_k=3, logprobs=5, logprobs_mode="processed")), logits)
    found = out.logprobs[0]
    finite = np.isfinite(found.logprobs)
    assert finite.sum() == 3 and abs(np.exp(found.logprobs[finite]).sum() - 1) < 1e-6
    assert set(found.token_ids[finite].tolist()) == set(np.argsort(-logits)[:3].tolist())


def test_the_chosen_token_is_not_listed_twice() -> None:
    out = step(make(SamplingParams(temperature=0, logprobs=3)), peaked(5, 6, 7, 8))
    assert out.logprobs[0].token_ids.tolist() == [5, 6, 7, 8] and out.logprobs[0].rank == 1
    assert step(make(SamplingParams(temperature=0, logprobs=0)), peaked(5)).logprobs[0].token_ids.tolist() == [5]


@pytest.mark.parametrize("mode", ["raw", "processed"])
def test_prompt_logprobs_follow_the_prompts_tokens(mode: str) -> None:
    params = SamplingParams(
        temperature=2.0, prompt_logprobs=2, logprobs_mode=mode, repetition_penalty=1.5, min_tokens=3, bad_words=("d",)
    )
    sampler = make(params, prompt=(3, 7, 3, 9))
    logits = RNG.normal(size=(3, V)).astype(np.float32)
    found = sampler.prompt_logprobs(0, np.arange(1, 4), logits)
    assert [entry.token_ids[0] for entry in found] == [7, 3, 9]
    for row, (entry, seen) in enumerate(zip(found, [[3], [3, 7], [3, 7]])):
        scores = logits[row].astype(np.float64)
        if mode == "processed":
            scores[seen] = np.where(scores[seen] > 0, scores[seen] / 1.5, scores[seen] * 1.5)
            scores /= 2.0
        expected = scores - np.log(np.exp(scores).sum())
        assert np.allclose(entry.logprobs, expected[entry.token_ids], atol=1e-6)
        assert entry.rank == 1 + (expected > expected[entry.token_ids[0]]).sum()


def test_prompt_logprobs_of_a_broken_row_are_nan() -> None:
    sampler = make(SamplingParams(prompt_logprobs=2))
    logits = np.zeros((2, V), np.float32)
    logits[0, 3] = np.nan
    first, second = sampler.prompt_logprobs(0, np.array([1, 2]), logits)
    assert np.isnan(first.logprobs).all() and np.isfinite(second.logprobs).all()


def test_logits_are_never_written_to() -> None:
    logits = RNG.normal(size=(len(MIXED), V)).astype(np.float32)
    before = logits.copy()
    step(make(*MIXED), logits)
    assert np.array_equal(before, logits)


def test_rows_of_one_slot_see_each_other_in_order() -> None:
    params = SamplingParams(temperature=0, presence_penalty=2.0)
    logits = np.zeros(V, np.float32)
    logits[[4, 20, 21]] = [3.0, 2.5, 2.0]
    out = step(make(params), np.tile(logits, (3, 1)), slots=[0, 0, 0], positions=[3, 4, 5])
    assert out.token_ids.tolist() == [4, 20, 21]
