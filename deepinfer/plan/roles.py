"""Which groups of ranks a deployment has, and what chip each runs on."""

from collections.abc import Mapping

from msgspec import Struct

from deepinfer.config.chips import AutoHardware, Chip, SameHardware
from deepinfer.config.facts import Facts
from deepinfer.config.fused import runs_fused
from deepinfer.config.specs import Disaggregated, Parallel, Role, Spec
from deepinfer.plan.ledger import Ledger, plan_problem

OPTIONS = {
    2: "ep2",
    4: "ep4",
    8: "ep8",
    16: "ep16",
    32: "ep32",
    64: "ep64",
    128: "ep128",
}  # of conf/parallel, by degree
MOST_RANKS = 2**16  # of a role: more than any fleet has, and few enough to be listed at once


class RoleCase(Struct, frozen=True, kw_only=True):
    """One role with nothing left open: how many copies, in which degrees, on which chip."""

    name: str  # all, prefill, decode
    replicas: int
    parallel: Parallel
    option: str  # of conf/hardware; may be empty
    chip: Chip

    @property
    def num_ranks(self) -> int:
        """Ranks of all replicas together."""
        return self.replicas * self.parallel.num_ranks

    @property
    def is_cpu(self) -> bool:
        return self.chip.kind == "cpu"

    @property
    def is_fused(self) -> bool:
        """Whether a run on its chip is made of fused operations."""
        return runs_fused(self.chip.kind, self.chip.architecture.value)


def top_chip(spec: Spec, facts: Facts, choices: Mapping[str, str], ledger: Ledger) -> tuple[str, Chip] | None:
    """Option and chip of the top level; None (and a problem) where it names none."""
    if isinstance(spec.hardware, Chip):
        return choices.get("hardware", ""), spec.hardware
    if isinstance(spec.hardware, SameHardware):
        why = "it is for one side of deploy=disaggregated, as in hardware@deploy.decode.hardware=same"
        found = "same means the chip of the top level, and this is the top level"
        ledger.refuse(plan_problem("hardware=same", found, why, "hardware=auto"))
        return None
    assert facts.chip is not None, "a probe of hardware=auto names a chip"
    devices = facts.machine.devices
    rule = f"the first accelerator here is {devices[0].name}" if devices else "no accelerator was found here"
    if devices and facts.chip.kind == "cpu":
        rule = f"{devices[0].name} is none of the known chips"
    ledger.decide("hardware", facts.chip_option, rule, runner_up="cpu" if facts.chip.kind != "cpu" else "")
    return facts.chip_option, facts.chip


def roles_of(spec: Spec, top: tuple[str, Chip], choices: Mapping[str, str], ledger: Ledger) -> tuple[RoleCase, ...]:
    """Every role in rank order; `top` is the option and the chip that a role without a chip of its own takes."""
    if not isinstance(spec.deploy, Disaggregated):
        return (RoleCase(name="all", replicas=1, parallel=spec.parallel, option=top[0], chip=top[1]),)
    sides = (("prefill", spec.deploy.prefill), ("decode", spec.deploy.decode))
    return tuple(_side(name, side, top, choices, ledger) for name, side in sides)


def _side(name: str, side: Role, top: tuple[str, Chip], choices: Mapping[str, str], ledger: Ledger) -> RoleCase:
    option, chip = top
    if isinstance(side.hardware, Chip):
        option, chip = choices.get(f"hardware@{hardware_key(name)}", ""), side.hardware
    elif isinstance(side.hardware, AutoHardware):
        ledger.refuse(
            plan_problem(
                f"hardware@{hardware_key(name)}=auto",
                "auto looks at this machine",
                "the other side may run on other machines, so one that differs is named",
                f"hardware@{hardware_key(name)}=same",
            )
        )
    return RoleCase(name=name, replicas=side.replicas, parallel=side.parallel, option=option, chip=chip)


def refuse_crowds(roles: tuple[RoleCase, ...], ledger: Ledger) -> bool:
    """Whether a role has more ranks than a plan can list one by one; the problem says which number to lower."""
    crowds = [role for role in roles if role.num_ranks > MOST_RANKS]
    for role in crowds:
        factors = {
            f"{key_of(role.name)}.attention_dp": role.parallel.attention_dp,
            f"{key_of(role.name)}.context": role.parallel.context,
            f"deploy.{role.name}.replicas": role.replicas,
        }
        key = max(factors, key=factors.__getitem__)
        fewer = max(1, MOST_RANKS * factors[key] // role.num_ranks)
        found = f"that makes {role.num_ranks:,} ranks"
        why = f"a plan lists every rank, and no more than {MOST_RANKS:,} of a role"
        ledger.refuse(plan_problem(f"{key}={factors[key]}", found, why, f"{key}={fewer}"))
    return bool(crowds)


def distinct_chips(roles: tuple[RoleCase, ...]) -> tuple[Chip, ...]:
    """The chips of some roles, each once."""
    chips: list[Chip] = []
    for role in roles:
        if role.chip not in chips:
            chips.append(role.chip)
    return tuple(chips)


def hardware_key(role: str) -> str:
    """Where a role's chip is written: "hardware", or "deploy.prefill.hardware"."""
    return "hardware" if role == "all" else f"deploy.{role}.hardware"


def key_of(role: str) -> str:
    """Where a role's degrees are written: "parallel", or "deploy.prefill.parallel"."""
    return "parallel" if role == "all" else f"deploy.{role}.parallel"


def choose(role: str, option: str) -> str:
    """The override that takes an option of conf/parallel for a role."""
    return f"parallel={option}" if role == "all" else f"parallel@{key_of(role)}={option}"
