"""A machine survives JSON unchanged; any other object is rejected in one sentence."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple, replace

from collbench.machine.model import Disagreement, Gpu, GpuLink, Machine, Nic, PciDevice, PcieLink, Port, System
from collbench.machine.readers.text import Unreadable
from collbench.machine.snapshot import from_json, machines_of, to_json, topology_json
from tests.machine.any_machine import MACHINES

NODE = Machine(
    hostname="node1", sources=("sysfs", "nvml"),
    system=System(architecture="x86_64", threads=96, peer_memory=("nvidia_peermem",), iommu="passthrough"),
    pci=(PciDevice("0000:19:00.0", "gpu", "0000:18:00.0", link=PcieLink(32.0, 16, 32.0, 16), acs=()),),
    gpus=(Gpu("0000:19:00.0", 0, "0000:19:00.0", "nvidia", uuid="GPU-1"),),
    gpu_links=(GpuLink("0000:19:00.0", "switch", 18, bytes_per_s=25e9),),
    nics=(Nic("mlx5_0", rdma=True, ports=(Port(rate_bits_per_s=4e11, lid=7, counters={"symbol_error": 3}),), guid="a1"),),
    paths={("0000:19:00.0", "mlx5_0"): "PIX"}, unknown={"system/kernel": "not in this file"},
    disagreements=(Disagreement("gpus/0000:19:00.0/numa", "0", "sysfs", "1", "nvml"),),
    doubts=("read in a container",),
)  # fmt: skip


@settings(max_examples=40)
@given(MACHINES.filter(lambda machine: "nan" not in repr(astuple(machine)) and "inf" not in repr(astuple(machine))))
def test_any_machine_comes_back_the_same(machine: Machine) -> None:
    assert from_json(json.loads(json.dumps(to_json(machine)))) == machine


def test_it_is_plain_json_with_the_models_names() -> None:
    plain = to_json(NODE)
    assert plain["gpus"][0] == {
        "key": "0000:19:00.0", "index": 0, "address": "0000:19:00.0", "vendor": "nvidia", "model": None, "architecture": None,
        "numa": None, "memory_bytes": None, "links_off": None, "uuid": "GPU-1", "memory_numa": None, "c2c_links": None,
        "c2c_bytes_per_s": None, "cpu_links": None, "cpu_link_bytes_per_s": None, "clique": None,
    }  # fmt: skip
    assert plain["paths"] == [["0000:19:00.0", "mlx5_0", "PIX"]]
    assert plain["system"]["kernel"] is None and plain["nics"][0]["ports"][0]["counters"] == {"symbol_error": 3}
    assert from_json(plain) == NODE


@pytest.mark.parametrize(("path", "value", "expected"), [
    ("hostname", 7, "machine/hostname is not a text"), ("system/threads", "96", "machine/system/threads is not a whole number"),
    ("system/threads", True, "machine/system/threads is not a whole number"),
    ("system/iommu", "on", "machine/system/iommu is not one of off, passthrough, translating"),
    ("pci/0/link/speed_gt_per_s", float("nan"), "machine/pci/0/link/speed_gt_per_s is not a number"),
    ("pci/0/link/speed_gt_per_s", 10**400, "machine/pci/0/link/speed_gt_per_s is not a number"),
    ("pci/0/virtual", 1, "machine/pci/0/virtual is not true or false"), ("gpus", {"0": 1}, "machine/gpus is not a list"),
    ("gpus/0/vram", 1, "machine/gpus/0/vram is not known"),
    ("paths", [["a", "PIX"]], "machine/paths is not a list of [a, b, value]"),
    ("nics/0/ports/0/counters", [1], "machine/nics/0/ports/0/counters is not an object"),
    ("nics/0", None, "machine/nics/0 is not an object"),
])  # fmt: skip
def test_a_foreign_value_is_named(path: str, value: object, expected: str) -> None:
    data = at = json.loads(json.dumps(to_json(NODE)))
    *way, last = [int(step) if step.isdigit() else step for step in path.split("/")]
    for step in way:
        at = at[step]
    at[last] = value
    with pytest.raises(Unreadable) as refused:
        from_json(data)
    assert f": {expected}: " in str(refused.value)


def test_a_machine_from_before_a_field_was_added_is_read_and_a_missing_field_is_named() -> None:
    data = to_json(NODE)
    for field in ("acs_ports", "acs_on"):
        del data["system"][field]
    for field in ("lanes", "max_lanes", "guid"):
        del data["nics"][0]["ports"][0][field]
    del data["nics"][0]["card_guid"]
    assert from_json(data) == NODE
    del data["system"]["kernel"]
    with pytest.raises(Unreadable, match="machine/system/kernel"):
        from_json(data)
    del data["nics"]
    with pytest.raises(Unreadable, match="machine/nics is not there"):
        from_json({**data, "system": to_json(NODE)["system"]})


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text() | st.integers(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)
)


@settings(max_examples=80)
@given(st.sampled_from(list(to_json(NODE))), ANY_JSON)
def test_any_value_in_any_place_is_read_or_refused(name: str, value: Any) -> None:
    try:
        assert isinstance(from_json({**to_json(NODE), name: value}), Machine)
    except Unreadable as refused:
        assert "\n" not in str(refused)


def test_equal_machines_of_a_cluster_appear_once_with_their_names() -> None:
    other = replace(NODE, hostname="node2", gpus=(replace(NODE.gpus[0], uuid="GPU-2"),))
    document = topology_json([NODE, replace(NODE, hostname="node3", gpus=()), other])
    assert document["schema"] == 1
    assert [entry["hostnames"] for entry in document["machines"]] == [["node1", "node2"], ["node3"]]
    both = document["machines"][0]  # what distinguishes equal machines is unknown, not one of them
    port = both["nics"][0]["ports"][0]
    assert (both["gpus"][0]["uuid"], both["nics"][0]["guid"], port["lid"], port["counters"]) == (None, None, None, {})


def test_reading_spreads_the_names_again_and_a_machine_alone_is_kept_whole() -> None:
    machines = [replace(NODE, hostname=f"node{n}") for n in range(3)]
    assert [machine.hostname for machine in machines_of(topology_json(machines), "t")] == ["node0", "node1", "node2"]
    assert machines_of(json.loads(json.dumps(topology_json([NODE]))), "topology.json") == [NODE]


@pytest.mark.parametrize(
    "document", [None, [], {}, {"schema": 2, "machines": [{}]}, {"schema": 1, "machines": []}, {"schema": 1, "machines": [1]}]
)
def test_another_document_is_refused(document: object) -> None:
    with pytest.raises(Unreadable, match=r"x\.json is JSON, but no"):
        machines_of(document, "x.json")


def test_nodes_whose_kernels_keep_some_more_memory_are_equal_and_one_that_lost_a_module_is_not() -> None:
    sizes = [2_113_000_000_000, 2_112_999_500_000, 1_980_000_000_000]
    nodes = [replace(NODE, hostname=f"node{i}", system=replace(NODE.system, memory_bytes=size)) for i, size in enumerate(sizes)]
    entries = [(entry["hostnames"], entry["system"]["memory_bytes"]) for entry in topology_json(nodes)["machines"]]
    assert entries == [(["node0", "node1"], sizes[0]), (["node2"], sizes[2])]
