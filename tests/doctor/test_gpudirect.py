"""The states of GPUDirect RDMA in the doctor's output: one line each, exceptions by name."""

import pytest
from msgspec.structs import replace

from collbench.machine.doctor.gpus import states
from collbench.machine.model import Machine
from collbench.machine.readers.nccl_log import NcclLog, read
from tests.doctor.machines import changed, with_port, with_system
from tests.machine.machines import dgx, laptop

CAPABLE = "nvidia_peermem is loaded, PIX apart"


def log(*lines: str, host: str = "dgx01") -> NcclLog:
    return read("\n".join(f"{host}:1:2 [0] NCCL INFO {line}" for line in lines), "nccl.log")


def connected(*gpus: int, suffix: str = "/GDRDMA") -> list[str]:
    ways = ("{0}[{0}] -> {1}[{0}] [send]", "{1}[{0}] -> {0}[{0}] [receive]")
    return [f"Channel 00/0 : {way.format(gpu, gpu + 8)} via NET/IB/{gpu}{suffix}" for gpu in gpus for way in ways]


PROOF = "nccl.log has its [send] and [receive] lines via GDRDMA"
ALL = connected(*range(8))
REFUSED = log(*(f"NET/IB : GPU Direct RDMA Disabled for HCA {place} 'mlx5_{place}'" for place in range(8)))
BARE = with_system(dgx(), peer_memory=(), dma_buf=False)
ODD = replace(BARE, hostname="dgx02", gpus=dgx().gpus[:1])
NAMELESS = replace(dgx(), hostname=None)
DOWN = with_port(changed(dgx(), "nics", "mlx5_1", ports=(replace(dgx().nics[1].ports[0], state="down"),)), "mlx5_0", state="down")
NO_WAY = "no peer-memory module for this GPU is loaded, and the driver exports no dma-buf"
STAGED = "GPU 5 (0000:9b:00.0): nccl.log shows its connections staged through the host"
# Machines, logs, and how each line of states begins.
STATES: dict[str, tuple[list[Machine], list[NcclLog], list[str]]] = {
    "capable": ([dgx()], [], [f"capable; use not checked: 8 of 8 GPUs ({CAPABLE})"]),
    "proven of each GPU by its own lines": ([dgx()], [log(*ALL)], [f"proven used: 8 of 8 GPUs ({PROOF})"]),
    "proven of most": ([dgx()], [log(*connected(0, 1, 2, 3, 4, 6, 7), *connected(5, suffix=""))],
        [f"proven used: 7 of 8 GPUs ({PROOF})", f"capable, not used: 1 of 8 GPUs ({STAGED})"]),
    "NCCL reports no support though a module is loaded": ([dgx()], [REFUSED],
        ["not capable: 8 of 8 GPUs (nccl.log: GPU Direct RDMA Disabled for mlx5_0"]),
    "not capable": ([BARE], [], [f"not capable: 8 of 8 GPUs ({NO_WAY})"]),
    "unknown": ([with_system(dgx(), container="docker")], [],
        ["unknown: 8 of 8 GPUs (inside a container (docker): its view of the host's modules proves nothing)"]),
    "the odd ones of a job": ([dgx(), ODD], [], ["capable; use not checked: 8 of 9 GPUs", "not capable: 1 of 9 GPUs (dgx02 "]),
    "a log of another host": ([dgx()], [log(*ALL, host="dgx02")], [f"capable; use not checked: 8 of 8 GPUs ({CAPABLE})"]),
    "a longer name of the host": ([replace(dgx(), hostname="dgx01.example.org")], [log(*ALL)], ["proven used: 8"]),
    "a machine without a name": ([NAMELESS], [log(*ALL)], ["proven used: 8"]),
    "machines without names": ([NAMELESS, NAMELESS], [log(*ALL)], ["capable; use not checked: 16"]),
    "nothing to report": ([laptop(), Machine()], [], []),
    "no NICs": ([Machine(gpus=dgx().gpus)], [], []),
    "a GPU whose NIC is down": ([DOWN], [],
        ["capable, not used: 2 of 8 GPUs (GPU 0 (0000:18:00.0) and GPU 1 (0000:19:00.0): ", "capable; use not checked: 6 of 8"]),
}  # fmt: skip


@pytest.mark.parametrize(("machines", "logs", "lines"), STATES.values(), ids=STATES)
def test_states(machines: list[Machine], logs: list[NcclLog], lines: list[str]) -> None:
    shown = [line.removeprefix("GPUDirect RDMA ") for line in states(machines, logs)]
    whole = [line if start.endswith(")") else line[: len(start)] for line, start in zip(shown, lines, strict=True)]
    assert whole == lines
