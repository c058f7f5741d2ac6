"""Whether a NIC can reach a GPU's memory (GPUDirect RDMA), from what is known of the machine. Only NCCL's log proves that it does.

Needs a peer-memory module or dma-buf, and a path below the host bridges; NCCL stages anything farther through the host by default.
Sources: NCCL's src/transport/net_ib (gdr.cc) and NCCL_NET_GDR_LEVEL in its documentation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from collbench.topology.distance import CLOSE, Distances
from collbench.topology.merge import origin
from collbench.topology.model import Gpu, Machine, Nic, System

State = Literal["proven used", "capable, not used", "not capable", "unknown"]
STATES: tuple[State, ...] = ("proven used", "capable, not used", "not capable", "unknown")
DMA_BUF_KERNEL = (5, 12)  # the first whose verbs take dma-buf memory
_MODULES = {
    "nvidia": frozenset({"nvidia_peermem", "nv_peer_mem", "nv_mem", "nv_mem_nc", "efa_nv_peermem"}),
    "amd": frozenset({"amdkfd"}),
}
_KERNEL = re.compile(r"^(\d{1,3})\.(\d{1,3})")


@dataclass(frozen=True, slots=True)
class Capability:
    """One of STATES, and a sentence that names the fact which decides it."""

    state: State
    why: str


def capability(
    machine: Machine, gpu: Gpu, nic: Nic, *, proof: str | None = None, refusal: str | None = None, distances: Distances | None = None
) -> Capability:
    """What is known of GPUDirect RDMA between a GPU and a NIC.

    `proof` is what shows it in use (NCCL's lines), `refusal` what says that NCCL found it impossible, whatever modules are loaded;
    `distances` spares building them again for every pair.
    """
    if proof:
        return Capability("proven used", proof)
    if refusal:
        return Capability("not capable", refusal)
    apart = _distance(distances or Distances(machine), gpu, nic)
    memory = _memory(machine, gpu, nic)
    facts = (_device(nic), memory, apart)
    for state in ("not capable", "unknown"):
        if decisive := next((fact for fact in facts if fact.state == state), None):
            return decisive
    return Capability("capable, not used", f"{memory.why}, {apart.why}; no log shows it in use")


def may_use_c2c(system: System, gpu: Gpu) -> bool:
    """The GPU may be joined to a Grace CPU by C2C, over which NCCL reaches NICs of that CPU directly; no source tells whether it is."""
    return gpu.vendor in (None, "nvidia") and system.architecture == "aarch64"


def _device(nic: Nic) -> Capability:
    if nic.virtual is not None:
        return Capability("not capable", f"a virtual interface ({nic.virtual})")
    if not nic.rdma and nic.gdr is None and nic.model is None and not nic.ports:
        return Capability("unknown", "the source does not say whether the NIC is an RDMA device")
    if not nic.rdma and nic.gdr is not True:
        return Capability("not capable", "the NIC is no RDMA device")
    return Capability("capable, not used", "an RDMA device")


def _distance(distances: Distances, gpu: Gpu, nic: Nic) -> Capability:
    found = distances.path(gpu.key, nic.key)
    if found is None:
        return Capability("unknown", f"the path between them is unknown ({distances.why_unknown(gpu.key, nic.key)})")
    if found in CLOSE:
        return Capability("capable, not used", f"{found} apart")
    if may_use_c2c(distances.machine.system, gpu):
        return Capability("unknown", f"{found} apart; a Grace CPU could carry it over C2C, which no source tells")
    return Capability("not capable", f"{found} apart: staged through the host")


def _memory(machine: Machine, gpu: Gpu, nic: Nic) -> Capability:
    """Whether the NIC's driver could be given this GPU's memory."""
    if nic.gdr is not None:
        source = origin(machine, f"nics/{nic.key}/gdr") or next(iter(machine.sources), "the source")
        return Capability("capable, not used" if nic.gdr else "not capable", f"{source} says gdr={int(nic.gdr)}")
    if machine.system.container:
        return Capability("unknown", f"inside a container ({machine.system.container}): its view of the host's modules proves nothing")
    return _modules(machine.system, gpu) or _dma_buf(machine.system)


def _modules(system: System, gpu: Gpu) -> Capability | None:
    wanted = _MODULES.get(gpu.vendor or "", frozenset())
    loaded = next((name for name in system.peer_memory or () if name in wanted), None)
    return Capability("capable, not used", f"{loaded} is loaded") if loaded else None


def _dma_buf(system: System) -> Capability:
    """The second way, and what is said when there is neither."""
    module = "no peer-memory module for this GPU is loaded" if system.peer_memory is not None else "peer-memory modules were not looked at"
    version = _version(system.kernel)
    old = version is not None and version < DMA_BUF_KERNEL
    if system.dma_buf and version and not old:
        return Capability("capable, not used", "the driver exports dma-buf")
    lacks = f"kernel {system.kernel} is older than 5.12, which dma-buf needs" if old else "the driver exports no dma-buf"
    if system.peer_memory is not None and (system.dma_buf is False or old):
        return Capability("not capable", f"{module}, and {lacks}")
    if system.dma_buf is False or old:
        return Capability("unknown", f"{module}, and {lacks}")
    return Capability("unknown", f"{module}, and {'the kernel version is' if system.dma_buf else 'dma-buf support is'} unknown")


def _version(kernel: str | None) -> tuple[int, int] | None:
    match = _KERNEL.match(kernel or "")
    return (int(match[1]), int(match[2])) if match else None
