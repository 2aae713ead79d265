"""Who starts the ranks of a plan: what its files need to know beside the plan itself."""

from deepinfer.config.leaves import Component


class Launcher(Component, frozen=True, kw_only=True):
    """Who starts the ranks."""


class LocalLauncher(Launcher, frozen=True, kw_only=True, tag="local"):
    pass


class TorchrunLauncher(Launcher, frozen=True, kw_only=True, tag="torchrun"):
    pass


class SlurmLauncher(Launcher, frozen=True, kw_only=True, tag="slurm"):
    pass


class RayLauncher(Launcher, frozen=True, kw_only=True, tag="ray"):
    pass


class KubernetesLauncher(Launcher, frozen=True, kw_only=True, tag="kubernetes"):
    pass
