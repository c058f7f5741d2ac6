"""Multi-node NVLink: nodes that one fabric joins, by option or by their clique ids."""

import pytest
from msgspec.structs import replace

from collbench.machine.peak.collective import ceilings
from collbench.machine.peak.job import joined, joined_by_clique
from collbench.machine.peak.node import Job, UserOverride, node_from_user, node_of
from tests.peak.made import infiniband, switched

TRAY = node_from_user(4, UserOverride(nic=(4, 400e9), nvlink=900e9))


def gb200(clique):
    """A GB200 node with GPUs that have joined this clique; None: no source has one."""
    machine = switched(4, 18, "sm_100", nics=infiniband(4, 400))
    return replace(machine, gpus=tuple(replace(gpu, model="NVIDIA GB200", clique=clique) for gpu in machine.gpus))


def rates(operation, nodes):
    found = ceilings(operation, Job(nodes))
    return found.expected.model, round(found.expected.bytes_per_s / 1e9, 1), round(found.bound.bytes_per_s / 1e9, 1)


def test_nodes_of_one_domain_reach_each_other_over_nvlink():
    rack = joined((TRAY,) * 18, 72)
    assert [(node.gpus, node.machines) for node in rack] == [(72, 18)]
    assert rates("allreduce", rack) == ("nvls", 987.6, 1750.7)
    assert rates("allgather", rack) == ("ring", 721.8, 900)
    assert Job(rack).machines == 18
    assert [node.gpus for node in joined((TRAY,) * 20, 72)] == [72, 8]  # the last domain may be smaller
    assert joined((TRAY,) * 3, 4) == (TRAY,) * 3  # a domain of one node


def test_the_nics_of_all_nodes_of_a_domain_lead_out_of_it():
    racks = joined((TRAY,) * 36, 72)
    assert [(node.gpus, node.egress.bytes_per_s) for node in racks] == [(72, 18 * 200e9)] * 2
    assert racks[0] is racks[1]
    assert rates("allreduce", racks) == ("nvls_tree", 994.5, 1862.3)
    assert ceilings("alltoall", Job(racks)).bound.bytes_per_s / 1e9 == pytest.approx(3600 / 72 * 143 / 72)


def test_nodes_with_the_same_clique_are_one_domain_and_without_one_what_leaves_a_node_stays_unknown():
    nodes = [node_of(gb200("rack-1/7")), node_of(gb200("rack-1/7")), node_of(gb200("rack-2/7"))]
    found = joined_by_clique(nodes)
    assert [(node.gpus, node.machines, node.clique) for node in found] == [(8, 2, "rack-1/7"), (4, 1, "rack-2/7")]
    assert ceilings("allreduce", Job(joined_by_clique(nodes[:2]))).ring.bytes_per_s == pytest.approx(721.8e9)
    apart = ceilings("allreduce", Job(joined_by_clique([node_of(gb200(None))] * 2))).expected
    assert apart.bytes_per_s is None and "give --nvlink-domain GPUS" in apart.limited_by
