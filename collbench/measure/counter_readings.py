"""What this host's interfaces, RDMA ports and GPUs counted between two readings: which of them moved how many bytes.

Counters belong to the host, not to the job: what else runs there is counted, too. One that went back (it wrapped, or was reset)
is unknown, and so is what came or went between the readings; nothing that is unknown is ever 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from collbench.measure import ethernet_counters, infiniband_counters, tcp_counters
from collbench.measure.sysfs_numbers import Counts, entries

if TYPE_CHECKING:
    from collbench.measure.nvml_counters import Gpus

Grown = dict[str, dict[str, int | None]]
_TELLING = ("tx_bytes", "sent_pkts")  # a port without either says nothing of what it moves; what sent_pkts counts an interface carries
_UNCOUNTED = ("cxi", "gni", "bxi")  # networks of their own (Slingshot, Aries, BXI), whose bytes neither interfaces nor ports count


@dataclass(frozen=True)
class Counters:
    """One reading.

    interfaces, ports, gpus   counters by place ("eth0", "mlx5_0/1", a GPU's PCI address); all only ever grow
    leaving                   the interfaces whose bytes leave this host and are counted nowhere else
    states                    by GPU what is no counter: temperature_c, slowed_by
    tcp                       segments that this host's TCP has sent, and sent again
    uncounted                 devices of networks that have no counters here
    """

    interfaces: Mapping[str, Counts] = field(default_factory=dict)
    ports: Mapping[str, Counts] = field(default_factory=dict)
    gpus: Mapping[str, Counts] = field(default_factory=dict)
    leaving: frozenset[str] = frozenset()
    states: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    uncounted: tuple[str, ...] = ()
    tcp: Counts = field(default_factory=dict)


def read(root: str = "", gpus: Gpus | None = None) -> Counters:
    """The counters at this moment. About 0.1 ms an interface; RDMA ports, whose driver asks the card, and GPUs take longer.

    `root` is where a copied /sys lies. Never raises: what is not there or not readable is not in the reading.
    """
    interfaces, leaving = ethernet_counters.read(root)
    counts, states = gpus.read() if gpus else ({}, {})
    uncounted = tuple(name for kind in _UNCOUNTED for name in entries(f"{root}/sys/class/{kind}"))
    return Counters(interfaces, infiniband_counters.read(root), counts, leaving, states, uncounted, tcp_counters.read(root))


def moved(before: Counters, after: Counters) -> dict[str, Any]:
    """JSON-ready: per place the counters that grew and by how much (None: unknown), and what keeps the sum from being known.

    interfaces, ports, gpus   places where something grew
    tcp             segments sent, and sent again
    leaving         interfaces whose bytes leave this host, moved or not
    came_or_went    places that only one of the two readings has
    silent          ports and devices that do not count what they move
    idle            ports that count it, and sent nothing
    states          by GPU the states at both ends
    """
    kinds = [(before.interfaces, after.interfaces), (before.ports, after.ports), (before.gpus, after.gpus)]
    ports = grown(*kinds[1])
    counting = [name for name, counts in before.ports.items() if "tx_bytes" in counts and "tx_bytes" in after.ports.get(name, {})]
    return {
        "interfaces": grown(*kinds[0]), "ports": ports, "gpus": grown(*kinds[2]),
        "leaving": sorted(before.leaving & after.leaving), "tcp": _difference(before.tcp, after.tcp),
        "came_or_went": sorted(name for then, now in kinds for name in set(then) ^ set(now)),
        "silent": [*after.uncounted, *(name for name, counts in after.ports.items() if not any(word in counts for word in _TELLING))],
        "idle": [name for name in counting if infiniband_counters.moved(ports.get(name, {}), "tx") == 0],
        "states": {name: {"before": before.states.get(name), "after": state} for name, state in after.states.items()},
    }  # fmt: skip


def grown(before: Mapping[str, Counts], after: Mapping[str, Counts]) -> Grown:
    """By place what changed of the counters that both have; None for one that went back. Places without a change are left out."""
    found = {name: _difference(before[name], counts) for name, counts in after.items() if name in before}
    return {name: changes for name, changes in found.items() if changes}


def _difference(before: Counts, after: Counts) -> dict[str, int | None]:
    """A counter that stopped being told is unknown, as one that went back."""
    lost: dict[str, int | None] = dict.fromkeys((name for name in before if name not in after), None)
    steps = {name: after[name] - before[name] for name in after if name in before}
    return {**{name: step if step > 0 else None for name, step in steps.items() if step}, **lost}
