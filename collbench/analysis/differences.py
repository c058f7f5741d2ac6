"""In what two runs differ besides their figures: software, settings, links, machines, ranks, options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from math import isclose
from typing import Any

from collbench.launch.software import NAMES, VERSIONS
from collbench.launch.software import differing as mixed
from collbench.machine.snapshot import LATER
from collbench.results.environment import steering
from collbench.results.folder import TOPOLOGY
from collbench.results.reader import Run
from collbench.results.store import parse_object
from collbench.untrusted import read_file

# Interfaces that carry nothing of a run and come and go with containers and virtual machines: veth pairs, bridges, taps, tunnels.

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


KINDS = ("software", "environment", "topology", "hosts", "ranks", "machine", "launcher", "options", "libraries")
NOTHING = "–"
# Launches that differ in one of these are no repetitions of one another.
_APART = ("software", "environment", "topology", "hosts")
_SOFTWARE_OF_HOST = ("system", "kernel", "libc", "python")
_NOT_OPTIONS = {"--out", "--allocation", "--launches", "--quiet", "--format", "--color"}
_LONG = {"-d": "--dtype", "-o": "--redop", "-r": "--root", "-n": "--iterations", "-w": "--warmup", "-c": "--check"}
_LARGEST_TOPOLOGY = 16 << 20
_MOST_FACTS, _DEEPEST = 20_000, 8
# Of a machine: how it was read, and what is another thing each time.
_PASSING = {
    "hostname", "hostnames", "sources", "unknown", "origins", "disagreements", "doubts", "counters", "lid", "guid", "uuid", "memory_bytes",
}  # fmt: skip
_NAMES = ("address", "key", "name", "id", "number")
_LONGEST, _BEFORE = 200, 20


@dataclass(frozen=True)
class Difference:
    """One thing that is `a` in one run and `b` in the other; kind is one of KINDS, "–" says that it is not there."""

    kind: str
    what: str
    a: str
    b: str

    def sentence(self) -> str:
        """ "software mpi: MPICH 4.3 → MPICH 5.0"."""
        return f"{self.kind} {self.what}: {self.a} → {self.b}"


def differences(a: Run, b: Run) -> list[Difference]:
    """Return what differs, the most important first; what is equal in many places appears once.

    Each kind of machine is compared with the most similar one of the other run.
    """

    return [each for each in differing(*comparable(facts(a), facts(b))) if not passing(each)]


def differing(a: Facts, b: Facts) -> list[Difference]:
    """The same of facts that are known already."""
    before, after = _both_probed(a, b)
    found = [
        Difference(kind, what, *_telling(before.get((kind, what), NOTHING), after.get((kind, what), NOTHING)))
        for kind, what in dict.fromkeys([*before, *after])
        if before.get((kind, what)) != after.get((kind, what))
    ]
    return sorted(_told_once(found), key=lambda difference: KINDS.index(difference.kind))


def apart(a: Run, b: Run) -> list[Difference]:
    """The differences that keep two launches apart. What only one of them says contradicts nothing, but a variable set or not does."""
    found = [difference for difference in differences(a, b) if difference.kind in _APART]
    return [each for each in found if each.kind == "environment" or NOTHING not in (each.a, each.b)]


def facts(run: Run) -> Facts:
    """Everything that is compared, as text by (kind, what): without interfaces that carry nothing."""
    info = run.info
    found: Facts = {("software", "collbench"): info["collbench"]} if isinstance(info.get("collbench"), str) else {}
    found |= _flat("software", {"schema of the run folder": info.get("schema")})
    found |= _flat("software", info.get("backends"))
    found |= _flat("software", _mixed(info.get("software")))
    environment, host = _object(info.get("environment")), _object(info.get("host"))
    found |= _flat("environment", steering(environment))
    topology = topology_of(run)
    found |= _flat("topology", {"interfaces": topology.get("interfaces"), "machines": _lasting(topology.get("machines"))})
    found |= _flat("software", {name: host.get(name) for name in _SOFTWARE_OF_HOST})
    found |= _flat("machine", {name: value for name, value in host.items() if name not in (*_SOFTWARE_OF_HOST, "hostname")})
    found |= _flat("machine", _conditions(run))
    found |= _places(info)
    found |= _flat("launcher", {"name": info.get("launcher"), **_object(info.get("launcher_facts"))})
    found |= _flat("options", _options(info.get("command"), imported="imported" in info))
    return without_idle(found) | _flat("libraries", _libraries(info.get("libraries")))


def _mixed(of_hosts: Any) -> dict[str, str]:
    """Software that is not the same on all hosts of a run: its versions. Which hosts have which changes with every allocation."""
    groups = [one for one in of_hosts if isinstance(one, dict) and isinstance(one.get("hosts"), list)] if isinstance(of_hosts, list) else []
    found = mixed(groups)
    return {f"{NAMES[name]}, not the same on all hosts": ", ".join(sorted(found[name])) for name in VERSIONS if name in found}


def _both_probed(a: Facts, b: Facts) -> tuple[Facts, Facts]:
    """Of machines that only one run tells of that alone: each of their parts would be a difference."""
    sides = [{key for key in each if key[0] == "topology" and key[1].startswith("machines ")} for each in (a, b)]
    if bool(sides[0]) == bool(sides[1]):
        return a, b
    told = [{key: text for key, text in each.items() if key not in own} for each, own in zip((a, b), sides, strict=True)]
    probed, other = told if sides[0] else told[::-1]
    probed["topology", "machines"] = "probed"
    return (probed, other) if sides[0] else (other, probed)


def _telling(a: str, b: str) -> tuple[str, str]:
    """Both texts, if they are long from shortly before the place where they part."""
    parting = next((place for place, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))
    start = max(0, parting - _BEFORE) if max(len(a), len(b)) > _LONGEST else 0
    first, second = (f"{'…' * (start > 0)}{text[start : start + _LONGEST]}{'…' * (len(text) > start + _LONGEST)}" for text in (a, b))
    return first, second


def _told_once(found: list[Difference]) -> list[Difference]:
    """Equal changes of numbered things (the links of many hosts) become one, with their number; so do libraries of one run only."""
    lonely = [each for each in found if each.kind == "libraries" and NOTHING in (each.a, each.b)]
    counts: dict[Difference, list[str]] = {}
    for each in (each for each in found if each not in lonely):
        what = re.sub(r"\b\d+\b", "*", each.what) if each.kind == "topology" else each.what
        counts.setdefault(Difference(each.kind, what, each.a, each.b), []).append(each.what)
    told = [replace(each, what=names[0] if len(names) == 1 else f"{each.what} ({len(names)} times)") for each, names in counts.items()]
    return [*told, *_of_one_run_only(lonely)]


def _of_one_run_only(libraries: list[Difference]) -> list[Difference]:
    of_a = ", ".join(each.what for each in libraries if each.b == NOTHING)
    of_b = ", ".join(each.what for each in libraries if each.a == NOTHING)
    return [Difference("libraries", "in one run only", of_a or NOTHING, of_b or NOTHING)] if libraries else []


def _flat(kind: str, value: Any) -> Facts:
    return {(kind, what): text for what, text in islice(_leaves(value, (), _DEEPEST), _MOST_FACTS)}


def _leaves(value: Any, names: tuple[str, ...], depth: int) -> Iterator[tuple[str, str]]:
    """(name, text) of everything in a JSON value; a list of plain values is one text."""
    if value is None or depth < 0:
        return
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, (*names, str(name)), depth - 1)
    elif isinstance(value, list) and any(isinstance(inner, dict | list) for inner in value):
        for place, inner in enumerate(value):
            yield from _leaves(inner, (*names, str(place)), depth - 1)
    else:
        yield " ".join(names), ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def topology_of(run: Run) -> dict[str, Any]:
    """What stands in the run's topology.json; nothing where there is none that can be read."""
    path = run.path / TOPOLOGY
    try:
        return parse_object(read_file(path, _LARGEST_TOPOLOGY))
    except (OSError, ValueError):
        return {}


def _lasting(value: Any) -> Any:
    """Topology without what passes; parts of a machine by their names, so that one lost GPU is one difference."""
    if isinstance(value, list) and value and all(isinstance(inner, dict) for inner in value):
        named = {_name_of(inner, str(place)): _lasting(inner) for place, inner in enumerate(value)}
        return named if len(named) == len(value) else [_lasting(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    idle = {"link"} if value.get("kind") == "gpu" else set()  # a GPU at rest slows its link down
    return {name: _lasting(inner) for name, inner in value.items() if name not in _PASSING | idle}


def _name_of(part: dict[str, Any], place: str) -> str:
    return next((str(part[name]) for name in _NAMES if isinstance(part.get(name), str | int)), place)


def _conditions(run: Run) -> dict[str, Any]:
    """Governor and the like: the first row's, they are the same on all."""
    return next((found for row in run.rows if isinstance(found := row.evidence.get("conditions"), dict)), {})


def _places(info: dict[str, Any]) -> Facts:
    rank_map = info.get("rank_map")
    places = [place for place in rank_map if isinstance(place, dict)] if isinstance(rank_map, list) else []
    hosts = info.get("hosts")
    names = sorted({str(host) for host in hosts}) if isinstance(hosts, list) else []
    found = _flat("hosts", {"names": ", ".join(names), "number": len(names)} if names else None)
    bound = [place for place in places if place.get("cpus") is not None]  # of what is imported it is not known
    cpus = "; ".join(dict.fromkeys(f"local rank {place.get('local_rank')} on {place['cpus']}" for place in bound))
    return found | (_flat("ranks", {"number": len(places), **({"CPUs": cpus} if cpus else {})}) if places else {})


def _options(command: Any, *, imported: bool) -> dict[str, str]:
    """What was typed, by option; the last one of a name counts. The files that an import read are not options."""
    words = [word for word in command if isinstance(word, str)][1:] if isinstance(command, list) else []
    found: dict[str, str] = {}
    name = "command"
    for word in words:
        if word.startswith("-"):
            short, _, value = word.partition("=")
            name = _LONG.get(short, short)
            found[name] = value or "given"
        else:
            found[name] = word if found.get(name, "given") == "given" else f"{found[name]} {word}"
    return {name: value for name, value in found.items() if name not in _NOT_OPTIONS and not (imported and name == "command")}


def _libraries(paths: Any) -> dict[str, str]:
    """Paths by the library's name without its version."""
    names = [path for path in paths if isinstance(path, str)] if isinstance(paths, list) else []
    return {path.rsplit("/", 1)[-1].partition(".so")[0]: path for path in names}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


# What of the circumstances is another thing in each fresh allocation, and no change: addresses, the order of machines, boot parameters.

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
    a, b = (
        _lasting_machines(without_idle(before)),
        _lasting_machines(without_idle(after)),
    )  # of a baseline that an earlier collbench wrote, too
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


def _lasting_machines(facts: Facts) -> Facts:
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
