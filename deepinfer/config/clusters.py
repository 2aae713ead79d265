"""A site: what its machines are called, how they are joined, and whether this combination has ever run there."""

from deepinfer.config.leaves import Component


class Cluster(Component, frozen=True, kw_only=True):
    """Site facts and a verified combination."""


class NoCluster(Cluster, frozen=True, kw_only=True, tag="none"):
    pass
