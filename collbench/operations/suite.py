"""A suite as read: its own tables, those of the suites that it extends, and the defaults in all of them."""

from __future__ import annotations

import errno
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collbench.errors import UsageError
from collbench.operations.form import check_form, place_of
from collbench.untrusted import parse_toml, read_file

_FOLDER = Path(__file__).parent / "suites"
BUILT_IN = ("quick", "full", "gate")
_LARGEST_BYTES = 1 << 20
_MOST_FILES = 32  # twenty that extend the next one twice would be read a million times
_WHERE = re.compile(r"^(.*) \(at (?:line (\d+), column (\d+)|end of document)\)$", re.DOTALL)
_FILES = ("traffic",)  # keys that name files, which are looked for beside the suite


@dataclass(frozen=True)
class Table:
    """One sweep, its defaults filled in.

    file    the suite that it stands in; where: its place there, "sweeps[2] 'large'"
    name    its own name, or None
    own     the keys that it says itself
    values  by key, defaults among them: a list, also where one value was written
    """

    file: str
    where: str
    name: str | None
    own: tuple[str, ...]
    values: Mapping[str, list[Any]]

    @property
    def place(self) -> str:
        """For sentences: "sweeps[2] 'large' of cluster.toml"."""
        return f"{self.where} of {self.file}"


@dataclass(frozen=True)
class Suite:
    """A suite.

    name     "quick", or the file's name without its ending
    run      what concerns the whole launch, by key
    sweeps   those of the suites that it extends first
    files    all that was read, the suite itself first; digest: SHA-256 of their texts
    """

    name: str
    title: str
    run: Mapping[str, Any]
    sweeps: tuple[Table, ...]
    files: tuple[str, ...]
    digest: str

    def as_json(self) -> dict[str, Any]:
        """The suite for run.json."""
        sweeps = [{"place": table.place, **({"name": table.name} if table.name else {}), **table.values} for table in self.sweeps]
        return {"name": self.name, "title": self.title, "digest": self.digest, "files": list(self.files), "run": dict(self.run),
                "sweeps": sweeps}  # fmt: skip


@dataclass
class _Draft:
    """What the suites read so far say together."""

    title: str = ""
    run: dict[str, Any] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    sweeps: list[_Sweep] = field(default_factory=list)
    read: int = 0


@dataclass(frozen=True)
class _Sweep:
    file: str
    number: int
    values: dict[str, Any]

    @property
    def name(self) -> str | None:
        return self.values.get("name")


def read_suite(name: str) -> Suite:
    """The built-in suite of that name, or the one in that file, with all that it extends.

    Raises UsageError, one sentence with file, place and remedy.
    """
    draft = _Draft()
    texts: dict[str, bytes] = {}
    _read_into(draft, name, Path(), (), texts)
    digest = hashlib.sha256(b"".join(hashlib.sha256(text).digest() for text in texts.values())).hexdigest()
    sweeps = tuple(_table(sweep, draft.defaults) for sweep in draft.sweeps)
    if not sweeps:
        raise UsageError(f'suite {name} measures nothing: add a table [[sweeps]] with operations = ["allreduce"], or extends = "quick"')
    return Suite(_path(name, Path()).stem, draft.title, draft.run, sweeps, tuple(texts), digest)


def _read_into(draft: _Draft, name: str, folder: Path, chain: tuple[str, ...], texts: dict[str, bytes]) -> None:
    """Adds a suite to what those that it extends say; `chain` is how it was come upon."""
    path = _path(name, folder)
    file = name if _is_built_in(name) else str(path)
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
    draft.defaults |= _beside(document.get("defaults", {}), path.parent)
    _add_sweeps(draft, _sweeps_of(document, file, path.parent))


def _path(name: str, folder: Path) -> Path:
    return _FOLDER / f"{name}.toml" if _is_built_in(name) else folder / name


def _is_built_in(name: str) -> bool:
    return name in BUILT_IN


def _bytes_of(path: Path, file: str, chain: Sequence[str]) -> bytes:
    who = f", which {chain[-1]} extends," if chain else ""
    try:
        return read_file(path, _LARGEST_BYTES)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise UsageError(f"suite {file} is larger than {_LARGEST_BYTES >> 20} MiB: name a file that somebody wrote") from error
        why = error.strerror or error
        raise UsageError(f"suite {file}{who} cannot be read ({why}): name a file, or one of {', '.join(BUILT_IN)}") from error


def _parsed(text: bytes, file: str) -> dict[str, Any]:
    try:
        return parse_toml(text.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = text[: error.start].count(b"\n") + 1
        raise UsageError(f"suite {file}, line {line}: this is not UTF-8: save the file as UTF-8") from error
    except ValueError as error:
        raise UsageError(_not_toml(str(error), file)) from error


def _not_toml(message: str, file: str) -> str:
    found = _WHERE.match(message)
    what, line, column = found.groups() if found else (message, None, None)
    where = f"line {line}, column {column}" if line else "at its end" if found else "somewhere"
    return f"suite {file}, {where}: this is not TOML ({what[:1].lower()}{what[1:]}): mend it there"


def _sweeps_of(document: Mapping[str, Any], file: str, folder: Path) -> list[_Sweep]:
    found = [_Sweep(file, number, _beside(values, folder)) for number, values in enumerate(document.get("sweeps", []), 1)]
    first: dict[str, _Sweep] = {}
    for sweep in found:
        if sweep.name and first.setdefault(sweep.name, sweep) is not sweep:
            other = place_of(first[sweep.name].number, None)
            raise UsageError(f"suite {file}, {place_of(sweep.number, sweep.name)}: {other} has that name: choose another")
    return found


def _add_sweeps(draft: _Draft, sweeps: Sequence[_Sweep]) -> None:
    """Those of the same name are replaced where they stand, others come at the end."""
    places = {sweep.name: place for place, sweep in enumerate(draft.sweeps) if sweep.name}
    for sweep in sweeps:
        if sweep.name in places:
            draft.sweeps[places[sweep.name]] = sweep
        else:
            draft.sweeps.append(sweep)


def _beside(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The values, files among them named as seen from here."""
    return {key: [str(folder / one) for one in _listed(value)] if key in _FILES else value for key, value in values.items()}


def _table(sweep: _Sweep, defaults: Mapping[str, Any]) -> Table:
    own = {key: value for key, value in sweep.values.items() if key != "name"}
    values = {key: _listed(value) for key, value in _together(defaults, own)}
    place = place_of(sweep.number, sweep.name)
    if "operations" not in values:
        raise UsageError(f'suite {sweep.file}, {place} names no operations: add a line like operations = ["allreduce"]')
    return Table(sweep.file, place, sweep.name, tuple(own), values)


# A sweep that says one of these means it instead of the default for the other.
_INSTEAD = {"traffic": "skew", "skew": "traffic"}


def _together(defaults: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from ((key, value) for key, value in defaults.items() if key not in own and _INSTEAD.get(key) not in own)
    yield from own.items()


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
