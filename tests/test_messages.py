"""Messages: an example of every fact renders; code does not read rendered texts."""

import ast
import os
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from collbench.plugin import BUILTIN
from collbench.reason import Fact, Text
from collbench.results.quality import REMEDIES

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests/golden/messages.txt"
# Fields of type str that do not take every text.
_STRINGS = {"driver_cuda": ["12.4", "11.8"], "remedy": list(REMEDIES)}


def _import_facts() -> None:
    for path in (ROOT / "collbench").rglob("*.py"):
        if "Fact" in path.read_text(encoding="utf-8"):
            import_module(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))


def _kinds(base: type[Fact] = Fact) -> Iterator[type[Fact]]:
    """All classes below that have a text of their own, of this package."""
    for kind in base.__subclasses__():
        if kind.__module__.startswith("collbench."):
            yield from [kind] if "text" in vars(kind) or kind.render is not base.render else []
            yield from _kinds(kind)


def _values(kind: inspect.Type, name: str, items: int) -> list[Any]:
    """Return values of a type. Strings are the name of the field; tuples have `items` values."""
    match kind:
        case inspect.UnionType(types):
            values = [value for member in types for value in _values(member, name, items)]
            values.sort(key=lambda value: value is None)
        case inspect.LiteralType(values) | inspect.EnumType(values):
            pass
        case inspect.NoneType():
            values = [None]
        case inspect.BoolType():
            values = [True, False]
        case inspect.IntType():
            values = [2, 1]
        case inspect.FloatType():
            values = [1.5]
        case inspect.VarTupleType(item) | inspect.ListType(item) | inspect.CollectionType(item):
            values = [tuple(_values(item, name, items)[:1] * items)]
        case inspect.TupleType(types):
            values = [tuple(_values(member, name, items)[0] for member in types)]
        case inspect.DictType(_, value_type):
            values = [{name: _values(value_type, name, items)[0]}]
        case inspect.StructType(cls):
            values = [Text("another fact") if cls is Fact else next(_examples(cls, items))]
        case inspect.DataclassType(cls, fields) | inspect.NamedTupleType(cls, fields):
            values = [cls(**{field.name: _values(field.type, field.name, items)[0] for field in fields})]
        case _:
            values = _STRINGS.get(name, [name])
    return list(values)


def _examples(kind: type[msgspec.Struct], items: int) -> Iterator[Any]:
    """Yield a value of the class with all fields, then one for each other value of each field."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    values: dict[str, list[Any]] = {}
    for field in info.fields:
        values[field.name] = _values(field.type, field.name, items)
        if not field.required and isinstance(field.default, str | int | float) and field.default not in values[field.name]:
            values[field.name].append(field.default)
    first = {name: examples[0] for name, examples in values.items()}
    yield kind(**first)
    for name, examples in values.items():
        for example in examples[1:]:
            yield kind(**{**first, name: example})


def _texts(kind: type[Fact]) -> list[str]:
    """Return the different texts of examples of a fact."""
    return list(dict.fromkeys(fact.render() for items in (2, 1) for fact in _examples(kind, items)))


def test_an_example_of_every_fact_renders() -> None:
    _import_facts()
    shown = {str(kind.__struct_config__.tag): _texts(kind) for kind in _kinds() if kind is not Text}
    pages = {code: "".join(f"    {text}\n" for text in texts) for code, texts in sorted(shown.items())}
    for code, texts in shown.items():
        for text in texts:
            assert text.strip() and text.isprintable() and not re.search(r"[{}]|\bNone\b", text), f"{code}: {text!r}"
    if os.environ.get("COLLBENCH_GOLDEN") == "1":
        GOLDEN.write_text("".join(f"{code}\n{page}\n" for code, page in pages.items()), encoding="utf-8")
    golden = dict(re.findall(r"^(\w+)\n((?:    .*\n)+)", GOLDEN.read_text(encoding="utf-8"), re.MULTILINE))
    assert pages == {code: golden.get(code) for code in pages}
    if all((ROOT / "collbench/plugins" / name).exists() for name in BUILTIN):
        assert set(pages) == set(golden)


def test_codes_of_facts_are_unique() -> None:
    _import_facts()
    codes = [str(kind.__struct_config__.tag) for kind in _kinds()]
    assert sorted(codes) == sorted(set(codes))


# What holds a text for users, by its name: comparing, splitting or searching it would make words an interface between modules.
_TEXTS = re.compile(
    r"(^|_)(why|reasons?|sentences?|notes?|explanation|limited_by|remedy|render|rendered|what|advice|doubts?|summary|statistics?|causes?)$"
)
_READS = {"startswith", "endswith", "partition", "rpartition", "split", "rsplit", "removeprefix", "removesuffix", "find", "index", "count"}
# Functions that read a text of others: drain reasons of Slurm, errors of Python (TOML), JAX, jsonschema, msgspec and PostgreSQL.
FOREIGN = {
    "collbench/plugins/libraries/jax.py:_array",
    "collbench/plugins/libraries/ucc/library.py:load_ucc",
    "collbench/operations/suite.py:_parsed",
    "collbench/plugins/hunt/records.py:_checked_about",
    "collbench/plugins/store/database.py:_sentence",
    "collbench/plugins/hunt/managers.py:nodes",
    "collbench/plugins/hunt/managers.py:drain_command",
    "collbench/plugins/traces/json_records.py:_decoded",
}
# Functions that read a text which an earlier version of collbench stored.
KNOWN = {"collbench/plugins/training/records.py:names"}


def test_no_code_reads_a_rendered_text() -> None:
    assert set(_readers()) == FOREIGN | KNOWN


def _readers() -> Iterator[str]:
    """ "collbench/gating/verdict.py:waits" for each function that does, where the syntax tree shows it."""
    for path in sorted((ROOT / "collbench").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        readers = {node for node in nodes if _reads(node)}
        for function in nodes if readers else []:
            if isinstance(function, ast.FunctionDef) and not readers.isdisjoint(ast.walk(function)):
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
