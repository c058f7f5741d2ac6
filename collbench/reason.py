"""Facts as values: a reason, limit, finding or note with fields that code decides on, and one method that renders it as text.

A `Fact` is an immutable record with a stable code and typed fields. It travels between ranks and is stored as JSON with its code under
`kind`; `decode` reads it back. Its text is only in its own class: no code compares, splits or searches a rendered text.

A class has its text as a template, the class attribute `text`, with its fields in braces and their units after a colon:

    text = "{baseline} has {allocations:allocation}, but the gate needs {needed}: add good ones"

After the colon stands the name of a unit (`UNITS`), a noun that follows a count ("1 allocation", "2 allocations"), or a format of Python
(".1f"), or "?" and words that are left out for an empty value: "wrong data in {where}{detail:?: {detail}}". Only where the text needs
other logic, a class has a method `render` instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from string import Formatter
from typing import Any, ClassVar, TypeVar

import msgspec

from collbench.units import format_bytes, format_duration, format_percent, format_rate, format_size, format_time, listed, plural

T = TypeVar("T")


def _code(name: str) -> str:
    """Return the code of a class: "LaunchesNeeded" -> "launches_needed"."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name.rpartition(".")[2]).lower()


# By name in a template: how a field is written.
UNITS: Mapping[str, Callable[[Any], str]] = {
    "size": format_size,  # of a message, exact: "64 KiB"
    "bytes": format_bytes,  # of memory, rounded: "20.9 GiB"
    "micros": format_time,  # seconds as microseconds, without the unit: "12.35"
    "duration": format_duration,  # seconds: "2 min 05 s"
    "rate": format_rate,  # bytes per second as GB/s, without the unit: "42.0"
    "percent": format_percent,  # "84 %"
    "share": lambda share: format_percent(100 * share),  # of 1: "84 %"
    "list": lambda names: listed(list(map(str, names))),  # "a, b and c"
    "or": lambda names: listed(list(map(str, names)), word="or"),  # "a, b or c"
}
_NOUN = re.compile(r"[a-z]{2}[a-z -]*")


class _Template(Formatter):
    """Fills a template with the fields of a fact."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """Return the value in its unit, with its noun, the words that need it, or as Python formats it."""
        if format_spec in UNITS:
            return UNITS[format_spec](value)
        if format_spec.startswith("?"):
            return format_spec[1:] if value else ""
        if _NOUN.fullmatch(format_spec):
            return plural(value, format_spec)
        return format(value, format_spec)

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return a field of the fact."""
        return getattr(args[0], str(key))


_TEMPLATE = _Template()


def filled(template: str, fact: Any) -> str:
    """Return a template with the fields of a fact."""
    return _TEMPLATE.vformat(template, (fact,), {})


class Fact(msgspec.Struct, frozen=True, tag_field="kind", tag=_code):
    """Base of all facts. The first line of a subclass's docstring explains the fact to users (`collbench explain CODE`)."""

    text: ClassVar[str]

    @property
    def code(self) -> str:
        """Return the stable name of this kind of fact, for programs: "launches_needed"."""
        return str(self.__struct_config__.tag)

    def render(self) -> str:
        """Return the text for users: English, one sentence without a final period, or a few words for a table."""
        return filled(self.text, self)

    def __str__(self) -> str:
        return self.render()


class Text(Fact, frozen=True):
    """A sentence from a plug-in or from a run of an earlier version, without fields."""

    text: str  # type: ignore[misc]  # a field here, as it is stored, and no template

    def render(self) -> str:
        """Return the text unchanged."""
        return self.text


def as_fact(reason: str | Fact | None) -> Fact | None:
    """Return the reason as a fact: a sentence of a plug-in becomes a `Text`; None stays None."""
    return Text(reason) if isinstance(reason, str) else reason


class CommandText(str):
    """A command or a line of a file for users to paste. Terminals show it with its indent and without line breaks."""


def as_json(fact: Any) -> Any:
    """Return a fact, or a list or dict of facts, as an object for `json.dumps`: {"kind": "launches_needed", …}."""
    return msgspec.to_builtins(fact)


def with_texts(facts: Sequence[Fact]) -> list[dict[str, Any]]:
    """Return facts as `as_json` does, each with its text as "text"."""
    return [as_json(fact) | {"text": fact.render()} for fact in facts]


def decode(value: Any, kind: type[T] | Any) -> T:
    """Return the fact from the value that `as_json` returned; `kind` is its class, or a union of classes.

    Raises msgspec.ValidationError, with the path of the field, for a value of another shape.
    """
    found: T = msgspec.convert(value, kind)
    return found


def decode_or_text(value: Any, kind: Any) -> Any:
    """Return the fact as `decode` does; a `Text` for a sentence from an earlier version, or for an unknown kind from a later one."""
    if isinstance(value, str):
        return Text(value)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        text = value.get("text") if isinstance(value, dict) else None
        return Text(text if isinstance(text, str) else str(value))
