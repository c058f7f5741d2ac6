"""Results of `collbench hunt` and `collbench pairs`: their rounds (a line each in hunt.jsonl and pairs.jsonl) and the matrix of pairs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from collbench.columns import column
from collbench.errors import UsageError
from collbench.plugins.hunt import HUNT_FILE, PAIRS_FILE, TOOLS_FILE
from collbench.plugins.hunt.facts import SLOW_PLACE_UNKNOWN
from collbench.records import Record
from collbench.results.reader import Run, decode_record, misfit, read_lines, row_from_json
from collbench.results.row import Row
from collbench.units import format_bytes

if TYPE_CHECKING:
    from collbench.plugins.hunt.pairs import PairEffects

NONE_SLOW, NO_VERDICT = "nobody", "no verdict"  # results of pairs and hunts besides "confirmed", as stored
_MOST_PLACES = 20_000
_RANK = re.compile(r"\Arank [0-9]+ \((.+)\)\Z", re.DOTALL)

# Values of records, which are checked when a file is read.
Count = Annotated[int, Meta(ge=0)]
Rate = Annotated[float, Meta(gt=0)] | None
Bound = Annotated[float, Meta(ge=0)] | None
Share = Annotated[float, Meta(ge=0, le=1)]
Places = Annotated[tuple[Count, ...], Meta(min_length=1)]
Interval = tuple[Bound, Bound]
Figures = NDArray[np.float64]
_R = TypeVar("_R", "HuntRound", "PairRound")
_A = TypeVar("_A", bound="PlacesAbout")


class StoredSuspect(msgspec.Struct):
    """A suspect in run.json; silent places have no ratio and no bounds. See `protocol.Suspect` for the fields."""

    state: Literal["confirmed", "cleared", "inconclusive"]
    places: tuple[Count, ...]
    partners: tuple[Count, ...]
    evidence: list[str]
    kind: str
    part: str
    ratio: Rate = None
    low: Bound = None
    high: Bound = None
    part_fact: dict[str, Any] | None = None


class StoredVerdict(msgspec.Struct):
    """A hunt's verdict in run.json; middle: the usual speed of a pair, bytes per second."""

    result: Literal["confirmed", "nobody", "no verdict"]
    notes: list[str]
    suspects: list[StoredSuspect]
    no_verdict: str | None = None
    middle: float | None = None
    note_facts: list[dict[str, Any]] = msgspec.field(default_factory=list)

    @property
    def slow_place_unknown(self) -> str | None:
        """Return the first note that some place is slow and not known, or None."""
        kinds = {kind.__struct_config__.tag for kind in SLOW_PLACE_UNKNOWN}
        notes = zip(self.notes, self.note_facts, strict=False)
        return next((note for note, fact in notes if fact.get("kind") in kinds), None)


class StoredCeiling(msgspec.Struct):
    """The highest possible rate of a pair or group in run.json, and what sets it."""

    bytes_per_s: float | None = None
    limited_by: str | None = None


class PlacesAbout(msgspec.Struct, kw_only=True):
    """What pairs and hunts need in their part of run.json."""

    places: Annotated[list[str], Meta(min_length=1, max_length=_MOST_PLACES)]
    hosts: list[str] = msgspec.field(default_factory=list)


class HuntAbout(PlacesAbout, kw_only=True):
    """Run.json's "hunt", as far as it is shown; its verdict is None if it stopped early."""

    by: str = "endpoint"
    backend: str | None = None
    size_bytes: int | None = None
    rounds: int | None = None
    promised: int | None = None
    max_time_s: float | None = None
    ceiling: StoredCeiling | None = None
    crossed: list[str] | None = None
    verdict: StoredVerdict | None = None

    @property
    def suspects(self) -> list[StoredSuspect]:
        """Return the suspects of the verdict; none without a verdict."""
        return self.verdict.suspects if self.verdict else []


class PairsAbout(PlacesAbout, kw_only=True):
    """What a matrix of pairs needs in run.json, and the suspects that were measured again."""

    places: Annotated[list[str], Meta(min_length=2, max_length=_MOST_PLACES)]
    size_bytes: Annotated[int, Meta(ge=1)]
    latency_size_bytes: Annotated[int, Meta(ge=1)]
    judged: list[StoredSuspect] | None = None


def place_hosts(about: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the host of each place of a pairs run or a hunt; `about` is its part of run.json.

    Runs of earlier versions have no hosts. Only for these they are read from the names: "rank 3 (node1)" is on node1, and a place with
    another name is a host of its own.
    """
    if "hosts" in about:
        return tuple(about["hosts"])
    return tuple(_RANK.sub(r"\1", name) for name in about["places"])


class SuspectRow(Record, frozen=True, kw_only=True):
    """A suspect of a hunt with the names of its places, as CSV and DataFrames have it."""

    state: Annotated[str, column("The state of the suspect: confirmed, cleared or inconclusive.")]
    code: Annotated[str | None, column("The code of the finding; `collbench explain CODE` explains it.")]
    kind: Annotated[str, column("What is slow.")]
    places: Annotated[str, column("The suspects: ranks or nodes.")]
    ratio: Annotated[float | None, column("The speed of the suspect as a share of that of the others.")]
    ratio_low: Annotated[float | None, column("The lower end of the interval of the ratio.")]
    ratio_high: Annotated[float | None, column("The upper end of the interval of the ratio.")]
    partners: Annotated[str, column("The partners with which the suspect was measured.")]
    part: Annotated[str, column("The interface or part that is slow.")]
    evidence: Annotated[str, column("The evidence, as sentences.")]


class HuntRound(Record, frozen=True):
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


class StoredHunt(msgspec.Struct, frozen=True, dict=True):
    """The content of a hunt's run.

    about     run.json's "hunt": places, by, backend, size_bytes, promised, rounds, ceiling …; its "verdict" is None if it stopped early
    rounds    as measured
    warnings  what could not be read
    advice    the recommendation and what was done, a line each
    """

    about: Mapping[str, Any]
    rounds: list[HuntRound]
    warnings: list[str] = msgspec.field(default_factory=list)
    advice: Sequence[str] = ()

    @cached_property
    def shown(self) -> HuntAbout:
        """`about` as far as it is shown, with the number of measured rounds."""
        return msgspec.convert(self.shown_about, HuntAbout)

    @property
    def shown_about(self) -> dict[str, Any]:
        """Return `about` with the number of measured rounds."""
        return {**self.about, "rounds": len(self.rounds)}


def check_hunt(run: Run) -> Mapping[str, Any]:
    """Return run.json's "hunt". Raises UsageError if it lacks places, or if they, the links or the verdict are not valid."""
    problems = {
        "": "rounds of a hunt, but the list of places in its run.json is missing or",
        "hosts": "rounds of a hunt, but the list of hosts in its run.json is",
        "crossed": "a hunt, but the links (`crossed`) in its run.json are",
        "verdict": "a hunt, but the verdict in its run.json is",
    }
    raw, about = _checked_about(run, "hunt", HuntAbout, problems)
    _check_suspects(run, about.suspects, about, problems["verdict"])
    return raw


def read_hunt(run: Run) -> StoredHunt:
    """Return the hunt of a run, up to its last finished round. Raises UsageError if run.json is not valid."""
    about = check_hunt(run)
    warnings: list[str] = []
    places = len(about["places"])
    rounds = list(read_lines(run.path / HUNT_FILE, lambda values: decoded_round(values, HuntRound, places), warnings))
    return StoredHunt(about, rounds, warnings)


def decoded_round(values: Mapping[str, Any], kind: type[_R], places: int) -> _R:
    """Return the stored round: disjoint groups of `places` places, and lists with a value for each. Raises ValueError for a misfit."""
    record = decode_record(values, kind)
    name = "groups" if isinstance(record, HuntRound) else "pairs"
    groups: tuple[tuple[int, ...], ...] = getattr(record, name)
    members = [place for group in groups for place in group]
    if len(set(members)) < len(members) or max(members, default=0) >= places:
        raise misfit(name, groups)
    for declared in msgspec.structs.fields(record):
        value = getattr(record, declared.name)
        if declared.required and isinstance(value, tuple) and len(value) != len(groups):
            raise misfit(declared.name, value)
    return record


def _checked_about(run: Run, key: str, kind: type[_A], problems: Mapping[str, str]) -> tuple[Mapping[str, Any], _A]:
    """Return the part of run.json that describes the rounds, raw and typed. Raises UsageError if it is not valid.

    problems  by field that is not valid what the error says; of all others ""
    """
    raw = run.info.get(key)
    try:
        about = msgspec.convert(raw if isinstance(raw, dict) else {}, kind)
    except msgspec.ValidationError as error:
        path = re.search(r"`\$\.(\w+)", str(error))
        raise _altered(run, problems.get(path[1] if path else "", problems[""])) from error
    if isinstance(raw, dict) and "hosts" in raw and len(about.hosts) != len(about.places):
        raise _altered(run, problems["hosts"])
    return raw or {}, about


def _altered(run: Run, problem: str) -> UsageError:
    return UsageError(f"{run.path} has {problem} not valid: it was altered")


def _check_suspects(run: Run, suspects: Sequence[StoredSuspect], about: PlacesAbout, problem: str) -> None:
    """Raise UsageError if a place or a partner of a suspect does not exist."""
    if any(place >= len(about.places) for suspect in suspects for place in (*suspect.places, *suspect.partners)):
        raise _altered(run, problem)


class PairRound(Record, frozen=True):
    """A round of disjoint pairs measured at the same time. Every list has one value per pair, None (or a null) without a figure.

    A place is a rank or a node. For a pair (a, b) three times are measured one after the other: the latency, then a's messages to b, then
    b's to a. Each is a median over the samples; between nodes, that of the slowest pair of ranks. The time of a message between nodes is
    that time divided by the number of rank pairs, since each of them transfers a message at the same time.

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


class DirectedPair(Record, frozen=True):
    """The figures of a sender and a receiver, as CSV and DataFrames have them; None where they are unknown."""

    sender: Annotated[str, column("The place (rank or node) that sends.")]
    receiver: Annotated[str, column("The place (rank or node) that receives.")]
    size_bytes: Annotated[int, column("The size of the messages of the bandwidth.")]
    bandwidth_bytes_per_s: Annotated[float | None, column("The bandwidth of messages from the sender to the receiver, the median.")]
    bandwidth_low_bytes_per_s: Annotated[float | None, column("The lower end of the 95 % interval of the bandwidth.")]
    bandwidth_high_bytes_per_s: Annotated[float | None, column("The upper end of the 95 % interval of the bandwidth.")]
    latency_size_bytes: Annotated[int, column("The size of the messages of the latency.")]
    latency_s: Annotated[float | None, column("Half of the round trip, the median.")]
    wrong: Annotated[int | None, column("The number of wrong elements of the pair, in both directions; missing if nothing was verified.")]


class PairMatrix(msgspec.Struct, frozen=True):
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
        msgspec.structs.force_setattr(self, "hosts", self.hosts or self.places)

    @property
    def n(self) -> int:
        """Return the number of places."""
        return len(self.places)

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Return [n × n] which places are on one host; a place is on that of itself."""
        _, host = np.unique(np.array(self.hosts), return_inverse=True)
        return np.asarray(host[:, None] == host[None, :])

    def wrong_pairs(self) -> list[list[int]]:
        """Return the pairs with wrong data, the lower place first."""
        pairs: list[list[int]] = np.argwhere(np.triu(np.nan_to_num(self.wrong) > 0)).tolist()
        return pairs

    def pairs(self) -> Iterator[DirectedPair]:
        """Yield each directed pair with a known figure, row by row."""
        is_known = np.isfinite(self.bandwidth) | np.isfinite(self.latency_s) | np.isfinite(self.wrong)
        senders, receivers = np.nonzero(is_known)
        columns = []
        for figures in (self.bandwidth, self.low, self.high, self.latency_s, self.wrong):
            values = figures[senders, receivers].astype(object)
            values[~np.isfinite(figures[senders, receivers])] = None
            columns.append(list(values))
        for sender, receiver, bandwidth, low, high, latency_s, wrong in zip(senders.tolist(), receivers.tolist(), *columns, strict=True):
            yield DirectedPair(
                self.places[sender], self.places[receiver], self.size_bytes, bandwidth, low, high, self.latency_size_bytes, latency_s,
                None if wrong is None else round(wrong),
            )  # fmt: skip


def matrix_of(about: Mapping[str, Any], rounds: Iterable[PairRound]) -> PairMatrix:
    """Return the matrix of these rounds; `about` is run.json's "pairs".

    For a pair measured again the faster figures count, since a disturbance only slows it down. A pair that is slow in the matrix was
    therefore slow both times. Wrong elements are summed.
    """
    places = tuple(about["places"])
    size = about["size_bytes"]
    latency, bandwidth, low, high, wrong, spread = (np.full((len(places), len(places)), np.nan) for _ in range(6))
    for pair_round in rounds:
        turns = [turn for turn, why in enumerate(pair_round.na) if why is None]
        if not turns:
            continue
        a, b = np.array([pair_round.pairs[turn] for turn in turns]).T  # disjoint pairs
        latency_s = _figures(pair_round.latency_s, turns)
        ends = _figures(pair_round.latency_ci_s, turns)
        kept = latency[a, b] <= np.where(np.isnan(latency_s), np.inf, latency_s)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio_of_ends = ends[:, 1] / ends[:, 0]
        for figures, measured in ((latency, latency_s), (spread, ratio_of_ends)):
            figures[a, b] = figures[b, a] = np.where(kept, figures[a, b], measured)
        elements = _figures(pair_round.wrong, turns)
        wrong[a, b] = wrong[b, a] = np.where(np.isnan(elements), wrong[a, b], np.nan_to_num(wrong[a, b]) + elements)
        forward = (_figures(pair_round.forward_s, turns), _figures(pair_round.forward_ci_s, turns))
        backward = (_figures(pair_round.backward_s, turns), _figures(pair_round.backward_ci_s, turns))
        for sender, receiver, times in ((a, b, forward), (b, a, backward)):
            with np.errstate(divide="ignore"):  # a time that is too short to be valid has no rate
                rates, bounds = (np.where(seconds > 0, size / seconds, np.nan) for seconds in times)
            kept = bandwidth[sender, receiver] >= np.nan_to_num(rates)
            for figures, measured in ((bandwidth, rates), (high, bounds[:, 0]), (low, bounds[:, 1])):
                figures[sender, receiver] = np.where(kept, figures[sender, receiver], measured)
    latency_size = about["latency_size_bytes"]
    return PairMatrix(places, latency, bandwidth, low, high, wrong, size, latency_size, spread, place_hosts(about))


def _figures(values: Sequence[Any], turns: Sequence[int]) -> Figures:
    """Return the values of these pairs; None and negative values become NaN."""
    figures = np.array([values[turn] for turn in turns], dtype=np.float64)
    return np.where(figures >= 0, figures, np.nan)


_BYTES_OF_A_PAIR = 160  # in memory: its six figures, and temporary copies
_MOST_EXTERNAL = 1 << 20  # rows of other tools, some KB each
_LITTLE = 1 << 30  # bytes that every machine has


class StoredPairs(msgspec.Struct, dict=True):
    """The content of a pairs run.

    about     run.json's "pairs": places, by, backend, size_bytes, latency_size_bytes, rounds, possible, measured, sampled …
    rounds    as measured
    warnings  what could not be read
    external  rows of external tools for the pairs
    judged    the suspects that were measured again, as stored; None: not recorded
    """

    about: Mapping[str, Any]
    rounds: list[PairRound]
    warnings: list[str] = msgspec.field(default_factory=list)
    external: list[Row] = msgspec.field(default_factory=list)
    judged: Sequence[Mapping[str, Any]] | None = None

    def matrix(self) -> PairMatrix:
        """Return the matrix of all rounds."""
        return matrix_of(self.about, self.rounds)

    @cached_property
    def effects(self) -> PairEffects:
        """The matrix, the pairs measured again, findings and doubts."""
        from collbench.plugins.hunt.pairs import PairEffects, remeasured

        again = {pair for pair_round in self.rounds if pair_round.again for pair in pair_round.pairs}
        return PairEffects(self.matrix(), again, remeasured=remeasured(self.judged))

    @property
    def shown_about(self) -> dict[str, Any]:
        """Return `about` with the number of rounds of the matrix that were measured."""
        return {**self.about, "rounds": len({pair_round.round for pair_round in self.rounds if not pair_round.again})}


def check_pairs(run: Run) -> Mapping[str, Any] | None:
    """Return run.json's "pairs"; None if the run measured none. Raises UsageError if it lacks what a matrix needs."""
    if run.info.get("pairs") is None and not (run.path / PAIRS_FILE).is_file():
        return None
    problems = {
        "": "rounds of pairs, but places or sizes in its run.json are missing or",
        "hosts": "rounds of pairs, but the list of hosts in its run.json is",
        "judged": "rounds of pairs, but the list of judged suspects in its run.json is",
    }
    raw, about = _checked_about(run, "pairs", PairsAbout, problems)
    _check_suspects(run, about.judged or [], about, problems["judged"])
    needed = _BYTES_OF_A_PAIR * len(about.places) ** 2
    if needed > _LITTLE:  # a short file can claim any number of places
        import psutil

        free = psutil.virtual_memory().available
        if needed > free:
            raise UsageError(
                f"{run.path} has {len(about.places):,} places: their matrix needs {format_bytes(needed)} of memory, and "
                f"{format_bytes(free)} are free. Use a machine with more memory"
            )
    return raw


def read_pairs(run: Run) -> StoredPairs | None:
    """Return the pairs of a run, up to its last finished round; None if it measured none. Raises UsageError if run.json is not valid.

    Like all files of a run the rounds are untrusted: invalid content becomes a warning.
    """
    about = check_pairs(run)
    if about is None:
        return None
    warnings: list[str] = []
    places = len(about["places"])
    rounds = list(read_lines(run.path / PAIRS_FILE, lambda values: decoded_round(values, PairRound, places), warnings))
    external = list(islice(read_lines(run.path / TOOLS_FILE, row_from_json, warnings), _MOST_EXTERNAL))
    return StoredPairs(about, rounds, warnings, external, about.get("judged"))
