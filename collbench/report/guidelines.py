"""Self-consistency of a run: operations that take longer than others that can replace them, and sizes that move less than smaller ones."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.analysis.guidelines import GuidelineCheck, guideline_checks
from collbench.report.frame import Column, Frame
from collbench.report.plan import operation_name
from collbench.results.dips import Dip, dips
from collbench.results.row import Row
from collbench.units import format_percent, format_rate, format_size, format_time, plural

CONSISTENCY_TITLE = "self-consistency"
_MOST = 12


def consistency_frame(rows: Sequence[Row]) -> Frame[GuidelineCheck] | None:
    """Return the table of violated guidelines with the dips below it; None without both."""
    checks = guideline_checks(rows)
    violated = [check for check in checks if check.is_violated]
    dip_texts = [dip_sentence(dip) for dip in dips(rows)]
    if not violated and not dip_texts:
        return None
    title = ""
    if violated:
        more = f" (the worst {_MOST} are shown)" if len(violated) > _MOST else ""
        title = f"{len(violated)} of {plural(len(checks), 'comparison')}: an operation takes longer than what can replace it{more}"
    return Frame(_COLUMNS, violated[:_MOST], title=title, foot=dip_texts[:_MOST], names_hidden=bool(violated))


def dip_sentence(dip: Dip) -> str:
    """Return "dip: allreduce over mpi moves 4.10 GB/s at 1 MiB, at least 31 % less than 6.20 GB/s at 256 KiB"."""
    row = dip.row
    rates = f"{format_rate(row.busbw_bytes_per_s or 0)} GB/s at {format_size(row.size_bytes)}"
    smaller = f"{format_rate(dip.smaller.busbw_bytes_per_s or 0)} GB/s at {format_size(dip.smaller.size_bytes)}"
    name = f"{operation_name(row.operation)} over {row.backend}"
    return f"dip: {name} moves {rates}, at least {format_percent(100 * dip.loss)} less than {smaller}"


def compared_consistency(before: Sequence[Row], after: Sequence[Row]) -> list[str]:
    """Return a sentence for each guideline that one run violates, and the other one meets by more than both intervals explain."""
    checks_before = {check.guideline: check for check in guideline_checks(before)}
    checks_after = {check.guideline: check for check in guideline_checks(after)}
    texts: list[str] = []
    for name, checks, other_checks in (("A", checks_before, checks_after), ("B", checks_after, checks_before)):
        for guideline, check in checks.items():
            other_check = other_checks.get(guideline)
            if check.is_violated and other_check is not None and other_check.high < check.low:
                texts.append(f"self-consistency, only in {name}: {_sentence(check)}")
    return texts[:_MOST]


def _sentence(check: GuidelineCheck) -> str:
    row = check.row
    subject = f"{operation_name(row.operation)} over {row.backend} at {format_size(row.size_bytes)}"
    return f"{subject} takes {check.ratio:.2f} times ({check.low:.2f} to {check.high:.2f}) as long as {_instead(check)}"


def _instead(check: GuidelineCheck) -> str:
    if check.larger:
        return format_size(check.instead[0].size_bytes)
    return " + ".join(operation_name(row.operation) for row in check.instead)


_COLUMNS: tuple[Column[GuidelineCheck], ...] = (
    Column("", "operation", lambda check: operation_name(check.row.operation)),
    Column("", "backend", lambda check: check.row.backend),
    Column("", "size", lambda check: format_size(check.row.size_bytes), right=True),
    Column("", "time µs", lambda check: format_time(check.row.time_s.p50 if check.row.time_s else 0), right=True),
    Column("", "replaced by", _instead),
    Column("", "replacement µs", lambda check: format_time(check.instead_s), right=True),
    Column("", "time ratio", lambda check: f"{check.ratio:.2f} ({check.low:.2f}–{check.high:.2f})", right=True, drop=1),
)
