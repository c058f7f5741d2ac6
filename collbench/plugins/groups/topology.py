"""Texts that list the hosts of leaf switches or blocks: Slurm's topology.conf and topology.yaml, `scontrol show topology`, plain lists.

Formats: topology.conf(5), topology.yaml(5) (Slurm 25.05), scontrol(1). Every function raises ValueError for a malformed text: where, what
and the remedy in one sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from collbench.machine.readers.text import printable

Levels = list[tuple[str, dict[str, str]]]  # from the finest: what the groups are, and by host the name of its group

_SLURM_LINE = re.compile(r"\s*(SwitchName|BlockName|BlockSizes|AggregatedBlock)\s*=", re.IGNORECASE)
_NAMED_LINE = re.compile(r"([^\s:#=]+)\s*:\s+(\S.*)")
_YAML_LINE = re.compile(r"((?:-\s+)*)([a-z_]+)\s*:(?:\s+(\S.*))?|-\s+(\d+)")
_YAML_WORDS = frozenset(
    ("topology", "cluster_default", "tree", "block", "flat", "switches", "blocks", "switch", "children", "nodes", "block_sizes")
)
_MOST_LEVELS = 20


class DeclaredGroup(msgspec.Struct):
    """A switch, block or group as it is declared at `line`: host lists of its nodes, and of the switches below it."""

    name: str
    line: int
    nodes: str = ""
    children: str = ""


class Topology(msgspec.Struct):
    """The switches or blocks of a topology, and the sizes of aggregated blocks (text) with their line."""

    switches: list[DeclaredGroup] = msgspec.field(default_factory=list)
    blocks: list[DeclaredGroup] = msgspec.field(default_factory=list)
    sizes: list[str] = msgspec.field(default_factory=list)
    line: int = 0
    is_default: bool = False


def read_levels(text: str) -> Levels:
    """Return the groups of a text in any of the formats, recognized by its first line that is not a comment. Raises ValueError."""
    lines = list(_lines(text))
    first = lines[0][1] if lines else ""
    if _SLURM_LINE.match(first):
        topology = _slurm(lines)
    elif first.strip() == "---" or first.lstrip().startswith("- "):
        topology = _slurm_yaml(lines)
    else:
        return [("group", _owners(_plain(lines), "group"))]
    if bool(topology.switches) == bool(topology.blocks):
        raise ValueError("it declares not exactly one of switches and blocks: save Slurm's topology.conf or `scontrol show topology`")
    return _switch_levels(topology.switches) if topology.switches else _block_levels(topology)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number and the content of each line that is not empty, without comments; a "\\" at the end joins the next line."""
    begun = ""
    for number, raw in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        line = begun + raw.partition("#")[0].rstrip()
        begun = line[:-1] if line.endswith("\\") else ""
        if line and not begun:
            yield number, line
    if begun:
        raise ValueError("the last line ends with \\, which joins the next one, and none follows: the file was cut, or remove it")


def _plain(lines: Sequence[tuple[int, str]]) -> list[DeclaredGroup]:
    """Return the groups of lines "NAME: HOSTS"."""
    matches = [(number, line.strip(), _NAMED_LINE.fullmatch(line.strip())) for number, line in lines]
    wrong = [f"line {number}: '{printable(line, 60)}' is not NAME: HOSTS" for number, line, match in matches if match is None]
    if wrong or not matches:
        raise ValueError(f"{wrong[0] if wrong else 'it is empty'}: write lines such as leaf1: node[01-16]")
    return [DeclaredGroup(match[1], number, match[2]) for number, _, match in matches if match]


def _slurm(lines: Sequence[tuple[int, str]]) -> Topology:
    """Return the topology of a topology.conf, or of what `scontrol show topology` prints."""
    topology = Topology()
    for number, line in lines:
        pairs = [word.partition("=") for word in re.sub(r"\s*=\s*", "=", line).split()]
        words = {key.lower(): value for key, _, value in pairs}
        if not all(words.values()):
            raise ValueError(f"line {number}: '{printable(line.strip(), 60)}' is not a list of NAME=VALUE: correct it")
        if "switchname" in words:
            topology.switches.append(DeclaredGroup(words["switchname"], number, words.get("nodes", ""), words.get("switches", "")))
        elif "blockname" in words:
            topology.blocks.append(DeclaredGroup(words["blockname"], number, words.get("nodes", "")))
        elif "blocksizes" in words:
            topology.sizes = words["blocksizes"].split(",")
            topology.line = number
        elif "aggregatedblock" not in words:  # several blocks, as scontrol combines them
            raise ValueError(f"line {number}: SwitchName, BlockName or BlockSizes is missing: correct the line")
    return topology


def _slurm_yaml(lines: Sequence[tuple[int, str]]) -> Topology:
    """Return the topology of a topology.yaml that is the cluster's default; without one the first with switches or blocks.

    Only the names of the format are read, each on a line of its own; other YAML is an error.
    """
    topologies: list[Topology] = []
    for number, line in lines:
        if line.strip() == "---":
            continue
        match = _YAML_LINE.fullmatch(line.strip())
        name = value = ""
        if match:
            name = "block_sizes" if match[4] else match[2]
            value = (match[3] or match[4] or "").strip("'\"")
        if name not in _YAML_WORDS or (not topologies and name != "topology"):
            raise ValueError(f"line {number}: '{printable(line.strip(), 60)}' is not expected: compare with topology.yaml(5)")
        if name == "topology":
            topologies.append(Topology(line=number))
        topology = topologies[-1]
        if name == "cluster_default":
            topology.is_default = value == "true"
        elif name == "switch":
            topology.switches.append(DeclaredGroup(value, number))
        elif name == "block" and value:
            topology.blocks.append(DeclaredGroup(value, number))
        elif name == "block_sizes":
            topology.sizes += [size for size in re.split(r"[\[\],\s]+", value) if size]
        elif name in ("nodes", "children"):
            units = topology.switches or topology.blocks
            if not units:
                raise ValueError(f"line {number}: '{name}' is outside a switch or block: compare with topology.yaml(5)")
            setattr(units[-1], name, value)
    named = [topology for topology in topologies if topology.switches or topology.blocks]
    if not named:
        raise ValueError("no topology has switches or blocks: add a 'tree' or a 'block', as in topology.yaml(5)")
    return next((topology for topology in named if topology.is_default), named[0])


def _hosts(text: str, unit: DeclaredGroup, what: str) -> list[str]:
    """Return the names in a host list: "node[01-03],login" has four. Raises ValueError."""
    from hostlist import BadHostlist, expand_hostlist

    try:
        return list(expand_hostlist(text))
    except BadHostlist as error:
        where = f"line {unit.line}: {what} '{printable(unit.name)}'"
        raise ValueError(f"{where}: '{printable(text)}' is not a valid host list ({error}): use e.g. node[01-16],node20") from error


def _owners(units: Sequence[DeclaredGroup], what: str) -> dict[str, str]:
    """Return by host the name of its unit. Raises ValueError for contradictions, and a unit without hosts."""
    owners: dict[str, DeclaredGroup] = {}
    names: dict[str, DeclaredGroup] = {}
    for unit in units:
        where = f"line {unit.line}: {what} '{printable(unit.name)}'"
        first = names.setdefault(unit.name, unit)
        if first is not unit:
            raise ValueError(f"{where} is also declared at line {first.line}: remove one")
        # scontrol lists the nodes of higher switches, too
        hosts = [] if unit.children else _hosts(unit.nodes, unit, what)
        if not hosts and not unit.children:
            raise ValueError(f"{where} has no nodes: add Nodes{' or Switches' if what == 'switch' else ''}")
        for host in hosts:
            owner = owners.setdefault(host, unit)
            if owner is not unit:
                raise ValueError(
                    f"{where}: host '{printable(host)}' is in '{printable(owner.name)}' (line {owner.line}), too: remove it from one"
                )
    return {host: unit.name for host, unit in owners.items()}


def _switch_levels(switches: Sequence[DeclaredGroup]) -> Levels:
    """Return the leaf switches, then the switches above them; a switch of several higher ones counts below the first."""
    levels: Levels = [("leaf switch", _owners(switches, "switch"))]
    names = {switch.name for switch in switches}
    parents: dict[str, str] = {}
    for switch in switches:
        for child in _hosts(switch.children, switch, "switch"):
            if child not in names:
                where = f"line {switch.line}: switch '{printable(switch.name)}'"
                raise ValueError(f"{where}: its switch '{printable(child)}' is not declared: add a line for it")
            parents.setdefault(child, switch.name)
    while any(switch in parents for switch in levels[-1][1].values()):
        if len(levels) > _MOST_LEVELS:
            raise ValueError(f"switches contain one another, or there are more than {_MOST_LEVELS} levels: correct the lower switches")
        above = {host: parents.get(switch, switch) for host, switch in levels[-1][1].items()}
        levels.append((f"switch at level {len(levels)}", above))
    return levels


def _block_levels(topology: Topology) -> Levels:
    """Return the blocks, then the aggregated blocks: for sizes 4 and 16, four blocks in their order."""
    owners = _owners(topology.blocks, "block")
    if not all(size.isascii() and size.isdigit() and int(size[:9]) > 0 for size in topology.sizes):
        raise ValueError(f"line {topology.line}: block sizes '{printable(','.join(topology.sizes))}' are not valid: use e.g. 4,16")
    sizes = sorted({int(size[:9]) for size in topology.sizes})
    levels: Levels = [("block", owners)]
    order = {block.name: place for place, block in enumerate(topology.blocks)}
    for size in sizes[1:]:
        joined = size // sizes[0]
        levels.append((f"blocks of {size}", {host: f"blocks-{order[name] // joined + 1}" for host, name in owners.items()}))
    return levels
