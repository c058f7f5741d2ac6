"""The odd nodes of a cluster are named against the majority."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from collbench.machine.cluster import differences
from collbench.machine.model import SWITCH, Gpu, GpuLink, Machine, Nic, Port, System
from tests.machine.any_machine import MACHINES

GIB = 1 << 30
SYSTEM = System(kernel="6.8.0", driver="570.1", threads=96, memory_bytes=2000 * GIB, peer_memory=("nvidia_peermem",))
GPUS = tuple(Gpu(f"gpu{n}", n, model="H100") for n in range(8))
LINKS = tuple(GpuLink(gpu.key, SWITCH, 18) for gpu in GPUS)
NIC = Nic("mlx5_0", rdma=True, model="MT4129", firmware="28.1", ports=(Port(rate_bits_per_s=4e11, state="active", mtu_bytes=4096),))


def node(number: int, **changes: Any) -> Machine:
    facts: dict[str, Any] = {"system": SYSTEM, "gpus": GPUS, "gpu_links": LINKS, "nics": (NIC,)}
    return Machine(hostname=f"node{number:02d}", **{**facts, **changes})


def nodes(count: int, **odd: Any) -> list[Machine]:
    """`count` nodes, of which node07 is odd."""
    return [node(number, **(odd if number == 7 else {})) for number in range(count)]


def port(**changes: Any) -> tuple[Nic, ...]:
    return (replace(NIC, ports=(replace(NIC.ports[0], **changes),)),)


NO_DRIVER = {"gpus": "no NVIDIA driver"}
SEVEN_WHOLE = "18 NVLinks on GPU 1, 2, 3, 4, 5, 6, 7"
ONE_LINK_LOST = (GpuLink("gpu0", SWITCH, 17), *LINKS[1:])


@pytest.mark.parametrize(("odd", "expected"), [
    ({"gpus": GPUS[:7]}, "node07 has 7 GPUs, the other 31 have 8 GPUs"),
    ({"gpus": (), "gpu_links": (), "unknown": NO_DRIVER}, "node07 has no GPUs that it can detect, the other 31 have 8 GPUs"),
    ({"gpu_links": ONE_LINK_LOST}, f"node07 has 17 NVLinks on GPU 0, {SEVEN_WHOLE}, the other 31 have 18 NVLinks per GPU"),
    ({"system": replace(SYSTEM, kernel="6.5.0")}, "node07 has kernel 6.5.0, the other 31 have kernel 6.8.0"),
    ({"system": replace(SYSTEM, driver="550.2")}, "node07 has GPU driver 550.2, the other 31 have GPU driver 570.1"),
    ({"system": replace(SYSTEM, peer_memory=())}, "node07 has peer memory none, the other 31 have peer memory nvidia_peermem"),
    ({"system": replace(SYSTEM, memory_bytes=1875 * GIB)}, "node07 has 1875 GiB of memory, the other 31 have 2000 GiB of memory"),
    ({"nics": ()}, "node07 has no RDMA devices, the other 31 have 1 RDMA device"),
    ({"nics": (replace(NIC, firmware="28.0"),)}, "node07 has NIC firmware 28.0 (MT4129), the other 31 have NIC firmware 28.1 (MT4129)"),
    ({"nics": port(rate_bits_per_s=2e11)}, "node07 has mlx5_0 at 200 Gb/s, the other 31 have mlx5_0 at 400 Gb/s"),
    ({"nics": port(mtu_bytes=1024)}, "node07 has mlx5_0 with MTU 1024, the other 31 have mlx5_0 with MTU 4096"),
    ({"nics": port(state="down", rate_bits_per_s=None)}, "node07 has mlx5_0 down, the other 31 have mlx5_0 active"),
])  # fmt: skip
def test_the_odd_node_is_named(odd: dict[str, Any], expected: str) -> None:
    assert expected in differences(nodes(32, **odd))


EQUAL = {
    "no nodes": [], "one node": nodes(1), "equal nodes": nodes(32),
    "unknown facts": nodes(32, system=replace(SYSTEM, kernel=None, memory_bytes=None)),
    "the kernel kept a little more memory": nodes(32, system=replace(SYSTEM, memory_bytes=1996 * GIB)),
    "a container's interface": nodes(32, nics=(NIC, Nic("veth3", virtual="veth", ports=(Port(mtu_bytes=1400),)))),
    "serial numbers": nodes(32, gpus=tuple(replace(gpu, uuid=f"GPU-{gpu.key}") for gpu in GPUS)),
}  # fmt: skip


@pytest.mark.parametrize("machines", EQUAL.values(), ids=EQUAL)
def test_what_is_no_difference(machines: list[Machine]) -> None:
    assert differences(machines) == []


def test_two_nodes_have_no_majority() -> None:
    pair = [node(1), node(2, gpus=GPUS[:7], gpu_links=LINKS[:7])]
    assert differences(pair) in (["node02 has 7 GPUs, node01 has 8 GPUs"], ["node01 has 8 GPUs, node02 has 7 GPUs"])


def test_sentences_are_short() -> None:
    one_kernel = replace(SYSTEM, kernel="6.5.0")
    assert differences(nodes(8, system=one_kernel)) == ["node07 has kernel 6.5.0, the other 7 have kernel 6.8.0"]  # reported once
    folded = [node(number, gpus=GPUS[: 7 if number < 10 or number == 40 else 8]) for number in range(64)]
    assert any("node[00-09,40] have 7 GPUs" in text for text in differences(folded))
    nameless = [replace(node(number), hostname=None) for number in range(3)]
    assert differences([*nameless[:2], replace(nameless[2], gpus=())])[0] == "machine 3 has no GPUs, the other 2 have 8 GPUs"
    (thousand,) = differences([node(number, system=replace(SYSTEM, kernel=f"6.{number % 300}")) for number in range(1024)])
    assert len(thousand) < 1500 and "in 291 other ways" in thousand


@settings(max_examples=40)
@given(st.lists(MACHINES, max_size=4))
def test_any_machines_give_single_lines(machines: list[Machine]) -> None:
    assert all("\n" not in printed for printed in differences([replace(machine, system=System()) for machine in machines]))
