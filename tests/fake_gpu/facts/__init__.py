"""Facts of headers that this project cannot ship: names, numbers and parameters, with their source and the day on which they were read."""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class HeaderFacts:
    """What a version of a header has: numbers by name, functions, and functions that collbench looks for and it lacks.

    parameters   by function how each is passed, as `kinds` has it; of the functions of the double
    """

    source: str
    version: str
    numbers: Mapping[str, int]
    functions: frozenset[str]
    lacks: frozenset[str] = frozenset()
    parameters: Mapping[str, list[str]] = field(default_factory=dict)


def header_facts(name: str, variable: str) -> list[HeaderFacts]:
    """The facts in NAME.toml, and those of the header, or folder of headers, that an environment variable names."""
    stored = [
        HeaderFacts(
            each["source"],
            each["version"],
            each["numbers"],
            frozenset(each["functions"]),
            frozenset(each.get("lacks", ())),
            {function: words.split() for function, words in each["parameters"].items()},
        )
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
    functions = frozenset(re.findall(r"\b(\w+)\s*\(", text))
    return HeaderFacts(", ".join(map(str, files)), "", numbers, functions, parameters=declared(text))


# How parameters are passed: what a call with the wrong number or width of arguments would get wrong.

_POINTER = re.compile(
    r"\*|\[\]|\b(ncclComm_t|cudaStream_t|ncclWindow_t|CU(stream|event|graph|graphExec|function|module|context|deviceptr)"
    r"|hip(Stream|Event|Graph|GraphExec)_t)\b"
)
_WIDE = re.compile(r"\b(size_t|long)\b")
_STRUCTURE = re.compile(r"\b(ncclUniqueId)\b|\b(CUipcMem)?Handle\b")


def kinds(parameters: str) -> list[str]:
    """How each parameter is passed: "pointer", "wide" (64 bits), "structure" (by value) or "int"."""
    ways = ((_POINTER, "pointer"), (_WIDE, "wide"), (_STRUCTURE, "structure"))
    named = [one for one in parameters.split(",") if one.strip() not in ("", "void")]
    return [next((way for known, way in ways if known.search(one)), "int") for one in named]


def declared(text: str) -> dict[str, list[str]]:
    """By the names that a library exports, today's and an older one's; of several declarations the first, which is today's."""
    macros = dict(re.findall(r"#\s*define\s+(cu[A-Z]\w+)\s+(?:__CUDA_API_PT[DS]+Z?\()?(cu[A-Z]\w+)\)?", text))
    plain = re.sub(r"__dparm\([^)]*\)|=\s*\w+", "", text)  # the defaults of C++
    found: dict[str, list[str]] = {}
    for name, parameters in re.findall(r"\b((?:nccl|cu|hip)[A-Z]\w+)\s*\(([^()]*)\)\s*(?:__attribute__[^;]*)?;", plain):
        for exported_name in (name, macros.get(name, name)):
            found.setdefault(exported_name, kinds(parameters))
    return found


def exported(folder: str) -> dict[str, list[str]]:
    """The functions of the double in tests/fake_gpu/FOLDER, and how it takes their parameters."""
    text = "\n".join(file.read_text() for file in sorted((HERE.parent / folder).glob("*.cpp")))
    return {
        name: kinds(parameters)
        for name, parameters in re.findall(r"^EXPORTED [\w ]+[ *]((?:nccl|cu|hip)\w+)\(([^)]*)\) *[{]", text, re.MULTILINE)
    }


def _value(text: str | None, numbers: Mapping[str, int], following: int) -> int:
    if text is None:
        return following
    try:
        return int(text, 0)
    except ValueError:
        return numbers.get(text, following)
