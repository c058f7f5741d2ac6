"""The configuration file: precedence, errors with their place, and what run.json stores."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collbench.cli import start
from collbench.errors import UsageError
from collbench.launch.info import LaunchInfo
from collbench.measuring.request import Request
from tests.cli.command import one_sentence, run, run_here
from tests.conftest import needs_plugin

SUITE = "schema = 1\n[run]\nmax_time = 3\n[[sweeps]]\noperations = 'allreduce'\nsizes = 64\n"


@pytest.fixture
def asked(request_of: Any, tmp_path: Path) -> Any:
    """Return a function that makes the request of a command line with a configuration file."""

    def ask(line: str, text: str, **variables: str) -> Request:
        (tmp_path / "config.toml").write_text(text, encoding="utf-8")
        return request_of(line, COLLBENCH_CONFIG="config.toml", **variables)

    return ask


def test_the_file_has_the_lowest_precedence(asked: Any) -> None:
    text = "max-time = '2m'\ncheck = 0\n[allreduce]\nsizes = '8,1K'\nmax_time = 7\n"
    assert asked("allgather", text).budget.max_time_s == 120
    assert asked("allreduce", text).budget.max_time_s == 7
    assert (asked("allreduce", text).sweep.sizes, asked("allreduce", text).check) == ((8, 1024), 0)
    assert asked("allreduce", text, COLLBENCH_MAX_TIME="5").budget.max_time_s == 5
    assert asked("allreduce --max-time 4", text, COLLBENCH_MAX_TIME="5").budget.max_time_s == 4
    assert asked("allreduce --no-config", text).budget.max_time_s == 5
    assert asked("allreduce", text, COLLBENCH_NO_CONFIG="1").budget.max_time_s == 5
    assert asked("allreduce -b 16 -e 32", text).sweep.sizes == (16, 32)
    assert asked("allreduce --out-of-place", "in-place = true").sweep.in_place is False


def test_a_suite_takes_precedence_over_the_file(asked: Any) -> None:
    Path("suite.toml").write_text(SUITE, encoding="utf-8")
    request = asked("run suite.toml", "max-time = 9\ncheck = 2\nsizes = '8'\n")
    assert (request.budget.max_time_s, request.check, [sweep.sizes for sweep in request.sweep.each]) == (3, 2, [(64,)])
    assert request.configuration == {"file": "config.toml", "values": {"check": "2"}}


def test_values_of_each_type(asked: Any) -> None:
    request = asked("allreduce", "backend = ['mpi', 'gloo']\nredop = 'max'\nin_place = true\nquiet = false\nprecision = 2.5\nranks = 4\n")
    assert (request.backends, request.sweep.redops, request.sweep.in_place) == (("mpi", "gloo"), ("max",), True)
    assert (request.budget.precision, request.ranks) == (0.025, 4)


def test_the_request_has_the_values_in_use(asked: Any) -> None:
    text = "max-time = 2\ncheck = 0\n"
    assert asked("allreduce --check 1", text).configuration == {"file": "config.toml", "values": {"max-time": "2"}}
    assert asked("allreduce --check 1 --max-time 1", text).configuration is None
    assert asked("allreduce", "verdict = 'verdict.json'\n").configuration is None


@needs_plugin("hunt")
@needs_plugin("training")
def test_the_requests_of_plug_ins_have_the_values_in_use(asked: Any) -> None:
    text = "max-time = 2\ncheck = 0\n"
    assert asked("pairs", text).configuration == asked("workload data-parallel", text).configuration


@pytest.mark.parametrize(("text", "place", "wrong"), [
    ("\nmax-tmie = 3", "line 2, max-tmie", "max-time"), ("max-time = 'x'", "line 1, max-time", "'x'"),
    ("sizes = '8'\n[allreduce]\n sizes = '1Q'", "line 3, sizes", "'1Q'"),
    ("[allred]\nsizes = 8", "", "[allred]"), ("[allreduce]\nroot = 3", "line 2, root", "--root"),
    ("quiet = 3", "line 1, quiet", "true or false"), ("ranks = true", "line 1, ranks", "number"),
    ("ranks = [[1]]", "line 1, ranks", "number"), ("allocation = ''", "line 1, allocation", "empty"),
    ("backend = 'nope'", "line 1, backend", "'nope'"), ("dtype = 'float7'", "line 1, dtype", "'float7'"),
    ("color = 'blue'", "line 1, color", "'blue'"), ("resume = 'x'", "line 1, resume", "resume"),
    ("nthreads = 1", "line 1, nthreads", "nthreads"), ("in-place = true\nout-of-place = true", "", "--in-place"), ("a = = 3", "", "line 1"),
])  # fmt: skip
def test_what_is_not_valid_is_rejected_with_its_place(text: str, place: str, wrong: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(text, encoding="utf-8")
    sentence = one_sentence(run_here(tmp_path, "allreduce", env={"COLLBENCH_CONFIG": "c.toml"}))
    assert sentence.startswith(f"c.toml, {place}: " if place else "c.toml: ")
    assert wrong in sentence


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"x = 1\n\xff")
    for name in ("missing", "."):
        assert one_sentence(run_here(tmp_path, "allreduce", env={"COLLBENCH_CONFIG": name})).startswith(f"{name}: ")
    assert one_sentence(run_here(tmp_path, "allreduce", env={"COLLBENCH_CONFIG": "binary"})).startswith("binary, line 2: ")


@pytest.mark.parametrize("variable", ["XDG_CONFIG_HOME", "HOME"])
def test_the_default_place(variable: str, tmp_path: Path) -> None:
    folder = tmp_path / ("" if variable == "XDG_CONFIG_HOME" else ".config") / "collbench"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("oops = 1", encoding="utf-8")
    env = {"COLLBENCH_CONFIG": "", "XDG_CONFIG_HOME": "", variable: str(tmp_path)}
    assert "config.toml, line 1, oops" in one_sentence(run_here(tmp_path, "explain", env=env))
    assert run_here(tmp_path, "explain", "--no-config", env=env).returncode == 0
    assert run_here(tmp_path, "--version", env=env).returncode == 0


@pytest.mark.contract
def test_run_json_has_the_values_and_the_command_line_does_not(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("backend = 'simulated'\nsizes = 8\n", encoding="utf-8")
    done = run(tmp_path, "allreduce", "--out", "r", env={"COLLBENCH_CONFIG": "c.toml"})
    assert done.returncode == 0, done.stderr
    info = json.loads((tmp_path / "r/run.json").read_text(encoding="utf-8"))
    assert info["configuration"] == {"file": "c.toml", "values": {"backend": "simulated", "sizes": "8"}}
    assert not {"--backend", "--sizes"} & set(info["command"])


def ranks(launcher: str, other: object) -> Any:
    """Return two ranks on two hosts, of which the second has another file."""
    members = [SimpleNamespace(host="n1"), SimpleNamespace(host="n2")]
    info = LaunchInfo(launcher, 0, 2, 0, 1, "", "")
    return SimpleNamespace(info=info, members=members, allgather=lambda value, what: [value, other])


def test_ranks_with_different_files_are_rejected(asked: Any) -> None:
    request = asked("allreduce", "check = 0")
    start.same_configuration(request, ranks("srun", {"check": "0"}))
    start.same_configuration(request, ranks("local", {}))
    for other in ({}, {"check": "1"}):
        with pytest.raises(UsageError, match=r"n1.*n2"):
            start.same_configuration(request, ranks("srun", other))
