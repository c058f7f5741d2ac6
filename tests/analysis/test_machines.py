"""What differs in each fresh allocation is not a change; one machine of many that changed is one."""

from __future__ import annotations

from typing import Any

import pytest

from collbench.analysis.differences import Difference, Item
from collbench.gate.allocation import Allocation
from collbench.gate.changes import changes

RATE = "nics mlx5_0 ports 1 rate_text"


def allocation(topology: dict[str, str], software: dict[str, str] | None = None, **facts: Any) -> Allocation:
    actual = {"topology": topology, "software": software or {}, **facts}
    return Allocation("night", "2026-11-20T03:00:00+00:00", 1, 0, (None,), actual, {})


def machine(number: int, rate: str = "400 Gb/sec (4X NDR)", **more: str) -> dict[str, str]:
    actual = {"system cpu_model": "EPYC", "numa_nodes 0 cpus": "0-31", RATE: rate, **more}
    return {f"machines {number} {what}": text for what, text in actual.items()}


def test_a_rate_that_changed_on_all_machines_is_one_change() -> None:
    found = changes(allocation(machine(0)), allocation(machine(0, "200 Gb/sec (2X NDR)")))
    assert found == [Difference(Item.of("topology", f"machines 0 {RATE}"), "400 Gb/sec (4X NDR)", "200 Gb/sec (2X NDR)")]


def test_one_machine_of_many_is_compared_with_what_it_was() -> None:
    slow = "200 Gb/sec (2X NDR)"
    found = changes(allocation(machine(0)), allocation({**machine(0), **machine(1, slow)}))
    assert [(each.a, each.b) for each in found] == [("400 Gb/sec (4X NDR)", slow)]
    mended = changes(allocation({**machine(0), **machine(1, slow)}), allocation(machine(0)))
    assert [(each.a, each.b) for each in mended] == [(slow, "400 Gb/sec (4X NDR)")]


@pytest.mark.parametrize("read", [{"nics mlx5_0 rdma_missing": "False"}, {"gpus 0 c2c_links": "5"}, {"nics mlx5_0 ports 1 max_lanes": "4"}])
def test_a_fact_that_an_earlier_collbench_did_not_read_is_no_change(read: dict[str, str]) -> None:
    assert changes(allocation(machine(0)), allocation(machine(0, **read))) == []


def test_facts_of_later_releases_that_both_have_are_compared() -> None:
    lanes = "nics mlx5_0 ports 1 lanes"
    assert changes(allocation(machine(0, **{lanes: "4"})), allocation(machine(0, **{lanes: "1"}))) == [
        Difference(Item.of("topology", f"machines 0 {lanes}"), "4", "1")
    ]
    lost = changes(allocation(machine(0)), allocation(machine(0, **{"nics mlx5_0 rdma_missing": "True"})))
    assert [each.b for each in lost] == ["True"]


def test_machines_in_another_order_are_the_same() -> None:
    other = {**machine(0, "100"), **machine(1)}
    assert changes(allocation({**machine(0), **machine(1, "100")}), allocation(other)) == []


def test_a_shaper_on_the_interface_is_seen() -> None:
    before, after = ({"interfaces 0 name": "eth0", "interfaces 0 shaped_bits_per_s": rate} for rate in ("500000000.0", "450000000.0"))
    assert changes(allocation(before), allocation(after)) == [
        Difference(Item.of("topology", "interfaces 0 shaped_bits_per_s"), "500000000.0", "450000000.0")
    ]


def test_what_names_a_node_is_no_change() -> None:
    line = "BOOT_IMAGE=/vmlinuz-6.1 {} mitigations=off"
    before = machine(0, **{"system command_line": line.format("BOOTIF=01-aa root=UUID=1"), "system shm_bytes": "25276510208"})
    after = machine(0, **{"system command_line": line.format("BOOTIF=01-bb root=UUID=2"), "system shm_bytes": "25276400000"})
    assert changes(allocation(before, {"socket address": "10.0.0.1"}), allocation(after, {"socket address": "10.0.0.9"})) == []


@pytest.mark.parametrize(
    ("what", "a", "b"),
    [
        ("system command_line", "quiet mitigations=off", "quiet"),
        ("system shm_bytes", "25276510208", "64000000"),
        ("system shm_bytes", "1", "x"),
    ],
)
def test_what_steers_a_node_is(what: str, a: str, b: str) -> None:
    assert len(changes(allocation(machine(0, **{what: a})), allocation(machine(0, **{what: b})))) == 1


def test_a_container_s_interfaces_are_no_change_and_a_used_one_s_rate_is() -> None:
    """Those of a baseline that was written with them, too."""
    eth0 = {"interfaces 0 name": "eth0", **machine(0, **{"nics eth0 virtual": "veth or the like", "nics eth0 shaped": "500"})}
    docker = {"machines 0 nics docker0 virtual": "bridge", "machines 0 nics veth7 virtual": "veth or the like"}
    assert changes(allocation(eth0), allocation({**eth0, **docker})) == [] == changes(allocation({**eth0, **docker}), allocation(eth0))
    found = changes(allocation(eth0), allocation({**eth0, **docker, "machines 0 nics eth0 shaped": "450"}))
    assert [(each.what, each.b) for each in found] == [("machines 0 nics eth0 shaped", "450")]
