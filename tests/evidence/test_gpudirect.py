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
    assert found.state == "proven used" and found.why.startswith("16 of 16 ")


def test_hosts_that_do_not_use_it_are_named() -> None:
    mixed = facts(True, True, staged=4, NET_IB_0_GDRDMA=12, NET_IB_1=4) | {"hosts_without_gdr": [f"n{i}" for i in range(6)]}
    found = state_of_run(mixed, []).why
    assert found.startswith("12 of 16 ") and found.endswith(" n0, n1, n2, n3 and 2 more")


def test_one_direction_alone_proves_nothing() -> None:
    found = state_of_run(facts(True, False, NET_IB_0_GDRDMA=1), [dgx()])
    assert found.state == "unknown" and "only for [send]" in found.why


def test_ways_that_carried_no_byte_were_not_used() -> None:
    shown = facts(True, True, NET_IB_0_GDRDMA=16)
    assert state_of_run(shown, [dgx()], rdma_bytes=1 << 30).state == "proven used"
    idle = state_of_run(shown, [dgx()], rdma_bytes=0)
    assert idle.state == "capable, not used" and "no RDMA port" in idle.why


def test_staged_though_the_machine_could() -> None:
    found = state_of_run(facts(staged=8, NET_IB_0=8), [dgx()])
    assert found.state == "capable, not used"
    assert " 8 network connections staged " in found.why and found.why.endswith(f"; {CAPABLE}")


def test_sockets_though_the_machine_could() -> None:
    found = state_of_run(facts(NET_Socket_0=2), [dgx()])
    assert found.state == "capable, not used" and " 2 network connections over TCP " in found.why


def test_nccl_s_own_word_goes_before_the_modules() -> None:
    found = state_of_run(facts(staged=8, refused=("mlx5_0", "mlx5_1"), NET_IB_0=8), [dgx()])
    assert found.state == "not capable" and found.why.endswith("Disabled for mlx5_0, mlx5_1")


def test_the_worst_gpu_of_all_machines_decides_what_they_could() -> None:
    bare = with_system(dgx(), peer_memory=(), dma_buf=False)
    found = state_of_run(facts(staged=8, NET_IB_0=8), [dgx(), bare])
    assert found.state == "not capable" and "dma-buf" in found.why


def test_inside_one_host_there_is_nothing_to_prove() -> None:
    found = state_of_run(facts(P2P_CUMEM=8), [dgx()])
    assert found.state == "capable, not used" and found.why.endswith(f"; {CAPABLE}")


def test_without_a_log_it_is_unknown_and_gives_the_reason() -> None:
    found = state_of_run({"transports": {}, "why": "NCCL_DEBUG=WARN is set"}, [dgx()])
    assert found == Capability("unknown", f"NCCL_DEBUG=WARN is set; {CAPABLE}")
    assert state_of_run({}, [laptop()]).state == "unknown"
    assert {found.state} <= set(STATES)
