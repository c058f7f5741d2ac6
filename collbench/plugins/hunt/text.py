"""The result of a hunt: suspects with their evidence, as text, CSV and JSON.

All outputs are made from run.json's "hunt", so a stored hunt looks as it did when it was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, TextIO

from collbench.columns import RUN_COLUMN, column
from collbench.machine.peak.ceiling import TOLERANCE
from collbench.plugins.hunt.drain import CODES, what
from collbench.plugins.hunt.protocol import CLEARED, CONFIRMED, INCONCLUSIVE
from collbench.reason import CommandText
from collbench.report.frame import Line, csv_table, defused, printable
from collbench.report.screen import check_format, print_lines, width_of, wrapped
from collbench.results.store import to_line
from collbench.units import format_percent, format_rate, format_size, plural

FORMATS = ("table", "csv", "json")
FAR_BELOW = 0.7  # of the hard limit: if all endpoints are below and none is slower than the others, all may be faulty
_MOST_SHOWN = 20  # of cleared and of inconclusive suspects; confirmed ones are all shown
_STYLES = {CONFIRMED: "wrong", INCONCLUSIVE: "doubtful", CLEARED: ""}
HUNT_COLUMNS = {
    **RUN_COLUMN,
    "state": column("The state of the suspect: confirmed, cleared or inconclusive."),
    "code": column("The code of the finding; `collbench explain CODE` explains it."),
    "kind": column("What is slow."),
    "places": column("The suspects: ranks or nodes."),
    "ratio": column("The speed of the suspect as a share of that of the others.", type=float),
    "ratio_low": column("The lower end of the interval of the ratio.", type=float),
    "ratio_high": column("The upper end of the interval of the ratio.", type=float),
    "partners": column("The partners with which the suspect was measured."),
    "part": column("The interface or part that is slow."),
    "evidence": column("The evidence, as sentences."),
}
# Of a DataFrame, which has hunts without suspects, too.
RESULT_COLUMN = {
    "result": column(
        "The result of the hunt: `confirmed`, `nobody` (no slow endpoint or path) or `no verdict`; missing if it stopped early."
    ),
}


def write_hunt(
    about: Mapping[str, Any],
    format: str,
    out: TextIO,
    *,
    color: bool,
    advice: Sequence[str] = (),
    run: str = "",
    headed: bool = False,
    quiet: bool = False,
) -> None:
    """Print the result of a hunt on `out`. Raises UsageError for an unknown format.

    about   run.json's "hunt"; its "verdict" is None if the hunt stopped early
    format  table, csv (a record per suspect) or json (one object)
    advice  what to do, a line each, from recommendation.json
    run     the name of its folder, for the first column of a CSV
    headed  whether the CSV has its header already, from another hunt
    quiet   whether notes and advice are left out
    """
    check_format(format, FORMATS, " for a hunt")
    found: Iterator[Line] = iter([Line(to_line({**as_object(about), "advice": list(advice)}))])
    if format == "csv":
        found = csv_table(HUNT_COLUMNS, hunt_records(about, run), headed)
    elif format == "table":
        width = width_of(out)
        texts = [*_lines(about), *((text, "foot") for text in advice)]
        whole = [(Line(printable(text), style), None if isinstance(text, CommandText) else width) for text, style in texts]
        found = (part for line, room in whole for part in wrapped([line], room))
    print_lines(found, out, color, quiet=quiet)


def describe_hunt(about: Mapping[str, Any]) -> str:
    """Return "hunt among 64 ranks over simulated, messages of 1 MiB, 14 rounds (estimate: at most 23)"."""
    size = about.get("size_bytes")
    over = f" over {about['backend']}" if isinstance(about.get("backend"), str) else ""
    messages = f", messages of {format_size(size)}" if isinstance(size, int) else ""
    done, most = about.get("rounds"), about.get("promised")
    rounds = f", {plural(done, 'round')}" if isinstance(done, int) else ""
    estimate = f" (estimate: at most {most})" if rounds and isinstance(most, int) else ""
    return f"hunt among {plural(len(about['places']), about.get('by', 'endpoint'))}{over}{messages}{rounds}{estimate}"


def headline(verdict: Mapping[str, Any]) -> str:
    """Return the verdict in one line."""
    counts = {state: sum(each["state"] == state for each in verdict["suspects"]) for state in (CONFIRMED, CLEARED, INCONCLUSIVE)}
    text = ", ".join(f"{number} {state}" for state, number in counts.items() if number)
    if verdict["result"] == CONFIRMED:
        return text
    if verdict["result"] == "nobody":
        return "no slow endpoint or path found" + (f": {text}" if text else "")
    return f"no verdict: {verdict.get('no_verdict') or text}"


def describe_typical(about: Mapping[str, Any]) -> str | None:
    """Return "median 9.87 of 10.0 GB/s (99 %), limited by a simulated link"; None if the median is unknown."""
    middle = (about.get("verdict") or {}).get("middle")
    if not isinstance(middle, int | float) or middle <= 0:
        return None
    share, ceiling = share_of_ceiling(about), about.get("ceiling") or {}
    if share is None:
        return f"median {format_rate(middle)} GB/s; the expected bandwidth is unknown"
    if share > TOLERANCE:
        most = format_rate(ceiling["bytes_per_s"])
        return f"median {format_rate(middle)} GB/s, above the {most} GB/s of {ceiling['limited_by']}: that link speed is wrong"
    text = f"median {format_rate(middle)} of {format_rate(ceiling['bytes_per_s'])} GB/s ({format_percent(100 * share)})"
    return f"{text}, limited by {ceiling['limited_by']}"


def share_of_ceiling(about: Mapping[str, Any]) -> float | None:
    """Return the median as a share of the expected bandwidth, from 0 to about 1; None if one of them is unknown."""
    ceiling, middle = about.get("ceiling"), (about.get("verdict") or {}).get("middle")
    most = ceiling.get("bytes_per_s") if isinstance(ceiling, dict) and isinstance(ceiling.get("limited_by"), str) else None
    if not all(isinstance(value, int | float) and value > 0 for value in (most, middle)):
        return None
    return float(middle / most)  # type: ignore[operator]


def next_steps(about: Mapping[str, Any]) -> list[str]:
    """Return what to run next, where the verdict is not clear."""
    verdict = about.get("verdict")
    if verdict is None:
        return ["the hunt stopped early, without a verdict: run it again"]
    steps, share, longer = [], share_of_ceiling(about), about.get("max_time_s")
    if share is not None and share < FAR_BELOW and verdict["result"] == "nobody":
        steps.append(
            f"all are equally slow, at {format_percent(100 * share)} of the expected bandwidth ({about['ceiling']['limited_by']}): "
            "check what they have in common (`collbench doctor`, `collbench probe --measure`), or try a larger --size or --window"
        )
    if any(each["state"] == INCONCLUSIVE for each in verdict["suspects"]):
        again = f"collbench hunt --max-time {4 * longer:g}" if isinstance(longer, int | float) else "collbench hunt"
        steps.append(f"for a verdict on inconclusive suspects, measure longer on an idle system: `{again}`")
    return steps


def sentence(suspect: Mapping[str, Any], places: Sequence[str]) -> str:
    """Return "confirmed: node07 sends and receives at 51 % of the others (50 % to 52 %): interface eth1"."""
    return f"{suspect['state']}: {finding(suspect, places)}"


def finding(suspect: Mapping[str, Any], places: Sequence[str]) -> str:
    """Return the sentence without the suspect's state."""
    ends = [end for name in ("low", "high") if (end := _known(suspect, name)) is not None]
    span = f" ({' to '.join(format_percent(100 * end) for end in ends)})" if len(ends) == 2 and suspect["kind"] != "latency" else ""
    part = f": {suspect['part']}" if suspect["part"] else ""
    subject = " and ".join(places[place] for place in suspect["places"])
    subject = f"the path between {subject}" if len(suspect["places"]) > 1 else subject
    if suspect["state"] == CLEARED:
        return f"{subject} is as fast as the others"
    ratio = _known(suspect, "ratio")
    slow = "could not be measured" if ratio is None else what(suspect["kind"], ratio) if suspect["kind"] in CODES else "is slow"
    return f"{subject} {slow}{span}{part}"


def _known(suspect: Mapping[str, Any], name: str) -> float | None:
    """Return a number of a suspect; None if it has none (NaN as measured, null as stored)."""
    value = suspect.get(name)
    return float(value) if isinstance(value, int | float) and isfinite(value) else None


def _lines(about: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield lines with their styles."""
    yield describe_hunt(about), "head"
    verdict, places = about.get("verdict"), about["places"]
    if verdict:
        yield headline(verdict), "wrong" if verdict["result"] == CONFIRMED else ""
        for state in (CONFIRMED, INCONCLUSIVE, CLEARED):
            suspects = [each for each in verdict["suspects"] if each["state"] == state]
            shown = suspects if state == CONFIRMED else suspects[:_MOST_SHOWN]
            for each in shown:
                yield sentence(each, places), _STYLES[state]
                yield from ((f"  {text}", "") for text in each["evidence"])
            if len(shown) < len(suspects):
                yield f"and {len(suspects) - len(shown)} more {state}: see --format json", "foot"
        yield from ((text, "") for text in [describe_typical(about)] if text)
        yield from ((note, "foot") for note in verdict["notes"])
    yield from ((text, "foot") for text in about.get("crossed") or ())
    yield from ((text, "foot") for text in next_steps(about))


def as_object(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return one object: the hunt and its suspects with codes and sentences; places and partners are indices into the list of places."""
    verdict = about.get("verdict") or {}
    suspects = [
        {**each, "code": CODES.get(each["kind"]), "sentence": sentence(each, about["places"])} for each in verdict.get("suspects", [])
    ]
    kept = {name: value for name, value in about.items() if name not in ("places", "verdict", "nodes")}
    return {
        "schema": 1, "places": about["places"], "result": verdict.get("result"), "suspects": suspects, "notes": verdict.get("notes", []),
        "middle_bytes_per_s": verdict.get("middle"), "share_of_ceiling": share_of_ceiling(about), "next": next_steps(about), "about": kept,
    }  # fmt: skip


def hunt_records(about: Mapping[str, Any], run: str) -> Iterator[list[Any]]:
    """Yield the fields of HUNT_COLUMNS for each suspect."""
    for each in (about.get("verdict") or {}).get("suspects", []):
        subject, partners = (" ".join(defused(about["places"][place]) for place in each[name]) for name in ("places", "partners"))
        ratios = [_known(each, name) for name in ("ratio", "low", "high")]
        yield [
            run,
            each["state"],
            CODES.get(each["kind"]),
            each["kind"],
            subject,
            *ratios,
            partners,
            each["part"],
            "; ".join(each["evidence"]),
        ]
