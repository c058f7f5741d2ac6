"""Whether a suite has the form of suite.schema.json; what does not is one sentence with its place and the remedy."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.errors import UsageError

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

SCHEMA_FILE = Path(__file__).parent / "suites" / "suite.schema.json"
VERSION = 1
_MOST_SWEEPS = 1000
_UNKNOWN_KEY, _LEVELS = "additionalProperties", {"run": "[run]", "defaults": "[defaults]", "sweeps": "[[sweeps]]"}


@cache
def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a suite, as shipped."""
    found: dict[str, Any] = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    return found


def check_form(document: Mapping[str, Any], file: str) -> None:
    """Raises UsageError, one sentence, for the first thing in the document that is not as the schema says; `file` names it."""
    from jsonschema import Draft202012Validator, validators

    _check_version(document, file)
    _check_number(document, file)
    extend: Any = validators.extend
    validator = extend(Draft202012Validator, {"uniqueItems": _unique_items})(schema())
    found = sorted(validator.iter_errors(document), key=_order)
    if found:
        raise UsageError(f"suite {file}{_sentence(found[0], document)}")


def place_of(number: int, name: str | None) -> str:
    """How sentences name a sweep, counted from 1: "sweeps[2] 'large'"."""
    return f"sweeps[{number}]" + (f" {name!r}" if name else "")


def nearest(word: str, known: Iterable[str]) -> str:
    """The remedy for an unknown word: the known one that is most like it, else all of them."""
    choices = list(known)
    close = get_close_matches(word.lower(), choices, n=1)
    return f"did you mean {close[0]}?" if close else f"choose from {', '.join(choices)}"


def _check_version(document: Mapping[str, Any], file: str) -> None:
    version = document.get("schema")
    if version is None:
        raise UsageError(f"suite {file} does not say which form it has: write schema = {VERSION} as its first line")
    if isinstance(version, int) and version > VERSION:
        raise UsageError(f"suite {file} has schema = {version}, and this collbench knows up to {VERSION}: update collbench")


def _check_number(document: Mapping[str, Any], file: str) -> None:
    sweeps = document.get("sweeps")
    if isinstance(sweeps, list) and len(sweeps) > _MOST_SWEEPS:
        raise UsageError(f"suite {file} has {len(sweeps):,} sweeps, the most is {_MOST_SWEEPS:,}: put what is alike into one")


def _unique_items(validator: Any, wanted: bool, items: Any, _schema: Any) -> Iterator[ValidationError]:
    """The library compares each with each where they are of several types, which takes hours for a list of 1 MiB."""
    from jsonschema.exceptions import ValidationError

    if wanted and validator.is_type(items, "array"):
        plain = [item if isinstance(item, str | int | float) and not isinstance(item, bool) else repr(item) for item in items]
        if len(set(plain)) < len(plain):
            yield ValidationError("says one thing twice")


def _order(error: ValidationError) -> tuple[bool, list[str]]:
    """Unknown keys first: a misspelt key is the cause of what else is missing."""
    return error.validator != _UNKNOWN_KEY, [f"{part:09}" if isinstance(part, int) else part for part in error.absolute_path]


def _sentence(error: ValidationError, document: Mapping[str, Any]) -> str:
    path = list(error.absolute_path)
    if error.validator == _UNKNOWN_KEY:
        return f"{_place(path, document)}: {_unknown_key(error, path)}"
    depth = 1 if len(path) < 2 or path[0] not in _LEVELS else 2 if path[0] != "sweeps" else 3
    key = path[depth - 1] if len(path) >= depth else None
    if not isinstance(key, str):
        return f"{_place(path, document)}: this is no table: write its keys below [[sweeps]], one key = value per line"
    value = document
    for part in path[:depth]:
        value = value[part]  # type: ignore[index]
    return f"{_place(path[: depth - 1], document)}: {_misfit(key, value, error, path[: depth - 1])}"


def _place(path: list[Any], document: Mapping[str, Any]) -> str:
    """ ", sweeps[2] 'large'", ", [run]", or "" for the whole file."""
    if not path:
        return ""
    if path[0] != "sweeps" or len(path) < 2:
        return f", {_LEVELS.get(path[0], path[0])}"
    sweep = document["sweeps"][path[1]]
    name = sweep.get("name") if isinstance(sweep, dict) else None
    return f", {place_of(path[1] + 1, name if isinstance(name, str) else None)}"


def _unknown_key(error: ValidationError, path: list[Any]) -> str:
    """The first unknown key, where it belongs, or which one it may have been."""
    known: Mapping[str, Any] = error.schema["properties"]  # type: ignore[index]
    word = next(key for key in error.instance if key not in known)  # type: ignore[union-attr]
    here = path[0] if path else None
    for level, keys in _levels():
        if word in keys and level != here:
            return f"{word!r} is unknown here: it belongs {f'below {_LEVELS[level]}' if level in _LEVELS else 'above all tables'}"
    return f"key {word!r} is unknown: {nearest(word, known)}"


def _levels() -> Iterator[tuple[str | None, Mapping[str, Any]]]:
    properties = schema()["properties"]
    yield "run", properties["run"]["properties"]
    yield "sweeps", properties["sweeps"]["items"]["properties"]
    yield None, properties


def _misfit(key: str, value: Any, error: ValidationError, path: list[Any]) -> str:
    """What a key's value is, and what it may be."""
    wrong = _unknown_word(error)
    if wrong is not None:
        return f"{key} {wrong[0]!r} is unknown: {nearest(*wrong)}"
    repeated = error.validator == "uniqueItems" or any(inner.validator == "uniqueItems" for inner in error.context or ())
    if repeated:
        return f"{key} = {_shown(value)} says one thing twice: name each once"
    described = _description(key, path[0] if path else None)
    return f"{key} = {_shown(value)} does not fit: {described[:1].lower()}{described[1:]}"


def _unknown_word(error: ValidationError) -> tuple[str, list[str]] | None:
    """A word that is none of the words that can stand there, and these; None where something else is wrong."""
    if error.validator == "enum" and isinstance(error.instance, str):
        return error.instance, [json.dumps(word).strip('"') for word in error.schema["enum"]]  # type: ignore[index]
    return next(filter(None, (_unknown_word(inner) for inner in error.context or ())), None)


def _description(key: str, level: Any) -> str:
    properties = schema()["properties"]
    if level == "run":
        properties = properties["run"]["properties"]
    elif level in ("defaults", "sweeps"):
        properties = {"name": properties["sweeps"]["items"]["properties"]["name"], **schema()["$defs"]}
    return str(properties[key]["description"])


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
