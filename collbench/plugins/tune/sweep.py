"""Which choice of a sweep is faster than the library's own, at which sizes.

A choice is what a run forced: algorithm, protocol and channels of NCCL, or the algorithm of MPICH or Open MPI by the recorded variables.
It replaces the library's own only where the 95 % intervals of both medians do not overlap, which holds for the fastest of a dozen equal
choices, too, and where the interval of the ratio shows the least gain that is asked for. With two launches or more of both, the intervals
are over launches; else they are from within one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec

from collbench.analysis.launches import grouped, median_of, time_of
from collbench.columns import column
from collbench.errors import UsageError
from collbench.records import Record
from collbench.results.environment import steering
from collbench.results.estimate import Estimate
from collbench.results.quality import is_unreliable
from collbench.results.reader import Run
from collbench.results.row import SERIES, Row
from collbench.stats.launches import Ratio, Spread, over_launches, ratio_of_launches, ratio_of_medians

Library = Literal["nccl", "openmpi", "mpich"]
Outcome = Literal["override", "as good", "unknown"]

# By library and the name of a collective in its variables: the operation.
COLLECTIVES: Mapping[str, str] = {"ALLREDUCE": "allreduce", "BCAST": "broadcast", "REDUCE": "reduce", "ALLGATHER": "allgather"}
_MPICH = re.compile(r"MPIR_CVAR_([A-Z]+)_INTRA_ALGORITHM$")
_OPEN_MPI = re.compile(r"OMPI_MCA_coll_tuned_([a-z]+)_algorithm$")
_OPEN_MPI_SEGMENT = "OMPI_MCA_coll_tuned_{}_algorithm_segmentsize"
_DYNAMIC = "OMPI_MCA_coll_tuned_use_dynamic_rules"
_TRUE = frozenset({"1", "t", "true", "enabled", "yes", "y"})
_CHANNELS = (("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"), ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"))
# Variables that name a tuner file: such a run shows the choice of the file, not that of the library.
TUNED_BY = (
    "NCCL_TUNER_CONFIG_FILE", "NCCL_TUNER_PLUGIN", "OMPI_MCA_coll_tuned_dynamic_rules_filename",
    "MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE",
)  # fmt: skip
_CHOICE_FIELDS = frozenset({"algorithm", "protocol"})


class Choice(msgspec.Struct, frozen=True, order=True):
    """What a run forced. algorithm: as the library's variable has it; "" everywhere: the library's own choice.

    channels  of NCCL; -1: its own number. segment_bytes: of Open MPI's algorithm; 0: none
    """

    algorithm: str = ""
    protocol: str = ""
    channels: int = -1
    segment_bytes: int = 0

    def __str__(self) -> str:
        """Return "ring/ll128, 16 channels", or "own choice"."""
        names = "/".join(name for name in (self.algorithm, self.protocol) if name)
        channels = f"{self.channels} channels" if self.channels >= 0 else ""
        segments = f"segments of {self.segment_bytes} B" if self.segment_bytes else ""
        return ", ".join(part for part in (names, channels, segments) if part) or "own choice"


OWN = Choice()


class TunedSize(Record, frozen=True, kw_only=True):
    """The library's own choice at one size, and the fastest one that was forced."""

    library: Annotated[Library, column("The library: `nccl` (RCCL, too), `openmpi` or `mpich`.")]
    operation: Annotated[str, column("The operation.", title="operation")]
    dtype: Annotated[str, column("The data type.")]
    nodes: Annotated[int, column("The number of nodes.", title="nodes", drop=3)]
    ranks: Annotated[int, column("The number of ranks.", title="ranks", drop=2)]
    size_bytes: Annotated[int, column("The size of the message.", title="size")]
    own_s: Annotated[Estimate, column("The median time with the library's own choice.", title="own µs")] = Estimate()
    choice: Annotated[str, column("The fastest forced choice.", title="fastest forced")] = ""
    forced_s: Annotated[Estimate, column("The median time with it.", title="forced µs")] = Estimate()
    ratio: Annotated[
        Estimate, column("The time with it, divided by that with the own choice.", title="forced / own", interval="95 % CI")
    ] = Estimate()
    launches: Annotated[int, column("The number of launches of the choice with fewer.", title="launches", drop=1)] = 0
    outcome: Annotated[
        Outcome,
        column("`override`: the file has it; `as good`: the own choice stays; `unknown`: a valid time is missing.", title="file"),
    ] = "unknown"
    forced: Choice = OWN


class Override(msgspec.Struct, frozen=True):
    """A range of sizes in bytes, both ends included, with a faster choice for a collective over so many ranks and nodes."""

    operation: str
    nodes: int
    ranks: int
    first_bytes: int
    last_bytes: int
    choice: Choice


def library_of(run: Run, backend: str) -> Library | None:
    """Return the library of a backend of a run that takes a tuner file; None for another one."""
    if backend in ("nccl", "torch-nccl", "rccl"):
        return "nccl"
    backends = run.info.get("backends")
    facts = backends.get(backend) if isinstance(backends, dict) else None
    name = str(facts.get("mpi")) if isinstance(facts, dict) else ""
    if name.startswith("Open MPI"):
        return "openmpi"
    return "mpich" if name.startswith("MPICH") else None


def sizes_of(runs: Sequence[Run], least_percent: float) -> list[TunedSize]:
    """Return each size of each series that was measured with a forced choice, and its outcome, in the order of the runs.

    least_percent  the least gain that its interval has to show. Raises UsageError for a run whose choice is not what its variables say.
    """
    rows = [(run, row) for run in runs for row in run.rows if library_of(run, row.backend)]
    series = grouped(rows, lambda pair: _series(*pair))
    judged: list[TunedSize] = []
    for members in series.values():
        by_size = grouped(members, lambda pair: pair[1].size_bytes)
        sizes = [_judged(by_size[size], least_percent) for size in sorted(by_size)]
        judged += [size for size in sizes if size is not None]
    return judged


def overrides_of(sizes: Sequence[TunedSize]) -> list[Override]:
    """Return the ranges of sizes with a faster choice.

    A range reaches from a measured size to another one that wants the same choice, if no measured size between them wants something else.
    """
    overrides: list[Override] = []
    for members in grouped(sizes, _scope).values():
        by_size = grouped(members, attrgetter("size_bytes"))
        last = OWN
        for size_bytes in sorted(by_size):
            wanted = _wanted(by_size[size_bytes])
            choice = wanted.pop() if len(wanted) == 1 else OWN
            if choice != OWN:
                size = members[0]
                first = overrides.pop().first_bytes if choice == last else size_bytes
                overrides.append(Override(size.operation, size.nodes, size.ranks, first, size_bytes, choice))
            last = choice
    return overrides


def disputed(sizes: Sequence[TunedSize]) -> list[TunedSize]:
    """Return one of the measurements of each size at which some want a forced choice, and others, as of another data type, do not."""
    groups = grouped(sizes, lambda size: (_scope(size), size.size_bytes)).values()
    return [members[0] for members in groups if len(_wanted(members)) > 1]


def _scope(size: TunedSize) -> tuple[object, ...]:
    """Return what a rule of the library's file distinguishes: no data type, and the number of nodes only for NCCL."""
    return size.library, size.operation, size.nodes if size.library == "nccl" else 0, size.ranks


def _wanted(members: Iterable[TunedSize]) -> set[Choice]:
    return {size.forced if size.outcome == "override" else OWN for size in members}


def _environment(run: Run) -> Mapping[str, Any]:
    recorded = run.info.get("environment")
    return recorded if isinstance(recorded, dict) else {}


def _series(run: Run, row: Row) -> tuple[object, ...]:
    """Return what rows that are compared have in common: case, library and all variables but those of the choice."""
    fields = tuple(getattr(row, name) for name in SERIES if name not in _CHOICE_FIELDS)
    variables = _environment(run)
    chosen = {name for pair in _CHANNELS if _number(variables, pair) >= 0 for name in pair} | {_DYNAMIC, "NCCL_ALGO", "NCCL_PROTO"}
    others = {name: value for name, value in steering(variables).items() if name not in chosen and not _is_choice(name)}
    return (*fields, library_of(run, row.backend), tuple(sorted(others.items())))


def _is_choice(name: str) -> bool:
    return bool(_MPICH.match(name) or _OPEN_MPI.match(name) or name.endswith("_algorithm_segmentsize"))


def choice_of(run: Run, row: Row) -> Choice:
    """Return the choice that a row was measured with. Raises UsageError if a tuner file chose, or the library ignored the variables."""
    variables = _environment(run)
    file = next((name for name in TUNED_BY if variables.get(name)), None)
    if file:
        raise UsageError(f"{run.path} was measured with {file}, so it does not show the library's own choice: leave it out")
    library = library_of(run, row.backend)
    if library == "nccl":
        algorithm = row.algorithm or str(variables.get("NCCL_ALGO", "")).lower()
        protocol = row.protocol or str(variables.get("NCCL_PROTO", "")).lower()
        return Choice(algorithm, protocol, _channels(variables))
    for name, value in variables.items():
        matched = _MPICH.match(name) if library == "mpich" else _OPEN_MPI.match(name)
        if matched is None or COLLECTIVES.get(matched[1].upper()) != row.operation or value in ("auto", "0", "ignore"):
            continue
        if library == "openmpi" and str(variables.get(_DYNAMIC, "")).lower() not in _TRUE:
            raise UsageError(f"{run.path} sets {name}, which Open MPI ignores without {_DYNAMIC}=1: measure it again with both")
        segment = str(variables.get(_OPEN_MPI_SEGMENT.format(matched[1]), "0"))
        return Choice(str(value), segment_bytes=int(segment) if segment.isdigit() else 0)
    return OWN


def _channels(variables: Mapping[str, Any]) -> int:
    """Return the number of channels that is forced; -1: none is."""
    numbers = [_number(variables, pair) for pair in _CHANNELS]
    return next((number for number in numbers if number >= 0), -1)


def _number(variables: Mapping[str, Any], pair: tuple[str, str]) -> int:
    """Return the number that the variables of a pair force: both have it. -1: they leave NCCL a choice, or are not set."""
    least, most = pair
    number = str(variables.get(least, ""))
    return int(number) if number.isdigit() and variables.get(most) == number else -1


def _judged(members: Sequence[tuple[Run, Row]], least_percent: float) -> TunedSize | None:
    """Return the outcome at one size; None if nothing was forced there."""
    by_choice: dict[Choice, list[Row]] = {}
    for run, row in members:
        by_choice.setdefault(choice_of(run, row), []).append(row)
    if set(by_choice) <= {OWN}:
        return None
    run, row = members[0]
    library = library_of(run, row.backend)
    assert library is not None
    size = TunedSize(
        library=library, operation=row.operation, dtype=row.dtype, nodes=row.nodes or 1, ranks=row.ranks, size_bytes=row.size_bytes
    )  # fmt: skip
    sound = {choice: [row for row in rows if _is_sound(row)] for choice, rows in by_choice.items()}
    own_rows = sound.pop(OWN, [])
    forced = {choice: rows for choice, rows in sound.items() if rows}
    if not own_rows or not forced:
        return size
    own_time = _time(own_rows)
    fastest = min(forced, key=lambda choice: _time(forced[choice]).value)
    forced_time = _time(forced[fastest])
    ratio = _ratio(own_rows, forced[fastest])
    outcome: Outcome = "unknown"
    if own_time.low is not None and forced_time.high is not None and ratio.high is not None:
        faster = forced_time.high < own_time.low and ratio.high <= 1 - least_percent / 100
        outcome = "override" if faster else "as good"
    return size.replace(
        own_s=Estimate(own_time.value, own_time.low, own_time.high),
        choice=str(fastest),
        forced_s=Estimate(forced_time.value, forced_time.low, forced_time.high),
        ratio=Estimate(ratio.value, ratio.low, ratio.high),
        launches=min(len(own_rows), len(forced[fastest])),
        outcome=outcome,
        forced=fastest,
    )


def _is_sound(row: Row) -> bool:
    return time_of(row) is not None and not row.wrong and not is_unreliable(row)


def _time(rows: Sequence[Row]) -> Spread:
    """Return the median of a choice, over launches if there are several, else within the launch."""
    if len(rows) > 1:
        return over_launches([median_of(row).value for row in rows])
    median = median_of(rows[0])
    return Spread(median.value, median.ci_low, median.ci_high, 1)


def _ratio(own_rows: Sequence[Row], forced: Sequence[Row]) -> Ratio:
    if min(len(own_rows), len(forced)) > 1:
        return ratio_of_launches([median_of(row).value for row in own_rows], [median_of(row).value for row in forced])
    return ratio_of_medians(median_of(own_rows[0]), median_of(forced[0]))


def unjudged(runs: Iterable[Run]) -> list[str]:
    """Return the backends of the runs that take no tuner file."""
    names = {row.backend for run in runs for row in run.rows if library_of(run, row.backend) is None}
    return sorted(names)
