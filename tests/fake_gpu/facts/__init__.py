"""Facts of headers that this project cannot ship: names and numbers, with their source and the day on which they were read."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class HeaderFacts:
    """What a version of a header has: numbers by name, functions, and functions that collbench looks for and it lacks."""

    source: str
    version: str
    numbers: Mapping[str, int]
    functions: frozenset[str]
    lacks: frozenset[str] = frozenset()


def header_facts(name: str, variable: str) -> list[HeaderFacts]:
    """The facts in NAME.toml, and those of the header, or folder of headers, that an environment variable names."""
    stored = [
        HeaderFacts(each["source"], each["version"], each["numbers"], frozenset(each["functions"]), frozenset(each.get("lacks", ())))
        for each in tomllib.loads((HERE / f"{name}.toml").read_text())["headers"]
    ]
    given = Path(os.environ[variable]) if os.environ.get(variable) else None
    files = sorted(given.glob("*.h")) if given and given.is_dir() else [given] if given else []
    return [*stored, *([read_headers(*files)] if files else [])]


def read_headers(*files: Path) -> HeaderFacts:
    """Read the enumerators, macros that are numbers, and functions of C headers."""
    raw = "".join(file.read_text(errors="replace") for file in files)
    numbers = {name: int(value, 0) for name, value in re.findall(r"^[ \t]*#define\s+(\w+)\s+(0x[0-9a-fA-F]+|\d+)\b", raw, re.MULTILINE)}
    text = re.sub(r"^[ \t]*#.*$", "", re.sub(r"/\*.*?\*/|//[^\n]*", "", raw, flags=re.DOTALL), flags=re.MULTILINE)
    for body in re.findall(r"\benum(?:\s+\w+)*\s*\{(.*?)\}", text, re.DOTALL):
        value = -1
        for entry in body.split(","):
            found = re.fullmatch(r"\s*(\w+)\s*(?:=\s*(\S+))?\s*", entry)
            if not found:
                continue
            value = _value(found[2], numbers, value + 1)
            numbers[found[1]] = value
    return HeaderFacts(", ".join(map(str, files)), "", numbers, frozenset(re.findall(r"\b(\w+)\s*\(", text)))


def _value(text: str | None, numbers: Mapping[str, int], following: int) -> int:
    if text is None:
        return following
    try:
        return int(text, 0)
    except ValueError:
        return numbers.get(text, following)
