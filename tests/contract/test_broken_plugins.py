"""Packages with broken plug-ins: one error each, exit code 2 if requested, and everything else works."""

import json
import os
import re
from importlib import reload

import pytest

from collbench.backends import registry as backends
from collbench.backends.backend import Available, Unavailable
from collbench.backends.unavailable import BrokenPlugin
from collbench.cli.main import reserved_names
from collbench.operations import registry as operations
from collbench.plugin import failed_plugin
from tests.cli.command import of_any_rank, one_sentence, run
from tests.conftest import ROOT
from tests.contract.example import package

GOOD = """
from collbench.backends.simulated import SimulatedBackend
from collbench.operations.builtin.allreduce import ALLREDUCE
from msgspec.structs import replace
class Good(SimulatedBackend):
    name = "good"
class Raises(SimulatedBackend):
    @classmethod
    def probe(cls): raise OSError("no\\nlibrary")
class Mute(SimulatedBackend):
    @classmethod
    def probe(cls): return True
class Half:
    name = "half"
    @classmethod
    def probe(cls): raise AssertionError("not asked")
WORD = 3
RELAY = replace(ALLREDUCE, name="relay", summary="a plug-in's")
AGAIN = replace(ALLREDUCE, summary="another one")
TAKEN = replace(ALLREDUCE, name="probe")
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Yield a folder of packages that the registries search."""
    monkeypatch.syspath_prepend(str(tmp_path))
    search_again()
    yield tmp_path
    monkeypatch.undo()
    search_again()


def search_again():
    """Let the registries forget what they have found, and reserve the commands, as the command line does."""
    reload(backends)
    reload(operations)
    operations.reserve(reserved_names)


def search(site):
    return {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}


BACKENDS = {
    "nowhere:Backend": "does not load (ModuleNotFoundError: No module named 'nowhere')",
    "raising_code:Backend": "does not load (RuntimeError: at import)",
    "leaving_code:Backend": "does not load (SystemExit: 3)",
    "good_code:Missing": "does not load (AttributeError: module 'good_code' has no attribute 'Missing')",
    "good_code:WORD": "is not a class, but of type int",
    "good_code:Raises": "raises in probe (OSError: no library)",
    "good_code:Mute": "returns bool from probe instead of Available or Unavailable",
}
CODE = {"good_code": GOOD, "raising_code": 'raise RuntimeError("at\\nimport")\n', "leaving_code": "import sys\nsys.exit(3)\n"}


@pytest.mark.parametrize("place", BACKENDS)
def test_a_broken_backend_is_one_that_is_not_there_and_a_good_one_beside_it_is_taken(place, site):
    package(site, "maker", f"[collbench.backends]\nfast = {place}\ngood = good_code:Good\n", CODE)
    fact = BrokenPlugin("fast", place, BACKENDS[place], "fix or uninstall maker")
    assert backends.backend_class("fast").probe() == Unavailable.because(fact)
    assert backends.backend_names()[-2:] == ["fast", "good"] and backends.backend_class("fast").devices == {"cpu"}
    assert backends.backend_class("good").__name__ == "Good" and isinstance(backends.backend_class("good").probe(), Available)


def test_an_own_name_stays_the_projects_and_the_plug_in_is_reported_beside_it(site):
    package(site, "maker", "[collbench.backends]\nmpi = good_code:Good\n", CODE)
    assert backends.backend_class("mpi").__module__ == "collbench.backends.mpi"
    fact = BrokenPlugin("mpi", "good_code:Good", "has a name that collbench itself uses", "rename its entry point, or uninstall maker")
    assert backends.backend_class("mpi@maker").probe() == Unavailable.because(fact)


@pytest.mark.parametrize(("packages", "words"), [
    ({"maker": "Half"}, ["missing abort, "]),  # a class without the methods is no backend
    ({"first": "Good", "second": "Good"}, ["first", "second", "has the same name"]),  # neither is guessed
])  # fmt: skip
def test_a_backend_that_lacks_methods_or_has_another_ones_name_is_not_available(packages, words, site):
    for name, kind in packages.items():
        package(site, name, f"[collbench.backends]\nfast = good_code:{kind}\n", CODE)
    found = backends.backend_class("fast").probe()
    assert isinstance(found, Unavailable) and all(word in str(found) for word in words)


OPERATIONS = {
    "nowhere": "does not load (ModuleNotFoundError: No module named 'nowhere')",
    "good_code:WORD": "contains no Operation",
    "good_code:AGAIN": "defines the operation 'allreduce', which already exists",
    "good_code:TAKEN": "defines an operation of the command 'probe', which is another command of collbench",
    "leaving_code": "does not load (SystemExit: 3)",
}


@pytest.mark.parametrize("place", OPERATIONS)
def test_a_broken_operation_is_left_out_and_reported(place, site):
    own = dict(operations.operations())
    search_again()
    package(site, "maker", f"[collbench.operations]\nbad = {place}\nrelay = good_code:RELAY\n", CODE)
    assert {name: str(wrong) for name, wrong in operations.broken().items()} == {
        "bad": f"plug-in 'bad' ({place}) {OPERATIONS[place]}: fix or uninstall maker"
    }
    assert operations.operations().keys() == {*own, "relay"} and operations.operations()["allreduce"] is own["allreduce"]


def test_a_broken_one_named_like_a_command_does_not_take_it_away(site):
    package(site, "maker", "[collbench.operations]\nprobe = nowhere\nallreduce = nowhere\n")
    assert sorted(operations.broken()) == ["allreduce@maker", "probe@maker"]


def test_the_command_line_goes_on_without_them_and_refuses_what_is_asked_of_them(tmp_path):
    site = tmp_path / "site"
    package(site, "maker", "[collbench.backends]\nfast = raising_code:Backend\n[collbench.operations]\nrelay = nowhere\n", CODE)
    env = search(site)
    wrong = "plug-in 'fast' (raising_code:Backend) does not load (RuntimeError: at import): fix or uninstall maker"
    listed = run(tmp_path, "backends", env=env)
    assert (listed.returncode, listed.stderr) == (0, "") and re.search(rf"^fast +n/a +{re.escape(wrong)}$", listed.stdout, re.MULTILINE)
    assert one_sentence(run(tmp_path, "allreduce", "--backend", "fast", "--sizes", "8", env=env)).endswith(f": {wrong}")
    lost = "plug-in 'relay' (nowhere) does not load (ModuleNotFoundError: No module named 'nowhere'): fix or uninstall maker"
    assert one_sentence(run(tmp_path, "relay", "--sizes", "8", env=env)) == lost
    assert "plug-in 'relay' (nowhere)" in " ".join(run(tmp_path, "help", "more", env=env).stdout.split())
    done = run(tmp_path, "allreduce", "--backend", "simulated", "--ranks", "2", "--sizes", "8", "--format", "json", env=env)
    assert (done.returncode, [json.loads(line)["wrong"] for line in done.stdout.splitlines()]) == (0, [0])


FAILING = """
from collbench.backends.simulated import SimulatedBackend
from collbench.operations.builtin.allreduce import ALLREDUCE
from msgspec.structs import replace
def fails(*arguments): raise LookupError("no ring\\nof ranks")
class Opens(SimulatedBackend):
    name = "opens"
    def open(self, world, settings): fails()
class Fails(SimulatedBackend):
    name = "fails"
    def supports(self, operation, case): fails()
RELAY = replace(ALLREDUCE, name="relay", expected_blocks=fails)
"""


@pytest.mark.parametrize(("argv", "plugin"), [
    (("allreduce", "--backend", "opens"), "'opens' (entry point collbench.backends, failing_code:Opens, of maker 1)"),
    (("allreduce", "--backend", "fails"), "'fails' (entry point collbench.backends, failing_code:Fails, of maker 1)"),
    (("relay", "--backend", "simulated"), "'relay' (entry point collbench.operations, other_code:RELAY, of other 1)"),
])  # fmt: skip
def test_an_exception_in_a_plug_in_names_the_plug_in_and_not_collbench(argv, plugin, tmp_path):
    site = tmp_path / "site"
    package(site, "maker", "[collbench.backends]\nopens = failing_code:Opens\nfails = failing_code:Fails\n", {"failing_code": FAILING})
    package(site, "other", "[collbench.operations]\nrelay = other_code:RELAY\n", {"other_code": FAILING})
    done = run(tmp_path, *argv, "--ranks", "2", "--sizes", "8", env=search(site))
    failed = f"collbench: plug-in {plugin} failed: LookupError: no ring of ranks"
    if "opens" in argv:  # every rank fails, and any of them may be the first
        assert (done.returncode, of_any_rank(done.stderr)) == (4, f"{failed.replace('collbench: ', 'collbench: opens does not start: ')}\n")
    else:
        assert done.returncode == 4 and "_code.py" in done.stderr
        assert done.stderr.splitlines()[-1] == f"{failed}: report the lines above to its authors"


def test_an_exception_of_collbench_beside_a_plug_in_is_a_bug_of_collbench(site):
    package(site, "maker", "[collbench.backends]\ngood = good_code:Good\n", CODE)
    try:
        backends.backend_class("good")().clock()
    except AttributeError as error:
        assert failed_plugin(error) is None
