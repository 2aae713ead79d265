"""Which Structs a group's `kind` may name: our own, listed here, and those of the entry-point group below."""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from deepinfer.config import balancers, chips, clusters, costs, launchers, specs, surroundings, sweeps, tasks, workloads
from deepinfer.config.leaves import Component
from deepinfer.config.serving import Serving

ENTRY_POINTS = "deepinfer.components"  # an entry's name is the tag, its value a Struct derived from a group's base

BUILT_IN: dict[type[Component], tuple[type[Component], ...]] = {
    tasks.Task: (
        tasks.Generate,
        tasks.Plan,
        tasks.Doctor,
        tasks.Serve,
        tasks.Chat,
        tasks.Bench,
        tasks.Simulate,
        tasks.Tune,
        tasks.Launch,
        tasks.Rank,
        tasks.RunBatch,
    ),
    specs.Model: (specs.Model,),
    chips.Hardware: (
        chips.AutoHardware,
        chips.SameHardware,
        chips.CpuChip,
        chips.CudaChip,
        chips.AscendChip,
        chips.VirtualChip,
    ),
    specs.Parallel: (specs.Parallel,),
    balancers.Balancer: (balancers.StaticBalancer, balancers.Eplb),
    specs.Deploy: (specs.Colocated, specs.Disaggregated),
    specs.Speculation: (specs.NoSpeculation, specs.DSpark, specs.DSparkFixed, specs.Ngram),
    specs.Sampling: (specs.Sampling,),
    specs.Replay: (specs.NoReplay, specs.MaskReplay, specs.CompactReplay),
    specs.Scheduler: (specs.Scheduler,),
    surroundings.Executor: (
        surroundings.AutoExecutor,
        surroundings.LocalExecutor,
        surroundings.DistributedExecutor,
        surroundings.SimulatedExecutor,
    ),
    specs.Cache: (specs.PagedCache, specs.PrefixCache),
    specs.Kernels: (
        specs.AutoKernels,
        specs.ReferenceKernels,
        specs.NativeKernels,
        specs.TritonKernels,
        specs.DeepseekKernels,
    ),
    surroundings.Grammar: (surroundings.NoGrammar, surroundings.Llguidance, surroundings.Xgrammar),
    Serving: (Serving,),
    workloads.Workload: (workloads.SteadyWorkload, workloads.TraceWorkload),
    costs.Cost: (costs.RooflineCost, costs.CalibratedCost, costs.MeasuredCost, costs.AiconfiguratorCost),
    launchers.Launcher: (
        launchers.LocalLauncher,
        launchers.TorchrunLauncher,
        launchers.SlurmLauncher,
        launchers.RayLauncher,
        launchers.KubernetesLauncher,
    ),
    clusters.Cluster: (clusters.NoCluster, clusters.SiteCluster),
    sweeps.Sweep: (sweeps.NoSweep, sweeps.Search),
}


def find_struct(base: type[Component], tag: str) -> type[Component] | None:
    """The Struct that `kind: tag` means in the group of `base`; None when nobody has that tag.

    Installed packages are looked through only for tags that are not ours. Raises ValueError when such a package
    declares the tag and cannot deliver it.
    """
    ours = {struct.__struct_config__.tag: struct for struct in BUILT_IN[base]}
    if tag in ours:
        return ours[tag]
    theirs = [_load(entry) for entry in _declared() if entry.name == tag]
    fitting = [struct for struct in theirs if issubclass(struct, base)]
    if len(fitting) > 1:
        names = " and ".join(f"{struct.__module__}:{struct.__qualname__}" for struct in fitting)
        raise ValueError(f"{names} both claim the kind {tag!r}")
    return fitting[0] if fitting else None


def known_tags(base: type[Component]) -> list[str]:
    """Every tag that a hint may name: ours, then what installed packages declare (for whatever group)."""
    return [str(struct.__struct_config__.tag) for struct in BUILT_IN[base]] + [entry.name for entry in _declared()]


def _declared() -> list[EntryPoint]:
    return list(entry_points(group=ENTRY_POINTS))


def _load(entry: EntryPoint) -> type[Component]:
    declared = f"the installed component {entry.name} = {entry.value}"
    try:
        struct: Any = entry.load()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{declared} does not load: {error}") from error
    if not (isinstance(struct, type) and issubclass(struct, Component) and issubclass(struct, tuple(BUILT_IN))):
        raise ValueError(f"{declared} is not derived from a group's base")
    if struct.__struct_config__.tag != entry.name:
        raise ValueError(f"{declared} has tag={struct.__struct_config__.tag!r}")
    return struct
