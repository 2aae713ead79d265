"""Runs steps on a device that works through a queue: the host only launches, and hears what came of it in `collect`.

The host keeps a mirror of the device's sequences (`DecodeState`), exact up to the last step that it heard of. Calls that touch
the mirror while results are outstanding are kept in a log, and take effect behind those results: in the order of calls, as
the device sees them. When a step is sampled the engine has collected the one before it, so that its rows, masks and
drafts are known on the host by then; only its logits are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from deepinfer.engine.decode_state import DecodeState
from deepinfer.engine.device_clock import LaunchGuard, Mark
from deepinfer.engine.device_company import Company
from deepinfer.engine.device_copies import keep_on_device
from deepinfer.engine.device_forward import ForwardLanes, Pass
from deepinfer.engine.device_memory import if_memory_suffices, within_memory
from deepinfer.engine.device_sampling import Asked, Launch, SamplingLane, nothing_sampled
from deepinfer.engine.device_serving import ServingDevice
from deepinfer.engine.live_rows import live_rows
from deepinfer.engine.prompt_logprobs import prompt_logprobs
from deepinfer.engine.stats import ExecutorTimes
from deepinfer.interfaces import Request, SampleInput, SamplingParams, StepInput, StepOutput, StepPlan, TokenLogprobs
from deepinfer.parallel.meeting import Room
from deepinfer.sampling.sampler import Sampler


@dataclass(slots=True)
class Flight:
    """A step between `submit` and its results: where the device is in its queue at which part."""

    before: Mark | None  # the end of the step before, where this one was submitted ahead of its results
    begun: Mark
    passed: Mark
    forward: Pass
    sampling: Mark | None = None
    launch: Launch | None = None
    num_rows: int = 0
    shared: int = 0  # sequences of the round of drafts, as ranks agreed
    prompt_logprobs: dict[int, list[TokenLogprobs]] | None = None


class DeviceExecutor(ServingDevice):
    """Owns what it is given. Where its sampling lane waits, `submit` and `sample` do what they say at once."""

    def __init__(
        self,
        lanes: ForwardLanes,
        sampling: SamplingLane,
        sampler: Sampler,
        *,
        guard: bool = False,
        threads: int = 1,
        company: Company | None = None,
    ) -> None:
        """`threads`: of the host, where the device is its own processor. `guard` fails what waits inside a launch region.
        `company`: other ranks, where experts are with them."""
        self.lanes, self.sampling, self.sampler = lanes, sampling, sampler
        self.model, self.cache, self.sequences = lanes.model, lanes.cache, lanes.sequences
        self.state: DecodeState = lanes.state
        self.device, self.threads = lanes.model.device, threads
        self.clock, self.times = sampling.clock, ExecutorTimes()
        self._guard = LaunchGuard(self.device, guard)
        self._worked_s = 0.0
        self._prompt_wanted: dict[int, int] = {}  # slot → prompt tokens, where their log probabilities are asked for
        self._submitted: Flight | None = None
        self._sampled: Flight | None = None  # its results are outstanding
        self._log: list[Callable[[], None]] = []  # what waits for them
        self._entering: dict[int, tuple[np.ndarray, int]] = {}  # slot → prompt and end: not on the device yet
        self._output: StepOutput | None = None
        self.company = company

    def submit(self, plan: StepPlan) -> None:
        assert self._submitted is None, "the step before this one was not sampled"
        self._submitted = self._passed(plan)

    def _passed(self, plan: StepPlan) -> Flight:
        room = self._settled(plan)
        if self.company is None:
            return within_memory(lambda: self._launch(plan, room), self.device)
        return self.company.whole_forward(lambda: self._launch(plan, room), room)

    @property
    def row_sizes(self) -> Sequence[int]:
        return self.lanes.row_sizes

    def keep_sizes(self, rows: np.ndarray, seconds: np.ndarray) -> None:
        self.lanes.keep_sizes(rows, seconds)

    def step_clock(self) -> float:
        """The device's own time: of whole steps that were collected, and of forward passes alone."""
        return self._worked_s

    def plant_drafts(self, slots: np.ndarray, number: int) -> None:
        keep_on_device(self.sequences, slots, self.state.plant_drafts(slots, number))

    def run_forward(self, plan: StepPlan) -> None:
        """The forward pass of a step that nobody samples, to be timed."""
        flight = self._passed(plan)
        flight.passed.wait()
        self._worked_s += flight.passed.since(flight.begun)

    def _launch(self, plan: StepPlan, room: Room) -> Flight:
        self._use_threads()
        for slot in list(self._entering):
            self._enter(slot)
        flying = None if self._sampled is None else self._sampled.launch
        before = None if flying is None else flying.drafted
        if self.lanes.stays_on_device(plan, room.rows):
            self.lanes.make_ready(plan, room.rows)
            begun = self.clock.mark()
            with self._launching(room.rows):
                forward = self.lanes.launch_decode(plan, room.rows)
        else:
            self._settle()
            begun = self.clock.mark()
            forward = self.lanes.launch_host(plan, room.rows)
        return Flight(before, begun, self.clock.mark(), forward, shared=room.sequences)

    @torch.inference_mode()
    def sample(self, sample: SampleInput) -> None:
        flights = [self._submitted]
        self._submitted = None

        def work() -> None:
            self._sample(flights.pop(), sample)

        if self.company is None:
            within_memory(work, self.device)
        else:
            self.company.whole_draft(work)

    def _sample(self, flight: Flight | None, sample: SampleInput) -> None:
        assert flight is not None, "there is no step to sample"
        self._settle()
        self._use_threads()
        forward = flight.forward
        resolved = self.state.resolve(forward.plan) if forward.resolved is None else forward.resolved
        rows, sample_rows = live_rows(resolved, sample)
        asked = Asked(rows, sample.alive, resolved.num_checked, forward.plan.draft, flight.shared)
        flight.num_rows = resolved.step.num_rows
        flight.sampling = self.clock.mark()
        if self._prompt_wanted:
            flight.prompt_logprobs = self._prompt_logprobs(resolved.step, forward.hidden_TD)
        if not len(sample_rows):
            flight.launch = nothing_sampled(asked, self.state.depth, flight.sampling)
        elif self.sampling.waits:
            flight.launch = self.sampling.launch(forward, sample_rows, asked)
        else:
            self.sampling.make_ready(forward, asked, sample_rows)
            with self._launching(flight.shared * self.model.config.dspark_block_size):
                flight.launch = self.sampling.launch(forward, sample_rows, asked)
        self._sampled = flight

    def collect(self) -> StepOutput:
        self._settle()
        output, self._output = self._output, None
        assert output is not None, "there is no sampled step to collect"
        return output

    def _settle(self) -> None:
        """Wait for the results that are outstanding, then do what was logged since."""
        flight, self._sampled = self._sampled, None
        if flight is None:
            return
        assert self._output is None, "the step before was not collected"
        assert flight.launch is not None and flight.sampling is not None
        flight.launch.drafted.wait()
        output = flight.launch.output or self.sampling.finish(flight.launch)
        chosen, sampled, drafted = flight.launch.chosen, flight.launch.sampled, flight.launch.drafted
        self.times.model_s += flight.passed.since(flight.begun) + chosen.since(flight.sampling)
        self.times.sampling_s += sampled.since(chosen)
        self.times.drafting_s += drafted.since(sampled)
        self.times.idle_s += flight.sampling.since(flight.passed)
        self.times.idle_s += flight.begun.since(flight.before) if flight.before is not None else 0.0
        output.device_s = drafted.since(flight.begun)
        self._worked_s += output.device_s
        output.num_rows = flight.num_rows
        output.prompt_logprobs = flight.prompt_logprobs or {}
        self._output = output
        log, self._log = self._log, []
        for call in log:
            call()

    def prepare(self, params: SamplingParams) -> None:
        self.sampler.prepare(params)

    def admit(self, slot: int, request: Request, length_end: int) -> None:
        self._entering[slot] = request.prompt_ids, length_end
        if_memory_suffices(lambda: self._enter(slot), self.device)
        self._in_order(lambda: self._admit(slot, request, length_end))

    def release(self, slot: int) -> None:
        self._entering.pop(slot, None)
        self._in_order(lambda: self._release(slot))

    def poison(self, blocks: np.ndarray, slot: int) -> None:
        self.cache.fill_nan(blocks.tolist())
        if slot >= len(self.state.num_tokens):
            slot += self.cache.num_slots - len(self.state.num_tokens)  # snapshots lie behind the padding slot
        self.cache.fill_nan_slots([slot] if slot >= 0 else [])

    def forget_times(self) -> None:
        """Of steps that no request asked for."""
        self.times = ExecutorTimes()

    def close(self) -> None:
        """Drop the model and the caches; nothing can be run afterwards."""
        self._submitted = self._sampled = self._output = None
        self._log.clear()
        self.lanes.close()
        self.sampling.close()
        if self.company is not None:
            self.company.close()
            self.company = None
        del self.lanes, self.sampling, self.model, self.cache, self.sequences, self.sampler

    def _in_order(self, call: Callable[[], None]) -> None:
        if self._sampled is None:
            call()
        else:
            self._log.append(call)

    def _enter(self, slot: int) -> None:
        self.sequences.admit(slot, *self._entering[slot])
        del self._entering[slot]

    def _admit(self, slot: int, request: Request, length_end: int) -> None:
        self.state.admit(slot, request.prompt_ids, length_end)
        self.sampler.admit(slot, request)
        if request.params.prompt_logprobs is not None:
            self._prompt_wanted[slot] = len(request.prompt_ids)

    def _release(self, slot: int) -> None:
        self.sampler.release(slot)
        self._prompt_wanted.pop(slot, None)

    def _prompt_logprobs(self, step: StepInput, hidden_TD: torch.Tensor) -> dict[int, list[TokenLogprobs]]:
        """Computed on the host, which waits for the logits."""
        return prompt_logprobs(step, hidden_TD, self._prompt_wanted, self.model.logits, self.sampler)
