"""The list of mutants (tests/mutants.toml): reading it, checking it against the sources, applying one mutant."""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

LIST = Path("tests/mutants.toml")


class ListError(ValueError):
    """The list cannot be read; the text states the entry and the remedy."""


class DoesNotApply(ValueError):
    """The text that a mutant replaces does not occur exactly once in its file."""


@dataclass(frozen=True)
class Mutant:
    """One deliberate defect.

    id       unique; used by --only
    file     the source, relative to the project's folder
    before   text that occurs exactly once in the file; after: its replacement
    tests    test files or folders that mirror the source: at least one of their tests has to fail
    why      what would go wrong, one line
    """

    id: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]
    why: str

    @property
    def package(self) -> str:
        """Return the package of the source; "collbench" for modules outside of packages."""
        parts = Path(self.file).parts
        return parts[1] if len(parts) > 2 else parts[0]

    def applied(self, text: str) -> str:
        """Return the source with the defect. Raises DoesNotApply."""
        found = text.count(self.before)
        if found != 1:
            raise DoesNotApply(f"{self.id}: its text occurs {found} times in {self.file}, not once: adapt the entry in {LIST}")
        return text.replace(self.before, self.after)


def read_list(root: Path) -> list[Mutant]:
    """Return the mutants of a project's list. Raises ListError."""
    try:
        table = tomllib.loads((root / LIST).read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ListError(f"{LIST} cannot be read ({error}): correct the file") from error
    names = {field.name for field in fields(Mutant)}
    found = []
    for number, row in enumerate(table.get("mutant", []), start=1):
        if set(row) != names:
            odd = ", ".join(sorted(set(row) ^ names))
            raise ListError(f"{LIST}, entry {number} ({row.get('id', 'without id')}): missing or unknown keys: {odd}")
        found.append(Mutant(**{**row, "tests": tuple(row["tests"])}))
    return found


def check(root: Path, mutants: Sequence[Mutant]) -> list[str]:
    """Return one sentence for each entry that cannot be used; empty for a correct list."""
    counts = Counter(mutant.id for mutant in mutants)
    repeated = [f"{name}: {count} entries have this id: choose different ones" for name, count in counts.items() if count > 1]
    return [*repeated, *(problem for mutant in mutants for problem in _problems(root, mutant))]


def _problems(root: Path, mutant: Mutant) -> Iterator[str]:
    missing = [test for test in mutant.tests if not (root / test).exists()]
    if missing or not mutant.tests:
        yield f"{mutant.id}: test {missing[0] if missing else '(none named)'} does not exist: name a file or folder"
    source = root / mutant.file
    if not source.is_file():
        yield f"{mutant.id}: source {mutant.file} does not exist: adapt the entry in {LIST}"
        return
    text = source.read_text(encoding="utf-8")
    try:
        changed = mutant.applied(text)
    except DoesNotApply as error:
        yield str(error)
        return
    try:
        same = ast.dump(ast.parse(changed)) == _tree(text)
    except SyntaxError as error:
        yield f"{mutant.id}: the result is not valid Python ({error.msg}): correct the entry"
        return
    if same:
        yield f"{mutant.id}: it changes nothing in the code: correct the entry"


@cache
def _tree(text: str) -> str:
    return ast.dump(ast.parse(text))


def chosen(mutants: Sequence[Mutant], only: Sequence[str]) -> list[Mutant]:
    """Return the mutants with these ids or of these packages; all for none. Raises ListError for a name that fits nothing."""
    known = {name for mutant in mutants for name in (mutant.id, mutant.package)}
    unknown = [name for name in only if name not in known]
    if unknown:
        packages = ", ".join(sorted({mutant.package for mutant in mutants}))
        raise ListError(f"--only {unknown[0]}: neither an id nor a package of {LIST}: choose an id or one of {packages}")
    return [mutant for mutant in mutants if not only or mutant.id in only or mutant.package in only]
