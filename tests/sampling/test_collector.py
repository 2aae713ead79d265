"""Results from events that hold several tokens, as speculation makes them."""

import time
from types import SimpleNamespace

import numpy as np
import pytest

from deepinfer.interfaces import SamplingParams, TokenLogprobs
from deepinfer.sampling.collector import Collector, Ticket
from deepinfer.sampling.tokenizer import BpeTokenizer


class ScriptedEngine:
    """Hands out given events; remembers what it was told to end. Admits one request a step."""

    def __init__(self, *steps: list[dict]) -> None:
        self.steps = list(steps)
        self.finished: list[int] = []
        self.aborted: list[int] = []
        self.salts: list[str] = []
        self.submitted = 0
        self.waiting: list[int] = []
        self.newly_admitted: list[int] = []

    clock = staticmethod(time.perf_counter)

    def submit(self, prompt_ids, params, *, priority=0, cache_salt="") -> list[int]:
        self.salts.append(cache_salt)
        ids = list(range(self.submitted, self.submitted + params.n))
        self.submitted += params.n
        self.waiting += ids
        return ids

    def step(self) -> list:
        self.newly_admitted, self.waiting = self.waiting[:1], self.waiting[1:]
        empty = {"logprobs": None, "prompt_logprobs": None, "finish_reason": None, "error": None, "token_ids": []}
        empty |= {"num_checked": 0, "num_accepted": 0, "cached_tokens": None, "approximate": None}
        return [SimpleNamespace(**{**empty, **event}) for event in self.steps.pop(0)]

    def finish(self, request_id: int, reason: str = "stop") -> bool:
        self.finished.append(request_id)
        return True

    def abort(self, request_id: int) -> bool:
        self.aborted.append(request_id)
        return True


def ids_of(tokenizer: BpeTokenizer, text: str) -> list[int]:
    single = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size) if not tokenizer.is_special(i)}
    return [single[bytes([byte])] for byte in text.encode()]


def entries(ids: list[int]) -> list[TokenLogprobs]:
    return [TokenLogprobs(np.array([i]), np.array([-0.5], np.float32), 1) for i in ids]


@pytest.mark.parametrize("reason", [None, "length"])
def test_tokens_after_a_stop_string_are_dropped_with_all_that_hangs_on_them(tokenizer: BpeTokenizer, reason) -> None:
    ids = ids_of(tokenizer, "abcdef")
    event = {"request_id": 0, "token_ids": ids, "logprobs": entries(ids), "finish_reason": reason}
    engine = ScriptedEngine([event])
    collector = Collector(engine, tokenizer)
    ticket = collector.submit([0], SamplingParams(stop=("cd",), logprobs=0), streaming=True)
    collector.step()
    assert ticket.done and ticket.output.text == "ab" and ticket.output.finish_reason == "stop"
    assert ticket.output.token_ids == ids[:4] and len(ticket.output.logprobs) == 4
    (news,) = ticket.news
    assert (news.text, news.token_ids, len(news.logprobs)) == ("ab", ids[:4], 4)
    assert engine.finished == ([0] if reason is None else [])


def test_a_stop_token_among_several_ends_the_text_before_it(tokenizer: BpeTokenizer) -> None:
    ids = [*ids_of(tokenizer, "ab"), 1]
    collector = Collector(ScriptedEngine([{"request_id": 0, "token_ids": ids, "finish_reason": "stop"}]), tokenizer)
    ticket = collector.submit([0], SamplingParams(skip_special_tokens=False))
    collector.step()
    assert ticket.output.text == "ab" and ticket.output.token_ids == ids and not ticket.news


def test_times_run_from_submission_to_admission_first_token_and_end(tokenizer: BpeTokenizer) -> None:
    (a,) = ids_of(tokenizer, "a")
    steps = [
        [],
        [{"request_id": 0, "token_ids": [a]}],
        [{"request_id": 0, "token_ids": [a], "finish_reason": "length"}],
    ]
    now_s = iter(range(100))
    collector = Collector(ScriptedEngine(*steps), tokenizer, clock=lambda: float(next(now_s)))
    first = collector.submit([0], SamplingParams())  # at 0 s
    second = collector.submit([0], SamplingParams())  # at 1 s
    for _ in range(3):
        collector.step()  # from 2 to 3, from 4 to 5, from 6 to 7
    timings = first.output.timings
    assert (timings.queue_ms, timings.first_token_ms, timings.total_ms) == (2000, 5000, 7000)
    assert second.output.timings.queue_ms == 3000 and second.output.timings.total_ms is None


def test_queue_times_are_of_the_request_that_was_admitted(tokenizer: BpeTokenizer) -> None:
    """One that is held for its grammar is overtaken, and one that is dropped before it is admitted takes nobody's time."""
    now_s = iter(range(100))
    engine = ScriptedEngine(*[[] for _ in range(3)])
    collector = Collector(engine, tokenizer, clock=lambda: float(next(now_s)))
    held, dropped, plain = (collector.submit([0], SamplingParams()) for _ in range(3))  # at 0, 1 and 2 s
    collector.drop(dropped)
    engine.waiting = [2, 0]
    collector.step()  # from 3 s
    assert held.output.timings.queue_ms is None and plain.output.timings.queue_ms == 1000
    collector.step()  # from 5 s
    assert held.output.timings.queue_ms == 5000 and dropped.output.timings.queue_ms is None


def test_dropped_tickets_hear_nothing_and_are_aborted_once(tokenizer: BpeTokenizer) -> None:
    (a,) = ids_of(tokenizer, "a")
    engine = ScriptedEngine(
        [{"request_id": 0, "token_ids": [a], "finish_reason": "stop"}], [{"request_id": 1, "token_ids": [a]}]
    )
    collector = Collector(engine, tokenizer)
    ticket = collector.submit([0], SamplingParams(n=2, ignore_eos=True))
    collector.step()
    collector.drop(ticket)
    collector.drop(ticket)
    collector.step()
    assert engine.aborted == [1] and ticket.output.outputs[1].token_ids == []


def run(tokenizer: BpeTokenizer, params: SamplingParams, *steps: list[dict]) -> tuple[Ticket, ScriptedEngine]:
    engine = ScriptedEngine(*steps)
    collector = Collector(engine, tokenizer)
    ticket = collector.submit([0], params, streaming=True)
    for _ in steps:
        collector.step()
    return ticket, engine


@pytest.mark.parametrize("reason", [None, "error"])
def test_an_error_behind_a_stop_string_is_not_of_the_answer(tokenizer: BpeTokenizer, reason: str | None) -> None:
    ids = ids_of(tokenizer, "abcd")
    event = {"request_id": 0, "token_ids": ids, "finish_reason": reason, "error": reason and "NaN"}
    ticket, _ = run(tokenizer, SamplingParams(stop=("c",)), [event])
    assert (ticket.output.finish_reason, ticket.output.error, ticket.output.token_ids) == ("stop", None, ids[:3])
    assert ticket.news[-1].error is None and ticket.news[-1].finish_reason == "stop"


def test_x17_x18_bytes_of_characters_in_any_blocks(tokenizer: BpeTokenizer) -> None:
    """sglang#31598, ai-dynamo/dynamo#12630: characters were repeated, or became U+FFFD."""
    ids = ids_of(tokenizer, "B 好cd🙂한")
    for cuts in [*range(256), *range(0, 1 << (len(ids) - 1), 31)]:
        blocks: list[list[int]] = [[]]
        for place, token_id in enumerate(ids):
            blocks[-1].append(token_id)
            if cuts >> place & 1:
                blocks.append([])
        events = [{"request_id": 0, "token_ids": block} for block in blocks]
        events[-1]["finish_reason"] = "length"
        ticket, _ = run(tokenizer, SamplingParams(), *([event] for event in events))
        assert "".join(news.text for news in ticket.news) == ticket.output.text == "B 好cd🙂한"
        assert all("\ufffd" not in news.text for news in ticket.news)


@pytest.mark.parametrize("size", range(1, 12))
def test_x19_a_stop_string_over_blocks_sends_none_of_its_head(tokenizer: BpeTokenizer, size: int) -> None:
    """SharpAI/SwiftLM#126, mzau/mlx-knife#68: its head was sent, or it was never seen."""
    ids = ids_of(tokenizer, "one\nHuman: two")
    events = [{"request_id": 0, "token_ids": ids[at : at + size]} for at in range(0, len(ids), size)]
    ticket, engine = run(tokenizer, SamplingParams(stop=("\nHuman:",)), *([event] for event in events))
    assert [news.text for news in ticket.news if news.text] == [
        ticket.output.text[at : at + size] for at in range(0, 3, size)
    ]
    assert ticket.output.text == "one" and ticket.output.token_ids == ids[:10] and engine.finished == [0]


def test_x20_only_what_may_still_become_a_stop_is_held_back_and_the_end_gives_it(tokenizer: BpeTokenizer) -> None:
    """smg-project/smg PR#2203: too much was held back, and the last flush lost it."""
    blocks = [ids_of(tokenizer, "abx"), ids_of(tokenizer, "xy"), [1]]
    events = [{"request_id": 0, "token_ids": block} for block in blocks]
    events[-1]["finish_reason"] = "stop"
    ticket, engine = run(tokenizer, SamplingParams(stop=("xyz",)), *([event] for event in events))
    assert [news.text for news in ticket.news] == ["ab", "x", "xy"] and ticket.output.text == "abxxy"
    assert engine.finished == [] and ticket.output.token_ids == [*blocks[0], *blocks[1], 1]


def test_drafts_of_an_answer_count_its_rounds(tokenizer: BpeTokenizer) -> None:
    ids = ids_of(tokenizer, "abc")
    steps = [
        {"token_ids": ids[:1]},
        {"token_ids": ids, "num_checked": 3, "num_accepted": 2},
        {"token_ids": ids[:1], "num_checked": 1, "finish_reason": "length"},
    ]
    ticket, _ = run(tokenizer, SamplingParams(), *([{"request_id": 0, **step}] for step in steps))
    drafts = ticket.output.drafts
    assert (drafts.rounds, drafts.checked, drafts.accepted, drafts.accepted_length) == (2, 4, 2, 2.0)
    assert [news.drafts for news in ticket.news] == [None, None, drafts]
