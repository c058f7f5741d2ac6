"""What differs between two runs: facts, machines, and interfaces without traffic."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.analysis.differences import KINDS, Difference, Facts, Item, differences, without_idle
from collbench.gating.allocation import Allocation
from collbench.gating.conditions import changes
from collbench.results.reader import Run
from tests.results.rows import make_row

PLACES = [{"rank": rank, "host": "n1", "local_rank": rank, "pid": 100 + rank, "cpus": [rank]} for rank in range(2)]
INFO: dict[str, Any] = {
    "collbench": "0.1", "backends": {"mpi": {"mpi": "MPICH 4.3", "mpi_thread_level": "single"}}, "hosts": ["n1"], "rank_map": PLACES,
    "environment": {"MPICH_CH4_NETMOD": "ofi", "SLURM_STEP_ID": "1"}, "launcher": "srun", "launcher_facts": {"srun_mpi": "pmi2"},
    "command": ["collbench", "allreduce", "--sizes=8", "-n", "20", "--out", "a"], "libraries": ["/opt/a/libmpi.so.12", "/lib/libnuma.so.1"],
    "host": {"hostname": "n1", "kernel": "6.1", "cpu_model": "A", "cpus_usable": 2},
}  # fmt: skip


def run(folder: Path, topology: Any = None, governor: str = "performance", **changes: Any) -> Run:
    """A run like INFO but for the changes."""
    if topology is not None:
        folder.mkdir(exist_ok=True)
        (folder / "topology.json").write_text(json.dumps(topology))
    return Run(folder, {**INFO, **changes}, [make_row(evidence={"conditions": {"governor": governor}})])


def differences_of(a: Run, b: Run) -> list[tuple[str, str, str, str]]:
    return [(each.kind, each.what, each.a, each.b) for each in differences(a, b)]


def test_equal_runs_and_repeated_options_differ_in_nothing(tmp_path: Path) -> None:
    other = run(
        tmp_path, environment={"MPICH_CH4_NETMOD": "ofi", "SLURM_STEP_ID": "2", "PMI_FD": "9"}, rank_map=[{**p, "pid": 7} for p in PLACES],
        command=["collbench", "allreduce", "--sizes", "8", "--iterations", "20", "--out", "b", "--quiet"], started_utc="later",
    )  # fmt: skip
    assert differences_of(run(tmp_path), other) == []
    twice = run(tmp_path, command=["collbench", "allreduce", "--sizes", "4", "--sizes", "8", "-n", "20"])
    assert differences_of(run(tmp_path), twice) == []


def test_machines_that_one_run_alone_reports_are_one_difference(tmp_path: Path) -> None:
    topology = {"machines": [{"gpus": [{"key": str(number), "model": "H100"} for number in range(8)]}], "interfaces": [{"name": "eth0"}]}
    probed, other = run(tmp_path / "a", topology), run(tmp_path / "b", {"interfaces": [{"name": "eth1"}]})
    interface = ("topology", "interfaces 0 name", "eth0", "eth1")
    assert differences_of(probed, other) == [interface, ("topology", "machines", "probed", "–")]
    assert ("topology", "machines", "–", "probed") in differences_of(other, probed)


def test_each_kind_is_reported_in_the_order_of_importance(tmp_path: Path) -> None:
    other = run(
        tmp_path, governor="powersave", backends={"mpi": {"mpi": "MPICH 5.0", "mpi_thread_level": "single"}}, environment={}, hosts=["n2"],
        launcher="mpirun", launcher_facts={}, rank_map=PLACES[:1], command=["collbench", "allreduce", "--sizes", "8,16", "-n", "20"],
        libraries=["/opt/b/libmpi.so.12", "/lib/libucp.so.0"], host={**INFO["host"], "hostname": "n2", "kernel": "6.2"},
    )  # fmt: skip
    found = differences_of(run(tmp_path), other)
    assert found == [
        ("software", "mpi mpi", "MPICH 4.3", "MPICH 5.0"), ("software", "kernel", "6.1", "6.2"),
        ("environment", "MPICH_CH4_NETMOD", "ofi", "–"), ("hosts", "names", "n1", "n2"), ("ranks", "number", "2", "1"),
        ("ranks", "CPUs", "local rank 0 on [0]; local rank 1 on [1]", "local rank 0 on [0]"),
        ("machine", "governor", "performance", "powersave"), ("launcher", "name", "srun", "mpirun"),
        ("launcher", "srun_mpi", "pmi2", "–"), ("options", "--sizes", "8", "8,16"),
        ("libraries", "libmpi", "/opt/a/libmpi.so.12", "/opt/b/libmpi.so.12"),
        ("libraries", "in one run only", "libnuma", "libucp"),
    ]  # fmt: skip
    assert [KINDS.index(each[0]) for each in found] == sorted(KINDS.index(each[0]) for each in found)


def test_equal_changes_are_reported_once_and_long_texts_from_where_they_part(tmp_path: Path) -> None:
    links = [{"schema": 1, "members": [], "interfaces": [{"name": f"eth{n}", "mtu": mtu} for n in range(3)]} for mtu in (1500, 9000)]
    a, b = run(tmp_path / "a", links[0]), run(tmp_path / "b", links[1])
    assert differences_of(a, b) == [("topology", "interfaces * mtu (3 times)", "1500", "9000")]
    names = [f"node{n:03d}" for n in range(200)]
    found = differences(run(tmp_path, hosts=names[:-1]), run(tmp_path, hosts=names))
    known, number = ((each.a, each.b) for each in found)
    assert number == ("199", "200")
    assert known[0].startswith("…") and known[0].endswith("node198") and known[1].endswith("node199") and len(known[1]) < 40


@settings(max_examples=30)
@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_no_run_json_is_an_obstacle(junk: Any) -> None:
    info = dict.fromkeys((*INFO, "anything"), junk)
    assert all(isinstance(each, Difference) for each in differences(Run(Path("none"), info), Run(Path("none"), INFO)))


def machine(rate: float = 400000000000.0, lid: int = 7, down: int = 0, firmware: str = "28.39", speed: float = 32.0, **changes: object):
    """A machine of topology.json, much shortened."""
    gpu = {"address": "0000:19:00.0", "kind": "gpu", "link": {"speed_gt_per_s": speed}}
    port = {"number": 1, "rate_bits_per_s": rate, "lid": lid, "counters": {"link_downed": down}}
    nics = [{"name": "mlx5_0", "ports": [port], "firmware": firmware}]
    return {"hostnames": ["node1"], "sources": ["Linux"], "pci": [gpu], "nics": nics, "unknown": {}, "origins": {}, **changes}


def between_machines(folder: Path, *machines: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    a, b = (run(folder / name, {"schema": 1, "machines": [each]}) for name, each in zip("ab", machines, strict=True))
    return differences_of(a, b)


def test_a_machine_differs_in_its_parts_by_name_and_not_in_what_passes(tmp_path: Path) -> None:
    changed = machine(2e11, 9, 3, "28.40", 2.5, hostnames=["node2"], sources=["lspci"], unknown={"system/driver": "why"})
    assert between_machines(tmp_path, machine(), changed) == [
        ("topology", "machines 0 nics mlx5_0 ports 1 rate_bits_per_s", "400000000000.0", "200000000000.0"),
        ("topology", "machines 0 nics mlx5_0 firmware", "28.39", "28.40"),
    ]
    gpus = [{"key": f"0000:{bus}:00.0", "index": place} for place, bus in enumerate(("19", "3b"))]
    lost = (("key", "0000:3b:00.0"), ("index", "1"))
    expected = [("topology", f"machines 0 gpus 0000:3b:00.0 {what}", text, "–") for what, text in lost]
    assert between_machines(tmp_path, machine(gpus=gpus), machine(gpus=gpus[:1])) == expected


def test_software_that_is_not_the_same_on_all_hosts_is_a_difference_of_software(tmp_path: Path) -> None:
    """The gate compares software, so that one host with another Python is a change there, too. Which host it is does not count."""
    one, other = {"python": "3.11.2", "native": "a"}, {"python": "3.12.1", "native": "b"}
    even = run(tmp_path, software=[{"hosts": ["n1", "n2"], **one}])
    mixed = run(tmp_path, software=[{"hosts": ["n1"], **one}, {"hosts": ["n2"], **other}])
    swapped = run(tmp_path, software=[{"hosts": ["n1"], **other}, {"hosts": ["n2"], **one}])
    assert differences_of(even, mixed) == [("software", "Python, not the same on all hosts", "–", "3.11.2, 3.12.1")]
    assert differences_of(mixed, swapped) == [] == differences_of(run(tmp_path), even)
    assert differences_of(even, run(tmp_path, software="nonsense")) == [] == differences_of(even, run(tmp_path, software=[{"hosts": 1}]))


def test_a_rate_has_its_unit_in_the_sentence_and_not_in_the_values(tmp_path: Path) -> None:
    before, after = ({"interfaces": [{"name": "eth0", "shaped_bits_per_s": rate}]} for rate in (1e9, 8e8))
    (found,) = differences(run(tmp_path / "a", before), run(tmp_path / "b", after))
    assert (found.a, found.b, found.change()) == ("1000000000.0", "800000000.0", "1 Gb/s → 0.8 Gb/s")
    assert found.sentence().endswith(" shaped: 1 Gb/s → 0.8 Gb/s")


LO = {Item.of("topology", "interfaces 0 name"): "lo"}
ETH0 = {Item.of("topology", "interfaces 0 name"): "eth0"}


def nic(name: str, virtual: str | None, machine: int = 0, **more: str) -> Facts:
    actual = {"name": name, **({"virtual": virtual} if virtual else {}), **more}
    return {Item.of("topology", f"machines {machine} nics {name} {what}"): text for what, text in actual.items()}


IDLE = {**nic("veth1a2b", "veth or the like"), **nic("docker0", "bridge"), **nic("tap0", "tap"), **nic("tun0", "tunnel or the like")}
REAL = {**nic("mlx5_0", None), **nic("0000:00:03.0", "virtio"), **nic("bond0", "bond"), **nic("rxe0", "tap", rdma="True")}
USED = {**ETH0, **nic("eth0", "veth or the like", shaped_bits_per_s="450000000.0")}
BRIDGE = {**USED, Item.of("environment", "UCX_NET_DEVICES"): "mlx5_0:1,br0", **nic("br0", "bridge")}
ALIKE = {**nic("mlx5_0", None), **nic("mlx5_0", None, 1), **nic("veth1", "veth or the like", 1), **nic("mlx5_1", None, 2)}


@pytest.mark.parametrize(("facts", "kept"), [
    pytest.param({**LO, **IDLE, **REAL}, {**LO, **REAL}, id="what comes and goes"),
    pytest.param({**USED, **nic("veth9", "veth or the like")}, USED, id="ranks use the other one"),
    pytest.param(BRIDGE, BRIDGE, id="a setting names it"),
    pytest.param(nic("veth1", "veth or the like"), nic("veth1", "veth or the like"), id="nothing shows what is used"),
    pytest.param({**LO, **ALIKE}, {**LO, **nic("mlx5_0", None), **nic("mlx5_1", None, 1)}, id="then two machines are one"),
])  # fmt: skip
def test_interfaces_without_traffic_are_left_out(facts: Facts, kept: Facts) -> None:
    assert without_idle(facts) == kept


RATE = "nics mlx5_0 ports 1 rate_text"


def allocation(topology: dict[str, str], software: dict[str, str] | None = None, **facts: Any) -> Allocation:
    actual = {"topology": topology, "software": software or {}, **facts}
    return Allocation("night", "2026-11-20T03:00:00+00:00", 1, 0, (None,), actual, {})


def facts_of(number: int, rate: str = "400 Gb/sec (4X NDR)", **more: str) -> dict[str, str]:
    actual = {"system cpu_model": "EPYC", "numa_nodes 0 cpus": "0-31", RATE: rate, **more}
    return {f"machines {number} {what}": text for what, text in actual.items()}


def test_a_rate_that_changed_on_all_machines_or_on_one_of_them_is_one_change() -> None:
    fast, slow = "400 Gb/sec (4X NDR)", "200 Gb/sec (2X NDR)"
    good, mixed = allocation(facts_of(0)), allocation({**facts_of(0), **facts_of(1, slow)})
    assert changes(good, allocation(facts_of(0, slow))) == [Difference(Item.of("topology", f"machines 0 {RATE}"), fast, slow)]
    assert [(each.a, each.b) for each in changes(good, mixed)] == [(fast, slow)]
    assert [(each.a, each.b) for each in changes(mixed, good)] == [(slow, fast)]


def test_machines_in_another_order_and_what_names_a_node_are_no_change_and_a_rate_of_an_interface_is() -> None:
    other = {**facts_of(0, "100"), **facts_of(1)}
    assert changes(allocation({**facts_of(0), **facts_of(1, "100")}), allocation(other)) == []
    assert changes(allocation(facts_of(0), {"socket address": "10.0.0.1"}), allocation(facts_of(0), {"socket address": "10.0.0.9"})) == []
    before, after = ({"interfaces 0 name": "eth0", "interfaces 0 shaped_bits_per_s": rate} for rate in ("500000000.0", "450000000.0"))
    rate = Difference(Item.of("topology", "interfaces 0 shaped_bits_per_s"), "500000000.0", "450000000.0")
    assert changes(allocation(before), allocation(after)) == [rate]


LANES, COMMAND_LINE, SHARED_MEMORY = "nics mlx5_0 ports 1 lanes", "system command_line", "system shm_bytes"
OF_NODE = "BOOT_IMAGE=/vmlinuz-6.1 {} mitigations=off"


@pytest.mark.parametrize(("what", "a", "b", "is_change"), [
    (LANES, "4", "1", True), ("nics mlx5_0 rdma_missing", None, "True", True),
    (COMMAND_LINE, "quiet mitigations=off", "quiet", True), (SHARED_MEMORY, "1", "x", True),
    (SHARED_MEMORY, "25276510208", "64000000", True),
    # what names a node
    (COMMAND_LINE, OF_NODE.format("BOOTIF=01-aa root=UUID=1"), OF_NODE.format("BOOTIF=01-bb root=UUID=2"), False),
    (SHARED_MEMORY, "25276510208", "25276400000", False),
    # what an earlier collbench did not read
    ("nics mlx5_0 rdma_missing", None, "False", False), ("gpus 0 c2c_links", None, "5", False),
    ("nics mlx5_0 ports 1 max_lanes", None, "4", False),
])  # fmt: skip
def test_what_steers_a_node_is_a_change(what: str, a: str | None, b: str, is_change: bool) -> None:
    before = facts_of(0) if a is None else facts_of(0, **{what: a})
    found = changes(allocation(before), allocation(facts_of(0, **{what: b})))
    assert found == ([Difference(Item.of("topology", f"machines 0 {what}"), a or "–", b)] if is_change else [])


def test_a_container_s_interfaces_are_no_change_and_a_used_one_s_rate_is() -> None:
    """Those of a baseline that was written with them, too."""
    eth0 = {"interfaces 0 name": "eth0", **facts_of(0, **{"nics eth0 virtual": "veth or the like", "nics eth0 shaped": "500"})}
    docker = {"machines 0 nics docker0 virtual": "bridge", "machines 0 nics veth7 virtual": "veth or the like"}
    assert changes(allocation(eth0), allocation({**eth0, **docker})) == [] == changes(allocation({**eth0, **docker}), allocation(eth0))
    found = changes(allocation(eth0), allocation({**eth0, **docker, "machines 0 nics eth0 shaped": "450"}))
    assert [(each.what, each.b) for each in found] == [("machines 0 nics eth0 shaped", "450")]
