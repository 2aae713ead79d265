"""`deepinfer generate`: answer one prompt, a file of prompts, or five of its own; the main job.

Answers go to stdout, everything else to stderr. `prompt=` is one user message, rendered in the model's chat format.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from deepinfer.cli.generate_file import check_file, path_problems, run_file
from deepinfer.cli.generate_logprobs import prompt_lines, token_lines
from deepinfer.cli.plan import show
from deepinfer.cli.streams import read_stdin
from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.config.facts import probe
from deepinfer.config.runnable import launched, many_ranks, unbuilt
from deepinfer.config.tasks import Generate
from deepinfer.engine.asked_grammar import refuse_bad_grammar
from deepinfer.engine.one_rank import of_a_run
from deepinfer.engine.unbuilt import device_problem, is_simulated, run_problems
from deepinfer.plan import render
from deepinfer.plan.prerequisites import missing_libraries
from deepinfer.plan.require import has_devices, missing
from deepinfer.plan.resolve import resolve
from deepinfer.plan.types import PlanErrors
from deepinfer.sampling.params import asked_sampling

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deepinfer.api import LLM
    from deepinfer.config.argv import Invocation
    from deepinfer.config.specs import Spec
    from deepinfer.serving.jobs import Job

DEMO = (
    "Who are you?",
    "What is 347 + 285?",
    "Make a JSON object: name Emma, age 31, city Oslo",
    "Sort this list: 42, 7, 19, 3, 88",
    "Tell me a short story about a fox.",
)
NOTABLE_S = 2.0  # a wait that needs an explanation


def run(spec: Spec, invocation: Invocation) -> int:
    """Plan, build, answer. Raises Refused for what cannot be planned or is not built yet."""
    facts = probe(spec)
    files = path_problems(invocation.prompts, invocation.output)
    try:
        plan = resolve(spec, facts, invocation.choices)
    except PlanErrors as error:
        told = of_a_run(error.problems, spec, facts, invocation.overrides)
        raise Refused([*told, *files, *_unbuilt_as_asked(spec, invocation.overrides)]) from error
    device = device_problem(plan, missing(plan, facts), has_devices(plan, facts))
    if device:
        show(render.text(plan, invocation.overrides))
        print(f"{device.found[0].upper()}{device.found[1:]}: type {device.fix} to run here.", file=sys.stderr)
        return device.code
    assert isinstance(spec.task, Generate), "this is the verb of this task"
    thinking, asked = spec.task.thinking, asked_sampling(invocation.overrides)
    problems = [*files, *run_problems(plan, spec, missing_libraries(plan, facts.machine), invocation.overrides)]
    if problems:
        raise Refused(problems)
    refuse_bad_grammar(plan)
    prompt = _prompt(invocation)
    check_file(plan, invocation, thinking=thinking, asked=asked)
    print(render.summary(plan), file=sys.stderr)
    if is_simulated(plan):
        _say(["simulated: tokens are invented, and times are those of steps that take executor.step_time_s each"])

    from deepinfer.api import LLM

    with LLM.from_plan(plan, asked=asked) as llm:
        if llm.warm_up_s > NOTABLE_S:
            kind = "CPU" if plan.hardware.kind == "cpu" else "GPU"
            _say([f"compiled the {kind} kernels in {llm.warm_up_s:.0f} s; later runs find them in the cache"])
        _say(llm.take_notices())
        if invocation.prompts is not None:
            code = run_file(llm, plan, invocation, thinking=thinking)
        elif prompt is not None:
            code = answer(llm, prompt, thinking=thinking)
        else:
            code = demo(llm, thinking=thinking)
        _say(llm.take_notices())
        return code


def _prompt(invocation: Invocation) -> str | None:
    """The one prompt, from the command line or stdin; None where there is none. Raises Refused where it is empty."""
    from_stdin = invocation.prompt == "-"
    try:
        prompt = read_stdin() if from_stdin else invocation.prompt
    except ValueError as error:
        raise Refused([Problem(asked="prompt=-", found=str(error), why="a prompt is text")]) from error
    if prompt is None or prompt.strip():
        return prompt
    found = "stdin holds no text" if from_stdin else "an empty prompt"
    fix = 'prompt="What is 1 + 1?"'
    raise Refused([Problem(asked=f"prompt={invocation.prompt}", found=found, why="nothing to answer", fix=fix)])


def _unbuilt_as_asked(spec: Spec, overrides: Sequence[str]) -> list[Problem]:
    """As `unbuilt`, where there is no plan that would tell whether the run is a simulation."""
    simulated = spec.executor.kind == "simulated" or spec.hardware.kind == "virtual"
    ranks = many_ranks(spec.parallel.num_ranks, [spec.hardware.kind], "parallel=single")
    return [*launched(spec, overrides), *([] if simulated else [*unbuilt(spec), *ranks])]


def answer(llm: LLM, prompt: str, *, thinking: bool) -> int:
    """Print the answer to one user message as it grows; several answers, reasoning and log probabilities once all is there.

    Log probabilities go to stderr, a token a line.
    """
    job = llm.desk.chat(prompt, llm.default_params, thinking=thinking, asked=llm.asked)
    _say(job.chat.notices if job.chat else ())
    with_logprobs = job.params.logprobs is not None or job.params.prompt_logprobs is not None
    if not (thinking or with_logprobs) and job.params.n == 1:
        return _print_stream(llm, job)
    (output,) = llm.run([job])
    for line in prompt_lines(output, llm.tokenizer):
        print(line, file=sys.stderr)
    for number, one in enumerate(output.outputs, start=1):
        if len(output.outputs) > 1:
            print(f"--- {number}")
        if one.error is not None:
            _say([one.error])
            continue
        if one.message.reasoning_content:
            print(f"<think>\n{one.message.reasoning_content}\n</think>")
        print(one.message.content, flush=True)
        for line in token_lines(one, llm.tokenizer):
            print(line, file=sys.stderr)
    return ExitCode.OTHER if any(one.error for one in output.outputs) else ExitCode.OK


def _print_stream(llm: LLM, job: Job) -> int:
    error = None
    for event in llm.stream_job(job):
        sys.stdout.write(event.text)
        sys.stdout.flush()
        error = event.error
    if error is None:
        sys.stdout.write("\n")
        return ExitCode.OK
    _say([error])
    return ExitCode.OTHER


def demo(llm: LLM, *, thinking: bool) -> int:
    """Five prompts that show what a small model can do, each with its answer, and the speed of all together."""
    started_s = llm.clock()
    outputs = llm.chat([[{"role": "user", "content": prompt}] for prompt in DEMO], thinking=thinking)
    elapsed_s = llm.clock() - started_s
    _say(dict.fromkeys(notice for output in outputs for notice in output.notices))
    for prompt, output in zip(DEMO, outputs):
        print(f"> {prompt}")
        print(f"{output.message.content if output.error is None else f'error: {output.error}'}\n")
    if any(output.error for output in outputs):
        return ExitCode.OTHER  # an engine that broke has no figures
    tokens = sum(len(answer.token_ids) for output in outputs for answer in output.outputs)
    print(
        f"{tokens} tokens in {elapsed_s:.2f} s: {tokens / max(elapsed_s, 1e-9):.0f} tokens/s, {len(DEMO)} prompts together"
    )
    stats = llm.engine.stats()
    if stats.accepted_length is not None:
        rounds = f"{stats.verify_rounds} rounds with drafts"
        print(
            f"speculation: {stats.accepted_length:.2f} tokens a round of at most {1 + len(stats.checked_at)}, {rounds}"
        )
    return ExitCode.OK


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        print(f"deepinfer: {line}", file=sys.stderr)
