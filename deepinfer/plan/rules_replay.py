"""Rules about bounded replay: what it asks of the model, of drafts and of requests."""

from collections.abc import Iterator

from deepinfer.config.errors import Problem
from deepinfer.plan.ledger import plan_problem
from deepinfer.plan.settle import Case


def replay_keeps_enough(case: Case) -> Iterator[Problem]:
    """Kept rows must fill a window ring and what drafts may take back."""
    kept, least = case.numerics.replay_keep_tokens, case.config.sliding_window + case.drafting.backtrack
    if 0 < kept < least:
        yield plan_problem(
            f"replay.keep_tokens={kept}",
            f"the window is {case.config.sliding_window} tokens and drafts may take back {case.drafting.backtrack}",
            "the kept rows must fill a ring",
            f"replay.keep_tokens={least}",
        )


def replay_cuts_cleanly(case: Case) -> Iterator[Problem]:
    """The model must have layers to cut at, entries made before the cut alone, and a drafter that reads one side of it."""
    config, replay = case.config, case.numerics.replay
    if replay == "none":
        return
    later = [layer for layer in config.kv_source_layer_ids if layer > config.boundary]
    found = why = ""
    if config.boundary == config.num_hidden_layers:
        found, why = (
            f"{case.model_name} has no layer of ratio 1",
            "there is no layer from which on rows could be dropped",
        )
    elif later:
        found = (
            f"layer {later[0]} of {case.model_name} makes compressed keys, and replay cuts at layer {config.boundary}"
        )
        why = "those of dropped rows would be missing"
    elif case.drafting.num_draft_layers and config.boundary_cuts_drafter:
        found = f"the drafter reads layers {list(config.dspark_target_layer_ids)}, and replay cuts at layer {config.boundary}"
        why = "kept and dropped rows would mix in its features"
    if found:
        yield plan_problem(f"replay={replay}", found, why, "replay=none")


def prompt_logprobs_need_every_row(case: Case) -> Iterator[Problem]:
    """Prompt tokens have no log probabilities where later layers do not see them."""
    wanted, replay = case.spec.sampling.prompt_logprobs, case.numerics.replay
    if wanted is not None and replay != "none":
        yield plan_problem(
            f"sampling.prompt_logprobs={wanted}",
            f"replay={replay}: the later layers see the last {case.numerics.replay_keep_tokens} tokens of a prompt only",
            "there is nothing to tell of the tokens before them",
            "sampling.prompt_logprobs=null",
        )
