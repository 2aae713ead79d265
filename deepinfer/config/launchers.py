"""Who starts the ranks of a plan: what its files need to know beside the plan itself."""

from typing import Annotated, Literal

from msgspec import Meta

from deepinfer.config.leaves import Auto, Bytes, Component, Positive, Seconds, Text

Port = Annotated[int, Meta(ge=1, le=65535, extra={"like": 29500})]


class Launcher(Component, frozen=True, kw_only=True):
    """Who starts the ranks. Its implementation is a function that makes a `Rendered` of a `Job` (deepinfer.plan.launch.job)."""

    env: dict[str, int | str]  # variables that every rank gets, name by name; no secrets: they end up in files
    master_port: Port  # where the ranks of the first replica meet; each further replica takes the next port


class LocalLauncher(Launcher, frozen=True, kw_only=True, tag="local"):
    implementation = "deepinfer.plan.launch.local:render"
    python: Text | None  # interpreter that runs the ranks; null, for local only, is the one that writes the files


class TorchrunLauncher(Launcher, frozen=True, kw_only=True, tag="torchrun"):
    implementation = "deepinfer.plan.launch.torchrun:render"
    python: Text  # interpreter on the nodes
    setup: Text | None  # a shell line that every node runs first, such as source /opt/venv/bin/activate


class SlurmLauncher(Launcher, frozen=True, kw_only=True, tag="slurm"):
    implementation = "deepinfer.plan.launch.slurm:render"
    python: Text  # interpreter on the nodes
    setup: Text | None  # a shell line that every node runs first
    partition: Text | None  # of the jobs; null is the site's default
    role_partitions: dict[str, str]  # role → partition, where a role has other nodes: {decode: npu}
    account: Text | None  # that the jobs are charged to
    time: Text | None  # limit of a job as Slurm writes it, such as 1-00:00:00; null is the partition's
    gres: Text | None  # generic resource of one device; null is what the plan's hardware has: gpu or npu
    exclusive: bool  # whether a job has its nodes to itself; false shares them
    cpus_per_task: Positive | None  # cores of a rank; null: every rank may use all cores that its node gives the job
    mem: Text | None  # memory of a node as Slurm writes it, such as 480G; 0 is all of it, null the site's default
    image: Text | None  # container image in which ranks run, by the plugin pyxis; null runs them on the node itself
    role_images: dict[str, str]  # role → image, where a role has other devices: {decode: registry/deepinfer-cann:1}
    container_mounts: tuple[Annotated[str, Meta(min_length=1)], ...]  # more folders in the container, as /node:/inside
    options: tuple[Annotated[str, Meta(min_length=1)], ...]  # more options of sbatch, such as --qos=high


class RayLauncher(Launcher, frozen=True, kw_only=True, tag="ray"):
    implementation = "deepinfer.plan.launch.ray:render"
    python: Text  # interpreter on the nodes
    address: Text  # of the Ray cluster; auto is the one that the driver runs in
    wait_s: Seconds  # how long the driver waits for its nodes


class KubernetesLauncher(Launcher, frozen=True, kw_only=True, tag="kubernetes"):
    implementation = "deepinfer.plan.launch.kubernetes:render"
    python: Text  # interpreter on the nodes
    name: Text  # what the names of all objects begin with
    namespace: Text | None  # null is that of the current context
    image: Text | None  # container image that has deepinfer; there is no public one, so it must be given
    role_images: dict[str, str]  # role → image, where a role has other devices: {decode: registry/deepinfer-cann:1}
    model_claim: (
        Text | None
    )  # PersistentVolumeClaim for the model; without this and model_host_path each pod fetches it
    model_host_path: Text | None  # folder of every node for the model, such as /srv/models
    env_secret: Text | None  # Secret whose entries become variables of every rank, such as HF_TOKEN
    file_secret: (
        Text | None
    )  # Secret whose entries become files in /etc/deepinfer-secrets, such as that of serving.api_keys
    device: Text | Auto  # resource name of one device; auto goes by the hardware
    resources: dict[str, Positive]  # more resources of a pod, such as rdma/hca: 8
    topology_key: (
        Text | Literal["auto", "none"]
    )  # node label whose value no replica may straddle; auto goes by hardware
    shm_bytes: Bytes  # shared memory of a pod
    cpus_per_rank: Positive | None  # cores that a pod requests for each of its ranks; null requests none
    memory_bytes_per_rank: (
        Bytes | None
    )  # memory that a pod requests for each rank, beside what the plan holds on the host
    host_network: bool  # whether pods use the network of their node: for RDMA where it is no resource of a plugin
    ipc_lock: bool | Auto  # the right to lock memory, which RDMA needs; auto: with host_network, or an rdma resource
