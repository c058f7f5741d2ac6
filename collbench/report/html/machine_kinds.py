"""The machines that runs were made on, equal ones once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from collbench.analysis.differences import topology_of
from collbench.machine.cluster import folded
from collbench.machine.model import Machine
from collbench.machine.readers.text import Unreadable
from collbench.machine.snapshot import SCHEMA, machines_of, topology_json
from collbench.report.probe_words import safe
from collbench.results.folder import TOPOLOGY
from collbench.results.reader import Run

_MOST = 64  # different machines that are looked at


@dataclass(frozen=True)
class Kind:
    """Machines that only their names tell apart: the first of them, and the hosts."""

    machine: Machine
    hosts: tuple[str, ...]

    @property
    def names(self) -> str:
        """The hosts, as Slurm folds names."""
        return safe(folded(self.hosts) or "machine without a name")


def kinds_of(runs: Sequence[Run]) -> tuple[list[Kind], list[str]]:
    """The kinds of machine in the order of their first run; and a sentence for what cannot be read, or was not the same in all runs."""
    told: list[tuple[Machine, tuple[str, ...]]] = []
    doubts: list[str] = []
    for run in runs:
        listed = topology_of(run).get("machines")
        for entry in listed if isinstance(listed, list) else []:
            try:
                told.append(_read(entry, f"{run.path / TOPOLOGY}"))
            except Unreadable as error:
                doubts.append(str(error))
    kinds = _kinds(told[:_MOST])
    if len(told) > _MOST:
        doubts.append(f"{len(told) - _MOST} more descriptions of machines are left out here: each run's {TOPOLOGY} has them")
    return kinds, [*dict.fromkeys(doubts), *_changed(kinds)]


def _read(entry: Any, name: str) -> tuple[Machine, tuple[str, ...]]:
    """A machine of topology.json with all its hosts, and only the first one made of it. Raises Unreadable."""
    if not isinstance(entry, dict):
        raise Unreadable(f"{name} lists a machine that is none: `collbench probe --format json` writes one that can be read")
    hosts = entry.get("hostnames") or [entry.get("hostname")]
    names = [host for host in hosts if isinstance(host, str)] if isinstance(hosts, list) else []
    one = {**entry, "hostnames": names[:1]} if names else {key: value for key, value in entry.items() if key != "hostnames"}
    return machines_of({"schema": SCHEMA, "machines": [one]}, name)[0], tuple(names)


def _kinds(told: Sequence[tuple[Machine, tuple[str, ...]]]) -> list[Kind]:
    """The same machine of several runs, and equal ones, together: they are numbered in place of their names."""
    numbered = [replace(machine, hostname=str(number)) for number, (machine, _) in enumerate(told)]
    found = []
    for entry in topology_json(numbered)["machines"] if numbered else []:
        same = [told[int(number)] for number in entry["hostnames"]]
        found.append(Kind(same[0][0], tuple(dict.fromkeys(host for _, hosts in same for host in hosts))))
    return found


def _changed(kinds: Sequence[Kind]) -> list[str]:
    """A host that is of two kinds was another machine in another run."""
    hosts = [host for kind in kinds for host in kind.hosts]
    twice = sorted({host for host in hosts if hosts.count(host) > 1}) if len(hosts) <= 10_000 else []
    return [f"not the same machine in all runs (see what differs, below): {safe(folded(twice))}"] if twice else []
