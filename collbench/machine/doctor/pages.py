"""The page of each code (pages.toml): what it means, how to check it by hand, what to do, and where that stands."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from collbench.errors import UsageError
from collbench.machine.readers.text import printable

_FILE = Path(__file__).with_name("pages.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What is told of a code. `sources` are URLs."""

    code: str
    title: str
    means: str
    check: str
    remedy: str
    sources: list[str]

    def lines(self) -> list[str]:
        """The page as text."""
        parts = (("what it means", self.means), ("check by hand", self.check), ("remedy", self.remedy))
        body = [line for title, text in parts for line in ("", f"{title}:", *(f"  {each}" for each in text.strip().splitlines()))]
        return [f"{self.code}  {self.title}", *body, "", *(f"source: {url}" for url in self.sources)]


@cache
def pages() -> dict[str, Page]:
    """All pages by code, in order."""
    import tomllib

    table = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return {code: Page(code=code, **facts) for code, facts in sorted(table.items())}


def page(code: str) -> Page:
    """The page of a code, in either case. Raises UsageError for one that is unknown."""
    wanted = code.strip().upper()
    if wanted not in pages():
        near = get_close_matches(wanted, pages(), 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"'{printable(code, 40)}' is no code of a finding: {hint}`collbench explain` lists all")
    return pages()[wanted]
