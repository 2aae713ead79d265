"""Engines that crowds of requests are sent to, step by step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from device_engines import device_executor, golden_of_blocks
from engine_crowds import BLOCK, LENGTH, POISON, VOCABULARY, Answer, Asked, Drawn
from engine_shortage import Shortage
from msgspec.structs import replace

from deepinfer.config.compose import load
from deepinfer.config.facts import probe
from deepinfer.engine import device_assembly
from deepinfer.engine.build import EngineGraph, build_graph
from deepinfer.engine.device_copies import keep_on_device
from deepinfer.engine.device_sampling import DeviceLane
from deepinfer.engine.sampling_graphs import SamplingGraphs
from deepinfer.interfaces import Drafts
from deepinfer.model.fused.sequences import DeviceSequences
from deepinfer.ops.device import twins
from deepinfer.plan.resolve import resolve
from deepinfer.plan.types import Plan

ON_CPU = ("hardware=cpu", "model.dtype=float64", "model.threads=1", "cost=roofline")


class Planted:
    """Drafts for the device's lane that are mostly what the reference says; what waits for a device does not matter here."""

    def __init__(self, driver: Driver, wanted: dict[int, list[int]], rng: np.random.Generator) -> None:
        self.driver, self.wanted, self.rng = driver, wanted, rng

    def capture(self, num_sequences: int, sequences: DeviceSequences, shared: int = 0) -> None:
        """It has no graphs."""

    def launch(self, slots: np.ndarray, sequences: DeviceSequences) -> Known:
        shape = (len(slots), sequences.depth)
        made = Drafts(np.full(shape, -1, np.int64), np.zeros(shape, np.float32))
        for place, slot in enumerate(slots.tolist()):
            request_id = int(self.driver.engine.scheduler.table.request_id[slot])
            said = int(sequences.num_tokens_N[slot]) - len(self.driver.asked_by[request_id].prompt)
            room = int(sequences.length_end_N[slot] - sequences.num_tokens_N[slot]) - 1
            for depth, token in enumerate(self.wanted[request_id][said : said + min(room, sequences.depth)]):
                right = self.rng.random() < 0.8
                made.token_ids[place, depth] = token if right else self.rng.integers(3, VOCABULARY - 1)
                made.confidence[place, depth] = self.rng.random()
        keep_on_device(sequences, slots, made)
        return Known(made)

    def close(self) -> None:
        """It holds nothing."""


@dataclass(frozen=True)
class Known:
    made: Drafts

    def wait(self) -> Drafts:
        return self.made


class Driver:
    """Sends the requests one after another between steps, and hears what comes of them."""

    def __init__(self, graph: EngineGraph, crowd: list[Asked]) -> None:
        self.graph, self.engine, self.left = graph, graph.engine, list(crowd)
        self.heard: dict[int, Answer] = {}
        self.asked_by: dict[int, Asked] = {}
        self.shortage: Shortage | None = None
        embeddings = graph.model.embed_VD
        embeddings[POISON] = float("nan")

    def send(self) -> None:
        asked = self.left.pop(0)
        ids = self.engine.submit(asked.prompt, asked.params, priority=asked.priority)
        asked.answers = [self.heard.setdefault(i, Answer()) for i in ids]
        self.asked_by |= dict.fromkeys(ids, asked)

    def step(self) -> None:
        for event in self.engine.step():
            answer = self.heard[event.request_id]
            assert answer.reason is None, "nothing comes behind an end"
            answer.tokens += event.token_ids
            answer.logprobs += event.logprobs or []
            answer.prompt += event.prompt_logprobs or []
            answer.reason, answer.error = event.finish_reason, event.error

    def end_one(self, rng: np.random.Generator) -> None:
        """Whoever it is, and wherever it stands; the first four and the last are needed whole."""
        running = [i for i in list(self.heard)[4:] if self.heard[i].reason is None]
        if not running or not self.left:
            return
        request_id = int(rng.choice(running))
        if rng.random() < 0.5:
            self.engine.abort(request_id)
        elif self.engine.finish(request_id):
            self.heard[request_id].reason = "stop string"

    def all_of(self, rng: np.random.Generator) -> None:
        for _ in range(min(3, len(self.left))):
            self.send()
        while self.left or self.engine.has_work:
            last = len(self.left) == 1
            if self.left and (not self.engine.has_work or (not last and rng.random() < 0.35)):
                self.send()
            elif rng.random() < 0.15:
                self.end_one(rng)
                if len(self.left) > 1:
                    self.send()  # who gets the place of the one that left, whose results may be on their way
            self.step()
            self.compare()

    def compare(self) -> None:
        """What the host's mirror holds of running answers is what the device holds, where no step is on its way."""
        executor = device_executor(self.graph)
        if self.engine._flying is not None:
            return
        state, device = executor.state, executor.sequences
        for slot in self.engine.scheduler._decoding.tolist():
            known = int(state.num_tokens[slot])
            assert (device.num_tokens_N[slot], device.length_end_N[slot]) == (known, state.length_end[slot])
            theirs = device.tokens_NL[slot, : state.pad + known].numpy()
            np.testing.assert_array_equal(state.tokens_NL[slot, : state.pad + known], theirs)
            np.testing.assert_array_equal(state.drafts_NK[slot], device.drafts_NK[slot].numpy())


def reference(requests: list[Asked], what: Drawn) -> list[Asked]:
    copies = [Asked(one.prompt, one.params) for one in requests]
    driver = Driver(
        build_graph(small_blocks(f"model.max_model_len={LENGTH}", *what.bounded), poison_freed=True), copies
    )
    while driver.left:
        driver.send()
    while driver.engine.has_work:
        driver.step()
    return copies


def small_blocks(*overrides: str) -> Plan:
    """Blocks of a few tokens, so that short texts cross many of their ends."""
    spec = load(*ON_CPU, f"model.path={golden_of_blocks()}", *overrides)
    spec = replace(spec, cache=replace(spec.cache, block_tokens=BLOCK))
    return resolve(spec, probe(spec))


def prepared(what: Drawn, requests: list[Asked], wanted: list[Asked], rng: np.random.Generator) -> Driver:
    """An engine as drawn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_assembly, "chunk_rows", lambda loaded: list(what.sizes))
        graph = build_graph(small_blocks(*what.options), poison_freed=True, device_ops=twins())
    driver = Driver(graph, requests)
    executor = device_executor(driver.graph)
    lane = executor.sampling
    if what.stays and isinstance(lane, DeviceLane):
        about = lane.sampler, lane.logits, lane.sequences
        lane.graphs = SamplingGraphs(*about, verify_length=driver.graph.limits.draft_depth, graphs=False)
    if what.planted and not what.rejection and isinstance(lane, DeviceLane) and lane.drafter is not None:
        said = [answer.tokens for one in wanted for answer in one.answers]
        lane.drafter = Planted(driver, dict(enumerate(said)), rng)
    if what.short:
        driver.shortage = Shortage(executor, rng)
    return driver
