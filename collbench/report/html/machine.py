"""The machines as drawings, with the link that limits marked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from collbench.analysis.launches import known
from collbench.machine.peak.links import limiting_parts
from collbench.report.columns import NOTHING
from collbench.report.flags import printable
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.interfaces import interfaces_table
from collbench.report.html.machine_kinds import Kind, kinds_of
from collbench.report.html.material import Material
from collbench.report.probe_picture import picture
from collbench.report.probe_svg import embedded
from collbench.report.probe_tree import part_texts, title
from collbench.report.probe_words import safe, system_text
from collbench.results.row import Row
from collbench.units import format_rate

_MOST_DRAWN, _MOST_LIMITS = 4, 40
_OF_LINKS = ("network", "topology")  # the kinds of ceiling that come from links, and not from a figure measured or given
_MADE = (
    "Read from the machine when the run began (topology.json beside the rows; `collbench probe` prints the same): the kernel's files, the "
    "drivers and the tools named. Equal machines are drawn once. Marked is what the ceilings of the rows name: the slowest link that a "
    "ring has to cross, or, where a backend is faster than a ring can be, the link that no algorithm gets around."
)


@dataclass(frozen=True)
class _Limit:
    """What limits an operation of a backend, in the ceiling's words."""

    operation: str
    backend: str
    words: str
    model: str
    rates: tuple[float, ...]


def section(material: Material) -> Section | None:
    """Drawings, what limits which operation, and the interfaces; None where the runs tell nothing of their machines."""
    kinds, doubts = kinds_of(material.runs)
    interfaces = interfaces_table(material.runs)
    if not kinds and interfaces is None:
        return None
    limits = _limits(row for table in material.tables for row in table.rows)
    marked = [_marked(kind, kinds, limits) for kind in kinds]
    tables = [("What limits", _limits_table(limits, marked))] if limits else []
    tables += [("Network interfaces that carry the traffic between ranks", interfaces)] if interfaces else []
    drawn = [_chart(number, kind, marks) for number, (kind, marks) in enumerate(zip(kinds, marked, strict=True)) if number < _MOST_DRAWN]
    return Section("machine", "Machines", [*_texts(kinds), *doubts], tables, drawn)


def _texts(kinds: Sequence[Kind]) -> Iterator[str]:
    if not kinds:
        yield "The runs hold no probe of their machines: there is no drawing, and no link can be marked."
    if len(kinds) > _MOST_DRAWN:
        rest = kinds[_MOST_DRAWN:]
        hosts = sum(len(kind.hosts) for kind in rest)
        draws = "`collbench probe --from TOPOLOGY.json --svg FILE` draws all"
        yield f"{hosts} more machines of {len(rest)} other kinds are not drawn: {draws}."


def _limits(rows: Iterable[Row]) -> list[_Limit]:
    found: defaultdict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        ceiling = row.ceiling
        if ceiling is not None and ceiling.kind in _OF_LINKS and known(ceiling.bytes_per_s) and row.percent_of_ceiling is not None:
            found[row.operation, row.backend, ceiling.limited_by, ceiling.model].append(float(ceiling.bytes_per_s or 0))
    return [_Limit(*names, (min(rates), max(rates))) for names, rates in found.items()]


def _marked(kind: Kind, kinds: Sequence[Kind], limits: Sequence[_Limit]) -> dict[str, frozenset[str]]:
    """By a ceiling's words the parts of this machine that they name; none where they name another host."""
    elsewhere = [host for other in kinds if other is not kind for host in other.hosts if host not in kind.hosts]
    named = dict.fromkeys(limit.words for limit in limits[:_MOST_LIMITS])
    return {
        words: parts
        for words in named
        if not any(words.endswith(f" of {host}") for host in elsewhere) and (parts := limiting_parts(kind.machine, words))
    }


def _limits_table(limits: Sequence[_Limit], marked: Sequence[dict[str, frozenset[str]]]) -> Table:
    rows = [
        (
            printable(limit.operation),
            printable(limit.backend),
            safe(limit.words),
            limit.model,
            "–".join(dict.fromkeys(map(format_rate, limit.rates))),
            "marked" if any(limit.words in marks for marks in marked[:_MOST_DRAWN]) else "not in a drawing",
        )
        for limit in limits[:_MOST_LIMITS]
    ]
    rest = len(limits) - _MOST_LIMITS
    more = [(f"and {rest} more", *[""] * 5)] if rest > 0 else []
    return Table(("operation", "backend", "limited by", "model", "ceiling GB/s", "in the drawing"), [*rows, *more], frozenset({4}))


def _chart(number: int, kind: Kind, marks: dict[str, frozenset[str]]) -> Chart:
    machine = kind.machine
    parts = frozenset().union(*marks.values())
    name = f"{kind.names}{f' ({len(kind.hosts)} equal machines)' if len(kind.hosts) > 1 else ''}"
    told = f"Marked as limiting: {'; '.join(map(safe, marks))}." if marks else "No link of it is named as limiting."
    about = f"{title(machine, kind.names)}. {told}"
    drawing = embedded(picture(machine, parts), first=number == 0)
    return Chart(f"machine-{number}", name, about, f"{_MADE} Read from: {_sources(kind)}.", drawing, _parts_table(kind, parts), wide=True)


def _sources(kind: Kind) -> str:
    sources = [safe(source) for source in kind.machine.sources]
    return "; ".join([*sources[:12], *([f"{len(sources) - 12} more"] if len(sources) > 12 else [])]) or NOTHING


def _parts_table(kind: Kind, limiting: frozenset[str]) -> Table:
    """Its processors, then every GPU and NIC in a line."""
    machine = kind.machine
    own = {gpu.key: {gpu.key, gpu.address, *(link.key for link in machine.gpu_links if link.a == gpu.key)} for gpu in machine.gpus}
    own |= {nic.key: {nic.key, nic.address} for nic in machine.nics}
    system = [("processors", ", ".join(system_text(machine.system)), "")] if system_text(machine.system) else []
    rows = []
    for key, text in part_texts(machine).items():
        name, _, about = text.partition("  ")
        rows.append((name, about.replace("  ", ", "), "limits" if limiting & own.get(key, set()) else ""))
    return Table(("part", "what is known", "limits"), [*system, *rows])
