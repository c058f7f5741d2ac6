"""What of the circumstances is another thing in each fresh allocation, and no change: addresses, the order of machines, boot parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import isclose

from collbench.analysis.differences import Difference, Facts
from collbench.analysis.idle import without_idle
from collbench.machine.snapshot import LATER

_MACHINE = re.compile(r"machines (\d+) (.+)", re.ASCII | re.DOTALL)
_OWN = re.compile(r"software .* address|topology .* sm_lid", re.ASCII | re.DOTALL)
_OF_BOOT = re.compile(r"\b(?:BOOTIF|ip|root|hostname|rd\.\S+?|resume|nfsroot|systemd\.machine_id|systemd\.hostname)=\S*\s*", re.ASCII)
_ALIKE = 0.05  # memory that the firmware keeps differs from node to node, and with it what is set aside for /dev/shm
_MOST_MACHINES = 64  # kinds of them; beyond, they are compared by their numbers
_Machine = Mapping[str, str]


def comparable(before: Facts, after: Facts) -> tuple[Facts, Facts]:
    """Both without what passes, each machine under the number of the one that it is to be compared with.

    A run tells of equal machines once. So where one of many is changed a second kind of machine appears, and is compared with what it
    was: the most alike of the other side.
    """
    a, b = _lasting(without_idle(before)), _lasting(without_idle(after))  # of a baseline that an earlier collbench wrote, too
    one, other = _machines(a), _machines(b)
    if not one or not other or max(len(one), len(other)) > _MOST_MACHINES:
        return _read_by_both(a, b)
    pairs = list(_pairs(one, other))
    return _read_by_both(_numbered(a, [first for first, _ in pairs]), _numbered(b, [second for _, second in pairs]))


def passing(difference: Difference) -> bool:
    """Whether it is too little to be a change."""
    if not difference.what.endswith("shm_bytes"):
        return False
    try:
        return isclose(float(difference.a), float(difference.b), rel_tol=_ALIKE)
    except ValueError:
        return False


def _lasting(facts: Facts) -> Facts:
    kept = {key: text for key, text in facts.items() if not _OWN.fullmatch(" ".join(key)) and not _says_nothing(*key, text)}
    return {key: _OF_BOOT.sub("", text).strip() if key[1].endswith("command_line") else text for key, text in kept.items()}


def _read_by_both(a: Facts, b: Facts) -> tuple[Facts, Facts]:
    """Both without the facts of machines that only one has and that an earlier collbench did not read."""
    new = {key for key in a.keys() ^ b.keys() if key[0] == "topology" and LATER.get(key[1].rpartition(" ")[2], True) is None}
    one, other = ({key: text for key, text in facts.items() if key not in new} for facts in (a, b))
    return one, other


def _says_nothing(kind: str, what: str, text: str) -> bool:
    """Whether it is a fact of a machine with the value that a document without this fact has."""
    default = LATER.get(what.rpartition(" ")[2])
    return kind == "topology" and default is not None and text == str(default)


def _machines(facts: Facts) -> list[_Machine]:
    """The facts of each kind of machine, in the order of their numbers."""
    found: dict[int, dict[str, str]] = {}
    for (kind, what), text in facts.items():
        if kind == "topology" and (told := _MACHINE.fullmatch(what)):
            found.setdefault(int(told[1][:9]), {})[told[2]] = text
    return [found[number] for number in sorted(found)]


def _pairs(before: list[_Machine], after: list[_Machine]) -> Iterator[tuple[_Machine, _Machine]]:
    """Each kind of either side with the most alike of the other; those that are in both once."""
    alike = [each for each in before if each in after]
    yield from ((each, each) for each in alike)
    gone, come = ([each for each in side if each not in alike] for side in (before, after))
    used = []
    for each in come:
        nearest = min(before, key=lambda one: _distance(one, each))
        used.append(nearest)
        yield nearest, each
    for each in gone:
        if each not in used:
            yield each, min(after, key=lambda one: _distance(each, one))


def _distance(one: _Machine, other: _Machine) -> int:
    return len(one.items() ^ other.items())


def _numbered(facts: Facts, machines: list[_Machine]) -> Facts:
    """The facts with these machines, numbered in this order, in place of their own."""
    rest = {key: text for key, text in facts.items() if key[0] != "topology" or not _MACHINE.fullmatch(key[1])}
    own = {("topology", f"machines {number} {what}"): text for number, each in enumerate(machines) for what, text in each.items()}
    return {**rest, **own}
