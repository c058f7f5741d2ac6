"""The kinds, found by their files, and their settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from collbench.deploy.job import JobSetting, LauncherKind
from collbench.deploy.kinds import kinds, knowing, settings

FILES = sorted(path.stem for path in (Path(__file__).parents[2] / "collbench/deploy/kinds").glob("*.py") if path.stem != "__init__")


def test_every_file_is_a_kind_of_its_name() -> None:
    assert list(kinds()) == FILES
    assert {"ansible", "kubernetes", "mpirun", "reframe", "slurm", "torchrun"} <= set(kinds())


@pytest.mark.parametrize("kind", kinds().values(), ids=lambda kind: kind.name)
def test_a_kind_has_the_texts_for_users(kind: LauncherKind) -> None:
    assert kind.summary and "FILE" in kind.start and not kind.summary.endswith(".")
    assert kind.suffix.startswith(".")
    names = [setting.name for setting in kind.settings]
    assert len(names) == len(set(names)), "a setting is repeated"
    assert {"nodes", "gpus-per-node", "ranks-per-node", "program", "env", "name"} <= set(names)


def test_no_setting_takes_a_name_that_the_command_line_itself_needs() -> None:
    taken = {"launcher", "site", "write", "submit", "inner", "call", "command", "version", "help"}
    assert not taken & set(settings())


def test_kinds_that_share_a_settings_name_share_the_setting() -> None:
    for kind in kinds().values():
        for setting in kind.settings:
            assert settings()[setting.name] is setting, f"{kind.name} has a --{setting.name} of its own"


@pytest.mark.parametrize("setting", settings().values(), ids=lambda setting: setting.name)
def test_a_default_is_a_value_that_could_have_been_typed(setting: JobSetting) -> None:
    if setting.default is not None and not setting.many:
        assert setting.parse(str(setting.default)) == setting.default
    assert setting.summary and "\n" not in setting.summary and not setting.summary.endswith(".")


def test_the_kinds_that_have_a_setting() -> None:
    assert knowing(settings()["nodes"]) == FILES
    assert "slurm" in knowing(settings()["partition"]) and "ansible" not in knowing(settings()["partition"])
