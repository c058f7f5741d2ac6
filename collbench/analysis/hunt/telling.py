"""From what was measured to suspects and notes: sentences of what is known, and of what could not be told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import isnan, log, nan

import numpy as np

from collbench.analysis.hunt.asks import GROUPS, PAIRS, Hint
from collbench.analysis.hunt.book import Book, wrong_data
from collbench.analysis.hunt.candidates import LATENCY, Candidate, Seen
from collbench.analysis.hunt.crosscheck import CrossCheck
from collbench.analysis.hunt.verdict import CLEARED, CONFIRMED, INCONCLUSIVE, Suspect
from collbench.analysis.pair_view import CELLS
from collbench.units import format_percent, format_rate

_DEFERRED = "inconclusive: not measured again, since too few healthy places would be left to measure against"
_ORDER = {CONFIRMED: 0, INCONCLUSIVE: 1, CLEARED: 2}
_MOST_PAIRS = 8  # that a note lists
_FASTEST, _MOST_UNEVEN = 0.9, 0.3
_MANY_PATHS, _OF_PLACES = 3, 4  # so many, and of more places one for each four, are no exceptions


def suspects(check: CrossCheck, names: Sequence[str]) -> list[Suspect]:
    """Return the suspects of all cases; paths of a place that is confirmed are left out."""
    places = _worst([case.suspect(names) for case in check.places])
    confirmed = {each.places[0] for each in places if each.state == CONFIRMED}
    paths = _worst([case.suspect(names) for case in check.paths if not confirmed & set(case.places)])
    return [*places, *(_open(each, _DEFERRED) for each in check.found.deferred), *_exceptions(paths, len(names))]


def _worst(found: Sequence[Suspect]) -> list[Suspect]:
    """Return one suspect for each place or path that was judged by its bandwidth and by its latency: confirmed before inconclusive."""
    kept: dict[tuple[int, ...], Suspect] = {}
    for each in sorted(found, key=lambda each: (_ORDER[each.state], each.kind == "latency")):
        first = kept.setdefault(each.places, each)
        if first is not each and each.state == CONFIRMED:
            kept[each.places] = replace(first, evidence=(*first.evidence, *each.evidence))
    return [kept[places] for places in dict.fromkeys(each.places for each in found)]


def _exceptions(paths: list[Suspect], n: int) -> list[Suspect]:
    """Paths are accused as exceptions; so many of them that have no place in common are how the network is built."""
    accused = [each for each in paths if each.state == CONFIRMED]
    apart = len({place for each in accused for place in each.places}) == 2 * len(accused)
    if len(accused) < max(_MANY_PATHS, n // _OF_PLACES) or not apart:
        return paths
    why = f"{len(accused)} paths without a common place are slow: that is how a network is built, and no exception"
    return [replace(each, state=INCONCLUSIVE, evidence=(*each.evidence, why)) if each in accused else each for each in paths]


def as_they_were(found: Seen, why: str) -> list[Suspect]:
    """Candidates that nobody is there to clear or to confirm."""
    return [_open(each, why) for each in found.places]


def silent(place: int, why: str) -> Suspect:
    """A place that gives no figures (any longer)."""
    return Suspect("node", (place,), INCONCLUSIVE, nan, evidence=(why, "whether it is slow cannot be told"))


def of_hint(hint: Hint) -> Suspect:
    """What groups that grow have shown themselves."""
    return Suspect(hint.kind, hint.places, hint.state, hint.ratio, partners=hint.partners, evidence=hint.evidence)


def ordered(those: Iterable[Suspect]) -> list[Suspect]:
    """Confirmed ones first, then those that nothing could be said of, the worst first."""
    return sorted(those, key=lambda each: (_ORDER[each.state], 0.0 if isnan(each.ratio) else each.ratio, each.places))


def with_wrong(those: Sequence[Suspect], book: Book) -> list[Suspect]:
    """Suspects whose pairs or groups brought wrong data have a sentence more."""
    wrong = wrong_data(book)
    return [replace(each, evidence=(*each.evidence, *_wrong(each.places, wrong, book.names))) for each in those]


def with_leaf(those: Sequence[Suspect], hosts: Sequence[str], leaf_of: Sequence[str] | None) -> list[Suspect]:
    """Those that are confirmed and alone on their switch have a sentence more: its cables would look alike. leaf_of: "" is unknown."""
    hosts_on: dict[str, set[str]] = {}
    for host, leaf in zip(hosts, leaf_of or (), strict=False):
        hosts_on.setdefault(leaf, set()).add(host)
    return [replace(each, evidence=(*each.evidence, *_alone(each, hosts_on, leaf_of))) if leaf_of else each for each in those]


def _alone(suspect: Suspect, hosts_on: Mapping[str, set[str]], leaf_of: Sequence[str] | None) -> list[str]:
    leaf = leaf_of[suspect.places[0]] if leaf_of and len(suspect.places) == 1 else ""
    if not leaf or suspect.state != CONFIRMED or len(hosts_on[leaf]) > 1:
        return []
    return [f"nobody else who takes part hangs on its switch ({leaf}): that switch and its cables may as well be the reason"]


def notes(book: Book, those: Sequence[Suspect], found: Seen) -> list[str]:
    """What could not be told, and what all places have in common."""
    named = {place for each in those for place in each.places}
    wrong = wrong_data(book)
    own = _wrong([place for place in _most_wrong(wrong) if place not in named], wrong, book.names)
    return [*own, *_missing(book, named), *_flags(book), *_not_met(book), *_alike(those, found, book)]


def usual(book: Book) -> float | None:
    """The usual speed of a pair, else of a group, bytes per second."""
    for kind in (PAIRS, GROUPS):
        speeds = [each for _, _, figure in book.figures(kind) for each in (figure.speed, figure.backward) if each]
        if speeds:
            return float(np.median(speeds))
    return None


def _open(candidate: Candidate, why: str) -> Suspect:
    kind = "latency" if LATENCY in candidate.ways else "node"
    return Suspect(kind, candidate.places, INCONCLUSIVE, candidate.ratio, evidence=(candidate.why, why))


def _wrong(places: Iterable[int], wrong: dict[int, tuple[int, int]], names: Sequence[str]) -> list[str]:
    counts = [(names[place], *wrong[place]) for place in places if place in wrong]
    return [f"{name}: elements arrived wrong in {bad} of the {met} measurements it was in" for name, bad, met in counts]


def _most_wrong(wrong: dict[int, tuple[int, int]]) -> list[int]:
    """Those with wrong data in half of their measurements or more, or if nobody has so many, all of them."""
    most = [place for place, (bad, met) in wrong.items() if 2 * bad >= met]
    return most or list(wrong)


def _missing(book: Book, named: set[int]) -> list[str]:
    """Pairs of places that do give figures otherwise."""
    lost = {pair: figure.na for _, pair, figure in book.figures() if figure.speed is None and not named & set(pair)}
    told = [f"{book.names[a]} and {book.names[b]}: not measured ({why})" for (a, b), why in list(lost.items())[:_MOST_PAIRS]]
    return told + ([f"{len(lost) - len(told)} more pairs were not measured"] if len(lost) > len(told) else [])


def _flags(book: Book) -> list[str]:
    counts = Counter(flag for _, answer in book.told for flag in set(answer.flags))
    return [f"{number} of {len(book.told)} rounds: {flag}" for flag, number in counts.items()]


def _not_met(book: Book) -> list[str]:
    """A slow path is seen only where it was measured."""
    n = len(book.names)
    met, possible = len({pair for _, pair, _ in book.figures()}), n * (n - 1) // 2
    return [f"{met} of {possible} pairs were measured: a slow path between two others has not been looked at"] if 0 < met < possible else []


def _alike(those: Sequence[Suspect], found: Seen, book: Book) -> list[str]:
    """What to make of it that nobody is slow."""
    if any(each.state != CLEARED for each in those) or (speed := found.middle or usual(book)) is None:
        return []
    uneven = _uneven(book)
    if uneven > _MOST_UNEVEN:
        return [
            f"no place stands out, but {format_percent(100 * uneven)} of the pairs are noticeably slower than the fastest ones: "
            "the network has parts, or half of the places are slow; nobody is accused"
        ]
    return [
        f"no place is slower than the others: all reach the usual {format_rate(speed)} GB/s, so that nobody is accused; "
        "whether they are all slow alike only the ceiling can say"
    ]


def _uneven(book: Book) -> float:
    """The share of pairs that are slower than the fastest tenth by more than what makes a single one noticeable."""
    speeds = [log(each) for _, _, figure in book.figures() for each in (figure.speed, figure.backward) if each]
    return float(np.mean(speeds < np.quantile(speeds, _FASTEST) - CELLS["bandwidth"].least)) if speeds else 0.0
