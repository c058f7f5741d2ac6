"""`collbench run`: a suite becomes one launch; a typed option wins over the environment, and that over the suite."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collbench.cli import main
from collbench.cli.start import compare
from collbench.cli.suite import _ONE_BY_ONE, _TOGETHER
from collbench.errors import UsageError
from collbench.measuring.request import Request
from collbench.operations.suite import schema
from tests.cli.command import PROGRAM, environment, one_sentence, run, run_here

SUITE = """
schema = 1
title = "two"
[run]
max_time = 0.05
ranks = 4
check = 2
[defaults]
backends = "simulated"
skew = 2
[[sweeps]]
name = "small"
operations = ["allreduce", "broadcast"]
sizes = [8, "1K"]
modes = ["isolated", "batched"]
[[sweeps]]
name = "large"
operations = ["allreduce"]
sizes = "64K"
in_place = "both"
"""


@pytest.fixture
def asked(request_of: Any, tmp_path: Path) -> Any:
    """Return a function that makes the request of `run two.toml …` under some variables."""

    def ask(line: str = "", text: str = SUITE, **variables: str) -> Request:
        (tmp_path / "two.toml").write_text(text)
        return request_of(f"run two.toml {line}", **variables)

    return ask


def cases(request: Request, backend: str = "simulated", n: int = 4) -> list[tuple[str, int, str, bool | None]]:
    return [(case.operation, case.size_bytes, case.mode, case.in_place) for case in request.sweep.cases(backend, n)]


def test_a_sweep_is_all_combinations_of_its_lists(asked: Any) -> None:
    request = asked()
    small = [(name, size, mode, None) for mode in ("isolated", "batched") for name in ("allreduce", "broadcast") for size in (8, 1024)]
    large = [("allreduce", 65536, "isolated", placed) for placed in (False, True)]
    assert cases(request) == small + large
    assert (request.command, request.backends, request.requested) == ("run-two", ("simulated",), {"simulated"})
    assert (request.budget.max_time_s, request.ranks, request.check) == (0.05, 4, 2)


def test_a_typed_option_wins_over_the_environment_and_that_over_the_suite(asked: Any) -> None:
    assert asked(COLLBENCH_MAX_TIME="0.5").budget.max_time_s == 0.5
    request = asked("--max-time 2 --check 0", COLLBENCH_MAX_TIME="0.5")
    assert (request.budget.max_time_s, request.check, request.ranks) == (2.0, 0, 4)


@pytest.mark.parametrize(("word", "stops"), [("true", True), ("false", False)])
def test_a_suite_defines_whether_wrong_data_ends_the_run(asked: Any, word: str, stops: bool) -> None:
    text = SUITE.replace("check = 2", f"check = 2\nstop_on_wrong = {word}")
    assert asked(text=text).stop_on_wrong is stops
    assert asked("--stop-on-wrong", text=text).stop_on_wrong is True


@pytest.mark.parametrize("line", ["--sizes 2K,4K", "-b 2K -e 4K", "-b2K -e4K"])
def test_typed_sizes_are_those_of_every_sweep(line: str, asked: Any) -> None:
    assert {size for _, size, _, _ in cases(asked(line))} == {2048, 4096}


def test_a_typed_backend_is_that_of_every_sweep(asked: Any) -> None:
    request = asked("--backend gloo,mpi")
    assert (request.backends, request.requested) == (("gloo", "mpi"), {"gloo", "mpi"})
    assert (len(cases(request, "gloo")), cases(request, "simulated")) == (10, [])


def test_equal_sweeps_after_typed_options_are_measured_once(asked: Any) -> None:
    request = asked("--sizes 8 --mode isolated --out-of-place")
    assert cases(request) == [("allreduce", 8, "isolated", False), ("broadcast", 8, "isolated", False)]
    assert request.suite is not None
    assert request.suite["typed"] == {"mode": "isolated", "out_of_place": True, "sizes": "8"}


def test_a_sweep_without_backends_uses_the_default_ones(asked: Any) -> None:
    text = 'schema = 1\n[[sweeps]]\noperations = ["allreduce"]\nsizes = 8\n[[sweeps]]\noperations = ["barrier"]\nbackends = "simulated"\n'
    request = asked(text=text)
    assert (request.backends, request.requested) == (("mpi", "gloo", "simulated"), {"simulated"})
    assert [[name for name, *_ in cases(request, backend)] for backend in request.backends] == [["allreduce"], ["allreduce"], ["barrier"]]


def test_the_request_has_the_suite(asked: Any) -> None:
    suite = asked().suite
    assert suite is not None and json.loads(json.dumps(suite)) == suite
    assert (suite["name"], suite["title"], suite["run"]["ranks"], suite["files"], suite["typed"]) == ("two", "two", 4, ["two.toml"], {})
    assert suite["sweeps"][1] == {
        "place": "sweeps[2] 'large' of two.toml", "name": "large", "backends": ["simulated"], "skew": [2], "operations": ["allreduce"],
        "sizes": ["64K"], "in_place": ["both"],
    }  # fmt: skip


def test_every_key_of_a_sweep_and_of_the_run_has_its_option(asked: Any) -> None:
    keys = schema()["properties"]
    assert {*_TOGETHER, *_ONE_BY_ONE, "in_place", "operations"} == set(keys["defaults"]["properties"])
    from collbench.cli.parser import actions_of

    there = {action.dest for action in actions_of(main.all_parsers()[1]["run"])}
    assert {*_TOGETHER.values(), *_ONE_BY_ONE.values(), *keys["run"]["properties"]} <= there


def test_equal_sweeps_of_a_suite_are_rejected(asked: Any) -> None:
    text = 'schema = 1\n[[sweeps]]\noperations = "allreduce"\nsizes = 64\n[[sweeps]]\noperations = "allreduce"\nsizes = [16, 64]\n'
    with pytest.raises(UsageError, match=r"^sweeps\[2\] of two.toml and sweeps\[1\] of two.toml "):
        list(asked(text=text).sweep.cases("mpi", 2))


@pytest.mark.contract
def test_a_run_keeps_its_suite_and_every_row(tmp_path: Path) -> None:
    (tmp_path / "two.toml").write_text(SUITE)
    done = run(tmp_path, "run", "two.toml", "--out", "o", "--format", "json")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 10), done.stderr
    info = json.loads((tmp_path / "o" / "run.json").read_text())
    assert (info["operation"], info["suite"]["name"], len(info["suite"]["sweeps"])) == ("run-two", "two", 2)
    rows = [json.loads(line) for line in (tmp_path / "o" / "cells.jsonl").read_text().splitlines()]
    found = [(row["operation"], row["size_bytes"], row["mode"], row["in_place"], row["ranks"]) for row in rows]
    assert len(set(found)) == 10 and sorted(found) != found, "the order is shuffled"
    dry = run_here(tmp_path, "run", "two.toml", "--dry-run", "--resume", "o")
    assert (dry.returncode, "o has 10 more" in dry.stdout) == (0, True), dry.stdout + dry.stderr
    other = run_here(tmp_path, "run", "two.toml", "--dry-run", "--resume", "o", "--max-time", "7")
    said = one_sentence(other)
    assert "--max-time was not set and is 7" in said


def test_a_dry_run_starts_nothing_and_names_the_sweeps_of_any_file(tmp_path: Path) -> None:
    (tmp_path / "two of a kind.toml").write_text(SUITE)
    done = run_here(tmp_path, "run", "two of a kind.toml", "--dry-run", "--format", "json", "--sizes", "8")
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(case["sweep"], case["operation"], case["mode"], case["in_place"]) for case in cases] == [
        ("sweeps[1] 'small'", "allreduce", "isolated", None), ("sweeps[1] 'small'", "broadcast", "isolated", None),
        ("sweeps[1] 'small'", "allreduce", "batched", None), ("sweeps[1] 'small'", "broadcast", "batched", None),
        ("sweeps[2] 'large'", "allreduce", "isolated", True),
    ]  # fmt: skip
    assert "5 cases × 0.05 s" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_ranks_with_the_same_suite_continue_after_one_exchange() -> None:
    asked = []

    def allgather(mine: object, what: str) -> list[object]:
        asked.append((mine, what))
        return [mine, mine]

    compare(SimpleNamespace(allgather=allgather), None, "d", "x")  # type: ignore[arg-type]
    assert asked == [([None, "d", "x"], "comparing the suite")]


@pytest.mark.contract
@pytest.mark.parametrize(
    ("second", "sentence"), [(SUITE + "# more\n", "suite two "), (SUITE + "[run]\n", "suite two.toml, line 21, column 5: ")]
)
def test_under_a_launcher_every_rank_reads_the_file_of_its_host(second: str, sentence: str, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    from collbench.launch.spawn import find_mpiexec

    mpiexec = find_mpiexec(environment())
    if mpiexec is None:
        pytest.skip("no mpiexec")
    for rank, text in enumerate((SUITE, second)):
        (tmp_path / str(rank)).mkdir()
        (tmp_path / str(rank) / "two.toml").write_text(text)
    line = f"cd $PMI_RANK && exec {' '.join(PROGRAM)} run two.toml --backend gloo --sizes 8"
    done = run(tmp_path, "-n", "2", "sh", "-c", line, program=[str(mpiexec)])
    assert done.stderr.count("collbench: ") == 1 and sentence in done.stderr, done.stderr
    assert done.returncode != 0 and not list(tmp_path.glob("*/runs"))


def test_names_in_an_untrusted_suite_do_not_control_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "two.toml").write_text('schema = 1\nextends = "\\u001b[2J\\u202ex.toml"\n')
    said = one_sentence(run_here(tmp_path, "run", "two.toml"))
    assert said.startswith("suite ?[2J?x.toml, which two.toml extends, ")
    (tmp_path / "two.toml").write_text(f'{SUITE}traffic = "a\\u0000b"\n'.replace('"allreduce"', '"alltoallv"'))
    assert "file name" in one_sentence(run_here(tmp_path, "run", "two.toml"))
