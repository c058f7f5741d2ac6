"""torchcomms over its Gloo: the error if it is missing, and, if it is built, correct to the last element or n/a.

No recipe installs it: tests of the real one need a build in .venv-torchcomms (see backends/torchcomms.py).
"""

from pathlib import Path
from types import SimpleNamespace

import pytest

from collbench.backends.backend import Available, Unavailable
from collbench.backends.registry import backend_class
from collbench.backends.unavailable import NotInstalled, UnknownVersion, WrongBuild
from collbench.operations.registry import operations
from collbench.plugins.libraries import torchcomms
from collbench.plugins.libraries.torchcomms import _GET, TorchCommsBackend
from tests.cli.command import one_sentence, run
from tests.conftest import ROOT, sample
from tests.contract.launch import launch
from tests.contract.test_every_case import assert_as_promised, cases_of, launched
from tests.helpers import make_case
from tests.plugins.libraries.stack import environment_of, share_of_link

long = pytest.mark.long
BUILT = {"torchcomms": "0.3.0", "torch": "2.13.0"}


def made_up_installation(monkeypatch, versions, backends=()):
    monkeypatch.setattr(torchcomms, "installed", versions.get)
    monkeypatch.setattr(torchcomms, "find_spec", lambda name: name in versions or None)
    monkeypatch.setattr(torchcomms, "entry_points", lambda group, name: [name] if name in backends else [])


def test_it_is_found_under_its_name_where_it_is_built_with_gloo(monkeypatch):
    assert backend_class("torchcomms") is TorchCommsBackend
    made_up_installation(monkeypatch, BUILT, ("fake", "gloo"))
    assert TorchCommsBackend.probe() == Available("Gloo of torchcomms 0.3.0, torch 2.13.0")


@pytest.mark.parametrize(("versions", "backends", "why"), [
    ({}, (), NotInstalled("torchcomms", _GET)),
    ({"torchcomms": "0.0.1", "torch": "2.13.0"}, (), WrongBuild("torchcomms", "0.0.1", "is an empty placeholder on PyPI", _GET)),
    ({"torchcomms": "1.2.0", "torch": "2.13.0"}, ("gloo",), UnknownVersion("torchcomms", "1.2.0", "0.x", _GET)),
    ({"torchcomms": "0.3.0"}, ("gloo",), NotInstalled("torch", _GET, "torchcomms 0.3.0")),
    (BUILT, ("nccl",), WrongBuild("torchcomms", "0.3.0", "was built without Gloo", _GET)),
])  # fmt: skip
def test_why_it_is_not_available(monkeypatch, versions, backends, why):
    made_up_installation(monkeypatch, versions, backends)
    assert TorchCommsBackend.probe() == Unavailable.because(why)


@pytest.mark.parametrize(("dtype", "reduced"), [("float32", True), ("bfloat16", True), ("uint32", False), ("float8_e5m2", False)])
def test_the_types_that_its_gloo_reduces(dtype, reduced):
    backend = TorchCommsBackend()
    assert (backend.supports(operations()["allreduce"], make_case(dtype)) is None) == reduced
    assert backend.supports(operations()["allgather"], make_case(dtype, redop=None)) is None


def test_ranks_outside_a_group_only_count_it(monkeypatch):
    """With replacements of torch and torchcomms: the arguments with which a rank makes groups."""
    actual = []
    stand_in = SimpleNamespace(
        new_comm=lambda *words, **named: actual.append((words, named["name"], dict(torchcomms.os.environ))) or "comm"
    )
    torch = SimpleNamespace(device=str, distributed=SimpleNamespace(PrefixStore=lambda name, store: (name, store)))
    backend = TorchCommsBackend()
    backend.rank, backend.ranks, backend._groups, backend._made = 2, 4, 0, []
    backend._comms, backend._torch, backend._store, backend._timeout = stand_in, torch, "store", 1
    for name in ("TORCHCOMM_RANK", "TORCHCOMM_SIZE"):
        monkeypatch.setenv(name, "")  # so that what it sets is taken back
    assert [backend.communicator(ranks) for ranks in ((0, 1), (3, 2))] == [None, "comm"]
    ((words, name, env),) = actual
    assert (words, name) == (("gloo", "cpu"), "collbench2")
    assert (env["TORCHCOMM_RANK"], env["TORCHCOMM_SIZE"]) == ("1", "2")


@long
def test_a_broken_one_is_one_sentence_and_exit_code_2(tmp_path):
    site = tmp_path / "site"
    record = site / "torchcomms-0.3.0.dist-info"
    record.mkdir(parents=True)
    (site / "torchcomms").mkdir()
    (site / "torchcomms/__init__.py").write_text("raise OSError('libtorchcomms.so: undefined symbol: stand_in')\n")
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: torchcomms\nVersion: 0.3.0\n")
    (record / "entry_points.txt").write_text("[torchcomms.backends]\ngloo = torchcomms._comms_gloo\n")
    env = {"PYTHONPATH": f"{site}:{ROOT}"}
    done = run(tmp_path, "allreduce", "--backend", "torchcomms", "--ranks", "1", "--sizes", "8", env=env)
    why = "torchcomms 0.3.0 is installed, but does not load (libtorchcomms.so: undefined symbol: stand_in): "
    assert (done.returncode, one_sentence(done)) == (2, why + torchcomms._GET)


@long
@pytest.mark.parametrize("n", [2, *sample([3], 0)])
def test_every_operation_is_right_or_not_applicable(n):
    asked, outcome = launched("torchcomms", n, environment_of("torchcomms"))
    assert outcome.code == 0, outcome.stderr
    for row, case in zip(outcome.rows, cases_of(asked, "torchcomms", n), strict=True):
        assert_as_promised(row, case, "torchcomms", n)


@long
def test_groups_side_by_side_and_what_the_rows_report_of_the_library(tmp_path: Path):
    names = ["allreduce", "broadcast", "allgather", "alltoall", "reducescatter", "gather", "scatter", "barrier"]
    asked = [{"operations": names, "sizes": [1003], "dtypes": ["float32"], "roots": [1], "split": "MOD 2"}]
    found = launch(tmp_path, "torchcomms", 4, asked, python=environment_of("torchcomms"))
    assert (found.code, {(row.na, row.wrong, row.group) for row in found.rows}) == (0, {(None, 0, "MOD 2")}), found.stderr
    actual = found.rows[0].evidence["libraries"]
    assert (actual["torchcomms"].partition(".")[0], actual["torchcomms_backend"]) == ("0", "gloo")


@long
@pytest.mark.hosts
def test_two_hosts_use_most_of_the_link_between_them_and_never_more(hosts, tmp_path):
    between = hosts(2, "1gbit")
    least = {"allreduce": 0.5, "allgather": 0.5, "broadcast": 0.5}  # seen under load: .96 to .99, .66 to .92, .97 to 1.0
    for operation in sample(sorted(least), 1):
        share = share_of_link(between, "torchcomms", operation, tmp_path / operation)
        assert least[operation] <= share <= 1.01, (operation, share)  # the shaper lets 256 kbit pass at once
