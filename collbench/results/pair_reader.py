"""Reads the rounds of a pairs run back. They are untrusted, as all files of a run are: what does not fit becomes a warning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from collbench.errors import UsageError
from collbench.results.folder import TOOLS
from collbench.results.hunts import is_suspect
from collbench.results.pairs import PAIRS, PairMatrix, PairRound, matrix_of
from collbench.results.reader import Run, read_lines, row_from_json
from collbench.results.row import Row
from collbench.units import format_bytes

_MOST_PLACES = 20_000
_BYTES_OF_A_PAIR = 160  # in memory: its six figures, and what is made of them while it is looked at
_MOST_OF_THEIRS = 1 << 20  # rows of other tools, some KB each
_LITTLE = 1 << 30  # bytes, which every machine has
_FIGURES = ("latency_s", "forward_s", "backward_s")
_INTERVALS = ("latency_ci_s", "forward_ci_s", "backward_ci_s")


@dataclass(frozen=True)
class StoredPairs:
    """What a pairs run holds.

    about     run.json's "pairs": places, by, backend, size_bytes, latency_size_bytes, rounds, possible, measured, sampled …
    rounds    as measured; warnings: what could not be read
    theirs    what other tools said of the pairs
    """

    about: Mapping[str, Any]
    rounds: list[PairRound]
    warnings: list[str] = field(default_factory=list)
    theirs: list[Row] = field(default_factory=list)

    def matrix(self) -> PairMatrix:
        """What they make together."""
        return matrix_of(self.about["places"], self.rounds, self.about["size_bytes"], self.about["latency_size_bytes"])


def check_pairs(run: Run) -> None:
    """Raises UsageError where read_pairs would, without reading the rounds."""
    if "pairs" in run.info or (run.path / PAIRS).is_file():
        _checked(run.info.get("pairs"), run)


def read_pairs(run: Run) -> StoredPairs | None:
    """The pairs of a run, up to its last finished round; None where it measured none. Raises UsageError where run.json does not fit."""
    about = run.info.get("pairs")
    if about is None and not (run.path / PAIRS).is_file():
        return None
    known, warnings = _checked(about, run), list[str]()
    places = len(known["places"])
    rounds = list(read_lines(run.path / PAIRS, lambda values: round_from_json(values, places), warnings))
    theirs = list(islice(read_lines(run.path / TOOLS, row_from_json, warnings), _MOST_OF_THEIRS))
    return StoredPairs(known, rounds, warnings, theirs)


def _checked(about: Any, run: Run) -> dict[str, Any]:
    """run.json's "pairs", if it says what a matrix needs."""
    known = about if isinstance(about, dict) else {}
    places = known.get("places")
    named = isinstance(places, list) and 2 <= len(places) <= _MOST_PLACES and all(isinstance(place, str) for place in places)
    judged = known.get("judged")
    if judged is not None and not (isinstance(judged, list) and named and all(is_suspect(each, len(places)) for each in judged)):  # type: ignore[arg-type]
        raise UsageError(f"{run.path} holds rounds of pairs, but the list of judged suspects in its run.json is not valid: it was altered")
    if not named or not all(_is_whole(known.get(name), 1) for name in ("size_bytes", "latency_size_bytes")):
        raise UsageError(f"{run.path} holds rounds of pairs, but its run.json does not say of which places and sizes: it was altered")
    _check_room(len(known["places"]), run)
    return known


def _check_room(places: int, run: Run) -> None:
    """Raises UsageError where the matrix of so many places is larger than the memory: it takes a few letters to say that there are."""
    needed = _BYTES_OF_A_PAIR * places**2
    if needed <= _LITTLE:
        return
    import psutil

    free = psutil.virtual_memory().available
    if needed > free:
        raise UsageError(
            f"{run.path} is of {places:,} places, whose matrix takes {format_bytes(needed)} of memory, and {format_bytes(free)} are free: "
            "read it on a larger machine"
        )


def round_from_json(values: dict[str, Any], places: int) -> PairRound:
    """The round in `values`, among so many places, every field checked. Raises ValueError naming the first misfit."""
    try:
        found = PairRound.from_json(values)
    except TypeError as error:
        raise ValueError(f"fields are missing or misplaced ({error})") from error
    if not _are_disjoint(found.pairs, places):
        raise ValueError(f"'pairs' is {str(found.pairs)[:40]!r}")
    for name, fits in _OF_EACH_PAIR.items():
        value = getattr(found, name)
        if not (_is_list(value, fits) and len(value) == len(found.pairs)):
            raise ValueError(f"'{name}' is {str(value)[:40]!r}")
    for name, fits in _OF_THE_ROUND.items():
        if not fits(getattr(found, name)):
            raise ValueError(f"'{name}' is {str(getattr(found, name))[:40]!r}")
    return found


def _are_disjoint(pairs: Any, places: int) -> bool:
    """Whether these are pairs of places, each place once."""
    if not _is_list(pairs, lambda pair: _is_list(pair, lambda place: _is_whole(place, 0) and place < places) and len(pair) == 2):
        return False
    met = [place for pair in pairs for place in pair]
    return len(set(met)) == len(met)


def _is_list(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, tuple) and all(map(fits, value))


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_count(value: Any) -> bool:
    return _is_whole(value, 0)


def _is_seconds(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and value > 0)


def _is_interval(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(map(_is_bound, value))


def _is_bound(value: Any) -> bool:
    return _is_seconds(value) or value == 0


_OF_EACH_PAIR: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(_FIGURES, _is_seconds),
    **dict.fromkeys(_INTERVALS, _is_interval),
    "wrong": lambda value: value is None or _is_count(value),
    "na": lambda value: value is None or isinstance(value, str),
}
_OF_THE_ROUND: dict[str, Callable[[Any], bool]] = {
    "round": _is_count,
    "again": lambda value: isinstance(value, bool),
    "n": lambda value: _is_list(value, _is_count) and len(value) == 3,
    "flags": lambda value: _is_list(value, lambda flag: isinstance(flag, str)),
    "wrong_detail": lambda value: _is_list(value, lambda detail: detail is None or isinstance(detail, str)),
    "cpu_wait": lambda value: _is_list(value, lambda share: isinstance(share, int | float) and 0 <= share <= 1),
    "flipped": lambda value: _is_list(value, lambda flip: isinstance(flip, bool)),
}
