"""The result of a hunt: suspects with their evidence, as text, CSV and JSON.

All outputs are made from run.json's "hunt", so a stored hunt looks as it did when it was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from collbench.machine.peak.ceiling import TOLERANCE
from collbench.plugins.hunt.protocol import CLEARED, CONFIRMED, INCONCLUSIVE, TRUNK
from collbench.plugins.hunt.recommendation import CODES, what
from collbench.plugins.hunt.records import NONE_SLOW, HuntAbout, StoredHunt, StoredSuspect, StoredVerdict, SuspectRow
from collbench.reason import CommandText
from collbench.records import RecordKind
from collbench.report.frame import Display, Line, defused, printable
from collbench.results.store import to_line
from collbench.units import format_percent, format_rate, format_size, plural

FAR_BELOW = 0.7  # of the hard limit: if all endpoints are below and none is slower than the others, all may be faulty
_MOST_SHOWN = 20  # of cleared and of inconclusive suspects; confirmed ones are all shown
STYLES = {CONFIRMED: "wrong", INCONCLUSIVE: "doubtful", CLEARED: ""}


def describe_hunt(hunt: HuntAbout) -> str:
    """Return "hunt among 64 ranks over simulated, messages of 1 MiB, 14 rounds (estimate: at most 23)"."""
    text = f"hunt among {plural(len(hunt.places), hunt.by)}"
    if hunt.backend is not None:
        text += f" over {hunt.backend}"
    if hunt.size_bytes is not None:
        text += f", messages of {format_size(hunt.size_bytes)}"
    if hunt.rounds is not None:
        text += f", {plural(hunt.rounds, 'round')}"
        if hunt.promised is not None:
            text += f" (estimate: at most {hunt.promised})"
    return text


def headline(verdict: StoredVerdict) -> str:
    """Return the verdict in one line."""
    counts = {state: sum(suspect.state == state for suspect in verdict.suspects) for state in (CONFIRMED, CLEARED, INCONCLUSIVE)}
    text = ", ".join(f"{number} {state}" for state, number in counts.items() if number)
    if verdict.result == CONFIRMED:
        return text
    if verdict.result == NONE_SLOW:
        return "no slow endpoint or path found" + (f": {text}" if text else "")
    return f"no verdict: {verdict.no_verdict or text}"


def describe_typical(hunt: HuntAbout) -> str | None:
    """Return "median 9.87 of 10.0 GB/s (99 %), limited by a simulated link"; None if the median is unknown."""
    middle = hunt.verdict.middle if hunt.verdict else None
    if middle is None or middle <= 0:
        return None
    share = share_of_ceiling(hunt)
    if share is None or hunt.ceiling is None or hunt.ceiling.bytes_per_s is None:
        return f"median {format_rate(middle)} GB/s; the expected bandwidth is unknown"
    most = format_rate(hunt.ceiling.bytes_per_s)
    limited_by = hunt.ceiling.limited_by
    if share > TOLERANCE:
        return f"median {format_rate(middle)} GB/s, above the {most} GB/s of {limited_by}: that link speed is wrong"
    return f"median {format_rate(middle)} of {most} GB/s ({format_percent(100 * share)}), limited by {limited_by}"


def share_of_ceiling(hunt: HuntAbout) -> float | None:
    """Return the median as a share of the expected bandwidth, from 0 to about 1; None if one of them is unknown."""
    middle = hunt.verdict.middle if hunt.verdict else None
    most = hunt.ceiling.bytes_per_s if hunt.ceiling and hunt.ceiling.limited_by is not None else None
    return middle / most if middle and most and middle > 0 and most > 0 else None


def next_steps(hunt: HuntAbout) -> list[str]:
    """Return what to run next, where the verdict is not clear."""
    if hunt.verdict is None:
        return ["the hunt stopped early, without a verdict: run it again"]
    steps = []
    share = share_of_ceiling(hunt)
    if share is not None and share < FAR_BELOW and hunt.verdict.result == NONE_SLOW and hunt.ceiling:
        steps.append(
            f"all are equally slow, at {format_percent(100 * share)} of the expected bandwidth ({hunt.ceiling.limited_by}): "
            "check what they have in common (`collbench doctor`, `collbench probe --measure`), or try a larger --size or --window"
        )
    if any(suspect.state == INCONCLUSIVE for suspect in hunt.verdict.suspects):
        again = "collbench hunt" if hunt.max_time_s is None else f"collbench hunt --max-time {4 * hunt.max_time_s:g}"
        steps.append(f"for a verdict on inconclusive suspects, measure longer on an idle system: `{again}`")
    return steps


def sentence(suspect: StoredSuspect, places: Sequence[str]) -> str:
    """Return "confirmed: node07 sends and receives at 51 % of the others (50 % to 52 %): interface eth1"."""
    return f"{suspect.state}: {finding(suspect, places)}"


def finding(suspect: StoredSuspect, places: Sequence[str]) -> str:
    """Return the sentence without the suspect's state."""
    if suspect.kind == TRUNK:
        return suspect.part
    subject = " and ".join(places[place] for place in suspect.places)
    if len(suspect.places) > 1:
        subject = f"the path between {subject}"
    if suspect.state == CLEARED:
        return f"{subject} is as fast as the others"
    text = f"{subject} is slow"
    if suspect.ratio is None:
        text = f"{subject} could not be measured"
    elif suspect.kind in CODES:
        text = f"{subject} {what(suspect.kind, suspect.ratio)}"
    if suspect.kind != "latency":
        text += interval(suspect)
    return f"{text}: {suspect.part}" if suspect.part else text


def interval(suspect: StoredSuspect) -> str:
    """Return " (50 % to 52 %)", the interval of the ratio; "" if it is unknown."""
    if suspect.low is None or suspect.high is None:
        return ""
    return f" ({format_percent(100 * suspect.low)} to {format_percent(100 * suspect.high)})"


def _lines(hunt: HuntAbout) -> Iterator[tuple[str, str]]:
    """Yield lines with their styles."""
    yield describe_hunt(hunt), "head"
    if hunt.verdict:
        yield headline(hunt.verdict), "wrong" if hunt.verdict.result == CONFIRMED else ""
        for state in (CONFIRMED, INCONCLUSIVE, CLEARED):
            suspects = [suspect for suspect in hunt.verdict.suspects if suspect.state == state]
            shown = suspects if state == CONFIRMED else suspects[:_MOST_SHOWN]
            for suspect in shown:
                yield sentence(suspect, hunt.places), STYLES[state]
                yield from ((f"  {text}", "") for text in suspect.evidence)
            if len(shown) < len(suspects):
                yield f"and {len(suspects) - len(shown)} more {state}: see --format json", "foot"
        typical = describe_typical(hunt)
        if typical:
            yield typical, ""
        yield from ((note, "foot") for note in hunt.verdict.notes)
    yield from ((text, "foot") for text in (*(hunt.crossed or ()), *next_steps(hunt)))


def lines(stored: StoredHunt, display: Display) -> Iterator[Line]:
    """Yield the result and the advice. Commands are never broken into lines."""
    yield from (Line(printable(text), style) for text, style in _lines(stored.shown))
    yield from (Line(printable(text), "foot", whole=isinstance(text, CommandText)) for text in stored.advice)


def json_lines(stored: StoredHunt) -> Iterator[str]:
    """Yield one object: the hunt and its suspects with codes and sentences; places and partners are indices into the list of places."""
    hunt = stored.shown
    verdict = stored.about.get("verdict") or {}
    suspects = [
        {**raw, "code": CODES.get(suspect.kind), "sentence": sentence(suspect, hunt.places)}
        for raw, suspect in zip(verdict.get("suspects", []), hunt.suspects, strict=True)
    ]
    about = {name: value for name, value in stored.shown_about.items() if name not in ("places", "verdict", "nodes")}
    yield to_line({
        "schema": 1, "places": hunt.places, "result": verdict.get("result"), "suspects": suspects, "notes": verdict.get("notes", []),
        "middle_bytes_per_s": verdict.get("middle"), "share_of_ceiling": share_of_ceiling(hunt), "next": next_steps(hunt), "about": about,
        "advice": list(stored.advice),
    })  # fmt: skip


def suspect_rows(stored: StoredHunt) -> Iterator[SuspectRow]:
    """Yield the suspects with the names of their places."""
    hunt = stored.shown
    for suspect in hunt.suspects:
        yield SuspectRow(
            state=suspect.state,
            code=CODES.get(suspect.kind),
            kind=suspect.kind,
            places=_names(suspect.places, hunt),
            ratio=suspect.ratio,
            ratio_low=suspect.low,
            ratio_high=suspect.high,
            partners=_names(suspect.partners, hunt),
            part=suspect.part,
            evidence="; ".join(suspect.evidence),
        )


def _names(places: Sequence[int], hunt: HuntAbout) -> str:
    return " ".join(defused(hunt.places[place]) for place in places)


SUSPECTS = RecordKind("a hunt", SuspectRow, records=suspect_rows, lines=lines, json=json_lines)
