import signal
import threading

import numpy as np
import pytest

from deepinfer.api import LLM, SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


def test_results_in_prompt_order_with_text_tokens_and_reason(llm: LLM) -> None:
    outs = llm.generate(["x", "ab", "s"], GREEDY)
    assert [out.text for out in outs] == ["yz", "cdefghij", "tuvwxyz"]
    assert [out.finish_reason for out in outs] == ["stop", "length", "stop"]
    assert outs[0].token_ids[-1] == 1 and len(outs[0].token_ids) == 3
    assert outs[1].prompt_token_ids == [0, *llm.tokenizer.encode("ab")] and outs[1].error is None
    for out in outs:
        timings = out.timings
        assert 0 <= timings.queue_ms <= timings.first_token_ms <= timings.total_ms


def test_ids_stay_as_they_are_and_one_prompt_may_stand_alone(llm: LLM) -> None:
    ids = llm.tokenizer.encode("m")
    for prompts in (ids, [ids], np.array(ids), [np.array(ids)]):
        (out,) = llm.generate(prompts, GREEDY)
        assert out.prompt_token_ids == ids and out.text == "nopqrstu"
    assert llm.generate("m", GREEDY)[0].text == "nopqrstu" and llm.generate([], GREEDY) == []


def test_one_params_a_list_or_the_default(llm: LLM) -> None:
    each = [SamplingParams(temperature=0.0, max_tokens=n) for n in (1, 2, 3)]
    assert [out.text for out in llm.generate(["a"] * 3, each)] == ["b", "bc", "bcd"]
    assert llm.generate(["r"])[0].text == "stuvwxyz"
    with pytest.raises(ValueError, match="2 SamplingParams for 3 prompts"):
        llm.generate(["a"] * 3, each[:2])


def test_more_prompts_than_slots_and_blocks(llm: LLM) -> None:
    prompts = [chr(ord("a") + i % 20) * (1 + i % 7) for i in range(80)]
    outs = llm.generate(prompts, GREEDY)
    assert len(outs) == 80 and llm.engine.unfinished == 0
    for prompt, out in zip(prompts, outs):
        expected = "".join(chr(c) for c in range(ord(prompt[-1]) + 1, ord("z") + 1))[:8]
        assert out.text == expected


def test_bad_requests_are_values_and_spare_their_neighbours(llm: LLM) -> None:
    prompts = ["x", [5, 999], [], [5, -1], "\ud800", 7, "y" * 600, "x", [True, 2]]
    outs = llm.generate(prompts, GREEDY)
    assert len(outs) == len(prompts)
    assert [out.error is None for out in outs] == [True, False, False, False, False, False, False, True, False]
    assert outs[0].text == outs[7].text == "yz"
    assert "999" in outs[1].error and "271" in outs[1].error and "-1" in outs[3].error
    assert "601" in outs[6].error and "512" in outs[6].error
    assert all(out.finish_reason == "error" and out.token_ids == [] for out in outs if out.error)


def test_bad_params_are_values_with_every_problem(llm: LLM) -> None:
    bad = SamplingParams(temperature=float("nan"), top_p=0, logit_bias={999: 1})
    outs = llm.generate(["x", "x"], [bad, GREEDY])
    assert all(name in outs[0].error for name in ("temperature", "top_p", "logit_bias")) and outs[1].text == "yz"
    assert "dict" in llm.generate(["x"], [{"max_tokens": 3}])[0].error


def test_bad_params_for_all_prompts_raise_before_anything_runs(llm: LLM) -> None:
    bad = SamplingParams(temperature=-1.0, n=0)
    for call in (llm.generate, llm.chat, llm.stream):
        with pytest.raises(ValueError, match=r"temperature=-1.*n=0"):
            call("x", bad)
    with pytest.raises(ValueError, match="a dict: give a SamplingParams"):
        llm.generate(["x"], {"max_tokens": 3})
    assert llm.engine.unfinished == 0


def test_prompts_may_be_dicts_and_stop_one_text(llm: LLM) -> None:
    ids = llm.tokenizer.encode("m")
    params = SamplingParams(temperature=0.0, max_tokens=8, stop="q")
    outs = llm.generate([{"prompt": "m"}, {"prompt_token_ids": ids}, "m"], params)
    assert [out.text for out in outs] == ["nop"] * 3 and outs[1].prompt_token_ids == ids
    assert llm.generate({"prompt": "m"}, params)[0].text == "nop"
    wrong = [{"role": "user", "content": "x"}, {}, {"prompt": [1]}, {"prompt_token_ids": "a"}, {"prompt": "a", "id": 1}]
    errors = [out.error for out in llm.generate(wrong, params)]
    assert all(errors) and "chat()" in errors[0] and "'prompt' is a text" in errors[2]


def test_a_row_of_nan_ends_its_own_request(llm: LLM) -> None:
    (broken,) = llm.tokenizer.encode("e")
    llm.engine.executor.broken_at = broken
    outs = llm.generate(["a", "s", "d"], GREEDY)
    assert [out.finish_reason for out in outs] == ["error", "stop", "error"]
    assert outs[0].text == "bcde" and "NaN" in outs[0].error and outs[1].text == "tuvwxyz"


def test_several_answers_are_seeded_apart_and_repeatable(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=5, temperature=6.0, max_tokens=12, ignore_eos=True)
    (first,), (again,) = llm.generate("a", params), llm.generate("a", params)
    texts = [answer.token_ids for answer in first.outputs]
    assert texts == [answer.token_ids for answer in again.outputs] and len({tuple(text) for text in texts}) == 3
    single = SamplingParams(seed=5, temperature=6.0, max_tokens=12, ignore_eos=True)
    assert llm.generate("a", single)[0].token_ids == texts[0]
    assert [answer.index for answer in first.outputs] == [0, 1, 2]


def test_stop_strings_cut_text_end_the_request_and_free_it(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=20, stop=("fg", "q"), logprobs=0)
    (out,) = llm.generate("b", params)
    assert (out.text, out.finish_reason) == ("cde", "stop")
    assert llm.tokenizer.decode(out.token_ids) == "cdefg" and len(out.logprobs) == 5
    assert llm.engine.unfinished == 0 and llm.engine.stats().slots_used == 0
    (whole,) = llm.generate("b", SamplingParams(temperature=0.0, max_tokens=20, stop=("fg",), include_stop_str=True))
    assert whole.text == "cdefg"


def test_stop_ids_and_the_end_token(llm: LLM) -> None:
    (stop_id,) = llm.tokenizer.encode("e")
    (out,) = llm.generate("b", SamplingParams(temperature=0.0, stop_token_ids=(stop_id,)))
    assert (out.text, out.finish_reason, out.token_ids[-1]) == ("cd", "stop", stop_id)
    (out,) = llm.generate("x", SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=5))
    assert out.finish_reason == "length" and out.text == "yzab" and out.token_ids[2] == 1


def test_half_a_character_never_shows(llm: LLM) -> None:
    """The toy counts bytes up, so after U+00E9's first byte comes a byte that cannot follow it."""
    first, _ = llm.tokenizer.encode("é")
    (out,) = llm.generate([[0, first]], SamplingParams(temperature=0.0, max_tokens=1))
    assert out.text == "\ufffd"
    events = list(llm.stream([0, first], SamplingParams(temperature=0.0, max_tokens=3)))
    assert "".join(event.text for event in events) == "\ufffd\ufffd\ufffd"


def test_logprobs_and_prompt_logprobs(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=3, logprobs=2, prompt_logprobs=1)
    (out,) = llm.generate("abq", params)
    likely = -np.log(1 + (272 - 1) * np.exp(-8.0))
    assert [max(entry.values()) for entry in out.logprobs] == pytest.approx([likely] * 3, abs=1e-6)
    assert [next(iter(entry)) for entry in out.logprobs] == out.token_ids
    assert all(len(entry) == 2 for entry in out.logprobs)
    ids = out.prompt_token_ids
    assert out.prompt_logprobs[0] is None and len(out.prompt_logprobs) == len(ids)
    for position in range(1, len(ids)):
        assert ids[position] in out.prompt_logprobs[position]
    assert out.prompt_logprobs[2][ids[2]] == pytest.approx(likely, abs=1e-6)  # "b" after "a"
    assert out.prompt_logprobs[3][ids[3]] == pytest.approx(likely - 8, abs=1e-6) and len(out.prompt_logprobs[3]) == 2
    assert llm.generate("a", GREEDY)[0].logprobs is None


def test_prompt_logprobs_cover_prompts_longer_than_a_chunk(llm: LLM) -> None:
    outs = llm.generate(["ab" * 70, "x"], SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=0, n=2))
    for out in outs:
        assert len(out.prompt_logprobs) == len(out.prompt_token_ids)
        for position, entry in enumerate(out.prompt_logprobs[1:], start=1):
            assert list(entry) == [out.prompt_token_ids[position]]


def test_stream_joins_to_the_result(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=20, stop=("uvw",), logprobs=1)
    events = list(llm.stream("m", params))
    (out,) = llm.generate("m", params)
    assert "".join(event.text for event in events) == out.text == "nopqrst"
    assert [t for event in events for t in event.token_ids] == out.token_ids
    assert [entry for event in events for entry in event.logprobs or ()] == out.logprobs
    assert [event.finish_reason for event in events if event.finish_reason] == ["stop"]
    assert len(events) > 5 and not any("u" in event.text for event in events)


def test_stream_of_a_bad_request_is_one_error_event(llm: LLM) -> None:
    (event,) = llm.stream([999], GREEDY)
    assert event.finish_reason == "error" and "999" in event.error


def test_leaving_a_stream_frees_its_request(llm: LLM) -> None:
    stream = llm.stream("a", SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True))
    next(stream)
    assert llm.engine.unfinished == 1
    stream.close()
    assert llm.engine.unfinished == 0 and llm.generate("x", GREEDY)[0].text == "yz"


def test_streams_and_generate_interleave(llm: LLM) -> None:
    streams = [llm.stream(prompt, SamplingParams(temperature=0.0, max_tokens=5, n=2)) for prompt in ("a", "f")]
    texts = ["", ""]
    texts[0] += next(streams[0]).text
    assert llm.generate("x", GREEDY)[0].text == "yz"
    for i, stream in enumerate(streams):
        texts[i] += "".join(event.text for event in stream if event.index == 0)
    assert texts == ["bcdef", "ghijk"]


def test_ctrl_c_aborts_between_steps_and_leaves_the_llm_usable(llm: LLM) -> None:
    steps = []

    def interrupt() -> None:
        steps.append(None)
        if len(steps) == 3:
            signal.raise_signal(signal.SIGINT)

    llm.engine.executor.on_step = interrupt
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a"] * 20, SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True))
    assert len(steps) == 3 and llm.engine.unfinished == 0 and llm.engine.stats().blocks_used == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert [out.text for out in llm.generate(["x", "m"], GREEDY)] == ["yz", "nopqrstu"]
    assert llm.generate("x", GREEDY)[0].timings.queue_ms is not None


def test_an_exception_inside_a_step_makes_the_llm_refuse_further_work(llm: LLM) -> None:
    def fail() -> None:
        raise OSError("device lost")

    llm.engine.executor.on_step = fail
    with pytest.raises(OSError, match="device lost"):
        llm.generate("x", GREEDY)
    with pytest.raises(RuntimeError, match="make a new one"):
        llm.generate("x", GREEDY)
    llm.close()


def test_use_after_close_is_refused(llm: LLM) -> None:
    with llm:
        stream = llm.stream("a", GREEDY)
        next(stream)
    llm.close()
    assert llm.engine.executor.closed
    for use in (lambda: llm.generate("x"), lambda: next(stream), lambda: llm.stream("x"), lambda: llm.chat("x")):
        with pytest.raises(RuntimeError, match="closed"):
            use()


def test_threads_share_one_llm(llm: LLM) -> None:
    found: dict[int, list[str]] = {}

    def work(number: int) -> None:
        prompts = [chr(ord("a") + (number + i) % 18) for i in range(12)]
        found[number] = [p + out.text for p, out in zip(prompts, llm.generate(prompts, GREEDY))]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        assert [text[0] for text in found[number]] == [chr(ord("a") + (number + i) % 18) for i in range(12)]
        assert all(text in "abcdefghijklmnopqrstuvwxyz" for text in found[number])


def test_two_llms_live_side_by_side(make) -> None:
    one, two = make(), make()
    first, second = one.stream("a", GREEDY), two.stream("m", GREEDY)
    assert next(first).text + next(second).text == "bn"
    one.close()
    assert "".join(event.text for event in second) == "opqrstu"


def test_without_a_tokenizer_ids_go_and_texts_are_refused(make) -> None:
    llm = make(with_tokenizer=False)
    outs = llm.generate([[0, 70], "text"], GREEDY)
    assert len(outs[0].token_ids) == 8 and outs[0].text == "" and "tokenizer.json" in outs[1].error
    assert "stop_token_ids" in llm.generate([[0, 70]], SamplingParams(stop=("a",)))[0].error
    assert "tokenizer.json" in llm.chat("hi", GREEDY)[0].error
