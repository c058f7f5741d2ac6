"""The kinds, found by their files, their settings, and the holes of their templates."""

import re
from pathlib import Path
from typing import Any

import pytest

from collbench.plugins.deploy import files
from collbench.plugins.deploy.files import sh
from collbench.plugins.deploy.job import JobSetting, LauncherKind
from collbench.plugins.deploy.kinds import kinds, knowing, settings

FILES = sorted(path.stem for path in (Path(__file__).parents[3] / "collbench/plugins/deploy/kinds").glob("*.py") if path.stem != "__init__")


def test_every_file_is_a_kind_and_kinds_share_settings() -> None:
    assert list(kinds()) == FILES
    assert {"ansible", "kubernetes", "mpirun", "reframe", "slurm", "torchrun"} <= set(kinds())
    taken = {"launcher", "site", "write", "submit", "inner", "call", "command", "version", "help"}
    assert not taken & set(settings())
    for kind in kinds().values():
        for setting in kind.settings:
            assert settings()[setting.name] is setting, f"{kind.name} has a --{setting.name} of its own"
    assert knowing(settings()["nodes"]) == FILES
    assert "slurm" in knowing(settings()["partition"]) and "ansible" not in knowing(settings()["partition"])


@pytest.mark.parametrize("kind", kinds().values(), ids=lambda kind: kind.name)
def test_a_kind_has_the_texts_for_users(kind: LauncherKind) -> None:
    assert kind.summary and "FILE" in kind.start and not kind.summary.endswith(".")
    names = [setting.name for setting in kind.settings]
    assert len(names) == len(set(names)), "a setting is repeated"
    assert {"nodes", "gpus-per-node", "ranks-per-node", "program", "env", "name"} <= set(names)


@pytest.mark.parametrize("setting", settings().values(), ids=lambda setting: setting.name)
def test_a_default_is_a_value_that_could_have_been_typed(setting: JobSetting) -> None:
    if setting.default is not None and not setting.many:
        assert setting.parse(str(setting.default)) == setting.default
    assert setting.summary and "\n" not in setting.summary and not setting.summary.endswith(".")


# A template's holes: whole numbers and quoted text; all else is our own error, which no file is written with.

FOLDER = Path(files.__file__).parent / "kinds" / "templates"


@pytest.fixture
def fill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def filled(text: str, name: str = "one.j2", **values: Any) -> str:
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(files, "_FOLDER", tmp_path)
        return files.filled(name, **values)

    return filled


def test_quoted_text_is_written_and_a_misspelt_name_is_an_error(fill: Any) -> None:
    assert fill("{{ n }} {{ w|sh }} {{ ws|line }}\n", n=3, w="a b", ws=["c", "d e"]) == "3 'a b' c 'd e'\n"
    assert fill("{{ w }}", w=sh("a b")) == "'a b'"
    from jinja2 import UndefinedError

    with pytest.raises(UndefinedError, match="nodse"):
        fill("{{ nodse|sh }}", nodes=2)
    with pytest.raises(TypeError):
        fill("{{ nodse }}", nodes=2)
    text = '<% if n > 1 %>\nhosts: "{{ all }}" # {% x %} {# y #}\nn: << n >>\n<% endif %>\n'
    assert fill(text, "ansible-x.j2", n=2) == 'hosts: "{{ all }}" # {% x %} {# y #}\nn: 2\n'


@pytest.mark.parametrize("value", ["text", "", 1.5, True, None, ["a"], b"a"], ids=repr)
def test_any_other_filter_is_rejected(fill: Any, value: object) -> None:
    with pytest.raises(TypeError, match="is not quoted"):
        fill("{{ value }}", value=value)


@pytest.mark.parametrize("hole", ["w|sh ~ '; rm'", "w|sh|upper", "[w|sh]|join(' ')", "w", "w|string", "'text'"])
def test_nothing_that_was_done_to_quoted_text_passes_for_it(fill: Any, hole: str) -> None:
    with pytest.raises(TypeError, match="is not quoted"):
        fill(f"{{{{ {hole} }}}}", w="a")


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.j2")), ids=lambda file: file.name)
def test_a_template_is_named_after_its_kind(file: Path) -> None:
    assert re.split(r"[.-]", file.name)[0] in kinds()
