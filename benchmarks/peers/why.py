"""Why OSU's figures differ from one user's to the next: OSU compared with itself, with one change.

This explains the 12 % by which OSU reads slower than collbench on Open MPI at 64 KiB to 1 MiB.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from benchmarks.peers.contest import Contest
from benchmarks.peers.load import SMALL, Load
from benchmarks.peers.osu import MEAN, MEDIAN, Osu
from benchmarks.peers.ours import Ours

_AS_COMPARED = "Beside it OSU as it is compared with collbench: P50, floats, ordinary pages."


def contests(osu: Osu) -> list[Contest]:
    """The mean instead of the median, characters instead of floats, huge pages instead of ordinary ones. Needs percentiles."""
    if not osu.percentiles:
        return []
    changed = partial(_changed, osu)
    return [
        _contest(osu, "mean", partial(changed, SMALL, "mpi_float", MEAN), "The mean, OSU's first column, which one interruption spoils."),
        _contest(osu, "chars", partial(changed, SMALL, "mpi_char", MEDIAN), "Sums of characters, which OSU takes without -T."),
        _contest(osu, "huge-pages", partial(changed, replace(SMALL, huge=True), "mpi_float", MEDIAN), "Buffers on huge pages."),
    ]


def _contest(osu: Osu, name: str, changed: partial[dict[int, Ours]], how: str) -> Contest:
    compared = partial(osu.measure, "allreduce", SMALL)
    return Contest(f"why-{name}", f"{how} {_AS_COMPARED}", changed, compared, sides=(f"OSU, {name}", "OSU"))


def _changed(osu: Osu, load: Load, kind: str, column: int) -> dict[int, Ours]:
    return {size: Ours(time_s) for size, time_s in osu.measure("allreduce", load, kind, column).items()}
