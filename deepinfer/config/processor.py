"""Which kind of machine this is: the same on every node and in every container of that kind."""

import re

from deepinfer.config.machine import Host, Machine

FIELDS = ("model name", "vendor_id", "cpu family", "model", "CPU implementer", "CPU part")  # of x86, then of ARM


def machine_type(machine: Machine | None = None) -> str:
    """Architecture, processor and number of usable cores, such as "x86_64, AMD EPYC 9654, AuthenticAMD, 25, 17, 8 cores".

    Host names say nothing here: they change from pod to pod.
    """
    machine = machine or Host()
    lines = re.findall(r"^([^:\n]+?)\s*:[ \t]*(.*?)[ \t]*$", machine.read("/proc/cpuinfo") or "", re.MULTILINE)
    first = {name: value for name, value in reversed(lines)}
    known = [first[name] for name in FIELDS if first.get(name)]
    return ", ".join([machine.architecture, *known, f"{machine.cores} cores"])
