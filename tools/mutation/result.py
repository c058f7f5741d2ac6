"""The results of mutants per module: stored as JSON, and printed as the table of tests/MUTANTS.md."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

REASONS = Path("tests/survivors.toml")
_HEAD = ("module", "mutants", "killed", "survived", "share", "tried of", "date", "commit")
_AROUND = 12  # characters of a line that are shown before and after a change


@dataclass(frozen=True)
class Result:
    """The mutants of a module.

    mutants    that were tried, of `generated` ones
    survivors  function and change of each mutant that no test detected
    """

    module: str
    mutants: int
    generated: int
    survivors: tuple[str, ...]
    date: str
    commit: str

    @property
    def share(self) -> float:
        """Return the percentage of mutants that the tests detected."""
        return 100 * (self.mutants - len(self.survivors)) / max(1, self.mutants)


def change(before: str, after: str) -> str:
    """Return where two texts differ, with some characters around: "`a < b` → `a <= b`"."""
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    first = max(0, start - _AROUND)
    shown = [" ".join(text[first : max(start, len(text) - end) + _AROUND].split()) for text in (before, after)]
    return " → ".join(f"`{text}`" for text in shown)


def store(folder: Path, result: Result) -> None:
    """Write a module's result."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{result.module}.json").write_text(json.dumps(asdict(result), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def stored(folder: Path) -> list[Result]:
    """Return the stored results, by module."""
    documents = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    return [Result(**{**document, "survivors": tuple(document["survivors"])}) for document in documents]


def read_reasons(root: Path) -> dict[str, dict[str, str]]:
    """Return by module, or for "all", the reasons why mutants survive, by a text that is part of a survivor's function and change."""
    return tomllib.loads((root / REASONS).read_text(encoding="utf-8"))


def table(results: Sequence[Result], reasons: dict[str, dict[str, str]], missing: Iterable[str] = ()) -> str:
    """Return the results as Markdown: a line per module, also of those without a result, then the survivors with their reasons."""
    lines = [f"| {' | '.join(_HEAD)} |", "|---" * len(_HEAD) + "|"]
    for result in results:
        survived = len(result.survivors)
        counts = f"{result.mutants} | {result.mutants - survived} | {survived} | {result.share:.1f} % | {result.generated}"
        lines.append(f"| {result.module} | {counts} | {result.date} | {result.commit} |")
    lines += [f"| {module} |{' – |' * (len(_HEAD) - 1)}" for module in missing]
    for result in results:
        if result.survivors:
            lines += ["", f"## Survivors in {result.module}", ""]
            known = reasons.get(result.module, {}) | reasons.get("all", {})
            lines += [f"- {survivor}: {_reason(survivor, known)}" for survivor in sorted(result.survivors)]
    return "\n".join(lines) + "\n"


def _reason(survivor: str, reasons: dict[str, str]) -> str:
    return next((reason for part, reason in reasons.items() if part in survivor), "no reason yet: add a test, or the reason")
