"""GPUDirect RDMA of each GPU with its nearest NICs: one line per state, with the count and the odd ones by name. No findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from collbench.machine.doctor.finding import listed, plural
from collbench.machine.doctor.view import View, gpu_name, same_host
from collbench.machine.gpudirect import BEST_FIRST, STATES, Capability, capability, not_used
from collbench.machine.model import Gpu, Machine, Nic
from collbench.machine.readers.nccl_log import NcclLog

_MOST_NAMES = 4


def states(machines: Sequence[Machine], logs: Sequence[NcclLog] = ()) -> list[str]:
    """Return lines such as "GPUDirect RDMA capable; use not checked: 8 of 8 GPUs (nvidia_peermem is loaded, PIX apart)".

    GPUs apart from the most common reason are named. Machines without an RDMA device that is up are left out.
    """
    found: dict[Capability, list[str]] = {}
    for place, machine in enumerate(machines):
        host = f"{machine.hostname or f'machine {place + 1}'} " if len(machines) > 1 else ""
        for gpu, state in _of(View(machine), [log for log in logs if _is_of(log, machine, len(machines))]):
            found.setdefault(state, []).append(host + gpu_name(gpu))
    total = sum(map(len, found.values()))
    usual = max(found, key=lambda each: len(found[each]), default=None)
    return [line for state in STATES if (line := _line(state, found, usual, total))]


def _line(state: str, found: dict[Capability, list[str]], usual: Capability | None, total: int) -> str | None:
    groups = sorted(((each, names) for each, names in found.items() if each.state == state), key=lambda group: -len(group[1]))
    if not groups:
        return None
    told = "; ".join(each.why if each == usual else f"{listed(names, _MOST_NAMES)}: {each.why}" for each, names in groups)
    return f"GPUDirect RDMA {state}: {sum(len(names) for _, names in groups)} of {plural(total, 'GPU')} ({told})"


def _of(view: View, logs: Sequence[NcclLog]) -> Iterator[tuple[Gpu, Capability]]:
    if not view.usable:
        return
    for gpu in view.machine.gpus:
        near = view.nearest(gpu)
        answers = [_state(view, gpu, nic, logs) for nic in (near[1] if near else view.usable[:1])]
        yield gpu, min(answers, key=lambda each: BEST_FIRST.index(each.state))


def _state(view: View, gpu: Gpu, nic: Nic, logs: Sequence[NcclLog]) -> Capability:
    proofs = [f"{log.name} has its [send] and [receive] lines via GDRDMA" for log in logs if _named(log.gdr_gpus, view, gpu)]
    refusals = [f"{log.name}: GPU Direct RDMA Disabled for {nic.name}" for log in logs if nic.name in log.gdr_refused]
    found = capability(view.machine, gpu, nic, proof=next(iter(proofs), None), refusal=next(iter(refusals), None), distances=view.distances)
    staged = next((log.name for log in logs if _named(log.staged_gpus, view, gpu)), None)
    unused = not_used(found, f"{staged} shows its connections staged through the host") if staged else found
    return unused if unused.state != found.state else found


def _named(gpus: Sequence[tuple[str, str]], view: View, gpu: Gpu) -> bool:
    names = {str(gpu.index), gpu.address}
    return any(name in names and same_host(host, view.machine.hostname) for host, name in gpus)


def _is_of(log: NcclLog, machine: Machine, machines: int) -> bool:
    """A log of several hosts, or none, proves nothing of a machine without a name, nor of one of several."""
    if machine.hostname is None or not log.hosts:
        return machines == 1 and len(log.hosts) <= 1
    return any(same_host(host, machine.hostname) for host in log.hosts)
