"""Results of `collbench hunt` and `collbench pairs`: their rounds (a line each in hunt.jsonl and pairs.jsonl) and the matrix of pairs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.errors import UsageError
from collbench.results import folder
from collbench.results.folder import HUNT, TOOLS
from collbench.results.reader import Run, read_lines, row_from_json
from collbench.results.row import Row
from collbench.units import format_bytes

KINDS = ("pairs", "groups", "inside", "nic")
RESULTS = ("confirmed", "nobody", "no verdict")
STATES = ("confirmed", "cleared", "inconclusive")
_MOST_PLACES = 20_000
_RANK = re.compile(r"rank [0-9]+ \((.+)\)", re.DOTALL)


def place_hosts(about: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the host of each place of a pairs run or a hunt; `about` is its part of run.json.

    Runs of earlier versions have no hosts. Only for these they are read from the names: "rank 3 (node1)" is on node1, and a place with
    another name is a host of its own.
    """
    if "hosts" in about:
        return tuple(about["hosts"])
    return tuple(match[1] if (match := _RANK.fullmatch(name)) else name for name in about["places"])


def _has_hosts(about: Mapping[str, Any]) -> bool:
    """Return whether the hosts of the places are valid, or missing as in runs of earlier versions."""
    hosts = about.get("hosts", about["places"])
    return isinstance(hosts, list) and len(hosts) == len(about["places"]) and all(isinstance(host, str) for host in hosts)


@dataclass(frozen=True)
class HuntRound:
    """A round of a hunt: disjoint groups of places measured at the same time. Every list has one value per group, None without a figure.

    round      from 0
    kind       one of KINDS
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
    kind: str
    stage: str
    why: str
    groups: tuple[tuple[int, ...], ...]
    speed_bytes_per_s: tuple[float | None, ...]
    backward_bytes_per_s: tuple[float | None, ...]
    latency_s: tuple[float | None, ...]
    low_bytes_per_s: tuple[float | None, ...]
    high_bytes_per_s: tuple[float | None, ...]
    wrong: tuple[int, ...]
    na: tuple[str | None, ...]
    nic: str | None = None
    flags: tuple[str, ...] = ()
    wrong_detail: tuple[str | None, ...] = ()
    cpu_wait: tuple[float, ...] = ()
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


def holds_hunt(run: Run) -> bool:
    """Return whether it is a run of `collbench hunt`."""
    return "hunt" in run.info or (run.path / HUNT).is_file()


def check_hunt(run: Run) -> None:
    """Raise UsageError if `read_hunt` would, without reading the rounds."""
    _checked(run)


def read_hunt(run: Run) -> StoredHunt:
    """Return the hunt of a run, up to its last finished round. Raises UsageError if run.json is not valid."""
    about, warnings = _checked(run), list[str]()
    places = len(about["places"])
    rounds = list(read_lines(run.path / HUNT, lambda values: round_from_json(values, places), warnings))
    return StoredHunt(about, rounds, warnings)


def _checked(run: Run) -> Mapping[str, Any]:
    """Return run.json's "hunt" if it has places and a valid verdict or none. Raises UsageError otherwise."""
    found = run.info.get("hunt")
    about: dict[str, Any] = found if isinstance(found, dict) else {}
    places = about.get("places")
    if not (isinstance(places, list) and 1 <= len(places) <= _MOST_PLACES and all(isinstance(place, str) for place in places)):
        raise UsageError(f"{run.path} has rounds of a hunt, but the list of places in its run.json is missing or not valid: it was altered")
    if not _has_hosts(about):
        raise UsageError(f"{run.path} has rounds of a hunt, but the list of hosts in its run.json is not valid: it was altered")
    crossed, verdict = about.get("crossed"), about.get("verdict")
    if crossed is not None and not _words(crossed):
        raise UsageError(f"{run.path} has a hunt, but the links (`crossed`) in its run.json are not valid: it was altered")
    if verdict is not None and not _is_verdict(verdict, len(places)):
        raise UsageError(f"{run.path} has a hunt, but the verdict in its run.json is not valid: it was altered")
    return about


def round_from_json(values: Mapping[str, Any], places: int) -> HuntRound:
    """Return the round that `as_json` wrote, among `places` places, with every field checked. Raises ValueError naming the first misfit."""
    known = {each.name: _tuples(values[each.name]) for each in fields(HuntRound) if each.name in values}
    try:
        found = HuntRound(**known)
    except TypeError as error:
        raise ValueError(f"fields are missing or misplaced ({error})") from error
    if not _are_disjoint(found.groups, places):
        raise ValueError(f"'groups' is {str(found.groups)[:40]!r}")
    for name, fits in _OF_EACH_GROUP.items():
        value = getattr(found, name)
        if not (_all(value, fits) and len(value) == len(found.groups)):
            raise ValueError(f"'{name}' is {str(value)[:40]!r}")
    for name, fits in _OF_THE_ROUND.items():
        if not fits(getattr(found, name)):
            raise ValueError(f"'{name}' is {str(getattr(found, name))[:40]!r}")
    return found


def _is_verdict(verdict: Any, places: int) -> bool:
    """Return whether the value has the shown fields of a verdict, among so many places."""
    if not isinstance(verdict, dict) or verdict.get("result") not in RESULTS or not _words(verdict.get("notes")):
        return False
    known = verdict.get("suspects")
    return isinstance(known, list) and all(is_suspect(each, places) for each in known)


def is_suspect(value: Any, places: int) -> bool:
    """Return whether a JSON value has the shown fields of a suspect, among so many places."""
    if not isinstance(value, dict) or value.get("state") not in STATES:
        return False
    where = [value.get("places"), value.get("partners")]
    sound = all(isinstance(each, list) and all(_is_count(place) and place < places for place in each) for each in where)
    numbers = _is_speed(value.get("ratio")) and all(_is_bound(value.get(name)) for name in ("low", "high"))  # silent places have none
    return sound and numbers and _words(value.get("evidence")) and all(isinstance(value.get(name), str) for name in ("kind", "part"))


def _words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _are_disjoint(groups: Any, places: int) -> bool:
    """Return whether these are groups of places, each place once."""
    if not _all(groups, lambda group: _all(group, lambda place: _is_count(place) and place < places) and len(group) > 0):
        return False
    met = [place for group in groups for place in group]
    return len(set(met)) == len(met)


def _all(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, tuple) and all(map(fits, value))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_speed(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and value > 0)


def _is_bound(value: Any) -> bool:
    return _is_speed(value) or value == 0


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, Sequence) and not isinstance(value, str) else value


_OF_EACH_GROUP: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("speed_bytes_per_s", "backward_bytes_per_s", "latency_s"), _is_speed),
    **dict.fromkeys(("low_bytes_per_s", "high_bytes_per_s"), _is_bound),
    "wrong": _is_count,
    "na": _is_text,
}
_OF_THE_ROUND: dict[str, Callable[[Any], bool]] = {
    "round": _is_count,
    "kind": lambda value: value in KINDS,
    "stage": lambda value: isinstance(value, str),
    "why": lambda value: isinstance(value, str),
    "nic": _is_text,
    "flags": lambda value: _all(value, lambda flag: isinstance(flag, str)),
    "wrong_detail": lambda value: _all(value, _is_text),
    "cpu_wait": lambda value: _all(value, _is_share),
    "flipped": lambda value: _all(value, lambda flip: isinstance(flip, bool)),
}


# The results of `collbench pairs`: one line per round in pairs.jsonl, and the matrix of all rounds.
#
# A place is a rank or a node. For a pair (a, b) three times are measured one after the other: the latency, then a's messages to b, then
# b's to a. Each is a median over the samples; between nodes, that of the slowest pair of ranks. The time of a message between nodes is
# that time divided by the number of rank pairs, since each of them transfers a message at the same time.

PAIRS = folder.PAIRS
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
    pairs: tuple[tuple[int, int], ...]
    latency_s: tuple[float | None, ...]
    latency_ci_s: tuple[tuple[float | None, float | None], ...]
    forward_s: tuple[float | None, ...]
    forward_ci_s: tuple[tuple[float | None, float | None], ...]
    backward_s: tuple[float | None, ...]
    backward_ci_s: tuple[tuple[float | None, float | None], ...]
    wrong: tuple[int | None, ...]
    na: tuple[str | None, ...]
    n: tuple[int, int, int] = (0, 0, 0)
    again: bool = False
    flags: tuple[str, ...] = ()
    wrong_detail: tuple[str | None, ...] = ()
    cpu_wait: tuple[float, ...] = ()
    flipped: tuple[bool, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the round as values for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> PairRound:
        """Return the round that `as_json` wrote; lists become tuples. Raises TypeError if a field is missing."""
        known = {field.name: _pair_tuples(values[field.name]) for field in fields(cls) if field.name in values}
        return cls(**known)


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


def _pair_tuples(value: Any) -> Any:
    return tuple(_pair_tuples(inner) if isinstance(inner, list) else inner for inner in value) if isinstance(value, list) else value


# Reading the rounds of a pairs run. Like all files of a run they are untrusted: invalid content becomes a warning.

_BYTES_OF_A_PAIR = 160  # in memory: its six figures, and temporary copies
_MOST_EXTERNAL = 1 << 20  # rows of other tools, some KB each
_LITTLE = 1 << 30  # bytes that every machine has
_FIGURES = ("latency_s", "forward_s", "backward_s")
_INTERVALS = ("latency_ci_s", "forward_ci_s", "backward_ci_s")


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


def check_pairs(run: Run) -> None:
    """Raise UsageError if `read_pairs` would, without reading the rounds."""
    if "pairs" in run.info or (run.path / PAIRS).is_file():
        _checked_pairs(run.info.get("pairs"), run)


def read_pairs(run: Run) -> StoredPairs | None:
    """Return the pairs of a run, up to its last finished round; None if it measured none. Raises UsageError if run.json is not valid."""
    about = run.info.get("pairs")
    if about is None and not (run.path / PAIRS).is_file():
        return None
    known, warnings = _checked_pairs(about, run), list[str]()
    places = len(known["places"])
    rounds = list(read_lines(run.path / PAIRS, lambda values: pair_round_from_json(values, places), warnings))
    theirs = list(islice(read_lines(run.path / TOOLS, row_from_json, warnings), _MOST_EXTERNAL))
    return StoredPairs(known, rounds, warnings, theirs)


def _checked_pairs(about: Any, run: Run) -> dict[str, Any]:
    """Return run.json's "pairs". Raises UsageError if it lacks what a matrix needs."""
    known = about if isinstance(about, dict) else {}
    places = known.get("places")
    named = isinstance(places, list) and 2 <= len(places) <= _MOST_PLACES and all(isinstance(place, str) for place in places)
    judged = known.get("judged")
    if judged is not None and not (isinstance(judged, list) and named and all(is_suspect(each, len(places)) for each in judged)):  # type: ignore[arg-type]
        raise UsageError(f"{run.path} has rounds of pairs, but the list of judged suspects in its run.json is not valid: it was altered")
    if not named or not all(_is_whole(known.get(name), 1) for name in ("size_bytes", "latency_size_bytes")):
        raise UsageError(f"{run.path} has rounds of pairs, but places or sizes in its run.json are missing or not valid: it was altered")
    if not _has_hosts(known):
        raise UsageError(f"{run.path} has rounds of pairs, but the list of hosts in its run.json is not valid: it was altered")
    _check_room(len(known["places"]), run)
    return known


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


def pair_round_from_json(values: dict[str, Any], places: int) -> PairRound:
    """Return the round in `values`, among `places` places, with every field checked. Raises ValueError naming the first misfit."""
    try:
        found = PairRound.from_json(values)
    except TypeError as error:
        raise ValueError(f"fields are missing or misplaced ({error})") from error
    if not _are_disjoint_pairs(found.pairs, places):
        raise ValueError(f"'pairs' is {str(found.pairs)[:40]!r}")
    for name, fits in _OF_EACH_PAIR.items():
        value = getattr(found, name)
        if not (_is_list(value, fits) and len(value) == len(found.pairs)):
            raise ValueError(f"'{name}' is {str(value)[:40]!r}")
    for name, fits in _OF_THE_PAIR_ROUND.items():
        if not fits(getattr(found, name)):
            raise ValueError(f"'{name}' is {str(getattr(found, name))[:40]!r}")
    return found


def _are_disjoint_pairs(pairs: Any, places: int) -> bool:
    """Return whether these are pairs of places, each place once."""
    if not _is_list(pairs, lambda pair: _is_list(pair, lambda place: _is_whole(place, 0) and place < places) and len(pair) == 2):
        return False
    met = [place for pair in pairs for place in pair]
    return len(set(met)) == len(met)


def _is_list(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, tuple) and all(map(fits, value))


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_pair_count(value: Any) -> bool:
    return _is_whole(value, 0)


def _is_seconds(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and value > 0)


def _is_interval(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(map(_is_seconds_bound, value))


def _is_seconds_bound(value: Any) -> bool:
    return _is_seconds(value) or value == 0


_OF_EACH_PAIR: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(_FIGURES, _is_seconds),
    **dict.fromkeys(_INTERVALS, _is_interval),
    "wrong": lambda value: value is None or _is_pair_count(value),
    "na": lambda value: value is None or isinstance(value, str),
}
_OF_THE_PAIR_ROUND: dict[str, Callable[[Any], bool]] = {
    "round": _is_pair_count,
    "again": lambda value: isinstance(value, bool),
    "n": lambda value: _is_list(value, _is_pair_count) and len(value) == 3,
    "flags": lambda value: _is_list(value, lambda flag: isinstance(flag, str)),
    "wrong_detail": lambda value: _is_list(value, lambda detail: detail is None or isinstance(detail, str)),
    "cpu_wait": lambda value: _is_list(value, lambda share: isinstance(share, int | float) and 0 <= share <= 1),
    "flipped": lambda value: _is_list(value, lambda flip: isinstance(flip, bool)),
}
