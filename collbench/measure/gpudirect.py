"""Whether a run used GPUDirect RDMA: what NCCL's log shows of its connections, what the ports counted, and what the machines could do.

A connection line is a way that was opened; only with bytes on the ports it is one that was used. Where NCCL shows none, the machine
tells whether it could have been.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from collbench.machine.distance import Distances
from collbench.machine.gpudirect import BEST_FIRST, Capability, capability, not_used
from collbench.machine.model import Gpu, Machine
from collbench.machine.readers.nccl_words import GDR

_NET = "NET/"
_MOST_HOSTS = 4


def state_of_run(facts: Mapping[str, Any], machines: Sequence[Machine], rdma_bytes: int | None = None) -> Capability:
    """One of the states and the fact that decides it, for a row's evidence.

    facts       of `nccl_summary.together`, or of one process
    machines    that the ranks are on
    rdma_bytes  what their RDMA ports moved meanwhile; None where nothing counted it
    """
    net = {name: count for name, count in (facts.get("transports") or {}).items() if name.startswith(_NET)}
    if not net:
        return _without_connections(facts, machines)
    direct = sum(count for name, count in net.items() if name.endswith(GDR))
    told = f"{direct} of {sum(net.values())} network connections use GPUDirect RDMA{_but(facts)}"
    if not direct:
        return _not_used(facts, machines, net)
    if not (facts["gdr"]["send"] and facts["gdr"]["receive"]):
        way = "[send]" if facts["gdr"]["send"] else "[receive]"
        return Capability("unknown", f"NCCL's log shows it for {way} alone: the lines of the other direction are missing")
    if rdma_bytes == 0:
        return Capability("capable, not used", f"{told}, but no RDMA port moved a byte: nothing went that way")
    return Capability("proven used", told)


def _but(facts: Mapping[str, Any]) -> str:
    """The hosts that have other ones."""
    hosts = facts.get("hosts_without_gdr") or []
    if not hosts:
        return ""
    more = f" and {len(hosts) - _MOST_HOSTS} more" if len(hosts) > _MOST_HOSTS else ""
    return f"; not all of {', '.join(hosts[:_MOST_HOSTS])}{more}"


def _without_connections(facts: Mapping[str, Any], machines: Sequence[Machine]) -> Capability:
    could = _could(machines)
    why = "no connection leaves the host" if facts.get("transports") else facts.get("why") or "NCCL's log names no connection"
    if could.state == "not capable":
        return could
    told = f"{why}; {could.why}"
    return not_used(could, told) if facts.get("transports") else Capability("unknown", told)


def _not_used(facts: Mapping[str, Any], machines: Sequence[Machine], net: Mapping[str, int]) -> Capability:
    """Connections over the network, none of them direct: NCCL's own word goes before what the machine could do."""
    staged, refused = facts["gdr"]["staged"], facts["gdr"]["refused"]
    way = "staged through the host's memory" if staged else "over TCP sockets"
    shown = f"NCCL's log shows {sum(net.values())} network connections {way}"
    if refused and staged:
        return Capability("not capable", f"NCCL's log: GPU Direct RDMA Disabled for {', '.join(refused[:_MOST_HOSTS])}")
    could = _could(machines)
    return could if could.state == "not capable" else not_used(could, f"{shown}; {could.why}")


def _could(machines: Sequence[Machine]) -> Capability:
    """What the worst GPU of all could do with its best NIC."""
    best = [found for machine in machines for gpu in machine.gpus if (found := _best(machine, gpu, Distances(machine)))]
    if not best:
        return Capability("unknown", "no machine with a GPU and an RDMA device is known")
    return max(best, key=lambda each: BEST_FIRST.index(each.state))


def _best(machine: Machine, gpu: Gpu, distances: Distances) -> Capability | None:
    usable = [nic for nic in machine.nics if nic.virtual is None and nic.rdma]
    found = [capability(machine, gpu, nic, distances=distances) for nic in usable]
    return min(found, key=lambda each: BEST_FIRST.index(each.state), default=None)
