"""For any output of a source, the rules judge it or skip it: parents in circles, parts without a place, impossible numbers."""

from hypothesis import given
from hypothesis import strategies as st

from collbench.machine.doctor.examine import examine, sentence
from collbench.machine.doctor.finding import SEVERITIES, pages
from collbench.machine.model import SWITCH, Gpu, GpuLink, Machine, Nic, NumaNode, PciDevice, PcieLink, Port, System

ADDRESSES = st.sampled_from([f"0000:0{bus}:00.{function}" for bus in range(4) for function in range(2)])
WORDS = st.sampled_from(["active", "down", "init", "polling", "", "x"])
LINKS = st.builds(
    PcieLink, st.sampled_from([None, 2.5, 16.0, 32.0, -1.0]), st.sampled_from([None, 1, 8, 16]), st.sampled_from([None, 2.5, 32.0]),
    st.sampled_from([None, 8, 16]),
)  # fmt: skip
DEVICES = st.builds(
    PciDevice, ADDRESSES, st.sampled_from(["gpu", "nic", "switch", "bridge", "root", "nvswitch"]), st.none() | ADDRESSES, link=LINKS,
    acs=st.sampled_from([None, (), ("SrcValid",)]), virtual=st.booleans(), numa=st.sampled_from([None, 0, 1]),
)  # fmt: skip
PORTS = st.builds(
    Port, rate_bits_per_s=st.sampled_from([None, 0.0, 100e9, 1e18]), state=st.none() | WORDS, phys_state=st.none() | WORDS,
    link_layer=st.sampled_from([None, "infiniband", "ethernet"]), mtu_bytes=st.sampled_from([None, 0, 1024, 4096]),
    sm_lid=st.sampled_from([None, 0, 1]),
    counters=st.dictionaries(st.sampled_from(["link_downed", "symbol_error"]), st.integers(), max_size=2),
)  # fmt: skip
NICS = st.builds(
    Nic, st.sampled_from(["mlx5_0", "mlx5_1", "eth0"]), st.none() | ADDRESSES, rdma=st.booleans(),
    ports=st.lists(PORTS, max_size=2).map(tuple), virtual=st.sampled_from([None, "veth", "bond"]),
)  # fmt: skip
GPUS = st.builds(Gpu, ADDRESSES, st.none() | st.integers(0, 3), st.none() | ADDRESSES, model=st.sampled_from([None, "H100"]))
GPU_LINKS = st.builds(GpuLink, ADDRESSES, st.sampled_from([SWITCH, None, "0000:01:00.0"]), st.integers(-2, 18))
SYSTEMS = st.builds(
    System, iommu=st.sampled_from([None, "translating"]), virtualization=st.sampled_from([None, "", "kvm"]),
    shm_bytes=st.sampled_from([None, 0]), peer_memory=st.sampled_from([None, ()]), driver=st.sampled_from([None, "1", "2"]),
)  # fmt: skip
MACHINES = st.builds(
    Machine, st.sampled_from([None, "a", "b"]), system=SYSTEMS, pci=st.lists(DEVICES, max_size=8).map(tuple),
    gpus=st.lists(GPUS, max_size=4).map(tuple), nics=st.lists(NICS, max_size=3).map(tuple),
    gpu_links=st.lists(GPU_LINKS, max_size=4).map(tuple),
    numa_nodes=st.lists(st.builds(NumaNode, st.integers(0, 2), st.sampled_from([None, "", "0-3"])), max_size=3).map(tuple),
    peer_access=st.dictionaries(st.tuples(ADDRESSES, ADDRESSES), st.sampled_from(["OK", "NS", "?"]), max_size=3),
)  # fmt: skip


@given(st.lists(MACHINES, max_size=3))
def test_any_machine_is_judged(machines: list[Machine]) -> None:
    findings = examine(machines)
    assert [SEVERITIES.index(finding.severity) for finding in findings] == sorted(
        SEVERITIES.index(finding.severity) for finding in findings
    )
    assert all(finding.code in pages() and finding.what and finding.evidence and finding.remedy for finding in findings)
    assert "None" not in " ".join(finding.what for finding in findings)
    assert sentence(machines).startswith("examined")
