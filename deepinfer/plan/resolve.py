"""`resolve(spec, facts)`: a pure function from what was asked and what was looked up to a plan, or to all faults."""

import sys
from collections.abc import Mapping

from msgspec import structs

from deepinfer.arch.cache import CacheLayout
from deepinfer.config.facts import FOLDER, SHIPPED, Facts
from deepinfer.config.specs import Spec
from deepinfer.plan.capacity import Fit, fit
from deepinfer.plan.catalog import choose_ops, used_backends
from deepinfer.plan.checks import LAYOUT_RULES, OPTION_RULES, check
from deepinfer.plan.cost.estimate import cost_of
from deepinfer.plan.cost.reckoning import reckonings_of
from deepinfer.plan.cost.types import CostPlan
from deepinfer.plan.differences import differences
from deepinfer.plan.digest import digest, numerics_digest, rank_digest
from deepinfer.plan.engram_place import place_tables
from deepinfer.plan.floors import floors_of
from deepinfer.plan.graph import build_graph
from deepinfer.plan.layout import lay_out
from deepinfer.plan.ledger import Ledger
from deepinfer.plan.memory import Scene, scene_of
from deepinfer.plan.notes import write_notes
from deepinfer.plan.rules_roles import reproducible_is_one_kind_of_op
from deepinfer.plan.settle import Case, settle
from deepinfer.plan.site import check_site
from deepinfer.plan.types import Layout, ModelPlan, OpChoice, Plan, PlanErrors
from deepinfer.plan.verdict import planned_only


def resolve(spec: Spec, facts: Facts, choices: Mapping[str, str] | None = None) -> Plan:
    """The plan for `spec` on the grounds of `facts`; `choices` names the options that were taken, for the text.

    Raises PlanErrors with every problem: of checkpoint and config.json, of the layout against the model, of ops against
    the chip, of memory. Its `exit_code` is the lowest class among them.
    """
    ledger = Ledger()
    choices = dict(choices or {})
    case = settle(spec, facts, choices, ledger)
    if case is None:
        raise PlanErrors(ledger.problems)
    impossible = check(case, LAYOUT_RULES)
    ledger.problems += [*impossible, *check(case, OPTION_RULES)]
    ops = _ops_of_roles(case, ledger)
    ledger.problems += reproducible_is_one_kind_of_op(case, ops)
    reckonings = reckonings_of(case, ops, ledger)
    if impossible:
        raise PlanErrors(ledger.problems)  # sizes of a layout that cannot be would say nothing
    scenes = {role.name: scene_of(case, role, ops[role.name]) for role in case.roles}
    places = {name: place_tables(scene, ledger) for name, scene in scenes.items()}
    layout = _with_ops(lay_out(case.roles, case.config, case.hardware, places), case, ops)
    fitted = fit(scenes, layout, ledger)
    ledger.problems += check_site(spec.cluster, layout)
    if ledger.problems:
        raise PlanErrors(ledger.problems)
    write_notes(case, layout, ledger)
    cost = cost_of(scenes, reckonings, layout, fitted, ledger)
    if ledger.problems:  # workload.strict
        raise PlanErrors(ledger.problems)
    plan = _plan(scenes[layout.roles[0].name], layout, fitted, cost, choices, ledger)
    return structs.replace(plan, rank_digest=rank_digest(plan), numerics_digest=numerics_digest(plan))


def _ops_of_roles(case: Case, ledger: Ledger) -> dict[str, tuple[OpChoice, ...]]:
    """The ops of each role. What a chip cannot do is said once, however many roles and chips it concerns."""
    dtype, kernels = case.numerics.dtype, case.spec.kernels
    refused = Ledger()
    chosen = [choose_ops(chip, dtype, kernels.kind, kernels.ops, refused) for chip in case.chips]
    for problem in refused.problems:
        if problem not in ledger.problems:
            ledger.refuse(problem)
    return {role.name: chosen[case.chips.index(role.chip)] for role in case.roles}


def _with_ops(layout: Layout, case: Case, ops: Mapping[str, tuple[OpChoice, ...]]) -> Layout:
    """The layout whose roles know their ops, and what those and the chip need."""
    chips = {role.name: role.chip for role in case.roles}
    roles = (
        structs.replace(role, ops=ops[role.name], floors=floors_of(chips[role.name], used_backends(ops[role.name])))
        for role in layout.roles
    )
    return structs.replace(layout, roles=tuple(roles))


def _plan(scene: Scene, layout: Layout, fitted: Fit, cost: CostPlan, choices: dict[str, str], ledger: Ledger) -> Plan:
    case, first = scene.case, layout.roles[0]
    return Plan(
        deepinfer=sys.modules["deepinfer"].__version__,  # an import of the package would lead through all its doors
        task=case.spec.task.kind,
        model=_model_plan(scene, fitted),
        hardware=first.hardware,
        layout=layout,
        memory=fitted.memory,
        capacity=fitted.capacity,
        cache=scene.cache,
        numerics=case.numerics,
        drafting=case.drafting,
        scheduler=case.scheduler,
        sampling=case.sampling,
        graph=build_graph(case, tuple(choice for role in layout.roles for choice in role.ops)),
        ops=first.ops,
        floors=first.floors,
        cost=cost,
        decisions=tuple(ledger.decisions),
        notes=tuple(ledger.notes),
        warnings=tuple(ledger.warnings),
        unbuilt=planned_only(case, layout),
        choices=choices,
    )


def _model_plan(scene: Scene, fitted: Fit) -> ModelPlan:
    case, model = scene.case, scene.case.spec.model
    classes = scene.weights.classes()
    source, location, weights_digest = _origin(case)
    drafting = CacheLayout.of(
        case.config,
        numerics=case.numerics.numerics,
        dtype=case.numerics.dtype,
        block_tokens=case.spec.cache.block_tokens,
        num_draft_layers=case.config.num_nextn_predict_layers,
        backtrack=case.config.dspark_block_size + 1,
    )
    return ModelPlan(
        name=case.model_name,
        source=source,  # type: ignore[arg-type]
        location=location,
        weights=model.weights,
        config=case.config,
        config_digest=digest(case.config),
        weights_digest=weights_digest,
        num_tensors=sum(item.num_tensors for item in classes),
        checkpoint_bytes=sum(item.num_bytes for item in classes),
        classes=classes,
        growing_bytes_per_token=round(scene.cache.growing_bytes_per_token),
        block_bytes=scene.cache.block_bytes,
        padded_block_bytes=scene.cache.padded_block_bytes,
        fixed_bytes_per_sequence=scene.cache.padded_state_bytes,
        drafting_fixed_bytes_per_sequence=drafting.padded_state_bytes,
        drafting_depth=case.config.dspark_block_size if case.config.num_nextn_predict_layers else 0,
        max_model_len=fitted.max_model_len,
        differences=differences(case.facts, model.name),
    )


def _origin(case: Case) -> tuple[str, str, str]:
    """Where the weights come from, and a fingerprint of them (of their name where they are not here yet)."""
    model, checkpoint = case.spec.model, case.checkpoint
    if model.weights == "dummy":
        return "dummy", "made up from a fixed seed", digest(["dummy", digest(case.config)])
    if FOLDER in case.facts.checkpoints:
        return "folder", checkpoint.folder, checkpoint.digest
    if checkpoint.files:
        return "package", f"the {case.model_name} that ships with deepinfer", checkpoint.digest
    assert case.model_name in SHIPPED and model.weights == "checkpoint"
    where = f"{model.repo or RELEASED}@{model.revision or 'main'}"
    return "hub", where, digest(["hub", where])


RELEASED = "deepseek-ai/DeepSeek-V4.1-Flash-1017"  # what v41_flash means where model=auto names no repository
