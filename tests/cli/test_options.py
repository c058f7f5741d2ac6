"""Options become the request; COLLBENCH_* variables set the options that are not typed."""

import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collbench.cli.main import check_words
from collbench.cli.parser import Parser
from collbench.errors import UsageError
from collbench.measuring.request import Budget
from collbench.measuring.tasks.cases import check_traffic
from collbench.operations.builtin.alltoall import ALLTOALLV
from collbench.operations.builtin.barrier import BARRIER
from collbench.operations.dtypes import DTYPES
from collbench.operations.sweep import Sweep
from collbench.operations.traffic import Traffic
from collbench.results.reader import read_run
from tests.cli.command import ROOT, run, run_here
from tests.conftest import line_of_command
from tests.helpers import OF_THE_MACHINE

K, M = 1024, 1024**2
UNSET = dict.fromkeys(("COLLBENCH_SIZES", "COLLBENCH_MAX_TIME", "COLLBENCH_ITERATIONS", "COLLBENCH_WARMUP"), "")


@pytest.mark.parametrize(("command", "formats"), [
    (["report", "reports/first-run"], "table, nccl-tests, csv, bmf, jsonl"), (["allreduce"], "table, nccl-tests, csv, bmf, jsonl"),
    (["compare", "a", "b"], "table, csv, jsonl, markdown"), (["runs"], "table, csv, jsonl"), (["check"], "table, json"),
    (["peak", "allreduce"], "text, json, csv"), (["gate"], "table, json, github"),
], ids=lambda value: value[0] if isinstance(value, list) else "")  # fmt: skip
def test_an_unknown_format_has_one_sentence_and_the_list_of_the_help(command: list[str], formats: str) -> None:
    done = run_here(ROOT, *command, "--format", "xml")
    assert (done.returncode, done.stderr.strip()) == (2, f"collbench: unknown --format 'xml': choose from {formats}")
    help_text = " ".join(run_here(ROOT, command[0], "--help-all").stdout.split())
    *others, last = formats.split(", ")
    if command[0] in ("report", "allreduce", "compare"):
        assert f"{', '.join(others)} or {last}" in help_text


def test_the_defaults(request_of: Any) -> None:
    request = request_of("allreduce")
    sweep = request.sweep
    assert (sweep.sizes, sweep.step, sweep.device, sweep.mode, sweep.buffers, sweep.in_place) == (None, "x2", "auto", None, None, None)
    cases = list(sweep.cases("simulated", 2))
    assert [case.size_bytes for case in cases] == [8, 128, K, 8 * K, 64 * K, M, 8 * M, 64 * M]
    assert [case.size_bytes for case in sweep.cases("nccl", 2)][-2:] == [64 * M, 1024 * M]
    assert {(case.device, case.mode, case.buffers, case.registration, case.algorithm) for case in cases} == {
        ("cpu", "isolated", "fixed", None, None),
    }  # fmt: skip
    assert ([d.name for d in sweep.dtypes], sweep.redops, sweep.roots) == (["float32"], ("sum",), (0,))
    assert (request.backends, request.requested, request.check, request.seed) == (("mpi", "gloo"), frozenset(), 1, 0)
    assert request.budget == Budget(5.0, total_s=8.0, wall_s=15.0)
    assert (request.gpus_per_process, request.evidence, request.telemetry_hz) == (1, "on", 1.0)


def test_full_measures_every_size_without_a_total_time(request_of: Any) -> None:
    for request in (request_of("allreduce --full"), request_of("allreduce", COLLBENCH_FULL="1")):
        assert [case.size_bytes for case in request.sweep.cases("mpi", 2)] == [8 << power for power in range(24)]
        assert request.budget == Budget(5.0)


@pytest.mark.parametrize(("typed", "fast"), [
    *((typed, False) for typed in ("--sizes 8-64M", "-b 8 -e 64M", "-e 64M", "-f 2", "--max-time 5", "-n 9", "--precision 1")),
    *((typed, True) for typed in ("--dtype int8", "--backend gloo", "--in-place", "--mode batched", "--ranks 3", "-w 2", "-c 0")),
])  # fmt: skip
def test_sizes_and_durations_alone_replace_the_fast_default(request_of: Any, typed: str, fast: bool) -> None:
    request = request_of(f"allreduce {typed}")
    assert (request.sweep.sparse, request.budget.total_s) == (fast, 8.0 if fast else None)


def test_the_total_time_can_be_set_for_any_sizes_and_suites(request_of: Any) -> None:
    assert request_of("allreduce --sizes 8,1K --total-time 2").budget == Budget(5.0, total_s=2.0)
    assert request_of("barrier").budget.total_s == 8.0
    assert request_of("run quick").budget.total_s is None and request_of("run quick --total-time 7").budget.total_s == 7.0


def test_a_plan_shows_the_shared_time(tmp_path: Path) -> None:
    done = run_here(tmp_path, "allreduce", "--backend", "simulated", "--dry-run", "--format", "json", env=UNSET)
    assert [json.loads(line)["size_bytes"] for line in done.stdout.splitlines()][-1] == 64 * M
    assert "8 cases share 8 s of --total-time" in done.stderr
    full = run_here(tmp_path, "allreduce", "--backend", "simulated", "--dry-run", "--full", env=UNSET)
    assert "24 cases × 5 s of --max-time" in full.stdout


@pytest.mark.parametrize("line", [line_of_command(line) for line in ("allreduce", "p2p", "barrier", "run quick", "pairs")])
def test_wrong_data_ends_the_run_only_with_the_option(request_of: Any, line: str) -> None:
    assert [request_of(line).stop_on_wrong, request_of(f"{line} --stop-on-wrong").stop_on_wrong] == [False, True]
    assert [request_of(line, COLLBENCH_STOP_ON_WRONG=word).stop_on_wrong for word in ("1", "no")] == [True, False]


def test_the_short_forms_of_nccl_tests(request_of: Any) -> None:
    request = request_of("allreduce -b 1K -e 16K -f 4 -n 7 -w 2 -c 3 -d float64,int8 -o max,min")
    assert request.sweep.sizes == (K, 4 * K, 16 * K)
    assert ([d.name for d in request.sweep.dtypes], request.sweep.redops) == (["float64", "int8"], ("max", "min"))
    assert (request.budget.iterations, request.budget.warmup, request.check) == (7, 2, 3)
    assert request_of("broadcast -r 0,1").sweep.roots == (0, 1)
    assert request_of("allreduce -b 1K -e 4K -i 1K").sweep.sizes == (K, 2 * K, 3 * K, 4 * K)
    assert request_of("allreduce -b 4K").sweep.sizes == (4 * K,)
    assert request_of("allreduce -e 32").sweep.sizes == (8, 16, 32)
    assert (request_of("allreduce -f 4").sweep.sizes, request_of("allreduce -f 4").sweep.step) == (None, "x4")
    assert (request_of("allreduce -i 1K").sweep.sizes, request_of("allreduce -i 1K").sweep.step) == (None, "+1K")


def test_the_long_forms(request_of: Any) -> None:
    request = request_of(
        "p2p --sizes 8,1K --backend simulated --dtype bfloat16 --mode pipelined --buffers rotating --out-of-place --window 8 --iterations 4"
        " --launches 4 --device cuda --telemetry 2.5 --evidence off --warmup 0 --precision 2 --max-time 0.5 --check 0"
        " --ceiling 12.5 --seed 9 --ranks 6 --timeout 7 --allocation a --out o"
    )
    sweep, budget = request.sweep, request.budget
    assert (sweep.sizes, sweep.mode, sweep.buffers, sweep.in_place, sweep.window) == ((8, K), "pipelined", "rotating", False, 8)
    assert (budget.iterations, budget.warmup, budget.precision, budget.max_time_s) == (4, 0, 0.02, 0.5)
    assert (request.check, request.ceiling, request.seed, request.ranks, request.timeout_s) == (0, 12.5, 9, 6, 7.0)
    assert (request.allocation, request.launches, request.out, request.requested) == ("a", 4, Path("o"), {"simulated"})
    assert {operation.command for operation in sweep.operations} == {"p2p"}
    assert (sweep.device, request.telemetry_hz, request.evidence) == ("cuda", 2.5, "off")


def test_every_long_option_has_a_variable_and_an_empty_one_is_none(request_of: Any) -> None:
    request = request_of(
        "broadcast", COLLBENCH_SIZES="64", COLLBENCH_BACKEND="gloo", COLLBENCH_DTYPE="int8", COLLBENCH_ROOT="1", COLLBENCH_IN_PLACE="1",
        COLLBENCH_MAX_TIME="0.5", COLLBENCH_CHECK="0", COLLBENCH_OUT="o", COLLBENCH_RANKS="3", COLLBENCH_QUIET="no",
    )  # fmt: skip
    assert (request.sweep.sizes, request.sweep.roots, request.sweep.in_place) == ((64,), (1,), True)
    assert (request.requested, request.budget.max_time_s, request.check, request.out, request.ranks) == ({"gloo"}, 0.5, 0, Path("o"), 3)
    assert request_of("allreduce", COLLBENCH_OUT="", COLLBENCH_SIZES="", COLLBENCH_IN_PLACE="").out is None


@pytest.mark.parametrize("typed", ["--sizes 8 -n 5", "--sizes=8 -n5", "-b 8 --iterations 5", "-b 8 --iterations=5"])
def test_a_typed_option_wins_over_the_variable(typed: str, request_of: Any) -> None:
    variables = {"COLLBENCH_SIZES": "1K", "COLLBENCH_ITERATIONS": "9", "COLLBENCH_IN_PLACE": "1"}  # of the other placement, too
    request = request_of(f"allreduce {typed} --out-of-place", **variables)
    assert (request.sweep.sizes, request.budget.iterations, request.sweep.in_place) == ((8,), 5, False)


def test_options_that_only_nccl_has(request_of: Any) -> None:
    request = request_of("broadcast --backend nccl,gloo --algorithms Ring,tree,ring --protocols LL128 --registration none,symmetric -g 4")
    sweep = request.sweep
    assert (sweep.algorithms, sweep.protocols, sweep.registrations) == (("ring", "tree"), ("ll128",), ("none", "symmetric"))
    assert (request.gpus_per_process, request.backends) == (4, ("nccl", "gloo"))
    (plain,) = {(case.registration, case.algorithm, case.protocol) for case in sweep.cases("gloo", 4)}
    assert plain == (None, None, None)
    tuned = list(dict.fromkeys((case.registration, case.algorithm, case.protocol) for case in sweep.cases("nccl", 4)))
    assert tuned == [
        ("none", None, None), ("none", "ring", "ll128"), ("none", "tree", "ll128"),
        ("symmetric", None, None), ("symmetric", "ring", "ll128"), ("symmetric", "tree", "ll128"),
    ]  # fmt: skip


def test_the_defaults_of_nccl_are_those_of_nccl_tests(request_of: Any) -> None:
    cases = list(request_of("allreduce --full --backend nccl").sweep.cases("nccl", 2))
    assert (cases[0].size_bytes, cases[-1].size_bytes, len(cases)) == (8, 1024 * M, 28)
    (habit,) = {(case.device, case.mode, case.buffers, case.registration, case.algorithm, case.protocol) for case in cases}
    assert habit == ("cuda", "pipelined", "rotating", "none", None, None)


def test_the_gdr_check_has_at_least_two_launches_a_side(request_of: Any) -> None:
    assert request_of("allreduce --backend nccl --gdr-check").launches == 2
    assert request_of("allreduce --backend nccl --gdr-check --launches 5").launches == 5


def test_repeated_names_count_once(request_of: Any) -> None:
    request = request_of("allreduce --backend gloo,gloo --dtype int8,int8 --redop max,max --sizes 8,8")
    assert (request.backends, len(request.sweep.dtypes), request.sweep.redops, request.sweep.sizes) == (("gloo",), 1, ("max",), (8,))


@pytest.mark.parametrize(
    ("command", "option"), [("p2p", "--redop sum"), ("allreduce", "--root 0"), ("broadcast", "--window 2"), ("p2p", "--protocols ll")]
)
def test_a_command_has_only_the_options_of_its_operations(command: str, option: str, request_of: Any) -> None:
    with pytest.raises(UsageError, match=f"^{command} .* {option.split(maxsplit=1)[0]}: "):
        request_of(f"{command} {option}")


def parsers() -> dict[str, Parser]:
    found = {name: Parser() for name in ("report", "compare", "gate")}
    found["report"].add_argument("--history")
    found["compare"].add_argument("--history")
    found["gate"].add_argument("--baseline")
    found["gate"].add_argument("--base")
    return found


@pytest.mark.parametrize(("command", "word", "remedy"), [
    ("gate", "--histroy", "--histroy (see"), ("report", "--hi", "did you mean --history?"),
    ("report", "--histroy=3", "did you mean --history?"), ("gate", "--history", "--history: compare and report "),
    ("report", "--baseline", "--baseline: gate "), ("gate", "basel", "'basel'"), ("gate", "-x8", "-x (see"),
])  # fmt: skip
def test_the_error_has_the_similar_option_or_the_command_that_has_it(command: str, word: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_words(command, [word], parsers())
    assert remedy in str(caught.value)


# --skew and --traffic become the traffic of the cases; a barrier has no options for data.

MATRIX = "0 60 12\n8 0 0\n4 4 4\n"


@pytest.fixture
def asked(request_of: Any, tmp_path: Path) -> Any:
    """Return a function that makes the sweep of a command line in a folder with the file m."""
    (tmp_path / "m").write_text(MATRIX)
    return lambda line, **variables: request_of(line, **variables).sweep


def names(sweep: Sweep) -> set[str]:
    return {case.traffic.name for case in sweep.cases("simulated", 3) if case.traffic}


def test_skew(asked: Any) -> None:
    assert (names(asked("alltoallv")), names(asked("alltoallv --skew 1"))) == ({"even"}, {"even"})
    assert names(asked("alltoallv --skew 2.5")) == names(asked("alltoallv", COLLBENCH_SKEW="2.5")) == {"skew 2.5"}


def test_a_file_has_its_own_size_unless_sizes_are_given(asked: Any) -> None:
    own = asked("alltoallv --traffic m")
    assert (own.sizes, own.traffic.matrix[0]) == ((72,), (0.0, 60.0, 12.0))
    assert names(own) == {f"m:{own.traffic.name.partition(':')[2]}"} and len(own.traffic.name) == len("m:12345678")
    assert asked("alltoallv --traffic m --sizes 1K,2K").sizes == (1024, 2048)
    assert asked("alltoallv --traffic m -b 1K").sizes == (1024,)
    assert (asked("alltoallv --traffic m -f 4").sizes, asked("alltoallv --traffic m -f 4").step) == (None, "x4")
    assert asked("alltoallv --traffic m", COLLBENCH_SKEW="2").traffic == own.traffic, "what was typed wins"


def test_a_barrier_has_neither_sizes_nor_types_nor_places(asked: Any) -> None:
    (case,) = asked("barrier").cases("mpi", 4)
    assert (case.size_bytes, case.dtype.name, case.in_place, case.buffers) == (0, "uint8", None, "fixed")
    for option in ("--sizes 8", "-b 8", "-d int8", "--in-place", "--buffers fixed", "--redop sum", "--root 0", "--skew 2"):
        with pytest.raises(UsageError, match=r"barrier .*option"):
            asked(f"barrier {option}")


def test_all_ranks_need_the_same_file_and_exchange_nothing_if_no_traffic_is_uneven() -> None:
    asked: list[str] = []
    names = [["m:11111111"], ["m:11111111"], ["m:22222222"]]
    members = [f"rank {rank} (node{rank}, pid {rank})" for rank in range(3)]

    def refuse(reason: str) -> None:
        raise UsageError(reason)

    def world(ranks: int) -> Any:
        return SimpleNamespace(allgather=lambda mine, what: asked.append(what) or names[:ranks], members=members, refuse=refuse)

    check_traffic(Sweep((BARRIER,), (8,), (DTYPES["int8"],)), world(3))
    assert asked == []
    mine = Sweep((ALLTOALLV,), (8,), (DTYPES["int8"],), traffic=Traffic("m:11111111", matrix=((1.0,),)))
    check_traffic(mine, world(2))
    with pytest.raises(UsageError) as refused:
        check_traffic(mine, world(3))
    assert all(value in str(refused.value) for value in ("rank 2 (node2, pid 2)", "m:22222222", "m:11111111"))


# --split from the command line to the row, on virtual ranks and on real MPI and Gloo.

# collbench's variable counts; those of nccl-tests may be left in an environment.
VARIABLES = {"COLLBENCH_SPLIT": "div2", "NCCL_TESTS_SPLIT": "DIV 1", "NCCL_TESTS_SPLIT_MASK": "0x7"}


@pytest.mark.contract
def test_groups_run_at_the_same_time_and_the_row_has_each_of_them(tmp_path: Path) -> None:
    line = "broadcast --backend simulated --ranks 4 --root 1 --sizes 1M -n 20 -w 2 --out run"
    done = run(tmp_path, *shlex.split(line), env=VARIABLES)
    assert (done.returncode, "NCCL_TESTS" in done.stderr) == (0, False)
    assert "split DIV 2 · 4 ranks" in done.stdout
    assert "\ngroups: " in done.stdout
    (row,) = read_run(tmp_path / "run").rows
    assert (row.group, row.groups["count"], row.groups["ranks"], row.wrong) == ("DIV 2", 2, 2, 0)
    assert set(row.flags) - OF_THE_MACHINE == {"simulated", "few_samples"}
    assert row.busbw_bytes_per_s == min(row.groups["busbw_bytes_per_s"])
    assert row.groups["total_busbw_bytes_per_s"] == pytest.approx(2 * row.busbw_bytes_per_s, rel=0.05)  # until the last was done


@pytest.mark.long
@pytest.mark.parametrize("split", ["DIV 2", "AND 0x1"])
def test_groups_of_real_ranks(tmp_path: Path, split: str) -> None:
    line = f"allreduce --backend mpi,gloo --ranks 4 --sizes 8,64K -n 10 -w 2 --max-time 2 --out run --split '{split}'"
    done = run(tmp_path, *shlex.split(line), timeout=120)
    assert done.returncode == 0, done.stderr
    rows = read_run(tmp_path / "run").rows
    assert [(row.group, row.wrong, row.groups["count"]) for row in rows] == [(split, 0, 2)] * 4
