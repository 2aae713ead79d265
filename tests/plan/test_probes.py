"""Probes on faked machines: every fact from the file or tool that tells it, and nothing where nothing does."""

import pytest

from deepinfer.config.env import Foreign, foreign
from deepinfer.config.facts import chip_sheets, hardware_options, is_chip, match_option
from deepinfer.config.machine import Host
from deepinfer.config.probes import Device, probe_machine

MIB = 2**20
SMI = "nvidia-smi --query-gpu=name,memory.total,memory.free,compute_cap,driver_version"
TWO_H200 = "NVIDIA H200, 143771, 143000, 9.0, 580.159.03\nNVIDIA H200, 143771, 100, 9.0, 580.159.03\n"
NPU_TABLE = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 25.7.rc1                 Version: 25.7.rc1                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     Ascend950DT_9582    | OK            | 178.5       36                0    / 0             |
| 0     0                   | 0000:9D:00.0  | 0           0    / 0          3416 / 137216        |
+------------------------------------------------------------------------------------------------+
| 1     Ascend950DT_9582    | OK            | -           36                0    / 0             |
| 1     1                   | 0000:9F:00.0  | 0           0    / 0          3195 / 137216        |
+===========================+===============+====================================================+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
| 0       0                 | 950123        | python3                  | 12417                   |
+===========================+===============+====================================================+
"""
ONE_LINE_TABLE = """\
| NPU ID | Name             | Health | Power(W) | Temp(C) | HBM-Usage(MB)   |
| 0      | Ascend950PR_9589 | OK     | 178.5    | 36      | 3416 / 122880   |
| NPU ID | Process id | Process name | Process memory(MB) |
| No running processes found in NPU 0 |
"""


def test_a_bare_laptop(laptop: object) -> None:
    facts = probe_machine(laptop)  # type: ignore[arg-type]
    assert (facts.cores, facts.memory_bytes, facts.available_bytes) == (8, 2**34, 2**34)
    assert facts.devices == () and facts.toolkits == {}
    assert facts.libraries["torch"] == "2.13.0"


def test_this_machine_can_be_probed() -> None:
    facts = probe_machine(Host())
    assert facts.cores >= 1 and facts.python.startswith("3.")
    assert 0 < facts.available_bytes <= facts.memory_bytes
    assert facts.libraries["msgspec"]


def test_nvidia(machine: type) -> None:
    facts = probe_machine(machine(files={"/dev/nvidia0": "", "/dev/nvidia1": ""}, commands={SMI: TWO_H200}))
    assert [device.name for device in facts.devices] == ["NVIDIA H200"] * 2
    assert facts.devices[1] == Device(
        vendor="nvidia",
        name="NVIDIA H200",
        memory_bytes=143771 * MIB,
        free_bytes=100 * MIB,
        compute_capability="9.0",
    )
    assert facts.toolkits["driver"] == "580.159.03"


def test_the_tool_is_not_asked_without_a_device_node(machine: type) -> None:
    assert probe_machine(machine(commands={SMI: TWO_H200})).devices == ()


def test_a_device_node_without_its_tool(machine: type) -> None:
    assert probe_machine(machine(files={"/dev/nvidia0": "", "/dev/davinci0": ""})).devices == ()


@pytest.mark.parametrize(
    ("table", "names", "memory_mib"),
    [(NPU_TABLE, ["Ascend950DT_9582"] * 2, 137216), (ONE_LINE_TABLE, ["Ascend950PR_9589"], 122880)],
    ids=["two lines a chip", "one line a chip"],
)
def test_ascend(machine: type, table: str, names: list[str], memory_mib: int) -> None:
    facts = probe_machine(machine(files={"/dev/davinci0": ""}, commands={"npu-smi info": table}))
    assert [device.name for device in facts.devices] == names
    assert {device.memory_bytes for device in facts.devices} == {memory_mib * MIB}
    assert all(0 < device.free_bytes < device.memory_bytes for device in facts.devices)


@pytest.mark.parametrize(
    ("visible", "count"), [(None, 2), ("0", 1), ("1,0", 2), ("", 0), ("-1", 0), ("0,7,1", 1), ("GPU-8f2a", 2)]
)
def test_visible_devices(machine: type, visible: str | None, count: int) -> None:
    fake = machine(files={"/dev/nvidia0": ""}, commands={SMI: TWO_H200}, foreign=Foreign(cuda_visible_devices=visible))
    assert len(probe_machine(fake).devices) == count


@pytest.mark.parametrize(
    ("files", "foreign_home", "version"),
    [
        (
            {"/usr/local/Ascend/cann/x86_64-linux/ascend_toolkit_install.info": "package\nversion=9.2.0\n"},
            None,
            "9.2.0",
        ),
        (
            {"/usr/local/Ascend/ascend-toolkit/latest/x86_64-linux/ascend_toolkit_install.info": "version=8.5.RC1\n"},
            None,
            "8.5.RC1",
        ),
        ({"/opt/cann/x86_64-linux/ascend_toolkit_install.info": "version=9.3.0\n"}, "/opt/cann", "9.3.0"),
        ({"/usr/local/Ascend/cann/aarch64-linux/ascend_toolkit_install.info": "version=9.2.0\n"}, None, None),
    ],
)
def test_cann(machine: type, files: dict[str, str], foreign_home: str | None, version: str | None) -> None:
    fake = machine(files=files, foreign=Foreign(ascend_home=foreign_home))
    assert probe_machine(fake).toolkits.get("cann") == version


@pytest.mark.parametrize(
    ("commands", "toolkit", "version"),
    [
        ({"gcc -dumpfullversion": "13.3.0\n"}, "gcc", "13.3.0"),
        ({"nvcc --version": "Cuda compilation tools, release 13.0, V13.0.88\n"}, "cuda", "13.0"),
        ({}, "gcc", None),
        ({}, "cuda", None),
    ],
)
def test_compilers(machine: type, commands: dict[str, str], toolkit: str, version: str | None) -> None:
    assert probe_machine(machine(commands=commands)).toolkits.get(toolkit) == version


@pytest.mark.parametrize(
    ("files", "total", "available"),
    [
        ({"/sys/fs/cgroup/memory.max": "max\n"}, 2**34, 2**34),
        ({"/sys/fs/cgroup/memory.max": f"{2**32}\n", "/sys/fs/cgroup/memory.current": f"{2**30}\n"}, 2**32, 3 * 2**30),
        ({"/sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2**31}\n"}, 2**31, 2**31),
        ({"/sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2**63 - 4096}\n"}, 2**34, 2**34),
        ({"/sys/fs/cgroup/memory.max": f"{2**40}\n"}, 2**34, 2**34),
    ],
    ids=["no limit", "v2", "v1", "v1 no limit", "above the machine"],
)
def test_a_container_has_its_limit(machine: type, files: dict[str, str], total: int, available: int) -> None:
    facts = probe_machine(machine(files=files))
    assert (facts.memory_bytes, facts.available_bytes) == (total, available)


def test_a_machine_that_tells_no_memory(machine: type) -> None:
    facts = probe_machine(machine(files={"/proc/meminfo": ""}))
    assert (facts.memory_bytes, facts.available_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H200 NVL", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA GB300", "gb300"),
        ("Ascend950DT_9582", "ascend950dt"),
        ("Ascend950PR", "ascend950pr"),
        ("NVIDIA A100-SXM4-80GB", None),
        ("NVIDIA H20", None),
        ("NVIDIA GH200 480GB", None),
        ("Ascend910B3", None),
    ],
)
def test_devices_and_hardware_options(name: str, option: str | None) -> None:
    assert match_option(Device(vendor="any", name=name), hardware_options()) == option


@pytest.mark.parametrize(
    ("name", "chips"),
    [
        ("NVIDIA H100 80GB HBM3", {"NVIDIA H100 SXM"}),
        ("NVIDIA H200", {"NVIDIA H200 SXM"}),
        ("NVIDIA GB200", {"NVIDIA GB200 NVL72"}),
        ("NVIDIA B200", {"NVIDIA B200"}),
        ("NVIDIA GH200 480GB", set()),
    ],
)
def test_a_device_is_one_chip(name: str, chips: set[str]) -> None:
    device = Device(vendor="nvidia", name=name, compute_capability="9.0")
    sheets = chip_sheets().values()
    assert {
        sheet["name"] for sheet in sheets if is_chip(device, sheet["name"], sheet["architecture"]["value"])
    } == chips


def test_ascend950_is_the_chip_that_it_stands_for() -> None:
    device = Device(vendor="huawei", name="950DT")
    sheets = {option: sheet for option, sheet in chip_sheets().items() if sheet["kind"] == "ascend"}
    fitting = {option for option, sheet in sheets.items() if is_chip(device, sheet["name"], "ascend950")}
    assert fitting == {"ascend950", "ascend950dt"}


def test_a_chip_of_the_users_own_goes_by_its_architecture() -> None:
    device = Device(vendor="nvidia", name="NVIDIA H20", compute_capability="9.0")
    assert is_chip(device, "NVIDIA H20 96 GB", "sm90") and not is_chip(device, "NVIDIA H20 96 GB", "sm100")


def test_environment_of_others() -> None:
    env = {
        "RANK": "3",
        "WORLD_SIZE": "sixteen",
        "HF_HUB_OFFLINE": "1",
        "HF_TOKEN": "secret",
        "NO_COLOR": "",
        "CUDA_VISIBLE_DEVICES": "",
        "CUDA_PATH": "/opt/cuda",
    }
    found = foreign(env)
    assert (found.rank, found.world_size, found.hf_offline, found.hf_token_set) == (3, None, True, True)
    assert (found.no_color, found.cuda_visible_devices, found.cuda_home) == (False, "", "/opt/cuda")
    assert "secret" not in repr(found)
    assert foreign({}) == Foreign()


def test_sheets_read_here_are_what_hydra_composes() -> None:
    from hydra import compose
    from omegaconf import OmegaConf

    from deepinfer.config.compose import hydra_of_our_own

    sheets = chip_sheets()
    assert sorted(sheets) == hardware_options()
    with hydra_of_our_own():
        for option, sheet in sheets.items():
            assert OmegaConf.to_container(compose(f"hardware/{option}"))["hardware"] == sheet  # type: ignore[call-overload, index]
