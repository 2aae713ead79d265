"""How times are reckoned for each role: by the roofline always, and by what `cost` names besides."""

from collections.abc import Mapping

from deepinfer.config.errors import Refused
from deepinfer.plan.cost.calibration import calibration_of
from deepinfer.plan.cost.own_kernels import with_own_kernels
from deepinfer.plan.cost.timing import ROOFLINE
from deepinfer.plan.cost.types import Calibration
from deepinfer.plan.ledger import Ledger
from deepinfer.plan.settle import Case
from deepinfer.plan.types import OpChoice


def reckonings_of(
    case: Case, ops: Mapping[str, tuple[OpChoice, ...]], ledger: Ledger
) -> dict[str, tuple[Calibration, ...]]:
    """The calibrations of each role, the roofline first; `ops` by role.

    What an option cannot answer for goes to the ledger, once.
    """
    read = case.facts.cost
    ledger.problems += read.problems
    found: dict[str, tuple[Calibration, ...]] = {}
    for role in case.roles:
        own = ROOFLINE
        if not read.problems:
            try:
                own = calibration_of(case.spec.cost, role.chip, read, role.option)
                own = with_own_kernels(own, case.spec.cost, role.chip, ops[role.name], case.config)
            except Refused as refused:
                ledger.problems += [problem for problem in refused.problems if problem not in ledger.problems]
        found[role.name] = (ROOFLINE,) if own.is_roofline else (ROOFLINE, own)
    return found
