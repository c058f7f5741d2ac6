"""The effect of GPUDirect RDMA: the same cases with and without it (NCCL_NET_GDR_LEVEL=LOC), in interleaved launches.

Logs cannot show that the bytes take this path, but the effect can. Interleaved launches form pairs, so drift affects both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

import msgspec

from collbench.analysis.launches import case_of, median_of, time_of
from collbench.results.reader import read_run
from collbench.results.row import Row
from collbench.stats.launches import Ratio, ratio_of_medians, ratio_of_pairs
from collbench.units import format_bytes
from collbench.untrusted import dict_of

_NOTICEABLE = 1.05  # a difference within 5 % does not matter to users
FASTER, SLOWER, SAME, UNKNOWN = "faster", "slower", "same", "unknown"


class Effect(msgspec.Struct, frozen=True):
    """The effect on one case: `speed` is its time without / with GPUDirect RDMA, above 1 where that makes it faster.

    over_launches   whether the interval is over pairs of launches, else within one launch each
    """

    row: Row
    speed: Ratio
    over_launches: bool

    @property
    def verdict(self) -> str:
        """Return FASTER or SLOWER if the whole interval is beyond 5 %, SAME if it is within, else UNKNOWN."""
        low, high = self.speed.low, self.speed.high
        if low is None or high is None:
            return UNKNOWN
        if low > _NOTICEABLE or high < 1 / _NOTICEABLE:
            return FASTER if low > 1 else SLOWER
        return SAME if high < _NOTICEABLE and low > 1 / _NOTICEABLE else UNKNOWN


def verdict(with_gdr: Sequence[Path], without: Sequence[Path]) -> list[str]:
    """Return the sentences for the folders of both sides' launches; launches at the same position are pairs.

    Raises UsageError for a folder that is not a run.
    """
    a, b = ([read_run(path).rows for path in paths] for paths in (with_gdr, without))
    return sentences(effects(a, b), _direct(a), _direct(b))


def effects(with_gdr: Sequence[Sequence[Row]], without: Sequence[Sequence[Row]]) -> list[Effect]:
    """Return the effect on each case that has a time and right data in all launches of both sides, by size."""
    # wrong data may be fast
    a, b = (
        [{case_of(row): row for row in rows if time_of(row) is not None and not row.wrong} for rows in side] for side in (with_gdr, without)
    )
    common = [case for case in (a[0] if a else {}) if all(case in rows for rows in (*a, *b))]
    found = [_effect([rows[case] for rows in a], [rows[case] for rows in b]) for case in common] if len(a) == len(b) else []
    return sorted(found, key=lambda each: each.row.size_bytes)


def sentences(found: Sequence[Effect], used: bool | None, used_without: bool | None) -> list[str]:
    """Return the verdict, and doubts about it. `used`: whether NCCL's log of that side shows GPUDirect RDMA; None: unknown."""
    if not found:
        return ["GPUDirect RDMA: inconclusive, no case was measured in all launches with and without it"]
    if used_without:
        return ["GPUDirect RDMA: inconclusive, NCCL used it on both sides (NCCL_NET_GDR_LEVEL=LOC had no effect)"]
    by_verdict = {kind: [each for each in found if each.verdict == kind] for kind in (FASTER, SLOWER, SAME, UNKNOWN)}
    effect = {FASTER: "GPUDirect RDMA carries the bytes", SLOWER: "GPUDirect RDMA slows them down"}
    lines = []
    for kind, what in effect.items():
        if alike := by_verdict[kind]:
            is_are = "is" if len({each.row.size_bytes for each in alike}) == 1 else "are"
            lines.append(f"{what}: {_sizes(alike)} {is_are} {_range(alike)} as fast as without it")
    if lines:
        lines += ["but NCCL's log shows no connection that uses it: the difference has another cause"] if used is False else []
        lines += [f"{_sizes(by_verdict[SAME])}: no difference beyond 5 %"] if by_verdict[SAME] else []
        lines += [f"{_sizes(by_verdict[UNKNOWN])}: the intervals are too wide"] if by_verdict[UNKNOWN] else []
    elif by_verdict[UNKNOWN]:
        lines = ["GPUDirect RDMA: inconclusive, the intervals are too wide: use more --launches or a longer --max-time"]
    else:
        reason = {
            True: "it is in use, but does not matter here",
            False: "it is not in use (NCCL's log)",
            None: "it is not in use, or does not matter",
        }
        lines = [f"GPUDirect RDMA makes no difference beyond 5 %: {reason[used]}"]
    return lines if all(each.over_launches for each in found) else [*lines, "intervals of one launch only; use --launches 3"]


def _sizes(alike: Sequence[Effect]) -> str:
    """Return "4 MiB-1 GiB (9 sizes)", from the smallest to the largest; "4 MiB" for a single size."""
    sizes = sorted({each.row.size_bytes for each in alike})
    least, most = format_bytes(sizes[0]), format_bytes(sizes[-1])
    return least if len(sizes) == 1 else f"{least}-{most} ({len(sizes)} sizes)"


def _range(alike: Sequence[Effect]) -> str:
    """Return the median of the ratios, and the lowest and highest end of their intervals."""
    low, high = min(each.speed.low or 0.0 for each in alike), max(each.speed.high or 0.0 for each in alike)
    digits = 2 if high < 10 else 1
    middle = median(each.speed.value for each in alike)
    return f"{middle:.{digits}f}x ({low:.{digits}f} to {high:.{digits}f})"


def _effect(a: Sequence[Row], b: Sequence[Row]) -> Effect:
    if len(a) > 1:
        return Effect(a[0], ratio_of_pairs(_times(a), _times(b)), True)
    return Effect(a[0], ratio_of_medians(median_of(a[0]), median_of(b[0])), False)


def _times(rows: Iterable[Row]) -> list[float]:
    return [time for row in rows if (time := time_of(row)) is not None]


def _direct(side: Iterable[Sequence[Row]]) -> bool | None:
    """Return what the rows' evidence shows about GPUDirect RDMA; None if it is uncertain."""
    states = {dict_of(row.evidence.get("gpudirect")).get("state") for rows in side for row in rows}
    return True if "proven used" in states else False if states & {"capable, not used", "not capable"} else None
