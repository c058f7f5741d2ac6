"""The models that are known by name (models.toml, each with its source), and those that are only so many parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from collbench.errors import UsageError
from collbench.workloads.laying import printable

_FILE = Path(__file__).with_name("models.toml")
_NUMBER = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)([KMBGT]?)", re.IGNORECASE | re.ASCII)
_POWERS = {"": 0, "K": 1, "M": 2, "B": 3, "G": 3, "T": 4}
_MOST = 10**15
DEFAULT = "bert-large"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is trained: its parameters in numbers, and of a transformer whose layers are alike their number and sizes (else 0)."""

    name: str
    parameters: int
    source: str
    layers: int = 0
    hidden: int = 0
    sequence: int = 0
    vocabulary: int = 0


@cache
def models() -> dict[str, Model]:
    """Those that the package carries, by name."""
    return parse(_FILE.read_text(encoding="utf-8"))


def parse(text: str) -> dict[str, Model]:
    """A table of models. Raises UsageError for anything but schema 1 with rows of the known keys."""
    import tomllib

    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"the table of models is no TOML: {error}") from None
    if table.get("schema") != 1 or set(table) != {"schema", "model"}:
        raise UsageError("the table of models must have schema = 1 and rows [[model]], and nothing else")
    return {row.name: row for row in map(_row, table["model"])}


def _row(row: Mapping[str, Any]) -> Model:
    try:
        return Model(**row)
    except TypeError as error:
        raise UsageError(f"a row of [[model]] in the table of models has wrong keys: {str(error).split('() ')[-1]}") from None


def model_named(text: str) -> Model:
    """The model of that name, or one of so many parameters ("340M", "1.5B"; K, M, B = powers of 1000). Raises UsageError."""
    typed = text.strip()
    found = models().get(typed.lower())
    if found:
        return found
    match = _NUMBER.fullmatch(typed)
    if not match:
        shown = printable(typed)
        known = ", ".join(models())
        raise UsageError(f"model '{shown}' is unknown: choose from {known}, or give its number of parameters, like 340M or 1.5B")
    return Model(name=typed, parameters=_parameters(typed, match), source="typed")


def _parameters(typed: str, match: re.Match[str]) -> int:
    from fractions import Fraction

    number = Fraction(match[1]) * 1000 ** _POWERS[match[2].upper()]
    if number.denominator != 1 or not 1 <= number <= _MOST:
        raise UsageError(f"model '{typed}' is no whole number of parameters from 1 to 10^15: write it like 340M or 1.5B")
    return int(number)
