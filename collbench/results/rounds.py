"""What `collbench hunt` measured: one line per round in hunt.jsonl; what it came to is in run.json's "hunt"."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from collbench.errors import UsageError
from collbench.results.folder import HUNT
from collbench.results.reader import Run, read_lines

KINDS = ("pairs", "groups", "inside", "nic")
RESULTS = ("confirmed", "nobody", "no verdict")
STATES = ("confirmed", "cleared", "inconclusive")
_MOST_PLACES = 20_000


@dataclass(frozen=True)
class HuntRound:
    """Disjoint groups of places measured at the same time; every list has one value per group, None where there is no figure.

    round      from 0; kind: one of KINDS; stage, why: of which part of the hunt, and for what; nic: the interface, of kind "nic"
    groups     places, as indices into the run's list of places
    speed      bytes per second: of groups and inside the bus bandwidth; of pairs and nic from the first place to the second
    backward   of pairs and nic: from the second place to the first; latency_s: of pairs half the round trip
    low, high  the speed's 95 % interval; of pairs and nic that of the slower direction
    wrong      elements that were not what was sent; wrong_detail: what the first rank found; None: nothing
    na         why a group was not measured, None: it was
    cpu_wait   of pairs: share of the round that a rank waited for a CPU (the rank that waited most); empty: not recorded
    flipped    of pairs: whether the state probe of one of its ranks changed during the round; empty: not recorded
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
        """JSON-ready."""
        return asdict(self)


@dataclass(frozen=True)
class StoredHunt:
    """What a hunt's run holds.

    about     run.json's "hunt": places, by, backend, size_bytes, promised, rounds, ceiling …; its "verdict" is None where it broke off
    rounds    as measured; warnings: what could not be read
    """

    about: Mapping[str, Any]
    rounds: list[HuntRound]
    warnings: list[str] = field(default_factory=list)


def holds_hunt(run: Run) -> bool:
    """Whether it is a run of `collbench hunt`."""
    return "hunt" in run.info or (run.path / HUNT).is_file()


def check_hunt(run: Run) -> None:
    """Raises UsageError where read_hunt would, without reading the rounds."""
    _checked(run)


def read_hunt(run: Run) -> StoredHunt:
    """The hunt of a run, up to its last finished round. Raises UsageError where run.json does not fit."""
    about, warnings = _checked(run), list[str]()
    places = len(about["places"])
    rounds = list(read_lines(run.path / HUNT, lambda values: round_from_json(values, places), warnings))
    return StoredHunt(about, rounds, warnings)


def _checked(run: Run) -> Mapping[str, Any]:
    """run.json's "hunt", if it names its places, and a verdict that is one."""
    found = run.info.get("hunt")
    about: dict[str, Any] = found if isinstance(found, dict) else {}
    places = about.get("places")
    if not (isinstance(places, list) and 1 <= len(places) <= _MOST_PLACES and all(isinstance(place, str) for place in places)):
        raise UsageError(f"{run.path} holds rounds of a hunt, but its run.json does not say among which places: it was altered")
    crossed, verdict = about.get("crossed"), about.get("verdict")
    if crossed is not None and not _words(crossed):
        raise UsageError(f"{run.path} holds a hunt, but what its run.json says of links is not in sentences: it was altered")
    if verdict is not None and not _is_verdict(verdict, len(places)):
        raise UsageError(f"{run.path} holds a hunt, but the verdict in its run.json is none: it was altered")
    return about


def round_from_json(values: Mapping[str, Any], places: int) -> HuntRound:
    """The round that `as_json` gave, among so many places, every field checked. Raises ValueError naming the first misfit."""
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
    """Whether it has what is shown of one, of so many places."""
    if not isinstance(verdict, dict) or verdict.get("result") not in RESULTS or not _words(verdict.get("notes")):
        return False
    known = verdict.get("suspects")
    return isinstance(known, list) and all(is_suspect(each, places) for each in known)


def is_suspect(value: Any, places: int) -> bool:
    """Whether a JSON value has what is shown of a suspect, of so many places."""
    if not isinstance(value, dict) or value.get("state") not in STATES:
        return False
    where = [value.get("places"), value.get("partners")]
    sound = all(isinstance(each, list) and all(_is_count(place) and place < places for place in each) for each in where)
    numbers = _is_speed(value.get("ratio")) and all(_is_bound(value.get(name)) for name in ("low", "high"))  # of silent places: none
    return sound and numbers and _words(value.get("evidence")) and all(isinstance(value.get(name), str) for name in ("kind", "part"))


def _words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _are_disjoint(groups: Any, places: int) -> bool:
    """Whether these are groups of places, each place once."""
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
