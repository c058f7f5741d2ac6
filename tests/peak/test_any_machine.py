"""Any machine gives a node, with ceilings above 0 or a reason."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.machine.model import SWITCH, Gpu, GpuLink, Machine, Nic, PciDevice, PcieLink, Port
from collbench.machine.peak.collective import OPERATIONS, ceilings
from collbench.machine.peak.comparison import headline, lines
from collbench.machine.peak.node import Job, node_of
from tests.conftest import everything

KEYS = [f"0000:{i:02x}:00.0" for i in range(6)]
KEY = st.sampled_from(KEYS)
LINK = st.builds(
    PcieLink, *[st.sampled_from(options) for options in ((None, 2.5, 5.0, 16.0), (None, 1, 8, 16), (None, 8.0, 32.0), (None, 16))]
)
DEVICE = st.builds(PciDevice, KEY, st.sampled_from(["gpu", "nic", "switch", "root"]), st.none() | KEY, link=LINK, virtual=st.booleans())
GPU = st.builds(
    lambda key, architecture, model, numa: Gpu(key, None, key, None, model, architecture, numa),
    KEY, st.sampled_from([None, "sm_80", "sm_90", "gfx942", "sm_999"]), st.sampled_from([None, "A100 80GB PCIe", "V100", "Radeon"]),
    st.sampled_from([None, 0, 1]),
)  # fmt: skip
FAR = st.none() | st.just(SWITCH) | KEY
WIRE = st.builds(GpuLink, KEY, FAR, st.integers(-1, 40), st.sampled_from(["nvlink", "xgmi"]), st.sampled_from([None, 26.562e9]))
PORT = st.builds(
    lambda rate, state, layer, shaped: Port(1, rate, state=state, link_layer=layer, shaped_bits_per_s=shaped),
    st.sampled_from([None, 0.0, 1e9, 400e9]), st.sampled_from([None, "active", "down"]),
    st.sampled_from([None, "infiniband", "ethernet"]), st.sampled_from([None, 1e8]),
)  # fmt: skip
NIC = st.builds(
    lambda name, address, rdma, ports, virtual: Nic(name, address, rdma=rdma, ports=tuple(ports), virtual=virtual),
    st.sampled_from(["mlx5_0", "mlx5_1", "eth0"]), st.none() | KEY, st.booleans(), st.lists(PORT, max_size=2),
    st.sampled_from([None, None, "veth"]),
)  # fmt: skip
MACHINE = st.builds(
    lambda pci, gpus, wires, nics: Machine("h", ("made",), pci=tuple(pci), gpus=tuple(gpus), gpu_links=tuple(wires), nics=tuple(nics)),
    st.lists(DEVICE, max_size=6, unique_by=lambda device: device.address), st.lists(GPU, max_size=5, unique_by=lambda gpu: gpu.key),
    st.lists(WIRE, max_size=12), st.lists(NIC, max_size=3, unique_by=lambda nic: nic.name),
)  # fmt: skip


def _check(machine, nodes, operation):
    job = Job((node_of(machine),) * nodes)
    try:
        found = ceilings(operation, job)
    except UsageError as error:
        assert operation == "hypercube" and job.ranks & (job.ranks - 1) and "ranks" in str(error)
        return
    for one in (found.expected, found.bound, found.ring):
        assert one is None or one.limited_by
        assert one is None or one.bytes_per_s is None or 0 < one.bytes_per_s < 1e15
    if found.expected and found.expected.bytes_per_s:
        assert found.bound.bytes_per_s >= found.expected.bytes_per_s
    if found.ring and found.ring.bytes_per_s:
        assert found.expected.bytes_per_s >= found.ring.bytes_per_s
    assert "\n" not in headline(1e9, found)
    assert all(lines(operation, 1e12, found, job))


@given(machine=MACHINE, nodes=st.integers(1, 3), operation=st.sampled_from(OPERATIONS))
@settings(max_examples=5000 if everything() else 50, deadline=None)
def test_ceilings_are_above_0_or_have_a_reason(machine, nodes, operation):
    _check(machine, nodes, operation)


COUNTED_NONE, INTO_NOTHING = GpuLink(KEYS[0], None, 0), GpuLink(KEYS[1], None, 1)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("machine", [
    Machine(gpus=(Gpu(KEYS[0]), Gpu(KEYS[1])), gpu_links=(COUNTED_NONE, INTO_NOTHING), nics=(Nic("n", ports=(Port(1, 1e9),)),)),
    Machine(gpus=(Gpu(KEYS[0]), Gpu(KEYS[1], address=KEYS[1])), gpu_links=(COUNTED_NONE, INTO_NOTHING),
        pci=(PciDevice(KEYS[1], "gpu", link=PcieLink(None, None, 8.0, 16)),)),
    Machine(gpus=(Gpu(KEYS[0]), Gpu(KEYS[1])), gpu_links=(GpuLink(KEYS[0], KEYS[1], 1),)),  # an unknown rate, reported by one end
    Machine(gpus=(Gpu(KEYS[0]), Gpu(KEYS[1])), gpu_links=(GpuLink(KEYS[0], SWITCH, 0), GpuLink(KEYS[1], SWITCH, -1))),
])  # fmt: skip
def test_links_that_lead_nowhere_are_no_ceiling_of_0(machine, nodes, operation):
    _check(machine, nodes, operation)


def test_a_hundred_thousand_links_of_one_gpu_are_added_up():
    """Linear in links: no test of the time, but quadratic work would not end."""
    wires = tuple(GpuLink(KEYS[i % 2], SWITCH, 1, bytes_per_s=25e9) for i in range(100_000))
    machine = Machine(gpus=(Gpu(KEYS[0]), Gpu(KEYS[1])), gpu_links=wires)
    assert node_of(machine).gpus == 2
