"""CB2501 to CB2504, paths between GPUs and NICs: far NICs, GPUs without a near one, GPUDirect RDMA that cannot be."""

from __future__ import annotations

from collections.abc import Iterator

from collbench.machine.distance import CLOSE
from collbench.machine.doctor.finding import Finding, listed, plural
from collbench.machine.doctor.view import View, gpu_name
from collbench.machine.gpudirect import capability, may_use_c2c
from collbench.machine.model import Gpu

_FAR = "SYS"
_HOST = ("PHB", "NODE")


def far(view: View) -> Iterator[Finding]:
    """CB2501: GPUs whose nearest NIC is at another socket; only a note where NVLink leads to a GPU beside a NIC (PXN)."""
    remote = [gpu for gpu in _with_nearest(view, (_FAR,)) if not may_use_c2c(view.machine.system, gpu)]
    if not remote:
        return
    near = _with_nearest(view, CLOSE)
    joined = all(any((view.distances.path(gpu.key, other.key) or "").startswith("NV") for other in near) for gpu in remote)
    nodes = sorted({numa for nic in view.usable if (numa := view.distances.numa_of(nic.key)) is not None})
    where = f"; all usable NICs are at NUMA node {nodes[0]}" if len(nodes) == 1 else ""
    yield view.finding(
        "CB2501", "note" if joined else "warning", f"{plural(len(remote), 'GPU')} reach a NIC only across sockets: {_names(remote)}",
        f"the nearest RDMA device of {gpu_name(remote[0])} is {_FAR} away{where}",
        "place a NIC at each socket; with NVLink let NCCL go over a GPU beside the NIC (NCCL_PXN_DISABLE=0, the default)",
    )  # fmt: skip


def beside_others(view: View) -> Iterator[Finding]:
    """CB2502: GPUs without a NIC below their PCIe switch while others have one."""
    without, near = _staged(view), _with_nearest(view, CLOSE)
    if without and near:
        yield view.finding(
            "CB2502", "note", f"{plural(len(without), 'GPU')} without a NIC below the same PCIe switch: {_names(without)}",
            f"{gpu_name(without[0])}: nearest NIC {_path(view, without[0])} away; {gpu_name(near[0])}: {_path(view, near[0])}",
            "nothing, if NVLink joins them: NCCL goes over a GPU beside the NIC (PXN); see that NCCL_PXN_DISABLE is not 1",
        )  # fmt: skip


def not_capable(view: View) -> Iterator[Finding]:
    """CB2503: GPUs and NICs that are near enough for GPUDirect RDMA and lack something else."""
    why: dict[str, list[str]] = {}
    for gpu in view.machine.gpus:
        best = view.nearest(gpu)
        if best is None or best[0] not in CLOSE:
            continue
        answers = [capability(view.machine, gpu, nic, distances=view.distances) for nic in best[1]]
        if all(answer.state == "not capable" for answer in answers):
            why.setdefault(answers[0].why, []).append(gpu_name(gpu))
    amd = any(gpu.vendor == "amd" for gpu in view.machine.gpus)
    for reason, names in why.items():
        yield view.finding(
            "CB2503", "severe", f"NICs cannot reach the memory of {listed(names)}: bytes are staged through the host", reason,
            "AMD: install amdgpu of ROCm's DKMS package beside the NIC vendor's driver" if amd
            else "`modprobe nvidia_peermem`, or NVIDIA's open kernel module with kernel 5.12 or later",
        )  # fmt: skip


def all_at_host(view: View) -> Iterator[Finding]:
    """CB2504: no GPU has a NIC below its switch, so NCCL stages all bytes by default."""
    at_host = _staged(view)
    if at_host and not _with_nearest(view, CLOSE):
        yield view.finding(
            "CB2504", "note", "NCCL does not use GPUDirect RDMA here by default: GPUs and NICs meet only at a host bridge",
            f"the nearest RDMA device of {gpu_name(at_host[0])} is {_path(view, at_host[0])} away",
            f"measure with NCCL_NET_GDR_LEVEL={_path(view, at_host[0])}: on some processors it is faster, on others slower",
        )  # fmt: skip


def _with_nearest(view: View, paths: tuple[str, ...]) -> list[Gpu]:
    return [gpu for gpu in view.machine.gpus if _path(view, gpu) in paths]


def _staged(view: View) -> list[Gpu]:
    """GPUs whose nearest NIC is beyond a host bridge; not those of Grace, which reach it over C2C."""
    return [gpu for gpu in _with_nearest(view, _HOST) if not may_use_c2c(view.machine.system, gpu)]


def _path(view: View, gpu: Gpu) -> str | None:
    best = view.nearest(gpu)
    return best[0] if best else None


def _names(gpus: list[Gpu]) -> str:
    return listed([gpu_name(gpu) for gpu in gpus])


RULES = (far, beside_others, not_capable, all_at_host)
