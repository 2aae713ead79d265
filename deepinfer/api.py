"""The library door: `LLM`, `SamplingParams`, `RequestOutput`.

    with LLM("model=v41_tiny", "hardware=cpu") as llm:
        for out in llm.generate(["Once upon a time", [0, 17, 42]], SamplingParams(max_tokens=32, seed=7)):
            print(out.text, out.finish_reason)

Threads may share one LLM: its calls take turns at the engine, step by step, and their requests run in one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from deepinfer.interfaces import SamplingParams
from deepinfer.sampling.outputs import Completion, RequestOutput, StreamEvent, Timings
from deepinfer.sampling.params import asked_sampling, from_config
from deepinfer.sampling.tokenizer import BpeTokenizer
from deepinfer.serving.call_arguments import all_overrides, as_conversations, as_prompts, one_each
from deepinfer.serving.chat_checks import check_options
from deepinfer.serving.experts import Experts
from deepinfer.serving.jobs import Desk, Job, Prompt, check_salt, is_conversation
from deepinfer.serving.turns import Turns

if TYPE_CHECKING:
    from deepinfer.config.errors import Problem
    from deepinfer.config.specs import Spec
    from deepinfer.engine.build import EngineGraph
    from deepinfer.engine.build_world import FleetGraph
    from deepinfer.plan.types import Plan
    from deepinfer.sampling.collector import EngineLike

__all__ = ["LLM", "Completion", "RequestOutput", "SamplingParams", "StreamEvent", "Timings"]


class LLM:
    """A model with its engine: in this process, or where the plan has several ranks in processes that this one starts.

    `overrides` are written as on the command line ("model=v41_tiny", "model.path=DIR", "sampling.seed=7"); keywords are the
    same with "__" for each dot (`model__path=DIR`), None for the default. Raises Refused (a ValueError) with all problems.
    """

    warm_up_s = 0.0  # spent on two tiny steps before the first request
    asked: frozenset[str] = frozenset()  # fields of `default_params` that somebody chose
    _notices: list[str]

    def __init__(self, *overrides: str, **keywords: Any) -> None:
        from deepinfer.config.compose import load_with_choices

        overrides = all_overrides(overrides, keywords)
        spec, choices = load_with_choices(*overrides)
        self._open(plan_to_run(spec, choices, overrides))
        self.asked = asked_sampling(overrides)

    @classmethod
    def from_plan(cls, plan: Plan, *, asked: frozenset[str] = frozenset()) -> LLM:
        """The LLM of a plan that was resolved before. `asked` are the sampling fields that the plan's maker chose, which the
        chat format leaves alone."""
        llm = cls.__new__(cls)
        llm._open(plan)
        llm.asked = asked
        return llm

    @classmethod
    def of_fleet(cls, graph: FleetGraph, *, asked: frozenset[str] = frozenset()) -> LLM:
        """The LLM of ranks that are there already; `asked` as of `from_plan`."""
        llm = cls.__new__(cls)
        llm._take(graph)
        llm.asked = asked
        return llm

    def _open(self, plan: Plan) -> None:
        from deepinfer.engine.build_world import build_engine

        self._take(build_engine(plan))

    def _take(self, graph: EngineGraph | FleetGraph) -> None:
        plan = graph.plan
        grammar = next((node.option.partition("=")[2] for node in plan.graph if node.name == "grammar"), "none")
        defaults, bos = from_config(plan.sampling), plan.model.config.bos_token_id
        self._start(graph.engine, graph.tokenizer, defaults, bos, grammar=grammar)
        self.plan = plan
        self.warm_up_s = graph.warm_up_s
        self._notices = list(graph.notices)

    def _start(
        self,
        engine: EngineLike,
        tokenizer: BpeTokenizer | None,
        defaults: SamplingParams,
        bos_token_id: int,
        *,
        grammar: str = "none",
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.default_params = defaults
        self.desk = Desk(
            tokenizer,
            vocab_size=engine.limits.vocab_size,
            max_model_len=engine.limits.max_model_len,
            bos_token_id=bos_token_id,
            eos_token_ids=engine.limits.eos_token_ids,
            grammar=grammar,
        )
        self._turns = Turns(engine, tokenizer, self.desk)
        self._notices = []

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds: the machine's time, or of a simulation its own."""
        return self.engine.clock

    @property
    def experts(self) -> Experts:
        """Where experts lie, their loads, and how they are balanced over ranks (balancer=eplb)."""
        return Experts(self.engine, self._turns.lock)

    @property
    def keeps_prefixes(self) -> bool:
        """Whether blocks of ended requests serve later ones (cache=prefix)."""
        with self._turns.lock:
            return self.engine.stats().prefix is not None

    def take_notices(self) -> list[str]:
        """What the user should know of how the engine was built and runs, each sentence once."""
        with self._turns.lock:
            notices, self._notices = self._notices + self.engine.take_notices(), []
        return notices

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        cache_salt: str = "",
    ) -> list[RequestOutput]:
        """Run prompts and return one result for each, in their order; a prompt that cannot run gives a result with `error`.

        A str is raw text, put after the BOS token; a list of ints is taken as it is. `params` holds for all, or is a list
        with one for each; None takes the configuration's `sampling` group. {"prompt": str} and {"prompt_token_ids": [int]}
        are prompts too. With cache=prefix, cached prefixes are shared within one `cache_salt` only. Ctrl-C aborts what runs;
        the LLM stays usable. Raises ValueError where the params for all are wrong.
        """
        check_salt(cache_salt)
        batch = as_prompts(prompts)
        each = self._one_each(params, len(batch))
        return list(self.run(self.desk.text(prompt, one, cache_salt=cache_salt) for prompt, one in zip(batch, each)))

    def chat(
        self,
        messages: str | Sequence[dict[str, Any]] | Sequence[Sequence[dict[str, Any]]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        cache_salt: str = "",
        **options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or a list of them, rendered in V4.1's chat format.

        `options`: thinking=False, tools=None, tool_choice=None, response_format=None, as in Chat Completions. Each result's
        `message` is the answer taken apart. The format has a temperature and top_p of its own; they hold where `params` is
        None and no override named these keys. `notices` say what it overrode or recommends, and what nothing enforces.
        """
        check_salt(cache_salt)
        check_options(**options)
        batch = as_conversations(messages)
        each = self._one_each(params, len(batch))
        options |= {"asked": self._asked(params), "cache_salt": cache_salt}
        return list(self.run(self.desk.chat(chat, one, **options) for chat, one in zip(batch, each)))

    def stream(
        self,
        prompt: Prompt | Sequence[dict[str, Any]],
        params: SamplingParams | None = None,
        *,
        cache_salt: str = "",
        **options: Any,
    ) -> Iterator[StreamEvent]:
        """The answers to one prompt as they grow. Leaving the iterator early aborts the request.

        A list of messages is a conversation, as in `chat`, and so are `options`; what it cannot render raises ValueError.
        """
        check_salt(cache_salt)
        (one,) = self._one_each(params, 1)
        if not is_conversation(prompt):
            if options:
                raise ValueError(
                    f"{', '.join(options)} shape a chat: give a list of messages instead of {prompt!r:.80}"
                )
            return self.stream_job(self.desk.text(cast(Prompt, prompt), one, cache_salt=cache_salt))
        check_options(**options)
        options |= {"asked": self._asked(params), "cache_salt": cache_salt}
        return self.stream_job(self.desk.chat(prompt, one, **options))

    def run(self, jobs: Iterable[Job]) -> Iterator[RequestOutput]:
        """Results in the order of the jobs, as soon as they and all before them are there; jobs are read as they are needed."""
        return self._turns.run(jobs)

    def stream_job(self, job: Job) -> Iterator[StreamEvent]:
        """The events of one job, which the first `next` starts."""
        return self._turns.stream(job)

    def close(self) -> None:
        """Free what the engine holds; running calls and later ones fail. Closing twice is fine."""
        self._turns.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _one_each(self, params: SamplingParams | Sequence[SamplingParams] | None, number: int) -> list[SamplingParams]:
        return one_each(self.default_params if params is None else params, number, self.engine.limits.vocab_size)

    def _asked(self, params: SamplingParams | Sequence[SamplingParams] | None) -> frozenset[str]:
        """What the chat format must leave alone: all of what a caller hands over, and of the defaults what was chosen."""
        return self.asked if params is None else frozenset(SamplingParams.__struct_fields__)


def plan_to_run(
    spec: Spec, choices: dict[str, str], overrides: Sequence[str], problems: Sequence[Problem] = ()
) -> Plan:
    """The plan of somebody who wants to run it here. `overrides` as typed; `problems` found elsewhere are told beside those of
    a plan that cannot be. Raises Refused with all that keeps this machine from it: PlanErrors where there is no plan."""
    from deepinfer.config.facts import probe
    from deepinfer.engine.asked_grammar import refuse_bad_grammar
    from deepinfer.engine.one_rank import of_a_run
    from deepinfer.engine.unbuilt import refuse_to_run
    from deepinfer.plan.prerequisites import missing_libraries
    from deepinfer.plan.require import has_devices, missing
    from deepinfer.plan.resolve import resolve
    from deepinfer.plan.types import PlanErrors

    facts = probe(spec)
    try:
        plan = resolve(spec, facts, choices)
    except PlanErrors as error:
        raise PlanErrors([*of_a_run(error.problems, spec, facts, overrides), *problems]) from error
    libraries = missing_libraries(plan, facts.machine)
    refuse_to_run(plan, spec, missing(plan, facts), libraries, has_devices(plan, facts), overrides)
    refuse_bad_grammar(plan)
    return plan
