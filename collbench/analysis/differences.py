"""Differences between two runs in addition to their figures: software, settings, links, machines, ranks, options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from math import isclose
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec.structs import replace

from collbench.columns import column, figure
from collbench.launch.software import NAMES, VERSIONS
from collbench.launch.software import differing as mixed
from collbench.machine.merge import written
from collbench.machine.snapshot import LATER
from collbench.results.environment import steering
from collbench.results.folder import topology_of
from collbench.results.reader import Run
from collbench.untrusted import dict_of, list_of

# Items of a run, by kind and path, with their values as text.

_MACHINES = "machines"
_DIGITS = re.compile(r"\b\d+\b")
_MOST_DIGITS = 9
_UNIT = re.compile(r"_(?:bits|bytes|gt)_per_s\b")


class Item(NamedTuple):
    """An item that is compared between runs.

    kind  one of KINDS
    path  the words of its place, as in the stored files: ("machines", "3", "nics", "mlx5_0", "rate_bits_per_s")
    """

    kind: str
    path: tuple[str, ...]

    @classmethod
    def of(cls, kind: str, *names: str) -> Item:
        """Return the item at these names; a name of several words becomes several words of the path."""
        return cls(kind, tuple(" ".join(names).split(" ")))

    @property
    def what(self) -> str:
        """Return the path as in stored files and --expect: "machines 3 nics mlx5_0 rate_bits_per_s"."""
        return " ".join(self.path)

    @property
    def machine(self) -> int | None:
        """Return the number of the machine that it is part of; None for other items."""
        if self.kind != "topology" or len(self.path) <= 2 or self.path[0] != _MACHINES:
            return None
        number = self.path[1]
        return int(number[:_MOST_DIGITS]) if number.isascii() and number.isdecimal() else None

    @property
    def of_machine(self) -> tuple[str, ...]:
        """Return the path within its machine."""
        return self.path if self.machine is None else self.path[2:]

    @property
    def nic(self) -> str | None:
        """Return the name of a machine's NIC that it is part of; None for other items."""
        inner = self.of_machine
        return inner[1] if self.machine is not None and len(inner) > 2 and inner[0] == "nics" else None

    @property
    def attribute(self) -> str:
        """Return the last word of the path: "rate_bits_per_s"."""
        return self.path[-1]


Facts = dict[Item, str]


# Interfaces without traffic of a run, which containers and virtual machines add and remove: veth pairs, bridges, taps, tunnels.
# Interfaces with a PCI address, bonds, VLANs and RDMA devices are part of the machine.

_WORD = re.compile(r"[\w.@-]+")
_IDLE = {"veth or the like", "tap", "bridge", "tunnel or the like"}  # values of `Nic.virtual`
_Nic = tuple[int | None, str | None]


def without_idle(facts: Facts) -> Facts:
    """Return the facts without idle virtual interfaces; machines that differed in those alone become one.

    Interfaces with an address of a rank, and those that a setting or a library names, stay. All stay where no address is known.
    """
    used = _used(facts)
    attributes: dict[_Nic, dict[str, str]] = {}  # of interfaces, what they are: virtual, RDMA
    for item, text in facts.items():
        if item.nic is not None and len(item.of_machine) == 3 and item.attribute in ("virtual", "rdma"):
            attributes.setdefault((item.machine, item.nic), {})[item.attribute] = text
    unneeded = {nic for nic, kind in attributes.items() if kind.get("virtual") in _IDLE and kind.get("rdma") != "True"}
    idle = {nic for nic in unneeded if nic[1] not in used}
    if not used or not idle:
        return facts
    kept = {item: text for item, text in facts.items() if (item.machine, item.nic) not in idle}
    return _numbered(kept, list({frozenset(machine.items()): machine for machine in _machines(kept)}.values()))


def _used(facts: Facts) -> set[str]:
    """Return the names of interfaces with addresses of ranks, and all words of settings that may be names; without addresses none."""
    rank_interfaces = {
        text
        for item, text in facts.items()
        if item.kind == "topology" and len(item.path) == 3 and item.path[0] == "interfaces" and item.attribute == "name"
    }  # fmt: skip
    texts = [
        text
        for item, text in facts.items()
        if item.kind == "environment" or (item.kind == "software" and any("interface" in word for word in item.path))
    ]
    return rank_interfaces | {word for text in texts for word in _WORD.findall(text)} if rank_interfaces else rank_interfaces


KINDS = ("software", "environment", "topology", "hosts", "ranks", "machine", "launcher", "options", "libraries")
NOTHING = "–"
# Launches that differ in one of these are not repetitions of each other.
_APART = ("software", "environment", "topology", "hosts")
_SOFTWARE_OF_HOST = ("system", "kernel", "libc", "python")
_NOT_OPTIONS = {"--out", "--allocation", "--launches", "--quiet", "--format", "--color"}
_LONG = {"-d": "--dtype", "-o": "--redop", "-r": "--root", "-n": "--iterations", "-w": "--warmup", "-c": "--check"}
_MOST_FACTS = 20_000
_DEEPEST = 8
# Attributes of a machine that are not compared: its sources, and values that change with every reading.
_TRANSIENT = {
    "hostname", "hostnames", "sources", "unknown", "origins", "disagreements", "doubts", "counters", "lid", "guid", "uuid", "memory_bytes",
}  # fmt: skip
_NAMES = ("address", "key", "name", "id", "number")
_LONGEST = 200
_BEFORE = 20


class Difference(msgspec.Struct, frozen=True):
    """An item with value `a` in one run and `b` in the other; "–": it is missing.

    times  the number of equal differences of numbered items that it combines, with "*" in its path
    """

    item: Item
    a: Annotated[str, column("Its value in the first run.")]
    b: Annotated[str, column("Its value in the second run.")]
    times: int = 1

    @property
    @figure('The kind of what differs: "software".')
    def kind(self) -> str:
        """Return its kind, one of KINDS."""
        return self.item.kind

    @property
    @figure('What differs: "mpi version".')
    def what(self) -> str:
        """Return its path as text, which a pattern of --expect matches: "interfaces * shaped_bits_per_s (3 times)"."""
        return f"{self.item.what} ({self.times} times)" if self.times > 1 else self.item.what

    def change(self) -> str:
        """Return "MPICH 4.3 → MPICH 5.0", "1 Gb/s → 0.8 Gb/s"."""
        return f"{_in_units(self.item, self.a)} → {_in_units(self.item, self.b)}"

    def sentence(self) -> str:
        """Return "software mpi: MPICH 4.3 → MPICH 5.0", "topology interfaces 1 shaped: 1 Gb/s → 0.8 Gb/s"."""
        return f"{self.kind} {_UNIT.sub('', self.what)}: {self.change()}"

    __str__ = sentence


def _in_units(item: Item, text: str) -> str:
    """Return the text of a value, rates with their unit: "0.8 Gb/s" for an item with the attribute `shaped_bits_per_s`."""
    try:
        return written(item.attribute, float(text)) if _UNIT.search(item.attribute) else text
    except ValueError:
        return text


def differences(a: Run, b: Run) -> list[Difference]:
    """Return what differs, the most important first; what is equal in many places appears once.

    Each kind of machine is compared with the most similar one of the other run.
    """
    return [difference for difference in differing(*comparable(facts(a), facts(b))) if not transient(difference)]


def differing(a: Facts, b: Facts) -> list[Difference]:
    """Return the differences as `differences` does, from facts that were read before."""
    probed = [any(item.machine is not None for item in side) for side in (a, b)]
    if probed[0] != probed[1]:  # if only one run has machines, they are one difference instead of one for each of their parts
        mark = {Item.of("topology", _MACHINES): "probed"}
        a, b = ({**_without_machines(side), **(mark if is_probed else {})} for side, is_probed in zip((a, b), probed, strict=True))
    unequal = [
        Difference(item, *_excerpts(a.get(item, NOTHING), b.get(item, NOTHING)))
        for item in dict.fromkeys([*a, *b])
        if a.get(item) != b.get(item)
    ]
    return sorted(_combined(unequal), key=lambda difference: KINDS.index(difference.kind))


def apart(a: Run, b: Run) -> list[Difference]:
    """Return the differences that separate two launches. An item that one side lacks does not count, except a variable."""
    separating = [difference for difference in differences(a, b) if difference.kind in _APART]
    return [difference for difference in separating if difference.kind == "environment" or NOTHING not in (difference.a, difference.b)]


def facts(run: Run) -> Facts:
    """Return everything that is compared, as text by item, without idle interfaces."""
    if run.compared is not None:
        return {Item(*item): text for item, text in run.compared.items()}
    info = run.info
    topology = topology_of(run.path)
    host = dict_of(info.get("host"))
    # versions that differ between the hosts; which hosts have which varies by allocation
    by_host = mixed([versions for versions in list_of(info.get("software"), dict) if isinstance(versions.get("hosts"), list)])
    unequal = {f"{NAMES[name]}, not the same on all hosts": ", ".join(sorted(by_host[name])) for name in VERSIONS if name in by_host}
    names = sorted({str(name) for name in info["hosts"]}) if isinstance(info.get("hosts"), list) else []
    places = list_of(info.get("rank_map"), dict)
    bound = [place for place in places if place.get("cpus") is not None]  # unknown for imported runs
    cpus = "; ".join(dict.fromkeys(f"local rank {place.get('local_rank')} on {place['cpus']}" for place in bound))
    # the governor and similar conditions of the first row, which are equal on all rows
    conditions = next(iter(list_of([row.evidence.get("conditions") for row in run.rows], dict)), {})
    read = [
        ("software", {"collbench": info.get("collbench") if isinstance(info.get("collbench"), str) else None}),
        ("software", {"schema of the run folder": info.get("schema")}),
        ("software", info.get("backends")),
        ("software", unequal),
        ("environment", steering(dict_of(info.get("environment")))),
        ("topology", {"interfaces": topology.get("interfaces"), "machines": _without_transient(topology.get("machines"))}),
        ("software", {name: host.get(name) for name in _SOFTWARE_OF_HOST}),
        ("machine", {name: value for name, value in host.items() if name not in (*_SOFTWARE_OF_HOST, "hostname")}),
        ("machine", conditions),
        ("hosts", {"names": ", ".join(names), "number": len(names)} if names else None),
        ("ranks", {"number": len(places), "CPUs": cpus or None} if places else None),
        ("launcher", {"name": info.get("launcher"), **dict_of(info.get("launcher_facts"))}),
        ("options", _options(info.get("command"), imported="imported" in info)),
    ]
    # libraries by name without version
    libraries = {path.rsplit("/", 1)[-1].partition(".so")[0]: path for path in list_of(info.get("libraries"), str)}
    items = {item: text for kind, value in read for item, text in _flat(kind, value).items()}
    return without_idle(items) | _flat("libraries", libraries)


def _excerpts(a: str, b: str) -> tuple[str, str]:
    """Return both texts; of long ones the part from shortly before the first difference."""
    parting = next((place for place, (first, second) in enumerate(zip(a, b, strict=False)) if first != second), min(len(a), len(b)))
    start = max(0, parting - _BEFORE) if max(len(a), len(b)) > _LONGEST else 0
    first, second = (f"{'…' * (start > 0)}{text[start : start + _LONGEST]}{'…' * (len(text) > start + _LONGEST)}" for text in (a, b))
    return first, second


def _combined(differences: list[Difference]) -> list[Difference]:
    """Return the differences; equal ones of numbered items (the links of many hosts) are combined, and so are libraries of one run only."""
    lonely = [difference for difference in differences if difference.kind == "libraries" and NOTHING in (difference.a, difference.b)]
    equal: dict[Difference, list[Difference]] = {}
    for difference in (difference for difference in differences if difference not in lonely):
        path = tuple(_DIGITS.sub("*", word) for word in difference.item.path) if difference.kind == "topology" else difference.item.path
        equal.setdefault(replace(difference, item=Item(difference.kind, path)), []).append(difference)
    combined = [members[0] if len(members) == 1 else replace(difference, times=len(members)) for difference, members in equal.items()]
    if lonely:
        only_in_a = ", ".join(difference.what for difference in lonely if difference.b == NOTHING) or NOTHING
        only_in_b = ", ".join(difference.what for difference in lonely if difference.a == NOTHING) or NOTHING
        combined.append(Difference(Item.of("libraries", "in one run only"), only_in_a, only_in_b))
    return combined


def _flat(kind: str, value: Any) -> Facts:
    return {Item.of(kind, *names): text for names, text in islice(_leaves(value, (), _DEEPEST), _MOST_FACTS)}


def _leaves(value: Any, names: tuple[str, ...], depth: int) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield (names, text) of everything in a JSON value; a list of plain values is one text."""
    if value is None or depth < 0:
        return
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, (*names, str(name)), depth - 1)
    elif isinstance(value, list) and any(isinstance(inner, dict | list) for inner in value):
        for place, inner in enumerate(value):
            yield from _leaves(inner, (*names, str(place)), depth - 1)
    else:
        yield names, ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _without_transient(value: Any) -> Any:
    """Return the topology without passing values, parts of a machine by name, so that one missing GPU is one difference."""
    if isinstance(value, list) and value and all(isinstance(inner, dict) for inner in value):
        parts = [_without_transient(inner) for inner in value]
        named = {}
        for place, (inner, part) in enumerate(zip(value, parts, strict=True)):
            name = next((str(inner[name]) for name in _NAMES if isinstance(inner.get(name), str | int)), str(place))
            named[name] = part
        return named if len(named) == len(value) else parts
    if not isinstance(value, dict):
        return value
    idle = {"link"} if value.get("kind") == "gpu" else set()  # an idle GPU reduces the speed of its link
    return {name: _without_transient(inner) for name, inner in value.items() if name not in _TRANSIENT | idle}


def _options(command: Any, *, imported: bool) -> dict[str, str]:
    """Return the command's options by name; the last one of a name counts. The files that an import reads are left out."""
    options: dict[str, str] = {}
    name = "command"
    for word in list_of(command, str)[1:]:
        if word.startswith("-"):
            short, _, value = word.partition("=")
            name = _LONG.get(short, short)
            options[name] = value or "given"
        else:
            options[name] = word if options.get(name, "given") == "given" else f"{options[name]} {word}"
    return {name: value for name, value in options.items() if name not in _NOT_OPTIONS and not (imported and name == "command")}


# Differences between fresh allocations that are not changes: addresses, the order of machines, boot parameters.

_OF_BOOT = re.compile(r"\b(?:BOOTIF|ip|root|hostname|rd\.\S+?|resume|nfsroot|systemd\.machine_id|systemd\.hostname)=\S*\s*", re.ASCII)
_ALIKE = 0.05  # the firmware's memory differs between nodes, and with it the size of /dev/shm
_MOST_MACHINES = 64  # kinds of machines; with more they are compared by their numbers
_Machine = Mapping[tuple[str, ...], str]  # by the path within it


def comparable(before: Facts, after: Facts) -> tuple[Facts, Facts]:
    """Return both without the differences of fresh allocations. Each machine has the number of the one to compare it with.

    A run stores equal machines once. If one of many has changed, a second kind of machine appears. It is compared with the
    most similar one of the other side.
    """
    # `without_idle` again, since an earlier collbench may have written the baseline.
    a = _transient_removed(without_idle(before))
    b = _transient_removed(without_idle(after))
    machines_a = _machines(a)
    machines_b = _machines(b)
    if not machines_a or not machines_b or max(len(machines_a), len(machines_b)) > _MOST_MACHINES:
        return _read_by_both(a, b)
    pairs = list(_pairs(machines_a, machines_b))
    return _read_by_both(_numbered(a, [first for first, _ in pairs]), _numbered(b, [second for _, second in pairs]))


def transient(difference: Difference) -> bool:
    """Return whether the difference is too small to be a change."""
    if not difference.item.attribute.endswith("shm_bytes"):
        return False
    try:
        return isclose(float(difference.a), float(difference.b), rel_tol=_ALIKE)
    except ValueError:
        return False


def _transient_removed(facts: Facts) -> Facts:
    """Return the facts without addresses, LIDs of subnet managers, and facts with the value that a document without them has."""
    kept: Facts = {}
    for item, text in facts.items():
        is_ephemeral = len(item.path) > 1 and (item.kind, item.attribute) in (("software", "address"), ("topology", "sm_lid"))
        default = LATER.get(item.attribute) if item.kind == "topology" else None
        if not is_ephemeral and (default is None or text != str(default)):
            kept[item] = _OF_BOOT.sub("", text).strip() if item.attribute.endswith("command_line") else text
    return kept


def _read_by_both(a: Facts, b: Facts) -> tuple[Facts, Facts]:
    """Return both without the facts of machines that only one has and that an earlier collbench did not read."""
    new = {item for item in a.keys() ^ b.keys() if item.kind == "topology" and LATER.get(item.attribute, True) is None}
    kept_a, kept_b = ({item: text for item, text in facts.items() if item not in new} for facts in (a, b))
    return kept_a, kept_b


def _machines(facts: Facts) -> list[_Machine]:
    """Return the facts of each kind of machine, in the order of their numbers."""
    machines: dict[int, dict[tuple[str, ...], str]] = {}
    for item, text in facts.items():
        if item.machine is not None:
            machines.setdefault(item.machine, {})[item.of_machine] = text
    return [machines[number] for number in sorted(machines)]


def _pairs(before: list[_Machine], after: list[_Machine]) -> Iterator[tuple[_Machine, _Machine]]:
    """Yield each kind of machine of either side with the most similar one of the other; those of both sides once."""
    unchanged = [machine for machine in before if machine in after]
    yield from ((machine, machine) for machine in unchanged)
    only_before, only_after = ([machine for machine in side if machine not in unchanged] for side in (before, after))
    used = []
    for machine in only_after:
        used.append(min(before, key=lambda candidate: len(candidate.items() ^ machine.items())))
        yield used[-1], machine
    for machine in only_before:
        if machine not in used:
            yield machine, min(after, key=lambda candidate: len(candidate.items() ^ machine.items()))


def _numbered(facts: Facts, machines: list[_Machine]) -> Facts:
    """Return the facts with these machines instead of their own, numbered in this order."""
    numbered = _without_machines(facts)
    for number, machine in enumerate(machines):
        numbered |= {Item("topology", (_MACHINES, str(number), *path)): text for path, text in machine.items()}
    return numbered


def _without_machines(facts: Facts) -> Facts:
    return {item: text for item, text in facts.items() if item.machine is None}
