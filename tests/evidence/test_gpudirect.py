"""GPUDirect RDMA of a run: one of the states, each with the fact that decides it."""

from __future__ import annotations

from typing import Any

import pytest

from collbench.machine.distance import STATES
from collbench.machine.model import Machine
from collbench.measure.nccl_paths import state_of_run
from tests.doctor.machines import with_system
from tests.machine.machines import dgx, laptop

CAPABLE = "nvidia_peermem is loaded, PIX apart"


def facts(send: bool = False, receive: bool = False, staged: int = 0, refused: tuple[str, ...] = (), **transports: int) -> dict[str, Any]:
    """Facts of a run; the underscores of names are slashes."""
    named = {name.replace("_", "/"): count for name, count in transports.items()}
    return {"transports": named, "gdr": {"send": send, "receive": receive, "staged": staged, "refused": list(refused)}}


BARE = with_system(dgx(), peer_memory=(), dma_buf=False)
MIXED = facts(True, True, staged=4, NET_IB_0_GDRDMA=12, NET_IB_1=4) | {"hosts_without_gdr": [f"n{i}" for i in range(6)]}
BOTH = facts(True, True, NET_IB_0_GDRDMA=16)
# A run's facts, its machines, the bytes that left over RDMA ports, the state, and how the reason begins and ends.
RUNS: dict[str, tuple[dict[str, Any], list[Machine], int | None, str, str, str]] = {
    "both directions prove it": (facts(True, True, NET_IB_0_GDRDMA=16, P2P_CUMEM=8), [], None, "proven used", "16 of 16 ", ""),
    "hosts that do not use it are named": (MIXED, [], None, "proven used", "12 of 16 ", " n0, n1, n2, n3 and 2 more"),
    "one direction alone": (facts(True, False, NET_IB_0_GDRDMA=1), [dgx()], None, "unknown", "", "only for [send]"),
    "ways that carried bytes": (BOTH, [dgx()], 1 << 30, "proven used", "", ""),
    "ways that carried no byte": (BOTH, [dgx()], 0, "capable, not used", "", "no RDMA port"),
    "staged": (facts(staged=8, NET_IB_0=8), [dgx()], None, "capable, not used", "", f" 8 network connections staged *; {CAPABLE}"),
    "sockets": (facts(NET_Socket_0=2), [dgx()], None, "capable, not used", "", " 2 network connections over TCP "),
    "NCCL's own word goes before the modules": (
        facts(staged=8, refused=("mlx5_0", "mlx5_1"), NET_IB_0=8), [dgx()], None, "not capable", "", "Disabled for mlx5_0, mlx5_1",
    ),
    "the worst GPU of all machines": (facts(staged=8, NET_IB_0=8), [dgx(), BARE], None, "not capable", "", "dma-buf"),
    "inside one host": (facts(P2P_CUMEM=8), [dgx()], None, "capable, not used", "", f"; {CAPABLE}"),
    "without a log": (
        {"transports": {}, "why": "NCCL_DEBUG=WARN is set"}, [dgx()], None, "unknown", f"NCCL_DEBUG=WARN is set; {CAPABLE}", "",
    ),
    "nothing known": ({}, [laptop()], None, "unknown", "", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_state_of_a_run(name: str) -> None:
    shown, machines, rdma_bytes, state, start, has = RUNS[name]
    found = state_of_run(shown, machines, rdma_bytes=rdma_bytes)
    assert found.state == state in STATES
    assert found.why.startswith(start) and all(part in found.why for part in has.split("*"))
