"""What one request may ask for, how it ends, and what that does to others."""

import numpy as np
import pytest
from toy_executor import assert_empty, collect, expected_answer, run_all, toy_engine, toy_limits

from deepinfer.engine.limits import RequestRefused
from deepinfer.engine.seeds import SeedSource, sequence_key
from deepinfer.interfaces import SamplingParams
from deepinfer.sampling.params import ParamsError

LONG = SamplingParams(max_tokens=30, seed=1, ignore_eos=True)


def submit(engine, prompt, **params):
    return engine.submit(np.array(prompt), SamplingParams(**{"seed": 1, "ignore_eos": True, "max_tokens": 5, **params}))


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "non-empty"),
        ([[1, 2]], r"shape \[1, 2\]"),
        ([1, -1, 2], "token id -1 at position 1 is outside the vocabulary 0 … 49"),
        ([50, 51], r"token id 50 at position 0 .* \(2 such ids\)"),
        ([1.5], "integers; got float64"),
        (np.array([True]), "integers; got bool"),
        (["a"], "integers"),
    ],
)
def test_bad_prompts_are_refused_at_once_and_cost_nothing(prompt: object, message: str) -> None:
    engine = toy_engine()
    (neighbour,) = submit(engine, [1, 2, 3])
    with pytest.raises(RequestRefused, match=message):
        engine.submit(prompt, SamplingParams())
    assert engine.stats().refused == 1
    assert run_all(engine)[neighbour][0] == expected_answer(
        [1, 2, 3], 1, SamplingParams(max_tokens=5, ignore_eos=True), engine.limits
    )
    assert_empty(engine)


def test_bad_parameters_are_refused_at_once() -> None:
    engine = toy_engine()
    for bad in ({"n": 0}, {"max_tokens": 0}, {"temperature": float("nan")}, {"stop_token_ids": (50,)}):
        with pytest.raises(ParamsError):
            engine.submit(np.array([1]), SamplingParams(**bad))
    with pytest.raises(ParamsError, match=r"prompt has 64 tokens .* together may have 64"):
        engine.submit(np.ones(64, dtype=int), SamplingParams())
    with pytest.raises(ParamsError, match=r"prompt has 60 tokens and the answer at least 5 .* may have 64"):
        engine.submit(np.ones(60, dtype=int), SamplingParams(min_tokens=5))
    assert (engine.unfinished, engine.stats().refused) == (0, 6)


def test_what_can_never_fit_into_the_cache_is_refused_with_numbers() -> None:
    engine = toy_engine(toy_limits(num_blocks=5))  # 20 tokens, and one more that is never fed back
    with pytest.raises(
        RequestRefused,
        match=r"prompt 10 [+] max_tokens 12 needs 6 cache blocks of 4 tokens and there are 5; lower max_tokens to 11 or",
    ):
        submit(engine, list(range(10)), max_tokens=12)
    with pytest.raises(RequestRefused, match="lower max_tokens to 1 or"):
        submit(engine, list(range(20)), max_tokens=2)
    with pytest.raises(RequestRefused, match="shorten the prompt"):
        submit(engine, list(range(21)), max_tokens=1)
    (whole_pool,) = submit(engine, list(range(20)), max_tokens=1)
    assert run_all(engine)[whole_pool][1] == "length"
    (request_id,) = submit(engine, list(range(10)), max_tokens=11)
    tokens, reason, _ = run_all(engine)[request_id]
    assert (len(tokens), reason) == (11, "length")


def test_answers_are_cut_at_max_model_len() -> None:
    engine = toy_engine()
    (request_id,) = submit(engine, list(range(40)), max_tokens=1000)
    (last,) = submit(engine, [1] * 63, max_tokens=1000)
    ends = run_all(engine)
    assert len(ends[request_id][0]) == 24 and ends[request_id][1] == "length"
    assert len(ends[last][0]) == 1 and ends[last][1] == "length"


def test_step_budget_must_hold_every_running_sequence() -> None:
    with pytest.raises(ValueError, match=r"max_num_batched_tokens=5 is less than scheduler\.max_num_seqs=6"):
        toy_limits(max_num_batched_tokens=5)
    with pytest.raises(ValueError, match=r"num_blocks=0 must be at least 1; .*") as caught:
        toy_limits(max_num_batched_tokens=5, num_blocks=0)
    assert "max_num_seqs" in str(caught.value)


def test_abort_in_every_stage_of_life_frees_everything() -> None:
    limits = toy_limits(num_blocks=16, max_num_seqs=4, max_prefill_tokens=4)
    engine, stages = toy_engine(limits), set()
    engine.submit(np.array([3] * 20), LONG, priority=9)
    for _ in range(6):
        engine.step()
    ids = [i for k in range(6) for i in engine.submit(np.array([k] * 12), LONG)]
    for _ in range(60):
        for entry in list(engine.scheduler._entries.values()):
            stage = int(engine.scheduler.table.stage[entry.slot]) if entry.slot >= 0 else "new"
            if stage not in stages and entry.request.request_id in ids:
                stages.add(stage)
                before = engine.stats()
                assert engine.abort(entry.request.request_id)
                assert not engine.abort(entry.request.request_id)
                assert engine.stats().blocks_used <= before.blocks_used
                break
        engine.step()
    assert stages == {"new", 1, 2, 3}, "waiting, in prefill, answering, preempted"
    assert engine.stats().finished["abort"] == 4
    run_all(engine)
    assert_empty(engine)


def test_an_abort_is_the_next_step_s_news_and_a_finish_is_not() -> None:
    engine = toy_engine()
    first, second, third = (submit(engine, [i], max_tokens=20)[0] for i in (1, 2, 3))
    engine.step()
    engine.abort(first)
    engine.finish(second)
    events = engine.step()
    assert [(e.request_id, e.token_ids, e.finish_reason) for e in events if e.finish_reason] == [(first, [], "abort")]
    assert second not in [e.request_id for e in events]
    engine.abort(third)
    assert engine.unfinished == 0 and engine.has_work
    assert [e.request_id for e in engine.step()] == [third] and not engine.has_work
    assert engine.step() == []
    assert engine.stats().finished == {"stop": 1, "length": 0, "abort": 2, "error": 0}
    assert_empty(engine)


def test_siblings_of_an_aborted_answer_go_on() -> None:
    engine = toy_engine()
    ids = submit(engine, [4, 5], n=3, max_tokens=9)
    tokens, ends = {}, {}
    collect(engine.step(), tokens, ends)
    engine.abort(ids[1])
    while engine.has_work:
        collect(engine.step(), tokens, ends)
    assert ends[ids[1]][1] == "abort" and len(ends[ids[1]][0]) == 1
    for n_index in (0, 2):
        params = SamplingParams(max_tokens=9, ignore_eos=True)
        assert ends[ids[n_index]][0] == expected_answer([4, 5], sequence_key(1, n_index), params, engine.limits)
    assert_empty(engine)


@pytest.mark.parametrize("at", [0, 1, 7])
def test_a_nan_ends_its_own_request(at: int) -> None:
    engine = toy_engine()
    prompts = [[7] * 5, [8] * 9, [9] * 3]
    ids = [submit(engine, p, seed=s, max_tokens=12)[0] for s, p in enumerate(prompts)]
    engine.executor.fail_at[1] = 9 + at
    ends = run_all(engine)
    for seed, (request_id, prompt) in enumerate(zip(ids, prompts)):
        wanted = expected_answer(prompt, seed, SamplingParams(max_tokens=12, ignore_eos=True), engine.limits)
        if seed == 1:
            assert ends[request_id] == (wanted[:at], "error", f"no token for position {9 + at}: planted at {9 + at}")
        else:
            assert ends[request_id] == (wanted, "length", None)
    assert engine.stats().finished["error"] == 1
    assert_empty(engine)


def test_seeds() -> None:
    engine = toy_engine()
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    free = [engine.submit(np.array([1, 2]), params)[0] for _ in range(2)]
    fixed = [submit(engine, [1, 2], seed=8, max_tokens=6)[0] for _ in range(2)]
    group = submit(engine, [1, 2], seed=8, max_tokens=6, n=3)
    tokens = {i: tuple(end[0]) for i, end in run_all(engine).items()}
    assert tokens[free[0]] != tokens[free[1]], "prompts that share parameters without a seed must differ"
    assert tokens[fixed[0]] == tokens[fixed[1]] == tokens[group[0]]
    assert len({tokens[i] for i in group}) == 3


def test_keys_do_not_collide() -> None:
    assert len({sequence_key(seed, n) for seed in range(200) for n in range(200)}) == 200 * 200
    assert sequence_key(2**63 - 1, 0) == 2**63 - 1
    first, second = SeedSource(5), SeedSource(5)
    drawn = [first.draw() for _ in range(1000)]
    assert drawn == [second.draw() for _ in range(1000)] and len(set(drawn)) == 1000
    assert all(0 <= seed < 2**63 for seed in drawn)
    assert SeedSource().draw() != SeedSource().draw()


def test_end_of_sequence_stop_ids_and_min_tokens() -> None:
    limits = toy_limits(vocab_size=7)
    cases = [
        SamplingParams(max_tokens=30, seed=s, **more)
        for s in range(6)
        for more in (
            {},
            {"ignore_eos": True},
            {"stop_token_ids": (3, 4)},
            {"ignore_eos": True, "stop_token_ids": (3,)},
            {"min_tokens": 6},
            {"min_tokens": 6, "stop_token_ids": (1, 2, 3)},
        )
    ]
    engine = toy_engine(limits)
    ids = [engine.submit(np.array([5, 6]), params)[0] for params in cases]
    ends = run_all(engine)
    for request_id, params in zip(ids, cases):
        wanted = expected_answer([5, 6], params.seed, params, limits)
        assert ends[request_id][:2] == (wanted, "length" if len(wanted) == 30 else "stop")
    assert {end[1] for end in ends.values()} == {"length", "stop"}
    assert any(len(end[0]) == 1 for end in ends.values())


def test_log_probabilities_of_tokens_come_with_their_tokens() -> None:
    engine = toy_engine()
    (asked,) = submit(engine, [1, 2, 3], logprobs=2)
    (other,) = submit(engine, [1, 2, 3])
    while engine.has_work:
        for event in engine.step():
            if event.request_id == asked:
                assert [entry.token_ids[0] for entry in event.logprobs] == event.token_ids
            else:
                assert event.request_id == other and event.logprobs is None


def test_prompt_log_probabilities_come_once_also_when_the_prompt_is_computed_again() -> None:
    engine = toy_engine(toy_limits(num_blocks=16, max_prefill_tokens=3, max_num_seqs=4))
    rng = np.random.default_rng(0)
    prompts = {}
    for length in (1, 2, 9, 14, 30, 17):
        prompt = rng.integers(0, 50, length)
        (request_id,) = engine.submit(prompt, SamplingParams(max_tokens=25, seed=1, ignore_eos=True, prompt_logprobs=0))
        prompts[request_id] = prompt
    got = {request_id: [] for request_id in prompts}
    while engine.has_work:
        for event in engine.step():
            got[event.request_id] += event.prompt_logprobs or []
    assert engine.stats().preemptions > 0
    for request_id, prompt in prompts.items():
        assert [int(entry.token_ids[0]) for entry in got[request_id]] == prompt[1:].tolist()
        assert [float(entry.logprobs[0]) for entry in got[request_id]] == [-float(p) for p in range(1, len(prompt))]


def test_closing_ends_what_runs() -> None:
    engine = toy_engine()
    submit(engine, [1, 2, 3], n=2, max_tokens=20)
    engine.step()
    engine.close()
    assert_empty(engine)


def test_stats_add_up() -> None:
    engine = toy_engine()
    submit(engine, [1] * 10, max_tokens=4)
    submit(engine, [2] * 3, max_tokens=2)
    tokens, ends = {}, {}
    while engine.has_work:
        collect(engine.step(), tokens, ends)
    stats = engine.stats()
    assert stats.prefill_rows == 13 and stats.decode_rows == 3 + 1 and stats.sampled_tokens == 6
    assert (stats.submitted, stats.admitted, stats.finished["length"]) == (2, 2, 2)
    assert stats.blocks_peak == 4 and stats.blocks_total == 40 and stats.slots_total == 6
    assert stats.host_s == stats.step_s > 0


def test_what_cannot_be_prepared_is_refused_before_it_joins_the_line() -> None:
    engine = toy_engine(toy_limits())
    (kept,) = engine.submit(np.array([1, 2]), SamplingParams(max_tokens=3))
    with pytest.raises(ParamsError, match="cannot be prepared"):
        engine.submit(np.array([1, 2]), SamplingParams(bad_words=("unpreparable",)))
    assert engine.unfinished == 1 and engine.stats().refused == 1
    assert set(run_all(engine)) == {kept}
