"""Results of `collbench hunt` and `collbench pairs`: their rounds (a line each in hunt.jsonl and pairs.jsonl) and the matrix of pairs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from itertools import islice
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from collbench.errors import UsageError
from collbench.plugins.hunt import HUNT_FILE, PAIRS_FILE, TOOLS_FILE
from collbench.results.reader import Run, decode_record, misfit, read_lines, row_from_json
from collbench.results.row import Row
from collbench.units import format_bytes

STATES = ("confirmed", "cleared", "inconclusive")
_MOST_PLACES = 20_000
_RANK = re.compile(r"rank [0-9]+ \((.+)\)", re.DOTALL)

# Values of records, which are checked when a file is read.
Count = Annotated[int, Meta(ge=0)]
Rate = Annotated[float, Meta(gt=0)] | None
Bound = Annotated[float, Meta(ge=0)] | None
Share = Annotated[float, Meta(ge=0, le=1)]
Places = Annotated[tuple[Count, ...], Meta(min_length=1)]
Interval = tuple[Bound, Bound]
_R = TypeVar("_R", "HuntRound", "PairRound")


class _Suspect(msgspec.Struct):
    """The shown fields of a suspect in run.json; silent places have no ratio and no bounds."""

    state: Literal["confirmed", "cleared", "inconclusive"]
    places: tuple[Count, ...]
    partners: tuple[Count, ...]
    evidence: list[str]
    kind: str
    part: str
    ratio: Rate = None
    low: Bound = None
    high: Bound = None


class _Verdict(msgspec.Struct):
    """The shown fields of a hunt's verdict in run.json."""

    result: Literal["confirmed", "nobody", "no verdict"]
    notes: list[str]
    suspects: list[_Suspect]


def place_hosts(about: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the host of each place of a pairs run or a hunt; `about` is its part of run.json.

    Runs of earlier versions have no hosts. Only for these they are read from the names: "rank 3 (node1)" is on node1, and a place with
    another name is a host of its own.
    """
    if "hosts" in about:
        return tuple(about["hosts"])
    return tuple(match[1] if (match := _RANK.fullmatch(name)) else name for name in about["places"])


class _HuntAbout(msgspec.Struct):
    """What a hunt needs in run.json."""

    places: Annotated[list[str], Meta(min_length=1, max_length=_MOST_PLACES)]


class _PairsAbout(_HuntAbout):
    """What a matrix of pairs needs in run.json."""

    places: Annotated[list[str], Meta(min_length=2, max_length=_MOST_PLACES)]
    size_bytes: Annotated[int, Meta(ge=1)]
    latency_size_bytes: Annotated[int, Meta(ge=1)]


@dataclass(frozen=True)
class HuntRound:
    """A round of a hunt: disjoint groups of places measured at the same time. Every list has one value per group, None without a figure.

    round      from 0
    kind       what the groups are: pairs, groups, both inside a node, or pairs over one NIC
    stage, why the stage of the hunt, and the purpose of the round
    nic        the interface, for kind "nic"
    groups     places, as indices into the run's list of places
    speed      bytes per second: for groups and inside the bus bandwidth; for pairs and nic from the first place to the second
    backward   for pairs and nic: from the second place to the first
    latency_s  for pairs: half the round trip
    low, high  the speed's 95 % interval; for pairs and nic that of the slower direction
    wrong      received elements that differ from those sent
    wrong_detail  the first rank's description of them; None: none
    na         why a group was not measured, None: it was
    cpu_wait   for pairs: share of the round that a rank waited for a CPU (the rank that waited most); empty: not recorded
    flipped    for pairs: whether the state probe of one of its ranks changed during the round; empty: not recorded
    """

    round: int
    kind: Annotated[str, Meta(pattern=r"^(pairs|groups|inside|nic)\Z")]
    stage: str
    why: str
    groups: tuple[Places, ...]
    speed_bytes_per_s: tuple[Rate, ...]
    backward_bytes_per_s: tuple[Rate, ...]
    latency_s: tuple[Rate, ...]
    low_bytes_per_s: tuple[Bound, ...]
    high_bytes_per_s: tuple[Bound, ...]
    wrong: tuple[Count, ...]
    na: tuple[str | None, ...]
    nic: str | None = None
    flags: tuple[str, ...] = ()
    wrong_detail: tuple[str | None, ...] = ()
    cpu_wait: tuple[Share, ...] = ()
    flipped: tuple[bool, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the round as values for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class StoredHunt:
    """The content of a hunt's run.

    about     run.json's "hunt": places, by, backend, size_bytes, promised, rounds, ceiling …; its "verdict" is None if it stopped early
    rounds    as measured
    warnings  what could not be read
    """

    about: Mapping[str, Any]
    rounds: list[HuntRound]
    warnings: list[str] = field(default_factory=list)


def check_hunt(run: Run) -> Mapping[str, Any]:
    """Return run.json's "hunt". Raises UsageError if it lacks places, or if they, the links or the verdict are not valid."""
    about = _checked_about(run, "hunt", _HuntAbout, "a hunt", "the list of places in its run.json is")
    if about.get("crossed") is not None and not _fits(about["crossed"], list[str]):
        raise UsageError(f"{run.path} has a hunt, but the links (`crossed`) in its run.json are not valid: it was altered")
    if (verdict := about.get("verdict")) is not None and not (
        _fits(verdict, _Verdict) and _have_places(verdict["suspects"], len(about["places"]))
    ):
        raise UsageError(f"{run.path} has a hunt, but the verdict in its run.json is not valid: it was altered")
    return about


def read_hunt(run: Run) -> StoredHunt:
    """Return the hunt of a run, up to its last finished round. Raises UsageError if run.json is not valid."""
    about, warnings = check_hunt(run), list[str]()
    places = len(about["places"])
    rounds = list(read_lines(run.path / HUNT_FILE, lambda values: round_from_json(values, places), warnings))
    return StoredHunt(about, rounds, warnings)


def round_from_json(values: Mapping[str, Any], places: int) -> HuntRound:
    """Return the round that `as_json` wrote, among `places` places, with every field checked. Raises ValueError naming the first misfit."""
    return _decoded_round(values, HuntRound, places)


def pair_round_from_json(values: Mapping[str, Any], places: int) -> PairRound:
    """Return the round that `as_json` wrote, among `places` places, with every field checked. Raises ValueError naming the first misfit."""
    return _decoded_round(values, PairRound, places)


def _decoded_round(values: Mapping[str, Any], kind: type[_R], places: int) -> _R:
    """Return the round: its groups are disjoint, and every list has one value for each."""
    found = decode_record(values, kind)
    name = "groups" if isinstance(found, HuntRound) else "pairs"
    groups: tuple[tuple[int, ...], ...] = getattr(found, name)
    members = [place for group in groups for place in group]
    if len(set(members)) < len(members) or max(members, default=0) >= places:
        raise misfit(name, groups)
    for each in fields(found):
        value = getattr(found, each.name)
        if each.default is MISSING and isinstance(value, tuple) and len(value) != len(groups):
            raise misfit(each.name, value)
    return found


def _checked_about(run: Run, key: str, kind: type[_HuntAbout], what: str, problem: str) -> dict[str, Any]:
    """Return the part of run.json that describes the rounds. Raises UsageError if it is not valid."""
    found = run.info.get(key)
    about: dict[str, Any] = found if isinstance(found, dict) else {}
    if not _fits(about, kind):
        raise UsageError(f"{run.path} has rounds of {what}, but {problem} missing or not valid: it was altered")
    if not (_fits(hosts := about.get("hosts", about["places"]), list[str]) and len(hosts) == len(about["places"])):
        raise UsageError(f"{run.path} has rounds of {what}, but the list of hosts in its run.json is not valid: it was altered")
    return about


def _have_places(suspects: Sequence[Mapping[str, Any]], places: int) -> bool:
    return all(place < places for suspect in suspects for name in ("places", "partners") for place in suspect[name])


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a JSON value has the fields that are shown of it."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


# The results of `collbench pairs`: one line per round in pairs.jsonl, and the matrix of all rounds.
#
# A place is a rank or a node. For a pair (a, b) three times are measured one after the other: the latency, then a's messages to b, then
# b's to a. Each is a median over the samples; between nodes, that of the slowest pair of ranks. The time of a message between nodes is
# that time divided by the number of rank pairs, since each of them transfers a message at the same time.

Figures = NDArray[np.float64]


@dataclass(frozen=True)
class PairRound:
    """A round of disjoint pairs measured at the same time. Every list has one value per pair, None (or a null) without a figure.

    round        the round of the schedule, from 0
    again        whether suspects were measured again
    pairs        places, as indices into the run's list of places
    latency_s    half the round trip
    latency_ci_s its 95 % interval [low, high]
    forward_s    the time of one message from a to b, backward_s from b to a, with their intervals
    wrong        wrong elements in all three, None: not verified
    na           why a pair was not measured, None: it was
    n            samples of each of the three: [latency, forward, backward]
    wrong_detail by pair, the first rank's wrong element, expected and received value; None: none; empty: not recorded
    cpu_wait     by pair, share of the round that a rank waited for a CPU (the rank that waited most); empty: not recorded
    flipped      by pair, whether the state probe of one of its ranks changed during the round; empty: not recorded
    """

    round: int
    pairs: tuple[tuple[Count, Count], ...]
    latency_s: tuple[Rate, ...]
    latency_ci_s: tuple[Interval, ...]
    forward_s: tuple[Rate, ...]
    forward_ci_s: tuple[Interval, ...]
    backward_s: tuple[Rate, ...]
    backward_ci_s: tuple[Interval, ...]
    wrong: tuple[Count | None, ...]
    na: tuple[str | None, ...]
    n: tuple[Count, Count, Count] = (0, 0, 0)
    again: bool = False
    flags: tuple[str, ...] = ()
    wrong_detail: tuple[str | None, ...] = ()
    cpu_wait: tuple[Share, ...] = ()
    flipped: tuple[bool, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the round as values for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class PairMatrix:
    """The figures of all pairs, by sending (row) and receiving (column) place; NaN if nothing was measured.

    places       their names: "node1", "rank 3 (node1)"
    latency_s    symmetric
    bandwidth    bytes per second of messages from row to column
    low, high    the bandwidth's interval
    wrong        wrong elements of the pair, symmetric; NaN: not verified
    size_bytes   of the messages for the bandwidth
    latency_size_bytes  of the messages for the latency
    latency_spread  the upper end of the latency's interval over the lower one; None: all unknown
    hosts        the host of each place; (): each place is a host of its own
    """

    places: tuple[str, ...]
    latency_s: Figures
    bandwidth: Figures
    low: Figures
    high: Figures
    wrong: Figures
    size_bytes: int
    latency_size_bytes: int
    latency_spread: Figures | None = None
    hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "hosts", self.hosts or self.places)

    @property
    def n(self) -> int:
        """Return the number of places."""
        return len(self.places)


def matrix_of(about: Mapping[str, Any], rounds: Iterable[PairRound]) -> PairMatrix:
    """Return the matrix of these rounds; `about` is run.json's "pairs".

    For a pair measured again the faster figures count, since a disturbance only slows it down. A pair that is slow in the matrix was
    therefore slow both times. Wrong elements are summed.
    """
    places, sizes = tuple(about["places"]), (about["size_bytes"], about["latency_size_bytes"])
    latency, bandwidth, low, high, wrong, spread = (np.full((len(places), len(places)), np.nan) for _ in range(6))
    found = PairMatrix(places, latency, bandwidth, low, high, wrong, *sizes, spread, place_hosts(about))
    for one in rounds:
        _put(found, one)
    return found


def _put(found: PairMatrix, one: PairRound) -> None:
    """Store the figures of all pairs of a round, which are disjoint."""
    done = [turn for turn, why in enumerate(one.na) if why is None]
    if not done:
        return
    a, b = np.array([one.pairs[turn] for turn in done]).T
    _put_latency(found, one, (a, b), done)
    wrong = _figures(one.wrong, done)
    summed = np.where(np.isnan(wrong), found.wrong[a, b], np.nan_to_num(found.wrong[a, b]) + wrong)
    found.wrong[a, b] = found.wrong[b, a] = summed
    for (row, column), times, intervals in (((a, b), one.forward_s, one.forward_ci_s), ((b, a), one.backward_s, one.backward_ci_s)):
        rates, bounds = (_rates(found.size_bytes, _figures(values, done)) for values in (times, intervals))
        kept = found.bandwidth[row, column] >= np.nan_to_num(rates)
        for figures, measured in ((found.bandwidth, rates), (found.high, bounds[:, 0]), (found.low, bounds[:, 1])):
            figures[row, column] = np.where(kept, figures[row, column], measured)


def _put_latency(found: PairMatrix, one: PairRound, pairs: tuple[NDArray[np.int64], NDArray[np.int64]], done: Sequence[int]) -> None:
    assert found.latency_spread is not None
    ends, latency = _figures(one.latency_ci_s, done), _figures(one.latency_s, done)
    kept = found.latency_s[pairs] <= np.where(np.isnan(latency), np.inf, latency)
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = ends[:, 1] / ends[:, 0]
    for figures, measured in ((found.latency_s, latency), (found.latency_spread, spread)):
        figures[pairs] = figures[pairs[::-1]] = np.where(kept, figures[pairs], measured)


def _rates(size: int, seconds: Figures) -> Figures:
    """Return bytes per second; NaN if the time is unknown, or too short to be valid."""
    with np.errstate(divide="ignore"):
        return np.where(seconds > 0, size / seconds, np.nan)


def _figures(values: Sequence[Any], done: Sequence[int]) -> Figures:
    """Return the values of these pairs; None and negative values become NaN."""
    found = np.array([values[turn] for turn in done], dtype=np.float64)
    return np.where(found >= 0, found, np.nan)


# Reading the rounds of a pairs run. Like all files of a run they are untrusted: invalid content becomes a warning.

_BYTES_OF_A_PAIR = 160  # in memory: its six figures, and temporary copies
_MOST_EXTERNAL = 1 << 20  # rows of other tools, some KB each
_LITTLE = 1 << 30  # bytes that every machine has


@dataclass(frozen=True)
class StoredPairs:
    """The content of a pairs run.

    about     run.json's "pairs": places, by, backend, size_bytes, latency_size_bytes, rounds, possible, measured, sampled …
    rounds    as measured
    warnings  what could not be read
    external  rows of external tools for the pairs
    """

    about: Mapping[str, Any]
    rounds: list[PairRound]
    warnings: list[str] = field(default_factory=list)
    external: list[Row] = field(default_factory=list)

    def matrix(self) -> PairMatrix:
        """Return the matrix of all rounds."""
        return matrix_of(self.about, self.rounds)


def check_pairs(run: Run) -> dict[str, Any] | None:
    """Return run.json's "pairs"; None if the run measured none. Raises UsageError if it lacks what a matrix needs."""
    if run.info.get("pairs") is None and not (run.path / PAIRS_FILE).is_file():
        return None
    about = _checked_about(run, "pairs", _PairsAbout, "pairs", "places or sizes in its run.json are")
    judged = about.get("judged")
    if judged is not None and not (_fits(judged, list[_Suspect]) and _have_places(judged, len(about["places"]))):
        raise UsageError(f"{run.path} has rounds of pairs, but the list of judged suspects in its run.json is not valid: it was altered")
    _check_room(len(about["places"]), run)
    return about


def read_pairs(run: Run) -> StoredPairs | None:
    """Return the pairs of a run, up to its last finished round; None if it measured none. Raises UsageError if run.json is not valid."""
    about, warnings = check_pairs(run), list[str]()
    if about is None:
        return None
    places = len(about["places"])
    rounds = list(read_lines(run.path / PAIRS_FILE, lambda values: pair_round_from_json(values, places), warnings))
    external = list(islice(read_lines(run.path / TOOLS_FILE, row_from_json, warnings), _MOST_EXTERNAL))
    return StoredPairs(about, rounds, warnings, external)


def _check_room(places: int, run: Run) -> None:
    """Raise UsageError if the matrix needs more than the free memory: a short file can claim any number of places."""
    needed = _BYTES_OF_A_PAIR * places**2
    if needed <= _LITTLE:
        return
    import psutil

    free = psutil.virtual_memory().available
    if needed > free:
        raise UsageError(
            f"{run.path} has {places:,} places: their matrix needs {format_bytes(needed)} of memory, and {format_bytes(free)} are free. "
            "Use a machine with more memory"
        )
