"""GPUDirect RDMA of a run: one of the states, each with the fact that decides it."""

from __future__ import annotations

from typing import Any

from collbench.machine.distance import STATES, Capability
from collbench.measure.nccl_paths import state_of_run
from tests.doctor.machines import with_system
from tests.machine.machines import dgx, laptop

CAPABLE = "nvidia_peermem is loaded, PIX apart"


def facts(send: bool = False, receive: bool = False, staged: int = 0, refused: tuple[str, ...] = (), **transports: int) -> dict[str, Any]:
    """Facts of a run; the underscores of names are slashes."""
    named = {name.replace("_", "/"): count for name, count in transports.items()}
    return {"transports": named, "gdr": {"send": send, "receive": receive, "staged": staged, "refused": list(refused)}}


def test_both_directions_prove_it() -> None:
    found = state_of_run(facts(True, True, NET_IB_0_GDRDMA=16, P2P_CUMEM=8), [])
    assert found == Capability("proven used", "16 of 16 network connections use GPUDirect RDMA")


def test_hosts_that_do_not_use_it_are_named() -> None:
    mixed = facts(True, True, staged=4, NET_IB_0_GDRDMA=12, NET_IB_1=4) | {"hosts_without_gdr": [f"n{i}" for i in range(6)]}
    assert state_of_run(mixed, []).why == "12 of 16 network connections use GPUDirect RDMA; not all on n0, n1, n2, n3 and 2 more"


def test_one_direction_alone_proves_nothing() -> None:
    found = state_of_run(facts(True, False, NET_IB_0_GDRDMA=1), [dgx()])
    assert found == Capability("unknown", "NCCL's log shows it only for [send]: the lines of the other direction are missing")


def test_ways_that_carried_no_byte_were_not_used() -> None:
    shown = facts(True, True, NET_IB_0_GDRDMA=16)
    assert state_of_run(shown, [dgx()], rdma_bytes=1 << 30).state == "proven used"
    idle = state_of_run(shown, [dgx()], rdma_bytes=0)
    assert idle.state == "capable, not used" and idle.why.endswith("but no RDMA port moved any bytes: that path was not used")


def test_staged_though_the_machine_could() -> None:
    found = state_of_run(facts(staged=8, NET_IB_0=8), [dgx()])
    told = f"NCCL's log shows 8 network connections staged through the host's memory; {CAPABLE}"
    assert found == Capability("capable, not used", told)


def test_sockets_though_the_machine_could() -> None:
    found = state_of_run(facts(NET_Socket_0=2), [dgx()])
    assert found == Capability("capable, not used", f"NCCL's log shows 2 network connections over TCP sockets; {CAPABLE}")


def test_nccl_s_own_word_goes_before_the_modules() -> None:
    found = state_of_run(facts(staged=8, refused=("mlx5_0", "mlx5_1"), NET_IB_0=8), [dgx()])
    assert found == Capability("not capable", "NCCL's log: GPU Direct RDMA Disabled for mlx5_0, mlx5_1")


def test_the_worst_gpu_of_all_machines_decides_what_they_could() -> None:
    bare = with_system(dgx(), peer_memory=(), dma_buf=False)
    found = state_of_run(facts(staged=8, NET_IB_0=8), [dgx(), bare])
    assert found == Capability("not capable", "no peer-memory module for this GPU is loaded, and the driver exports no dma-buf")


def test_inside_one_host_there_is_nothing_to_prove() -> None:
    found = state_of_run(facts(P2P_CUMEM=8), [dgx()])
    assert found == Capability("capable, not used", f"no connection leaves the host; {CAPABLE}")


def test_without_a_log_it_is_unknown_and_says_why() -> None:
    found = state_of_run({"transports": {}, "why": "NCCL_DEBUG=WARN is set"}, [dgx()])
    assert found == Capability("unknown", f"NCCL_DEBUG=WARN is set; {CAPABLE}")
    assert state_of_run({}, [laptop()]) == Capability(
        "unknown", "NCCL's log lists no connections; no machine with a GPU and an RDMA device is known"
    )
    assert {found.state} <= set(STATES)
