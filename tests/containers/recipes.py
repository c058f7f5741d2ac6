"""Reads the recipes: instructions of a Dockerfile, sections of an Apptainer definition."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
CONTAINERS = ROOT / "deploy/containers"
DOCKERFILES = ("Dockerfile", "Dockerfile.cuda")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


class Instruction(NamedTuple):
    name: str
    words: str


def dockerfile(name: str) -> list[Instruction]:
    kept = [line for line in (CONTAINERS / name).read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(kept))
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def arguments(name: str) -> dict[str, str]:
    return dict(each.words.split("=", 1) for each in dockerfile(name) if each.name == "ARG")


def definition() -> tuple[dict[str, str], dict[str, str]]:
    text = re.sub(r"^#.*\n", "", (CONTAINERS / "collbench.def").read_text(), flags=re.MULTILINE)
    head, *rest = re.split(r"^%", text, flags=re.MULTILINE)
    header = dict(line.split(": ", 1) for line in head.splitlines() if line)
    return header, {name: body for name, _, body in (section.partition("\n") for section in rest)}


def definition_arguments() -> dict[str, str]:
    return dict(line.strip().split("=", 1) for line in definition()[1]["arguments"].splitlines() if line.strip())


def post() -> str:
    text = definition()[1]["post"]
    for name, value in definition_arguments().items():
        text = text.replace(f"{{{{ {name} }}}}", value)
    return text


def pip_installs(recipe: str) -> Iterator[list[str]]:
    """The words of every `pip install` of a recipe, its arguments at their defaults."""
    if recipe.endswith(".def"):
        text = post()
    else:
        text = "\n".join(each.words for each in dockerfile(recipe) if each.name == "RUN").replace("&&", "\n")
        for name, value in arguments(recipe).items():
            text = text.replace(f"${{{name}}}", value)
    yield from (shlex.split(line) for line in text.splitlines() if " install " in line and "pip" in line.split()[0])


def copied(recipe: str) -> list[str]:
    """What a recipe takes from the checkout."""
    if recipe.endswith(".def"):
        return [line.split()[0] for line in definition()[1]["files"].splitlines() if line.strip()]
    lines = [shlex.split(each.words) for each in dockerfile(recipe) if each.name == "COPY"]
    return [word for words in lines if not words[0].startswith("--from") for word in words[:-1]]


def let_through(path: str) -> bool:
    """Whether .dockerignore lets a build see a file; the last line that fits decides."""
    seen = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!")
        if line and not line.startswith("#") and _fits(path, pattern):
            seen = line.startswith("!")
    return seen


def _fits(path: str, pattern: str) -> bool:
    places = [path, *(str(parent) for parent in Path(path).parents)][:-1]
    if pattern.startswith("**/"):
        return any(fnmatch(Path(place).name, pattern[3:]) for place in places)
    return any(place.count("/") == pattern.count("/") and fnmatch(place, pattern) for place in places)
