"""Facts as values: a reason, limit, finding or note with fields that code decides on, and one method that renders it as text.

A `Fact` is an immutable record with a stable code and typed fields. It travels between ranks and is stored as JSON with its code under
`kind`; `decode` reads it back. Its text is only in its own `render`: no code compares, splits or searches a rendered text.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def _code(name: str) -> str:
    """Return the code of a class: "LaunchesNeeded" -> "launches_needed"."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name.rpartition(".")[2]).lower()


class Fact(msgspec.Struct, frozen=True, tag_field="kind", tag=_code):
    """Base of all facts. The first line of a subclass's docstring explains the fact to users (`collbench explain CODE`)."""

    @property
    def code(self) -> str:
        """Return the stable name of this kind of fact, for programs: "launches_needed"."""
        return str(self.__struct_config__.tag)

    def render(self) -> str:
        """Return the text for users: English, one sentence without a final period, or a few words for a table."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.render()


class Text(Fact, frozen=True):
    """A sentence from a plug-in or from a run of an earlier version, without fields."""

    text: str

    def render(self) -> str:
        """Return the text unchanged."""
        return self.text


class CommandText(str):
    """A command or a line of a file for users to paste. Terminals show it with its indent and without line breaks."""


def as_json(fact: Any) -> Any:
    """Return a fact, or a list or dict of facts, as an object for `json.dumps`: {"kind": "launches_needed", …}."""
    return msgspec.to_builtins(fact)


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
