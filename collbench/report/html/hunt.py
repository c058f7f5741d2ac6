"""The section "Hunts": the verdict, each suspect with its evidence, and the rounds as measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from collbench.analysis.concerns import DOUBTFUL, FINDING, WRONG, Concern
from collbench.analysis.hunt.protocol import CONFIRMED, INCONCLUSIVE
from collbench.report.frame import printable
from collbench.report.headlines import short
from collbench.report.html.chart import Section, Table
from collbench.report.hunt import describe_hunt, describe_typical, headline, next_steps, sentence
from collbench.report.stored import advice_of
from collbench.results.flags import explain
from collbench.units import format_rate, format_time, plural

if TYPE_CHECKING:
    from collbench.report.html.material import Material
    from collbench.results.reader import Run
    from collbench.results.rounds import HuntRound, StoredHunt

_MOST_ROUNDS, _MOST_LINES, _MOST_NAMES = 200, 400, 4
_MARKS = {CONFIRMED: "wrong", INCONCLUSIVE: "doubtful"}
_HEAD = ("round", "stage", "purpose", "measured", "slowest GB/s", "of", "longest latency µs", "wrong", "not measured")


def section(material: Material) -> Section | None:
    """Return the section, or None if no run is a hunt."""
    if not material.hunts:
        return None
    texts: list[str] = []
    tables: list[tuple[str, Table]] = []
    for run, stored in material.hunts:
        name = f"{printable(run.path.resolve().name)}: " if len(material.hunts) > 1 else ""
        texts += [f"{name}{short(text, 600)}" for text in _texts(run, stored)]
        if suspects := _suspects(stored.about):
            tables.append((f"{name}suspects with their evidence", suspects))
        more = f", the first {_MOST_ROUNDS}" if len(stored.rounds) > _MOST_ROUNDS else ""
        tables.append((f"{name}{plural(len(stored.rounds), 'round')}, as measured{more}", _rounds(stored)))
    return Section("hunt", "Hunts: slow nodes and links", texts, tables)


def concerns_of(stored: StoredHunt) -> Iterator[Concern]:
    """Yield wrong data, and the suspects that are confirmed or inconclusive."""
    if wrong := sum(map(sum, (one.wrong for one in stored.rounds))):
        yield Concern(
            WRONG, f"{plural(wrong, 'wrong element')} in {plural(sum(any(one.wrong) for one in stored.rounds), 'round')} of a hunt"
        )
    for suspect in (stored.about.get("verdict") or {}).get("suspects", ()):
        if suspect["state"] in _MARKS:
            severity = FINDING if suspect["state"] == CONFIRMED else DOUBTFUL
            yield Concern(severity, sentence(suspect, stored.about["places"]))


def _texts(run: Run, stored: StoredHunt) -> Iterator[str]:
    """Yield what was measured, the verdict, its notes, what to do, and the meaning of the flags."""
    about, (advice, unread) = {**stored.about, "rounds": len(stored.rounds)}, advice_of(run.path)
    yield describe_hunt(about)
    verdict = about.get("verdict")
    if verdict:
        yield headline(verdict)
        yield from filter(None, [describe_typical(about)])
        yield from verdict["notes"]
    yield from (*(about.get("crossed") or ()), *next_steps(about), *advice, *unread, *stored.warnings)
    yield from explain({flag for one in stored.rounds for flag in one.flags})


def _suspects(about: Any) -> Table | None:
    """Return a line for each suspect, and one for each further item of its evidence; None without suspects."""
    lines: list[tuple[str, str]] = []
    marks: dict[int, str] = {}
    for suspect in (about.get("verdict") or {}).get("suspects", ()):
        marks |= {len(lines): mark} if (mark := _MARKS.get(suspect["state"])) else {}
        first, *others = suspect["evidence"] or [""]
        lines += [(short(sentence(suspect, about["places"]), 600), short(first, 600)), *(("", short(each, 600)) for each in others)]
    return Table(("suspect", "evidence"), lines[:_MOST_LINES], marks=marks) if lines else None


def _rounds(stored: StoredHunt) -> Table:
    shown = stored.rounds[:_MOST_ROUNDS]
    marks = {number: "wrong" if any(one.wrong) else "na" for number, one in enumerate(shown) if any(one.wrong) or all(one.na)}
    return Table(_HEAD, [_line(one, stored.about["places"]) for one in shown], frozenset({0, 4, 6, 7}), marks)


def _line(one: HuntRound, places: Sequence[str]) -> list[str]:
    rates = [(min(filter(None, (there, back)), default=None), group) for there, back, group in _figures(one)]
    known = [(value, group) for value, group in rates if value is not None]
    slowest, where = min(known, default=(None, ()))
    latencies = [value for value in one.latency_s if value is not None]
    na = [why for why in one.na if why is not None]
    names = ", ".join(places[place] for place in where[:_MOST_NAMES]) + (" …" if len(where) > _MOST_NAMES else "")
    return [
        str(one.round + 1), short(one.stage, 80), short(one.why, 200), f"{len(one.groups)} × {one.kind if one.nic is None else one.nic}",
        format_rate(slowest) if slowest else "–", short(names, 200), format_time(max(latencies)) if latencies else "–",
        str(sum(one.wrong)), short(f"{len(na)}: {na[0]}", 200) if na else "",
    ]  # fmt: skip


def _figures(one: HuntRound) -> Iterator[tuple[float | None, float | None, tuple[int, ...]]]:
    return zip(one.speed_bytes_per_s, one.backward_bytes_per_s, one.groups, strict=True)
