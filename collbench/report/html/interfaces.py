"""The network interfaces that carried the traffic, as a table: of hosts whose machine nobody probed all that is known of their links."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from collbench.analysis.differences import topology_of
from collbench.analysis.launches import known
from collbench.machine.cluster import folded
from collbench.report.columns import NOTHING
from collbench.report.html.chart import Table
from collbench.report.probe_words import gigabits, safe
from collbench.results.reader import Run

_MOST = 40


def interfaces_table(runs: Sequence[Run]) -> Table | None:
    """Interface, rate, MTU and hosts, equal ones once; None where no run has any."""
    hosts: dict[tuple[str, ...], dict[str, None]] = {}
    for run in runs:
        for host, interface in _interfaces(run):
            hosts.setdefault(_words(interface), {})[host] = None
    rows = [(*words, safe(folded([*names]))) for words, names in hosts.items()]
    more = [(f"and {len(rows) - _MOST} more", "", "", "")] if len(rows) > _MOST else []
    return Table(("interface", "rate", "MTU", "hosts"), [*rows[:_MOST], *more], frozenset({2})) if rows else None


def _interfaces(run: Run) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each with its host: there is one per host, in the order of run.json's hosts."""
    listed, hosts = topology_of(run).get("interfaces"), run.info.get("hosts")
    names = [str(host) for host in hosts] if isinstance(hosts, list) else []
    for number, interface in enumerate(listed if isinstance(listed, list) else []):
        if isinstance(interface, dict):
            yield names[number] if number < len(names) else "host unknown", interface


def _words(interface: Mapping[str, Any]) -> tuple[str, str, str]:
    mtu = interface.get("mtu")
    return safe(str(interface.get("name"))), _rate(interface), str(mtu) if known(mtu) else NOTHING


def _rate(interface: Mapping[str, Any]) -> str:
    shaped, speed, virtual = (interface.get(name) for name in ("shaped_bits_per_s", "speed_bits_per_s", "virtual"))
    if shaped is not None and known(shaped):
        return f"{gigabits(shaped)} (traffic shaper)"
    if speed is not None and known(speed):
        return gigabits(speed)
    return f"unknown ({safe(virtual)} has no speed of its own)" if isinstance(virtual, str) else "unknown (the kernel does not tell it)"
