"""Interfaces that carry nothing of a run and come and go with containers and virtual machines: veth pairs, bridges, taps, tunnels."""

from __future__ import annotations

import re
from collections.abc import Mapping

_OF_NIC = re.compile(r"machines (\d+) nics (\S+) (.+)", re.ASCII | re.DOTALL)
_OF_MACHINE = re.compile(r"machines (\d+) (.+)", re.ASCII | re.DOTALL)
_USED = re.compile(r"interfaces \d+ name", re.ASCII)
_WORD = re.compile(r"[\w.@-]+")
# What nothing is made of, as `probe` calls it; what has a PCI address, a bond or a VLAN, and an RDMA device is part of the machine.
_IDLE = {"veth or the like", "tap", "bridge", "tunnel or the like"}
_MOST_DIGITS = 9
Facts = dict[tuple[str, str], str]


def without_idle(facts: Facts) -> Facts:
    """What is compared, without these interfaces; machines that differed in them alone are one.

    Those that ranks have their address on stay, and so do those that a setting or a library names: a veth is the network of a
    namespace. Where nothing says on which the ranks have theirs, all stay.
    """
    used = _used(facts)
    idle = {key for key, kind in _virtual(facts).items() if kind in _IDLE and key[1] not in used} if used else set[tuple[str, str]]()
    if not idle:
        return facts
    kept = {key: text for key, text in facts.items() if not _is_of(key, idle)}
    return _machines_once(kept)


def _used(facts: Mapping[tuple[str, str], str]) -> set[str]:
    """Names of interfaces that ranks have their addresses on, and with those whatever word may be one."""
    own = {text for (kind, what), text in facts.items() if kind == "topology" and _USED.fullmatch(what)}
    texts = [text for (kind, what), text in facts.items() if kind == "environment" or (kind == "software" and "interface" in what)]
    return own | {word for text in texts for word in _WORD.findall(text)} if own else own


def _virtual(facts: Mapping[tuple[str, str], str]) -> dict[tuple[str, str], str]:
    """By machine and interface why it is no port of the machine; not of RDMA devices."""
    told: dict[tuple[str, str], dict[str, str]] = {}
    for (kind, what), text in facts.items():
        if kind == "topology" and (match := _OF_NIC.fullmatch(what)) and match[3] in ("virtual", "rdma"):
            told.setdefault((match[1], match[2]), {})[match[3]] = text
    return {key: each["virtual"] for key, each in told.items() if "virtual" in each and each.get("rdma") != "True"}


def _is_of(key: tuple[str, str], nics: set[tuple[str, str]]) -> bool:
    match = _OF_NIC.fullmatch(key[1]) if key[0] == "topology" else None
    return match is not None and (match[1], match[2]) in nics


def _machines_once(facts: Facts) -> Facts:
    """A run tells of equal machines once: numbers are given anew, in the order of the old ones."""
    machines: dict[int, Facts] = {}
    rest: Facts = {}
    for (kind, what), text in facts.items():
        match = _OF_MACHINE.fullmatch(what) if kind == "topology" else None
        if match is None:
            rest[kind, what] = text
        else:
            machines.setdefault(int(match[1][:_MOST_DIGITS]), {})["topology", match[2]] = text
    different = list({frozenset(machines[number].items()): machines[number] for number in sorted(machines)}.values())
    return rest | {
        (kind, f"machines {number} {what}"): text for number, each in enumerate(different) for (kind, what), text in each.items()
    }
