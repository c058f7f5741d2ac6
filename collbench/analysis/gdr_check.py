"""The effect of GPUDirect RDMA: the same cases with and without it (NCCL_NET_GDR_LEVEL=LOC), in interleaved launches.

Logs cannot show that the bytes take this path, but the effect can. Interleaved launches form pairs, so drift affects both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

import msgspec

from collbench.analysis.launches import case_of, median_of, row_times, time_of
from collbench.results.reader import read_run
from collbench.results.row import Row
from collbench.stats.launches import Ratio, ratio_of_medians, ratio_of_pairs
from collbench.units import format_bytes
from collbench.untrusted import dict_of

_NOTICEABLE = 1.05  # a difference within 5 % does not matter to users
FASTER = "faster"
SLOWER = "slower"
SAME = "same"
UNKNOWN = "unknown"


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
        low = self.speed.low
        high = self.speed.high
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
    case_effects = [_effect([rows[case] for rows in a], [rows[case] for rows in b]) for case in common] if len(a) == len(b) else []
    return sorted(case_effects, key=lambda effect: effect.row.size_bytes)


def sentences(case_effects: Sequence[Effect], used: bool | None, used_without: bool | None) -> list[str]:
    """Return the verdict, and doubts about it. `used`: whether NCCL's log of that side shows GPUDirect RDMA; None: unknown."""
    if not case_effects:
        return ["GPUDirect RDMA: inconclusive, no case was measured in all launches with and without it"]
    if used_without:
        return ["GPUDirect RDMA: inconclusive, NCCL used it on both sides (NCCL_NET_GDR_LEVEL=LOC had no effect)"]
    by_verdict = {kind: [effect for effect in case_effects if effect.verdict == kind] for kind in (FASTER, SLOWER, SAME, UNKNOWN)}
    explanations = {FASTER: "GPUDirect RDMA carries the bytes", SLOWER: "GPUDirect RDMA slows them down"}
    lines = []
    for kind, explanation in explanations.items():
        same_verdict = by_verdict[kind]
        if same_verdict:
            is_are = "is" if len({effect.row.size_bytes for effect in same_verdict}) == 1 else "are"
            lines.append(f"{explanation}: {_sizes(same_verdict)} {is_are} {_range(same_verdict)} as fast as without it")
    if lines:
        if used is False:
            lines.append("but NCCL's log shows no connection that uses it: the difference has another cause")
        if by_verdict[SAME]:
            lines.append(f"{_sizes(by_verdict[SAME])}: no difference beyond 5 %")
        if by_verdict[UNKNOWN]:
            lines.append(f"{_sizes(by_verdict[UNKNOWN])}: the intervals are too wide")
    elif by_verdict[UNKNOWN]:
        lines = ["GPUDirect RDMA: inconclusive, the intervals are too wide: use more --launches or a longer --max-time"]
    else:
        reason = {
            True: "it is in use, but does not matter here",
            False: "it is not in use (NCCL's log)",
            None: "it is not in use, or does not matter",
        }
        lines = [f"GPUDirect RDMA makes no difference beyond 5 %: {reason[used]}"]
    if not all(effect.over_launches for effect in case_effects):
        lines.append("intervals of one launch only; use --launches 3")
    return lines


def _sizes(case_effects: Sequence[Effect]) -> str:
    """Return "4 MiB-1 GiB (9 sizes)", from the smallest to the largest; "4 MiB" for a single size."""
    sizes = sorted({effect.row.size_bytes for effect in case_effects})
    if len(sizes) == 1:
        return format_bytes(sizes[0])
    return f"{format_bytes(sizes[0])}-{format_bytes(sizes[-1])} ({len(sizes)} sizes)"


def _range(case_effects: Sequence[Effect]) -> str:
    """Return the median of the ratios, and the lowest and highest end of their intervals."""
    low = min(effect.speed.low or 0.0 for effect in case_effects)
    high = max(effect.speed.high or 0.0 for effect in case_effects)
    digits = 2 if high < 10 else 1
    middle = median(effect.speed.value for effect in case_effects)
    return f"{middle:.{digits}f}x ({low:.{digits}f} to {high:.{digits}f})"


def _effect(a: Sequence[Row], b: Sequence[Row]) -> Effect:
    if len(a) > 1:
        return Effect(a[0], ratio_of_pairs(row_times(a), row_times(b)), True)
    return Effect(a[0], ratio_of_medians(median_of(a[0]), median_of(b[0])), False)


def _direct(side: Iterable[Sequence[Row]]) -> bool | None:
    """Return what the rows' evidence shows about GPUDirect RDMA; None if it is uncertain."""
    states = {dict_of(row.evidence.get("gpudirect")).get("state") for rows in side for row in rows}
    if "proven used" in states:
        return True
    return False if states & {"capable, not used", "not capable"} else None
