"""Plug-ins of other packages: what they bring is there, and a broken one is a warning that names it and affects nothing else."""

import json
import shutil

import pytest

from collbench.plugin import BUILTIN
from tests.cli.command import run
from tests.conftest import ROOT
from tests.contract.example import package

CODE = """
from collbench.plugin import Plugin
def add(commands):
    if "greet" in commands.choices:
        return
    from collbench.cli.parser import add_command
    add_command(commands, "greet", "say hello", lambda arguments, argv: print("hello") or 0)
COMMANDS = {"greet": "pack:add", "report": "pack:add", "hunt": "pack:add"}
GOOD = Plugin(name="good", summary="greets", commands=COMMANDS, api={"greeting": "pack:add"})
LATE = Plugin(name="late", summary="breaks when it is used", commands={"late": "pack.missing:add"}, kinds=("pack.missing:KIND",))
LONELY = Plugin(name="lonely", summary="needs another one", commands={"lonely": "pack:add"}, needs=("friend",))
WORD = 3
"""
POINTS = "[collbench.plugins]\ngood = pack:GOOD\nlate = pack:LATE\nlonely = pack:LONELY\nword = pack:WORD\ngone = pack:GONE\n"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with a package that has good and broken plug-ins."""
    folder = tmp_path_factory.mktemp("site")
    package(folder, "pack", POINTS, {"pack": CODE})
    return folder


def collbench(site, *argv):
    return run(site, *argv, env={"PYTHONPATH": f"{site}:{ROOT}"})


def test_a_plugin_of_another_package_brings_its_command_and_is_listed(site):
    assert collbench(site, "greet").stdout == "hello\n"
    assert "greet" in collbench(site, "help", "more").stdout
    listed = [json.loads(line) for line in collbench(site, "plugins", "--format", "jsonl").stdout.splitlines()]
    (good,) = (plugin for plugin in listed if plugin["name"] == "good")
    assert (good["package"], good["commands"], good["api"]) == ("pack 1", ["greet", "report", "hunt"], ["greeting"])
    assert (
        "hello" not in collbench(site, "report", "--help").stdout + collbench(site, "hunt", "--help").stdout
    )  # commands of collbench stay


def test_a_broken_one_is_a_warning_that_names_it_and_one_without_what_it_needs_is_not_listed(site):
    done = collbench(site, "plugins")
    assert done.returncode == 0 and len(done.stderr.splitlines()) == 3
    assert "'word' (pack:WORD) is not a collbench.plugin.Plugin, but of type int" in done.stderr
    assert "'gone' (pack:GONE) does not load (AttributeError" in done.stderr
    assert "(pack.missing:add) does not load (ModuleNotFoundError" in done.stderr
    assert "lonely" not in done.stdout


def test_one_that_breaks_when_it_is_used_affects_no_other(site):
    shown = collbench(site, "report", str(ROOT / "reports/first-run"))
    assert shown.returncode == 0 and "allreduce" in shown.stdout and "Traceback" not in shown.stderr
    assert shown.stderr.count("pack.missing:KIND") == 1
    late = collbench(site, "late")
    assert late.returncode == 2 and "Traceback" not in late.stderr and "pack.missing:add" in late.stderr


def test_one_without_what_it_needs_is_not_there(site):
    assert collbench(site, "lonely").returncode == 2


@pytest.mark.long
@pytest.mark.parametrize("name", BUILTIN)
def test_the_rest_works_without_a_builtin_plugin(name, tmp_path):
    if not (ROOT / "collbench/plugins" / name).is_dir():
        pytest.skip(f"the plug-in '{name}' is absent")
    site = tmp_path / "site"
    shutil.copytree(ROOT / "collbench", site / "collbench", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(site / "collbench/plugins" / name)
    shown = collbench(site, "--help")
    assert shown.returncode == 0 and shown.stderr == ""
    assert name not in collbench(site, "plugins").stdout.split()
    typed = ("allreduce", "--backend", "simulated", "--ranks", "4", "--sizes", "8,64K", "--out", "run")
    assert collbench(site, *typed).returncode == 0
    paged = collbench(site, "report", "run", "--html", "page.html", "--csv", "rows.csv", "--markdown", "rows.md")
    assert paged.returncode == 0 and (site / "page.html").is_file(), paged.stderr
    compared = [str(ROOT / "reports/regression" / side) for side in ("before", "after")]
    for words in (("compare", *compared), ("doctor",), ("backends",), ("explain", "busbw"), ("runs", ".")):
        done = collbench(site, *words)
        assert done.returncode in (0, 1) and "Traceback" not in done.stderr, (words, done.stderr)
