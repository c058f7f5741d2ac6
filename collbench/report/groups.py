"""What several groups did at the same time, in words: each one's rate, and that of all together."""

from __future__ import annotations

from collbench.analysis.launches import known
from collbench.results.row import Row
from collbench.units import format_rate


def group_rates(row: Row) -> tuple[list[float], float | None]:
    """The busbw of each of several groups in bytes per second, and of all together; ([], None) where the row's are no numbers."""
    each, total = row.groups.get("busbw_bytes_per_s"), row.groups.get("total_busbw_bytes_per_s")
    rates = [float(rate) for rate in each if known(rate)] if isinstance(each, list | tuple) else []
    return rates, float(total) if total is not None and known(total) else None


def of_each_group(row: Row) -> str:
    """The slowest and the fastest group's busbw in GB/s: "9.41–9.45"; "" where they are not known."""
    rates, _ = group_rates(row)
    slowest, fastest = (format_rate(pick(rates)) if rates else "" for pick in (min, max))
    return slowest if slowest == fastest else f"{slowest}–{fastest}"


def groups_in_words(row: Row) -> str:
    """ "2 groups of 4 ranks: 9.41–9.45 GB/s each, 18.9 GB/s in all"; "" where there is one group."""
    count, ranks = row.groups.get("count"), row.groups.get("ranks")
    if not (known(count) and known(ranks)):
        return ""
    each, (_, total) = of_each_group(row), group_rates(row)
    rates = [*([f"{each} GB/s each"] if each else []), *([f"{format_rate(total)} GB/s in all"] if total is not None else [])]
    return f"{count} groups of {ranks} ranks{': ' if rates else ''}{', '.join(rates)}"
