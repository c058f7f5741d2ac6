"""A template's holes: whole numbers and quoted text; all else is our own error, which no file is written with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from collbench.deploy import files
from collbench.deploy.files import sh
from collbench.deploy.kinds import kinds

FOLDER = Path(files.__file__).parent / "kinds" / "templates"


@pytest.fixture
def fill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def filled(text: str, name: str = "one.j2", **values: Any) -> str:
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(files, "_FOLDER", tmp_path)
        return files.filled(name, **values)

    return filled


def test_numbers_and_quoted_text_are_written(fill: Any) -> None:
    assert fill("{{ n }} {{ w|sh }} {{ ws|line }}\n", n=3, w="a b", ws=["c", "d e"]) == "3 'a b' c 'd e'\n"
    assert fill("{{ w }}", w=sh("a b")) == "'a b'"


@pytest.mark.parametrize("value", ["text", "", 1.5, True, None, ["a"], b"a"], ids=repr)
def test_any_other_filter_is_rejected(fill: Any, value: object) -> None:
    with pytest.raises(TypeError, match="is not quoted"):
        fill("{{ value }}", value=value)


@pytest.mark.parametrize("hole", ["w|sh ~ '; rm'", "w|sh|upper", "[w|sh]|join(' ')", "w", "w|string", "'text'"])
def test_nothing_that_was_done_to_quoted_text_passes_for_it(fill: Any, hole: str) -> None:
    with pytest.raises(TypeError, match="is not quoted"):
        fill(f"{{{{ {hole} }}}}", w="a")


def test_a_misspelt_name_is_an_error(fill: Any) -> None:
    from jinja2 import UndefinedError

    with pytest.raises(UndefinedError, match="nodse"):
        fill("{{ nodse|sh }}", nodes=2)
    with pytest.raises(TypeError):
        fill("{{ nodse }}", nodes=2)


def test_ansible_keeps_its_own_braces(fill: Any) -> None:
    text = '<% if n > 1 %>\nhosts: "{{ all }}" # {% x %} {# y #}\nn: << n >>\n<% endif %>\n'
    assert fill(text, "ansible-x.j2", n=2) == 'hosts: "{{ all }}" # {% x %} {# y #}\nn: 2\n'


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.j2")), ids=lambda file: file.name)
def test_a_template_is_named_after_its_kind(file: Path) -> None:
    assert re.split(r"[.-]", file.name)[0] in kinds()
