"""Environment variables of others. This is the only file that reads any; none of ours exists."""

import os
from collections.abc import Mapping

from msgspec import Struct

OF_A_RANK = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")


class Foreign(Struct, frozen=True, kw_only=True):
    """What other programs' variables say about this process. None is unset; a number that does not parse is, too."""

    hf_home: str | None = None  # cache folder of huggingface_hub
    hf_endpoint: str | None = None
    hf_offline: bool = False
    hf_token_set: bool = False  # never the token itself
    xdg_cache_home: str | None = None  # where programs keep what they can make again; ~/.cache where unset
    rank: int | None = None  # torchrun's rank of this process, all nodes together
    local_rank: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    own_address: bool = False  # a pod of a LeaderWorkerSet: no other replica has its address
    agent_store: bool = False  # torchrun's agent keeps the store at master_addr and master_port
    gloo_interface: str = ""  # network interface that ranks are to meet over
    cuda_visible_devices: str | None = None
    ascend_visible_devices: str | None = None
    cuda_home: str | None = None
    ascend_home: str | None = None  # set by CANN's set_env.sh
    no_color: bool = False  # https://no-color.org: set and not empty
    comp_line: str = ""  # the line that a shell is completing,
    comp_point: int | None = None  # and where in it the cursor stands
    not_numbers: dict[str, str] = {}  # variables of a rank that are set, and to no whole number


def foreign(environ: Mapping[str, str] | None = None) -> Foreign:
    """Read them now; `environ` stands in for the process's own in tests."""
    env = os.environ if environ is None else environ
    return Foreign(
        hf_home=env.get("HF_HOME"),
        hf_endpoint=env.get("HF_ENDPOINT"),
        hf_offline=env.get("HF_HUB_OFFLINE", "").strip().lower() in ("1", "true", "yes", "on"),
        hf_token_set=bool(env.get("HF_TOKEN")),
        xdg_cache_home=env.get("XDG_CACHE_HOME"),
        rank=_number(env, "RANK"),
        local_rank=_number(env, "LOCAL_RANK"),
        world_size=_number(env, "WORLD_SIZE"),
        local_world_size=_number(env, "LOCAL_WORLD_SIZE"),
        master_addr=env.get("MASTER_ADDR"),
        master_port=_number(env, "MASTER_PORT"),
        own_address=bool(env.get("LWS_LEADER_ADDRESS")),
        agent_store=env.get("TORCHELASTIC_USE_AGENT_STORE", "").strip().lower() == "true",
        gloo_interface=env.get("GLOO_SOCKET_IFNAME", ""),
        cuda_visible_devices=env.get("CUDA_VISIBLE_DEVICES"),
        ascend_visible_devices=env.get("ASCEND_RT_VISIBLE_DEVICES"),
        cuda_home=env.get("CUDA_HOME") or env.get("CUDA_PATH"),
        ascend_home=env.get("ASCEND_HOME_PATH") or env.get("ASCEND_TOOLKIT_HOME"),
        no_color=bool(env.get("NO_COLOR")),
        comp_line=env.get("COMP_LINE", ""),
        comp_point=_number(env, "COMP_POINT"),
        not_numbers={name: env[name] for name in OF_A_RANK if env.get(name, "").strip() and _number(env, name) is None},
    )


def for_child(root: str, **more: str) -> dict[str, str]:
    """Variables of a process that this one starts: its own and `more`; modules are looked for in `root` first."""
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, **more}


def settle_nccl() -> None:
    """How NCCL is to work in this process from its first group on, unless somebody has said otherwise: ranks capture graphs at
    different times, so that nothing may be agreed upon in the midst of a capture, as buffers of graphs and multicast are."""
    for name in ("NCCL_GRAPH_REGISTER", "NCCL_NVLS_ENABLE"):
        os.environ.setdefault(name, "0")


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "").strip()
    return int(text) if text.isdecimal() else None
