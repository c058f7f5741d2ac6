"""A captured machine and the same hardware as typed options have the same expected rates, and the same expected time of each size."""

import pytest

from collbench.errors import CollbenchError
from collbench.machine.peak.collective import ceilings
from collbench.machine.peak.limits import GpuLinkLimit, NicLimit, PcieLimit
from collbench.machine.peak.links import gen
from collbench.machine.peak.node import Job, UserOverride, node_from_user, node_of
from collbench.machine.peak.time_model import OPERATIONS, expected_times, why_no_model
from collbench.machine.sources import read_paths
from tests.machines import captures

RINGS = ("allreduce", "allgather", "reducescatter", "broadcast")


def probed_nodes():
    """Return the nodes of the captures with a known rate between at least two GPUs, by name; where NICs are unknown, with 8×200 Gb/s."""
    found = {}
    for name in captures.NAMES:
        try:
            machines = read_paths([captures.folder(name)])
        except CollbenchError:
            continue
        for number, machine in enumerate(machines):
            node = node_of(machine)
            if node.egress.bytes_per_s is None:
                node = node_of(machine, nics=UserOverride(nic=(8, 200e9)).nics)
            if node.gpus > 1 and node.injection.bytes_per_s:
                found[f"{name}-{number}"] = node
    return found


def typed(node):
    """Return the node as a user types it; None if options cannot describe it: uneven meshes, shared PCIe links, slow slots."""
    inside, nics, pcie = node.injection.part, node.egress.part, node.pcie.part
    if isinstance(inside, GpuLinkLimit) and any(cut[0].ranks > 1 for cut in node.cuts[1:]):
        return None
    if not isinstance(inside, GpuLinkLimit | PcieLimit) or any(link.part != inside for side in node.singles for link in side.links):
        return None
    if isinstance(nics, NicLimit) and (len(nics.ports) > 1 or nics.slots or nics.interface):
        return None
    given = UserOverride(
        nic=nics.ports[0] if isinstance(nics, NicLimit) else None,
        nvlink=node.injection.bytes_per_s if isinstance(inside, GpuLinkLimit) else None,
        pcie=gen(pcie.generation, pcie.lanes, "--pcie") if isinstance(pcie, PcieLimit) else None,
    )
    return node_from_user(node.gpus, given)


PROBED = probed_nodes()
PAIRS = [(name, node, typed(node)) for name, node in PROBED.items() if typed(node) is not None]


def test_there_are_captures_of_each_kind():
    kinds = {(type(node.injection.part).__name__, node.nvls, node.own_nic is not None) for _, node, _ in PAIRS}
    assert ("GpuLinkLimit", "counted", True) in kinds
    assert {kind for kind, _, _ in kinds} == {"GpuLinkLimit", "PcieLimit"}


@pytest.mark.parametrize("nodes", [1, 2, 3])
@pytest.mark.parametrize(("name", "probed", "given"), PAIRS, ids=[name for name, _, _ in PAIRS])
def test_typed_and_probed_hardware_agree(name, probed, given, nodes):
    operations = RINGS
    if not probed.cuts[1:]:  # else groups of GPUs share a PCIe link, which is not a limit of a ring
        operations += ("alltoall", "gather")
    if probed.pair.bytes_per_s == probed.injection.bytes_per_s:  # else a pair has fewer links than a GPU
        operations += ("p2p", "sendrecv")
    for operation in operations:
        one, other = (ceilings(operation, Job((node,) * nodes)).expected for node in (probed, given))
        assert (one.bytes_per_s is None) == (other.bytes_per_s is None), operation
        if one.bytes_per_s:
            assert one.bytes_per_s == pytest.approx(other.bytes_per_s, rel=0.02), operation
            assert one.model == other.model, operation


# Options do not tell an AMD GPU on PCIe from another one.
OF_ONE_LIBRARY = [pair for pair in PAIRS if pair[1].injection.library == pair[2].injection.library]


@pytest.mark.parametrize("nodes", [1, 2, 5])
@pytest.mark.parametrize(("name", "probed", "given"), OF_ONE_LIBRARY, ids=[name for name, _, _ in OF_ONE_LIBRARY])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_typed_and_probed_hardware_have_the_same_expected_times(operation, name, probed, given, nodes):
    one, other = (Job((node,) * nodes) for node in (probed, given))
    assert (why_no_model(operation, one) is None) == (why_no_model(operation, other) is None)
    if why_no_model(operation, one) is None:
        sizes = [1 << power for power in range(10, 35, 3)]
        for found, wanted in zip(expected_times(operation, one, sizes), expected_times(operation, other, sizes), strict=True):
            assert found.seconds == pytest.approx(wanted.seconds, rel=0.02), found.size_bytes
            assert found.how == wanted.how
