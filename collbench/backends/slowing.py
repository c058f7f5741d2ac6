"""`--slowed`: the test cases to slow down on purpose, by how much and at which ranks, to test the power of a gate."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from collbench.errors import UsageError
from collbench.operations.case import Case
from collbench.operations.registry import commands, operations
from collbench.units import parse_size

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_PERCENT = 1000.0
DRAWS = 1021  # a prime, so that batches of iterations do not always get the same delays
_REMEDY = "write it like 'by=10% operations=allreduce sizes=1M-16M ranks=0'"
_FORMS = {  # by kind of a Percent
    "exactly": re.compile(r"([\d.]+)\s*%"),
    "between": re.compile(r"([\d.]+)\s*%?\s*-\s*([\d.]+)\s*%"),
    "around": re.compile(r"([\d.]+)\s*%?\s*(?:±|\+-)\s*([\d.]+)\s*%"),
}


class Percent(msgspec.Struct, frozen=True):
    """By how many percent an iteration is slower.

    kind   "exactly" (the first number), "between" (both, uniform) or "around" (mean and standard deviation, normal)
    """

    kind: str
    first: float
    second: float = 0.0

    def parts(self, seed: Sequence[int]) -> NDArray[np.float64]:
        """Return fractions of an iteration's time, used in turn. They are the same for the same seed, and never below 0."""
        import numpy as np  # here, since every command imports this module for its options

        if self.kind == "exactly":
            return np.array([self.first / 100])
        random = np.random.default_rng(list(seed))
        drawn = random.uniform(self.first, self.second, DRAWS) if self.kind == "between" else random.normal(self.first, self.second, DRAWS)
        parts: NDArray[np.float64] = np.maximum(drawn, 0.0) / 100
        return parts


class Slowdown(msgspec.Struct, frozen=True):
    """One spec of `--slowed`. `text` is the user's text; None means not restricted. Sizes are (from, to) in bytes, both included."""

    text: str
    by: Percent
    operations: frozenset[str] | None = None
    backends: frozenset[str] | None = None
    sizes: tuple[tuple[int, float], ...] | None = None
    ranks: frozenset[int] | None = None

    def fits(self, case: Case) -> bool:
        """Return whether it applies to this test case."""
        return (
            (self.operations is None or case.operation in self.operations)
            and (self.backends is None or case.backend in self.backends)
            and (self.sizes is None or any(low <= case.size_bytes <= high for low, high in self.sizes))
        )

    def of(self, rank: int) -> bool:
        """Return whether it applies to this rank of the job."""
        return self.ranks is None or rank in self.ranks


class Slowing(msgspec.Struct, frozen=True):
    """The specs of `--slowed`. If several match a test case, the last one applies."""

    slowdowns: tuple[Slowdown, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.slowdowns)

    @property
    def texts(self) -> list[str]:
        """The specs as the user wrote them."""
        return [slowdown.text for slowdown in self.slowdowns]

    def of(self, case: Case) -> Slowdown | None:
        """Return the slowdown of a test case, or None."""
        return next((slowdown for slowdown in reversed(self.slowdowns) if slowdown.fits(case)), None)

    def check(self, cases: Iterable[Case], ranks: int) -> None:
        """Raise UsageError for a spec that matches none of the test cases or ranks, since it would have no effect."""
        chosen = {id(slowdown) for slowdown in map(self.of, cases)}
        for slowdown in self.slowdowns:
            if id(slowdown) not in chosen:
                raise UsageError(f"--slowed '{slowdown.text}' means no case of this run, or a later one takes them all: name others")
            beyond = sorted(rank for rank in slowdown.ranks or () if rank >= ranks)
            if beyond:
                raise UsageError(f"--slowed '{slowdown.text}' names rank {beyond[0]}, and there are {ranks}: choose from 0 to {ranks - 1}")


def parse_slowing(texts: Iterable[str]) -> Slowing:
    """Return the specs in several texts, each with one or several separated by ';'. Raises UsageError with the remedy."""
    parts = (part.strip() for text in texts for part in text.split(";"))
    slowing = Slowing(tuple(_slowdown(part) for part in parts if part))
    if not slowing and any(True for _ in texts):
        raise UsageError(f"--slowed is empty: {_REMEDY}")
    return slowing


def _slowdown(text: str) -> Slowdown:
    values: dict[str, Any] = {}
    for word in text.split():
        key, equals, value = word.partition("=")
        if key not in _READ or not equals or not value:
            raise UsageError(f"--slowed '{text}': '{word}' is none of {', '.join(f'{valid_key}=…' for valid_key in _READ)}: {_REMEDY}")
        if key in values:
            raise UsageError(f"--slowed '{text}': {key} is given twice: separate two specs by ';'")
        values[key] = _READ[key](value, text)
    if "by" not in values:
        raise UsageError(f"--slowed '{text}' has no by=: {_REMEDY}")
    return Slowdown(" ".join(text.split()), **values)


def _percent(value: str, text: str) -> Percent:
    for kind, form in _FORMS.items():
        match = form.fullmatch(value)
        numbers = _numbers(match.groups()) if match else None
        if numbers and max(numbers) <= MOST_PERCENT and numbers[0] > 0 and (kind != "between" or numbers[0] < numbers[1]):
            return Percent(kind, *numbers)
    raise UsageError(f"--slowed '{text}': by={value} is not a valid slowdown: use by=10%, by=5-15% or by=10±3% (up to {MOST_PERCENT:g} %)")


def _numbers(texts: Iterable[str]) -> list[float] | None:
    try:
        return [float(text) for text in texts]
    except ValueError:
        return None


def _operations(value: str, text: str) -> frozenset[str]:
    """Return the operations by their names or by commands: p2p is three operations."""
    names = {command: [operation.name for operation in chosen] for command, chosen in commands().items()}
    names |= {name: [name] for name in operations()}
    return frozenset(name for word in _listed(value, names, "operation", text) for name in names[word])


def _backends(value: str, text: str) -> frozenset[str]:
    from collbench.backends.registry import backend_names

    return frozenset(_listed(value, backend_names(), "backend", text))


def _listed(value: str, choices: Collection[str], kind: str, text: str) -> list[str]:
    words = value.split(",")
    for word in words:
        if word not in choices:
            raise UsageError(f"--slowed '{text}': {kind} '{word}' is unknown: choose from {', '.join(choices)}")
    return words


def _span(part: str, text: str) -> tuple[int, float]:
    low, dash, high = part.partition("-")
    try:
        first = parse_size(low)
        last: float = float("inf") if dash else first
        if high:
            last = parse_size(high)
    except UsageError as error:
        raise UsageError(f"--slowed '{text}': {error}") from error
    if first > last:
        raise UsageError(f"--slowed '{text}': the sizes {part} run downwards: write the smaller one first")
    return first, last


def _ranks(value: str, text: str) -> frozenset[int]:
    ranks: set[int] = set()
    for part in value.split(","):
        match = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7}))?", part)
        if not match or int(match[1]) > int(match[2] or match[1]):
            raise UsageError(f"--slowed '{text}': '{part}' is not a valid rank: use ranks=0, ranks=0,3 or ranks=4-7")
        ranks.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(ranks)


_READ: dict[str, Callable[[str, str], Any]] = {
    "by": _percent,
    "operations": _operations,
    "backends": _backends,
    "sizes": lambda value, text: tuple(_span(part, text) for part in value.split(",")),
    "ranks": _ranks,
}
