"""Whether a NIC can reach a GPU's memory (GPUDirect RDMA), from what is known of the machine. Only NCCL's log proves that it does.

Needs a peer-memory module or dma-buf, and a path below the host bridges; NCCL stages anything farther through the host by default.
Sources: NCCL's src/transport/net_ib (gdr.cc) and NCCL_NET_GDR_LEVEL in its documentation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from collbench.machine.distance import CLOSE, Distances
from collbench.machine.merge import origin
from collbench.machine.model import Gpu, Machine, Nic, System
from collbench.machine.readers.part_names import is_with_cpu

State = Literal["proven used", "capable, not used", "capable; use not checked", "not capable", "unknown"]
STATES: tuple[State, ...] = ("proven used", "capable, not used", "capable; use not checked", "not capable", "unknown")
BEST_FIRST: tuple[State, ...] = ("proven used", "capable, not used", "capable; use not checked", "unknown", "not capable")
_UNCHECKED: State = "capable; use not checked"
_POWER = ("ppc64le", "ppc64")
_ARM = ("aarch64", "arm64")  # as the kernel and as NCCL write it
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

    proof       what shows it in use (NCCL's lines)
    refusal     what says that NCCL found it impossible, whatever modules are loaded
    distances   of the machine, to build them once for many pairs
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
    return Capability(_UNCHECKED, f"{memory.why}, {apart.why}")


def not_used(found: Capability, why: str) -> Capability:
    """Return the state of a pair that a log or counters show unused; one that is not capable, or unknown, stays so."""
    return Capability("capable, not used" if found.state == _UNCHECKED else found.state, why)


def may_use_c2c(system: System, gpu: Gpu) -> bool:
    """Whether C2C may join the GPU to its CPU. NCCL then reaches NICs of that CPU directly, whatever the PCIe distance."""
    by_memory = gpu.memory_numa is not None and system.architecture not in _POWER  # there NVLink makes it so
    coherent = by_memory or bool(gpu.c2c_links) or is_with_cpu(gpu.model)
    return gpu.vendor in (None, "nvidia") and (coherent or system.architecture in _ARM)


def _device(nic: Nic) -> Capability:
    if nic.virtual is not None:
        return Capability("not capable", f"a virtual interface ({nic.virtual})")
    if not nic.rdma and nic.gdr is None and nic.model is None and not nic.ports:
        return Capability("unknown", "the source does not say whether the NIC is an RDMA device")
    if nic.rdma_missing:
        return Capability("not capable", "the kernel has no RDMA device for the card: its driver is not loaded")
    if not nic.rdma and nic.gdr is not True:
        return Capability("not capable", "the NIC is not an RDMA device")
    return Capability(_UNCHECKED, "an RDMA device")


def _distance(distances: Distances, gpu: Gpu, nic: Nic) -> Capability:
    found = distances.path(gpu.key, nic.key)
    if found is None:
        return Capability("unknown", f"the path between them is unknown ({distances.why_unknown(gpu.key, nic.key)})")
    if found in CLOSE:
        return Capability(_UNCHECKED, f"{found} apart")
    if may_use_c2c(distances.machine.system, gpu):
        return Capability("unknown", f"{found} apart on PCIe; C2C to the CPU may carry it, if the NIC is on the same CPU")
    if hypervisor := distances.machine.system.virtualization:
        return Capability("unknown", f"{found} apart, but a virtual machine ({hypervisor}) hides the PCIe switches")
    return Capability("not capable", f"{found} apart: staged through the host")


def _memory(machine: Machine, gpu: Gpu, nic: Nic) -> Capability:
    """Whether the NIC's driver could be given this GPU's memory."""
    if nic.gdr is not None:
        source = origin(machine, f"nics/{nic.key}/gdr") or next(iter(machine.sources), "the source")
        return Capability(_UNCHECKED if nic.gdr else "not capable", f"{source} says gdr={int(nic.gdr)}")
    if machine.system.container:
        return Capability("unknown", f"inside a container ({machine.system.container}): its view of the host's modules proves nothing")
    return _modules(machine.system, gpu) or _dma_buf(machine.system)


def _modules(system: System, gpu: Gpu) -> Capability | None:
    wanted = _MODULES.get(gpu.vendor or "", frozenset())
    loaded = next((name for name in system.peer_memory or () if name in wanted), None)
    return Capability(_UNCHECKED, f"{loaded} is loaded") if loaded else None


def _dma_buf(system: System) -> Capability:
    """The second way, and what is said when there is neither."""
    module = "no peer-memory module for this GPU is loaded" if system.peer_memory is not None else "peer-memory modules were not looked at"
    version = _version(system.kernel)
    old = version is not None and version < DMA_BUF_KERNEL
    if system.dma_buf and version and not old:
        return Capability(_UNCHECKED, "the driver exports dma-buf")
    lacks = f"kernel {system.kernel} is older than 5.12, which dma-buf needs" if old else "the driver exports no dma-buf"
    if system.peer_memory is not None and (system.dma_buf is False or old):
        return Capability("not capable", f"{module}, and {lacks}")
    if system.dma_buf is False or old:
        return Capability("unknown", f"{module}, and {lacks}")
    return Capability("unknown", f"{module}, and {'the kernel version is' if system.dma_buf else 'dma-buf support is'} unknown")


def _version(kernel: str | None) -> tuple[int, int] | None:
    match = _KERNEL.match(kernel or "")
    return (int(match[1]), int(match[2])) if match else None
