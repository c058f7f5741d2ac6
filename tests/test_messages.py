"""Messages: each has one rendering, which one golden file per family keeps; code does not read rendered texts."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

import pytest

from collbench.reason import Fact
from tests.messages import Message, families, rendered

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests/golden/messages"
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


@pytest.mark.parametrize(("family", "messages"), families(), ids=lambda value: value if isinstance(value, str) else "")
def test_the_words_of_a_family(family: str, messages: Mapping[str, Message]) -> None:
    text = "".join(f"{name}\n{_indented(rendered(message))}\n\n" for name, message in messages.items())
    path = GOLDEN / f"{family}.txt"
    if os.environ.get("COLLBENCH_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def _indented(text: str) -> str:
    assert text and not _CONTROL.search(text), f"not printable: {text!r}"
    return "\n".join(f"    {line}" for line in text.split("\n"))


def test_every_kind_of_fact_has_an_example() -> None:
    for path in (ROOT / "collbench").rglob("*.py"):
        if "Fact" in path.read_text(encoding="utf-8"):
            import_module(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    shown = {type(message) for _, messages in families() for message in messages.values()}
    missing = sorted(f"{kind.__module__}.{kind.__qualname__}" for kind in _kinds(Fact) if kind not in shown)
    assert missing == [], "add an example to tests/messages"


def _kinds(base: type[Fact]) -> Iterator[type[Fact]]:
    """All classes below that have a `render` of their own, of this package."""
    for kind in base.__subclasses__():
        if kind.__module__.startswith("collbench."):
            yield from [kind] if "text" in vars(kind) or kind.render is not base.render else []
            yield from _kinds(kind)


def test_codes_of_facts_are_unique() -> None:
    codes = [str(kind.__struct_config__.tag) for kind in _kinds(Fact)]
    assert sorted(codes) == sorted(set(codes))


# What holds a text for users, by its name: comparing, splitting or searching it would make words an interface between modules.
_TEXTS = re.compile(
    r"(^|_)(why|reasons?|sentences?|notes?|explanation|limited_by|remedy|render|rendered|what|advice|doubts?|summary|statistics?|causes?)$"
)
_READS = {"startswith", "endswith", "partition", "rpartition", "split", "rsplit", "removeprefix", "removesuffix", "find", "index", "count"}
# Functions that read a text of others: drain reasons of Slurm, errors of Python, JAX, jsonschema, msgspec and PostgreSQL.
FOREIGN = {
    "collbench/plugins/libraries/jax.py:_array",
    "collbench/plugins/libraries/ucc/library.py:load_ucc",
    "collbench/plugins/store/database.py:_sentence",
    "collbench/plugins/hunt/drain.py:_of_slurm",
    "collbench/plugins/hunt/drain.py:drain_command",
    "collbench/plugins/traces/json_records.py:_decoded",
}
# Functions that still read a rendered text: empty at the end.
KNOWN: set[str] = set()


def test_no_code_reads_a_rendered_text() -> None:
    assert set(_readers()) == FOREIGN | KNOWN


def _readers() -> Iterator[str]:
    """ "collbench/gating/verdict.py:waits" for each function that does, where the syntax tree shows it."""
    for path in sorted((ROOT / "collbench").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef) and any(_reads(node) for node in ast.walk(function)):
                yield f"{path.relative_to(ROOT)}:{function.name}"


def _reads(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        of_regex = isinstance(node.func.value, ast.Name) and (node.func.value.id == "re" or node.func.value.id.lstrip("_").isupper())
        if of_regex and node.func.attr in ("match", "search", "fullmatch", "findall", "finditer", "split"):
            return any(map(_is_text, node.args))
        return node.func.attr in _READS and _is_text(node.func.value)
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        return _is_one_text(node.comparators[0])
    return False


def _is_text(node: ast.AST) -> bool:
    """Whether it is a text for users, by its name: `error.reason`, `why`, `str(error)`, `fact.render()`."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id == "str" and node.args:
            return isinstance(node.args[0], ast.Name) and node.args[0].id in ("error", "why", "reason", "fact")
        return isinstance(node.func, ast.Attribute) and node.func.attr == "render"
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return bool(_TEXTS.search(name))


def _is_one_text(node: ast.AST) -> bool:
    """As `_is_text`, but not names of several texts: `why in whys` compares whole values."""
    return _is_text(node) and not (
        isinstance(node, ast.Name | ast.Attribute) and (node.id if isinstance(node, ast.Name) else node.attr).endswith("s")
    )
