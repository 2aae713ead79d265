"""Which link joins ranks, and what of their traffic it carries."""

from msgspec import Struct

from deepinfer.config.chips import Chip

MEMORY = "shared_memory"  # through which ranks of one processor talk


class Group(Struct, frozen=True, kw_only=True):
    """One replica of a role as a cost model sees it; see `config/specs.py: Parallel` for the degrees."""

    chip: Chip
    num_ranks: int = 1
    context: int = 1
    expert: int = 1
    redundant_experts: int = 0
    engram: str = "replicated"  # or sharded, or host
    sharers: int = 1  # ranks that share one device's compute and bandwidth: processes on a CPU


class Route(Struct, frozen=True, kw_only=True):
    """One link and the share of the other ranks that are reached over it."""

    link: str
    bytes_per_s: float
    share: float


def routes(chip: Chip, ranks: int) -> tuple[Route, ...]:
    """How a rank reaches the other ranks of its group: those of its domain by the domain's link, others by a wider one.

    Which link that is depends on what it joins, never on its speed, so that no faster link slows anything down.
    """
    if ranks <= 1:
        return ()
    joining = sorted((link.devices, link.value, name) for name, link in chip.links.items() if link.devices > 1)
    if not joining:
        return (Route(link=MEMORY, bytes_per_s=chip.memory_bandwidth_bytes_per_s.value, share=1.0),)
    whole = next((link for link in joining if link[0] >= ranks), joining[-1])
    devices, speed, name = joining[0]
    _, far_speed, far = whole
    if whole == joining[0]:
        return (Route(link=name, bytes_per_s=speed, share=1.0),)
    beyond = (ranks - devices) / (ranks - 1)
    near = Route(link=name, bytes_per_s=speed, share=1 - beyond)
    return (near, Route(link=far, bytes_per_s=far_speed, share=beyond))


def host_route(chip: Chip) -> Route:
    """The way from a host's memory to its device."""
    link = chip.links.get("host")
    if link is None:
        return Route(link=MEMORY, bytes_per_s=chip.memory_bandwidth_bytes_per_s.value, share=1.0)
    return Route(link="host", bytes_per_s=link.value, share=1.0)


def widest_route(chip: Chip) -> Route:
    """The link that joins most devices: the way from a prefill rank to a decode rank."""
    joining = [(link.devices, link.value, name) for name, link in chip.links.items() if link.devices > 1]
    if not joining:
        return Route(link=MEMORY, bytes_per_s=chip.memory_bandwidth_bytes_per_s.value, share=1.0)
    _, speed, name = max(joining)
    return Route(link=name, bytes_per_s=speed, share=1.0)


def remote_ranks(experts: int, chosen: int, ranks: int) -> float:
    """Other ranks that hold at least one of a row's experts, on average, when every choice is as likely."""
    if ranks <= 1:
        return 0.0
    held, missed = experts / ranks, 1.0
    for drawn in range(chosen):  # without replacement
        missed *= max(0.0, experts - held - drawn) / (experts - drawn)
    return (ranks - 1) * (1 - missed)
