"""Reading of a suite: its own sweeps, those of the suites that it extends, defaults, and checks of form and names."""

from __future__ import annotations

import errno
import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from collbench.errors import UsageError, nearest
from collbench.operations.dtypes import DTYPES, dtype_named
from collbench.operations.operation import Operation
from collbench.operations.registry import broken, commands, operations
from collbench.untrusted import parse_toml, read_file

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError


# Whether a suite has the form of suite.schema.json. The first violation is one sentence with its place and the remedy.

SCHEMA_FILE = Path(__file__).parent / "suites" / "suite.schema.json"
VERSION = 1
_MOST_SWEEPS = 1000
_UNKNOWN_KEY = "additionalProperties"
_LEVELS = {"run": "[run]", "defaults": "[defaults]", "sweeps": "[[sweeps]]"}


@cache
def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a suite."""
    json_schema: dict[str, Any] = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    return json_schema


def check_form(document: Mapping[str, Any], file: str) -> None:
    """Raise UsageError for the first part of the document that violates the schema; `file` is its name in the message."""
    from jsonschema import Draft202012Validator, validators

    version = document.get("schema")
    sweeps = document.get("sweeps")
    if version is None:
        raise UsageError(f"suite {file} has no schema version: write schema = {VERSION} as its first line")
    if isinstance(version, int) and version > VERSION:
        raise UsageError(f"suite {file} has schema = {version}, and this collbench knows up to {VERSION}: update collbench")
    if isinstance(sweeps, list) and len(sweeps) > _MOST_SWEEPS:
        raise UsageError(f"suite {file} has {len(sweeps):,} sweeps, the most is {_MOST_SWEEPS:,}: put what is alike into one")
    extend: Any = validators.extend
    validator = extend(Draft202012Validator, {"uniqueItems": _unique_items})(schema())
    first_error = min(validator.iter_errors(document), key=_order, default=None)
    if first_error is not None:
        raise UsageError(f"suite {file}{_sentence(first_error, document)}")


def place_of(number: int, name: str | None) -> str:
    """Return the name of a sweep in messages, counted from 1: "sweeps[2] 'large'"."""
    return f"sweeps[{number}]" + (f" {name!r}" if name else "")


def _unique_items(validator: Any, unique: bool, items: Any, _schema: Any) -> Iterator[ValidationError]:
    """Check for duplicates in linear time. The library compares all pairs of mixed types, which takes hours for a list of 1 MiB."""
    from jsonschema.exceptions import ValidationError

    if unique and validator.is_type(items, "array"):
        plain = [item if isinstance(item, str | int | float) and not isinstance(item, bool) else repr(item) for item in items]
        if len(set(plain)) < len(plain):
            yield ValidationError("has the same entry twice")


def _order(error: ValidationError) -> tuple[bool, list[str]]:
    """Return a sort key with unknown keys first: a misspelt key causes other errors."""
    return error.validator != _UNKNOWN_KEY, [f"{part:09}" if isinstance(part, int) else part for part in error.absolute_path]


def _sentence(error: ValidationError, document: Mapping[str, Any]) -> str:
    path = list(error.absolute_path)
    if error.validator == _UNKNOWN_KEY:
        return f"{_place(path, document)}: {_unknown_key(error, path)}"
    depth = 1
    if len(path) > 1 and path[0] in _LEVELS:
        depth = 3 if path[0] == "sweeps" else 2
    key = path[depth - 1] if len(path) >= depth else None
    if not isinstance(key, str):
        return f"{_place(path, document)}: not a table: write its keys below [[sweeps]], one key = value per line"
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
    """Return the message for the first unknown key: where it belongs, or the most similar key."""
    valid_keys: Mapping[str, Any] = error.schema["properties"]  # type: ignore[index]
    word = next(key for key in error.instance if key not in valid_keys)  # type: ignore[union-attr]
    current_level = path[0] if path else None
    properties = schema()["properties"]
    levels = {"run": properties["run"]["properties"], "sweeps": properties["sweeps"]["items"]["properties"], None: properties}
    for level, keys in levels.items():
        if word in keys and level != current_level:
            return f"{word!r} is unknown here: it belongs {f'below {_LEVELS[level]}' if level else 'above all tables'}"
    return f"key {word!r} is unknown: {nearest(word, valid_keys)}"


def _misfit(key: str, value: Any, error: ValidationError, path: list[Any]) -> str:
    """Return the message for an invalid value of a key, with the valid ones."""
    unknown = _unknown_word(error)
    if unknown is not None:
        word, valid_words = unknown
        return f"{key} {word!r} is unknown: {nearest(word, valid_words)}"
    if error.validator == "uniqueItems" or any(inner.validator == "uniqueItems" for inner in error.context or ()):
        return f"{key} = {_shown(value)} contains a value twice: remove one"
    level = path[0] if path else None
    properties = schema()["properties"]
    if level == "run":
        properties = properties["run"]["properties"]
    elif level in ("defaults", "sweeps"):
        properties = {"name": properties["sweeps"]["items"]["properties"]["name"], **schema()["$defs"]}
    described = str(properties[key]["description"])
    return f"{key} = {_shown(value)} does not fit: {described[:1].lower()}{described[1:]}"


def _unknown_word(error: ValidationError) -> tuple[str, list[str]] | None:
    """Return a word that is not allowed in its place, and the words that are; None for another kind of error."""
    if error.validator == "enum" and isinstance(error.instance, str):
        return error.instance, [json.dumps(word).strip('"') for word in error.schema["enum"]]  # type: ignore[index]
    return next(filter(None, (_unknown_word(inner) for inner in error.context or ())), None)


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


_FOLDER = Path(__file__).parent / "suites"
BUILT_IN = ("quick", "full", "gate")
_LARGEST_BYTES = 1 << 20
_MOST_FILES = 32  # twenty files that each extend the next one twice would need a million reads
_WHERE = re.compile(r"^(.*) \(at (?:line (\d+), column (\d+)|end of document)\)$", re.DOTALL)
_FILES = ("traffic",)  # keys that name files relative to the suite's folder


class SuiteSweep(msgspec.Struct, frozen=True):
    """One sweep of a suite, with defaults.

    file    the suite that contains it; where: its place there, "sweeps[2] 'large'"
    name    its own name, or None
    own     the keys that it sets itself
    values  by key, including defaults: always a list, also for a single value
    """

    file: str
    where: str
    name: str | None
    own: tuple[str, ...]
    values: Mapping[str, list[Any]]

    @property
    def place(self) -> str:
        """The sweep's place for messages: "sweeps[2] 'large' of cluster.toml"."""
        return f"{self.where} of {self.file}"


class Suite(msgspec.Struct, frozen=True):
    """A suite: a list of sweeps to measure in one launch.

    name     "quick", or the file's name without its suffix
    run      options of the whole launch, by key
    sweeps   in order, those of extended suites first
    files    all files that were read, the suite itself first; digest: SHA-256 of their texts
    """

    name: str
    title: str
    run: Mapping[str, Any]
    sweeps: tuple[SuiteSweep, ...]
    files: tuple[str, ...]
    digest: str

    def as_json(self) -> dict[str, Any]:
        """Return the suite for run.json."""
        sweeps = [{"place": table.place, **({"name": table.name} if table.name else {}), **table.values} for table in self.sweeps]
        return {"name": self.name, "title": self.title, "digest": self.digest, "files": list(self.files), "run": dict(self.run),
                "sweeps": sweeps}  # fmt: skip


class _Draft(msgspec.Struct):
    """The combined contents of the suites read so far."""

    title: str = ""
    run: dict[str, Any] = msgspec.field(default_factory=dict)
    defaults: dict[str, Any] = msgspec.field(default_factory=dict)
    sweeps: list[SuiteSweep] = msgspec.field(default_factory=list)
    read: int = 0


def read_suite(name: str) -> Suite:
    """Return the built-in suite of that name, or the one in that file, including all that it extends.

    Raises UsageError, one sentence with file, place and remedy.
    """
    draft = _Draft()
    texts: dict[str, bytes] = {}
    _read_into(draft, name, Path(), (), texts)
    digest = hashlib.sha256(b"".join(hashlib.sha256(text).digest() for text in texts.values())).hexdigest()
    sweeps = tuple(_completed(sweep, draft.defaults) for sweep in draft.sweeps)
    if not sweeps:
        raise UsageError(f'suite {name} measures nothing: add a table [[sweeps]] with operations = ["allreduce"], or extends = "quick"')
    return Suite(_path(name, Path()).stem, draft.title, draft.run, sweeps, tuple(texts), digest)


def _read_into(draft: _Draft, name: str, folder: Path, chain: tuple[str, ...], texts: dict[str, bytes]) -> None:
    """Add a suite to the contents of those that it extends; `chain` is the path of `extends` that leads to it."""
    path = _path(name, folder)
    file = name if name in BUILT_IN else str(path)
    draft.read += 1
    if draft.read > _MOST_FILES:
        raise UsageError(f"suite {chain[0]} extends more than {_MOST_FILES} suites, one through another: write them into one")
    if file in chain:
        raise UsageError(f"suite {chain[0]} extends itself ({' -> '.join((*chain[chain.index(file) :], file))}): take one of these out")
    text = _bytes_of(path, file, chain)
    texts[file] = text
    document = _parsed(text, file)
    check_form(document, file)
    for parent in _listed(document.get("extends", [])):
        _read_into(draft, parent, path.parent, (*chain, file), texts)
    draft.title = document.get("title", draft.title)
    draft.run |= document.get("run", {})
    draft.defaults |= _with_absolute_paths(document.get("defaults", {}), path.parent)
    # a sweep replaces the one of its name
    places = {sweep.name: place for place, sweep in enumerate(draft.sweeps) if sweep.name}
    for sweep in _sweeps_of(document, file, path.parent):
        if sweep.name in places:
            draft.sweeps[places[sweep.name]] = sweep
        else:
            draft.sweeps.append(sweep)


def _path(name: str, folder: Path) -> Path:
    return _FOLDER / f"{name}.toml" if name in BUILT_IN else folder / name


def _bytes_of(path: Path, file: str, chain: Sequence[str]) -> bytes:
    origin = f", which {chain[-1]} extends," if chain else ""
    try:
        return read_file(path, _LARGEST_BYTES)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise UsageError(f"suite {file} is larger than {_LARGEST_BYTES >> 20} MiB: is it a suite?") from error
        why = error.strerror or error
        raise UsageError(f"suite {file}{origin} cannot be read ({why}): name a file, or one of {', '.join(BUILT_IN)}") from error


def _parsed(text: bytes, file: str) -> dict[str, Any]:
    try:
        return parse_toml(text.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = text[: error.start].count(b"\n") + 1
        raise UsageError(f"suite {file}, line {line}: this is not UTF-8: save the file as UTF-8") from error
    except ValueError as error:
        match = _WHERE.match(str(error))
        problem, row, column = match.groups() if match else (str(error), None, None)
        where = "at its end" if match else "somewhere"
        if row:
            where = f"line {row}, column {column}"
        raise UsageError(f"suite {file}, {where}: invalid TOML ({problem[:1].lower()}{problem[1:]})") from error


def _sweeps_of(document: Mapping[str, Any], file: str, folder: Path) -> list[SuiteSweep]:
    """Return the sweeps that a suite contains itself, without defaults."""
    sweeps: list[SuiteSweep] = []
    numbers: dict[str, int] = {}
    for number, table in enumerate(document.get("sweeps", []), 1):
        values = _with_absolute_paths(table, folder)
        name = values.pop("name", None)
        where = place_of(number, name)
        if name and numbers.setdefault(name, number) != number:
            raise UsageError(f"suite {file}, {where}: {place_of(numbers[name], None)} has that name: choose another")
        sweeps.append(SuiteSweep(file, where, name, tuple(values), values))
    return sweeps


def _with_absolute_paths(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the values, with file names relative to the suite's folder resolved."""
    return {key: [str(folder / file) for file in _listed(value)] if key in _FILES else value for key, value in values.items()}


# A sweep that sets one of these replaces the default of the other.
_INSTEAD = {"traffic": "skew", "skew": "traffic"}


def _completed(sweep: SuiteSweep, defaults: Mapping[str, Any]) -> SuiteSweep:
    """Return the sweep with the defaults that it does not replace, and with lists as values."""
    usual = {key: value for key, value in defaults.items() if key not in sweep.own and _INSTEAD.get(key) not in sweep.own}
    values = {key: _listed(value) for key, value in (usual | dict(sweep.values)).items()}
    if "operations" not in values:
        raise UsageError(f'suite {sweep.file}, {sweep.where} names no operations: add a line like operations = ["allreduce"]')
    return replace(sweep, values=values)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# The names in a suite that depend on the installation: operations, backends, types.

_MOVING: tuple[Callable[[Operation], bool], str] = (lambda operation: not operation.is_barrier, "operations that move data")
# Keys that apply to some operations only: the key, whether it applies to an operation, and the name of these operations.
_CONCERNS: dict[str, tuple[Callable[[Operation], bool], str]] = {
    "redops": (lambda operation: operation.reduces, "operations that reduce"),
    "roots": (lambda operation: operation.rooted, "operations with a root"),
    "window": (lambda operation: operation.windowed, "p2p, multipair, put_bandwidth and get_bandwidth"),
    "traffic": (lambda operation: operation.uneven, "alltoallv, allgatherv and other operations with uneven parts"),
    "skew": (lambda operation: operation.uneven, "alltoallv, allgatherv and other operations with uneven parts"),
    "streams": (lambda operation: operation.pair and not operation.one_sided, "p2p and multipair"),
    "pairs": (lambda operation: operation.aggregate, "multipair"),
    "sizes": _MOVING,
    "dtypes": _MOVING,
    "buffers": _MOVING,
    "in_place": _MOVING,
    "split": (lambda operation: not operation.pair, "collectives, not for pairs"),
}


def operations_of(names: Sequence[str]) -> tuple[Operation, ...]:
    """Return the operations by their own name or a command's ("p2p" is three operations), each once. KeyError for an unknown name."""
    by_name = operations()
    chosen = [operation for name in names for operation in commands().get(name) or [by_name[name]]]
    return tuple({operation.name: operation for operation in chosen}.values())


def concerns(key: str, chosen: Sequence[Operation]) -> bool:
    """Return whether a key of a sweep applies to any of the operations."""
    applies, _ = _CONCERNS.get(key, (lambda _: True, ""))
    return any(applies(operation) for operation in chosen)


def operations_with(key: str) -> str:
    """Return the name of the operations that a key of a sweep applies to: "alltoallv", "operations with a root"."""
    return _CONCERNS[key][1]


def check_names(suite: Suite, backends: Collection[str]) -> None:
    """Check the names in a suite. Raises UsageError with the place and the nearest known name for an unknown operation, backend or type.

    Also for a key of a sweep that applies to none of its operations.
    """
    for table in suite.sweeps:
        defect = next(_defects(table, backends), None)
        if defect:
            raise UsageError(f"suite {table.file}, {table.where}: {defect}")


def _defects(table: SuiteSweep, backends: Collection[str]) -> Iterator[str]:
    names = table.values["operations"]
    yield from (f"operation {name!r}: {broken()[name]}" for name in names if name in broken())
    yield from _unknown("operation", names, dict.fromkeys([*commands(), *operations()]))
    yield from _unknown("backend", table.values.get("backends", ()), backends)
    yield from (f"dtype {name!r} is unknown: {nearest(name, DTYPES)}" for name in table.values.get("dtypes", ()) if not _is_type(name))
    chosen = operations_of(names)
    for key in table.own:
        if not concerns(key, chosen):
            yield f"{key} is for {operations_with(key)}, and this sweep has none: take it out, or put it below [defaults]"


def _unknown(kind: str, names: Sequence[Any], valid_names: Collection[str]) -> Iterator[str]:
    return (f"{kind} {name!r} is unknown: {nearest(name, valid_names)}" for name in names if name not in valid_names)


def _is_type(name: str) -> bool:
    try:
        return bool(dtype_named(name))
    except UsageError:
        return False
