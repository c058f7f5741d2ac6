"""Several machines on one screen: how many, how they differ, one tree of each common kind, and what is odd at the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from collbench.machine.cluster import folded
from collbench.machine.model import Machine
from collbench.machine.snapshot import topology_json
from collbench.report.probe_matrix import matrix_lines
from collbench.report.probe_tree import part_texts, title, tree_lines
from collbench.report.probe_words import safe
from collbench.report.table import Line

_MOST_TREES = 3
_COMMON = 0.1  # of all machines; a kind that is rarer is told by what is odd at it
_MOST_ODD = 8  # kinds
_MOST_PARTS = 4  # of one kind


@dataclass(frozen=True)
class _Kind:
    """Machines whose trees read the same; `lines` is the first one's without its title."""

    lines: tuple[Line, ...]
    machines: list[Machine]

    @property
    def names(self) -> str:
        """All of them, as Slurm folds names."""
        return safe(folded([machine.hostname or "host name unknown" for machine in self.machines]), 1000)


def cluster_lines(machines: Sequence[Machine], differences: Sequence[str], matrix: bool) -> Iterator[Line]:
    """Several machines; with `matrix` their distances and not their trees. Never cut."""
    kinds = _kinds(machines, matrix_lines if matrix else tree_lines)
    drawn = _drawn(kinds, len(machines))
    yield Line(_summary(kinds, len(machines), told=bool(differences)), "head")
    if differences:
        yield Line("differences between nodes:", "head")
        yield from (Line(f"  {safe(each, 1000)}") for each in differences)
    odd = [kind for kind in kinds if kind not in drawn]
    for kind in odd[:_MOST_ODD]:
        yield from _odd(kind, drawn[0])
    if len(odd) > _MOST_ODD:
        yield Line(f"{sum(len(kind.machines) for kind in odd[_MOST_ODD:])} more nodes differ: `collbench probe --format json` has them all")
    for kind in drawn:
        yield from (Line(""), Line(kind.names if matrix else title(kind.machines[0], kind.names), "head"), *kind.lines)


def _kinds(machines: Sequence[Machine], draw: Callable[[Machine], Iterable[Line]]) -> list[_Kind]:
    """The kinds, the most frequent first. Equal machines are drawn once; a few KiB of memory more make no other kind."""
    kinds: dict[tuple[Line, ...], _Kind] = {}
    for equal in _equal(machines):
        lines = tuple(line for line in draw(equal[0]) if line.text != title(equal[0]))
        kinds.setdefault(lines, _Kind(lines, [])).machines.extend(equal)
    return sorted(kinds.values(), key=lambda kind: -len(kind.machines))


def _equal(machines: Sequence[Machine]) -> list[list[Machine]]:
    """Machines that only their names tell apart, together."""
    by_name = {machine.hostname: machine for machine in machines}
    if len(by_name) < len(machines):
        return [[machine] for machine in machines]
    return [[by_name[name] for name in entry["hostnames"]] for entry in topology_json(machines)["machines"]]


def _drawn(kinds: Sequence[_Kind], in_all: int) -> list[_Kind]:
    return [kinds[0], *(kind for kind in kinds[1:_MOST_TREES] if len(kind.machines) >= _COMMON * in_all)]


def _summary(kinds: Sequence[_Kind], in_all: int, *, told: bool) -> str:
    alike = len(kinds[0].machines)
    if len(kinds) == 1:
        return f"{in_all} nodes with the same parts" if told else f"{in_all} nodes, all alike"
    if alike == 1:
        return f"{in_all} nodes, no two alike"
    return f"{in_all} nodes: {alike} alike, {in_all - alike} {'differs' if in_all - alike == 1 else 'differ'}"


def _odd(kind: _Kind, usual: _Kind) -> Iterator[Line]:
    """What the parts of an odd machine are that the usual one has otherwise; nothing where its parts are the same."""
    ours, theirs = part_texts(kind.machines[0]), part_texts(usual.machines[0])
    told = [f"without {text}" for key, text in theirs.items() if key not in ours]
    told += [text if key in theirs else f"also {text}" for key, text in ours.items() if theirs.get(key) != text]
    if told:
        yield Line(f"{kind.names}, unlike {safe(usual.machines[0].hostname or 'the others')}:")
        yield from (Line(f"  {text}") for text in told[:_MOST_PARTS])
        yield from [Line(f"  and {len(told) - _MOST_PARTS} more parts")] if len(told) > _MOST_PARTS else []
