"""collbench import: files or stdin become run folders that report and compare read; bad input is one sentence."""

import io
import json
from pathlib import Path

import pytest

from collbench.analysis.compare import compare
from collbench.analysis.launches import together
from collbench.analysis.outcome import Doubt, Outcome
from collbench.cli.parser import Parser
from collbench.errors import UsageError
from collbench.plugins.importers import command
from collbench.plugins.importers.importer import UserInput, lines_of
from collbench.plugins.importers.rows import ranks_and_nodes
from collbench.plugins.importers.store import READERS
from collbench.report.answer import Verification, answers
from collbench.report.runs import report_run
from collbench.results.reader import read_run
from tests.helpers import said
from tests.machines import captures

HEAD = "# nThread 1 nGpus 2 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0\n"
RANKS = "".join(f"#  Rank {rank:2d} Group  0 Pid   4711 on  {{host}} device {rank:2d} [0000:1{rank}:00] NVIDIA A100\n" for rank in range(2))
LINE = "  8589934592    2147483648     float     sum      -1  {time}  {rate}  {rate}      0  N/A  N/A  N/A  N/A\n"
BROKEN = "nvbandwidth Version: v0.8\nRunning device_to_host_memcpy_ce.\n Invalid value when checking the pattern at 0x1\n"
UCX = "$ ucx_perftest n2 -t tag_lat -s 8\nFinal:  1000  1.000  1.000  1.000  7.63  7.63  1000000  1000000\n"


def call(*argv):
    parser = Parser(prog="collbench")
    command.add_import(parser.add_subparsers(parser_class=Parser))
    arguments = parser.parse_args(["import", *argv])
    return arguments.call(arguments, ["import", *argv])


def log(path, name="all_reduce", host="node01", times=(("63896", "134.44"),)):
    tables = [
        HEAD + RANKS.format(host=host) + LINE.format(time=time, rate=rate) + f"# Collective test concluded: {name}_perf\n"
        for time, rate in times
    ]
    path.write_text("NCCL version 2.29.7\n" + "".join(tables))
    return str(path)


def test_six_logs_are_one_run(tmp_path):
    logs = sorted(map(str, captures.folder("ndv4-8xa100-nccl-tests").glob("*.log")))
    call(*logs, "--out", str(tmp_path / "ndv4"), "--ceiling", "300")
    run = read_run(tmp_path / "ndv4")
    assert len(run.rows) == 84
    assert len(run.info["imported"]["files"]) == 6
    assert {row.operation for row in run.rows} == {"allreduce", "allgather", "alltoall", "broadcast", "reduce", "reducescatter"}


@pytest.mark.parametrize("text", [BROKEN, "{ok}{wrong}"])
def test_wrong_data_is_in_the_first_line(text, tmp_path, capsys):
    ok = HEAD + RANKS.format(host="n1") + LINE.format(time="63896", rate="134.44") + "# Collective test concluded: all_reduce_perf\n"
    wrong = ok.replace("     0  N/A", "     7  N/A").replace("NVIDIA A100", "NVIDIA H100")
    (tmp_path / "a.log").write_text(text.format(ok=ok, wrong=wrong))
    call(str(tmp_path / "a.log"), "--out", str(tmp_path / "a"))
    assert capsys.readouterr().out.splitlines()[0] == Verification(2, 2, 1).render()


def test_wrong_data_that_ended_a_case_is_in_the_answer_and_the_tool_is_what_did_not_verify(tmp_path):
    for name, text in (("broken", BROKEN), ("ucx", UCX)):
        (tmp_path / f"{name}.log").write_text(text)
        call(str(tmp_path / f"{name}.log"), "--out", str(tmp_path / name))
    (broken,), (unverified,) = (answers(read_run(tmp_path / name).rows) for name in ("broken", "ucx"))
    assert (broken.verification, broken.rate, broken.latency) == (Verification(1, 1, 1, imported=True), None, None)
    assert broken.missing and Verification(1, 1, 1).render() in broken.result()
    assert unverified.verification == Verification(1, 0, imported=True)


def test_copies_of_a_file_and_runs_of_collbench_are_rejected(tmp_path):
    copies = [log(tmp_path / "a.log"), log(tmp_path / "b.log")]
    with pytest.raises(UsageError, match=r"^a\.log and b\.log "):
        call(*copies, "--out", str(tmp_path / "out"), "--allocation", "night")
    call(log(tmp_path / "a.log"), "--out", str(tmp_path / "a"))
    for name in ("", "run.json", "cells.jsonl"):
        with pytest.raises(UsageError, match="`collbench report`"):
            call(str(tmp_path / "a" / name), "--out", str(tmp_path / "b"))
    assert not (tmp_path / "b").exists()


def test_a_note_about_several_launches_is_printed_once_and_many_tables_are_one_line(tmp_path, capsys):
    launches = log(tmp_path / "a.log", times=(("63896", "134.44"), ("63900", "134.43")))
    call(launches, "--out", str(tmp_path / "out"), "--allocation", "night")
    said = capsys.readouterr().err.splitlines()
    assert len(said) == len(set(said)) and sum("missing" in line for line in said) == 1
    call(log(tmp_path / "b.log", times=(("63896", "134.44"),) * 30), "--out", str(tmp_path / "many"))
    said = capsys.readouterr()
    assert said.out == f"{tmp_path / 'many' / 'launch-1'} … launch-30: 30 rows\n"
    assert " 30 times" in said.err and len(said.err.splitlines()) == 3


def test_control_characters_in_names_are_not_printed(tmp_path, capsys):
    name = "<script>\u202e=cmd|.log"
    call(log(tmp_path / name, host="\u202e<b>=1+1"), "--out", str(tmp_path / "a"))
    report_run([tmp_path / "a"], None, "table", io.StringIO())
    said = capsys.readouterr()
    assert "\u202e" not in said.out + said.err
    assert read_run(tmp_path / "a").info["hosts"] == ["?<b>=1+1"]


def test_tables_of_the_same_cases_are_separate_runs_unless_they_are_of_one_allocation(tmp_path, capsys):
    both = log(tmp_path / "a.log", times=(("63896", "134.44"), ("64896", "132.37")))
    call(both, "--out", str(tmp_path / "apart"))
    assert "--allocation" in capsys.readouterr().err
    call(both, "--out", str(tmp_path / "together"), "--allocation", "job 7")
    apart, joined = ([read_run(tmp_path / name / f"launch-{number}") for number in (1, 2)] for name in ("apart", "together"))
    assert (len(together(apart)[0]), len(together(joined)[0])) == (2, 1)


def test_imported_runs_are_reported_and_compared_without_an_interval(tmp_path):
    for name, time, rate in (("a", "63896", "134.44"), ("b", "70000", "122.71")):
        call(log(tmp_path / f"{name}.log", times=((time, rate),)), "--out", str(tmp_path / name), "--ceiling", "150")
    printed = io.StringIO()
    report_run([tmp_path / "a"], None, "table", printed)
    assert "134 of 150 GB/s (90 %)" in printed.getvalue()
    assert "\nflags: imported 1" in printed.getvalue()
    case = compare(tmp_path / "a", tmp_path / "b").cases[0]
    assert (case.outcome, case.doubt, round(case.time.value, 3)) == (Outcome.INCONCLUSIVE, Doubt.ONE_RUN_EACH, 1.096)


def test_stdin_is_a_file_without_a_name(tmp_path, monkeypatch):
    log(tmp_path / "a.log")
    with (tmp_path / "a.log").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        call("-", "--out", str(tmp_path / "a"))
    assert read_run(tmp_path / "a").info["imported"]["files"][0]["name"] == "stdin"


def test_given_machines_are_kept_and_limit_the_rows(tmp_path):
    from tests.cli.test_peak import GPU, XML

    (tmp_path / "topo.xml").write_text(XML.format(gpus="".join(GPU.format(bus=bus, index=i) for i, bus in enumerate(("10", "11")))))
    call(log(tmp_path / "a.log"), "--out", str(tmp_path / "a"), "--from", str(tmp_path / "topo.xml"))
    row = read_run(tmp_path / "a").rows[0]
    assert row.ceiling.bytes_per_s == 240e9  # 12 NVLinks of 25 GB/s, at the rate of NCCL's constants
    assert row.percent_of_ceiling == pytest.approx(56.0, abs=0.1)
    assert len(json.loads((tmp_path / "a" / "topology.json").read_text())["machines"]) == 1


@pytest.mark.parametrize(("argv", "value"), [
    (["a.log", "--operation", "sum"], "--operation 'sum'"), (["a.log", "--dtype", "float3"], "dtype 'float3'"),
    (["a.log", "--ranks", "4"], "--ranks 4"), (["a.log", "--ceiling", "none"], "--ceiling 'none'"),
])  # fmt: skip
def test_bad_input_is_one_sentence_and_writes_nothing(argv, value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log(tmp_path / "a.log")
    with pytest.raises(UsageError) as said:
        call(*argv, "--out", "out")
    assert value in str(said.value)
    assert not (tmp_path / "out").exists()


def table(algbw, busbw):
    return f"# Collective test starting: all_reduce_perf_mpi\n  1073741824  268435456  float  sum  -1  5000.00  {algbw}  {busbw}  0\n"


def test_an_unreadable_table_is_skipped_with_a_note_rejected_with_strict_and_read_with_given_ranks(tmp_path, capsys):
    (tmp_path / "two.log").write_text(table("214.75", "375.81") + "# Out of bounds values : 0 OK\n" + table("1.05", "2.09"))
    assert call(str(tmp_path / "two.log"), "--out", str(tmp_path / "a")) == 0
    run = read_run(tmp_path / "a")
    assert [row.ranks for row in run.rows] == [8]
    (skipped,) = run.info["imported"]["skipped"]
    assert (skipped["file"], skipped["line"]) == ("two.log", 5) and "--ranks" in skipped["reason"]
    printed = capsys.readouterr().err
    assert "two.log" in printed and skipped["reason"] in printed
    assert said(lambda: call(str(tmp_path / "two.log"), "--out", str(tmp_path / "b"), "--strict")) == (
        "two.log cannot be imported: the table at line 5 (busbw / algbw allows 85 or more): the number of ranks is unknown: use "
        "--ranks N (with --strict no table is skipped; 1 cannot be read)"
    )
    assert not (tmp_path / "b").exists()
    assert call(str(tmp_path / "two.log"), "--out", str(tmp_path / "c"), "--ranks", "300") == 0
    printed = capsys.readouterr().err
    assert "--ranks 300 " in printed and "two.log" in printed and "8 ranks" in printed
    assert sorted(row.ranks for row in read_run(tmp_path / "c").rows) == [8, 300]


def test_the_differences_of_two_logs_are_the_library_and_its_settings(tmp_path):
    from collbench.analysis.differences import differences

    for name, version, protocol in (("a", "2.99.1", "LL"), ("b", "2.99.2", "Simple")):
        before = f"NCCL version {version}+cuda12.9\nn1:1:2 [0] NCCL INFO NCCL_PROTO set by environment to {protocol}\n"
        (tmp_path / f"{name}.log").write_text(before + table("214.75", "375.81"))
        call(str(tmp_path / f"{name}.log"), "--out", str(tmp_path / name))
    runs = [read_run(tmp_path / name) for name in ("a", "b")]
    assert [(each.kind, each.what, each.a, each.b) for each in differences(*runs)] == [
        ("software", "nccl nccl", "2.99.1+cuda12.9", "2.99.2+cuda12.9"), ("environment", "NCCL_PROTO", "LL", "Simple"),
    ]  # fmt: skip


def test_tables_of_one_log_with_other_settings_are_runs_of_their_own(tmp_path):
    start = f"mpirun -np 8 -x NCCL_PROTO={{}} ./all_reduce_perf_mpi -g 1\n{table('214.75', '375.81')}"
    (tmp_path / "a.log").write_text(start.format("LL") + start.format("Simple"))
    call(str(tmp_path / "a.log"), "--out", str(tmp_path / "a"))
    actual = [read_run(tmp_path / "a" / f"launch-{number}").info["environment"]["NCCL_PROTO"] for number in (1, 2)]
    assert actual == ["LL", "Simple"]


def test_single_times_of_nccl_tests_become_samples_with_an_interval_and_per_rank_data(tmp_path):
    document = json.loads((Path(__file__).parent / "samples" / "nccl_tests.json").read_text())
    first, second = document["results"]
    skipped, series = 2, [[100.0 + (7 * i + 3 * process) % 10 for i in range(20)] for process in range(2)]
    for place in ("out_of_place", "in_place"):
        summary = {"skipped_iterations": skipped, "min_us": 1.0, "max_us": 2.0, "p95_us": 2.0, "p99_us": 2.0, "cv_pct": 1.0}
        times = [max(pair) for pair in zip(*series, strict=True)]
        first[f"{place}_per_iter"] = {**summary, "times_us": times, "per_process_max_times_us": series}
    second["out_of_place"], second["in_place"] = None, None
    (tmp_path / "a.json").write_text(json.dumps(document))
    call(str(tmp_path / "a.json"), "--out", str(tmp_path / "a"))
    run = read_run(tmp_path / "a")
    row, of_unknown_case = run.rows
    assert (of_unknown_case.wrong, of_unknown_case.time_s) == (1, None)
    expected = [max(pair) / 1e6 for pair in zip(*series, strict=True)][skipped:]
    assert list(run.array(row, "max_s")) == pytest.approx(expected)
    assert run.array(row, "all_s").shape == (2, 18)
    assert row.time_s.ci_low <= row.time_s.p50 <= row.time_s.ci_high
    assert (row.n, row.slowest_ranks["count"]) == (18, 2) and "median" in row.evidence["statistic"]
    assert run.info["imported"]["missing"] == []


def _read(name, text, ranks=None, operation=None):
    reader = next(each for each in READERS if each.name == name)
    return lambda: reader.read(text.splitlines(), UserInput(ranks=ranks, operation=operation)).runs


WORDS = {
    "compressed": (lambda: lines_of(b"\x1f\x8b"), "the file is compressed: unpack it first (gunzip)"),
    "too many nodes": (lambda: ranks_and_nodes(UserInput(nodes=4), 2, None, "the table at line 5"),
        "the table at line 5: 2 ranks cannot be on 4 nodes; check --ranks and --nodes"),
    "nccl-tests: output of collbench": (_read("nccl-tests", "# collbench version 0.1\n"),
        "line 1 is output of collbench: use `collbench report` with the run folder, which has more data"),
    "nccl-tests: invalid JSON": (_read("nccl-tests-json", "{"),
        "the file is not JSON (JSONDecodeError): the program was stopped while it wrote the file; import its text output instead"),
    "nccl-tests: JSON of another version": (_read("nccl-tests-json", '{"version": 9}'),
        "unknown version 9 of nccl-tests' JSON: versions up to 3 are supported"),
    "nvbandwidth: no figure": (_read("nvbandwidth", "x\n"), "no test case found: use the output of nvbandwidth from its title on"),
    "mpigraph: no start": (_read("mpigraph", "x\n"), "no matrix below a line 'START mpiGraph' found: use the whole output"),
    "gpcnet: no table": (_read("gpcnet", "x\n"),
        "no table with figures found: GPCNeT was stopped before its first test, or rejected the number of nodes"),
    "perftest: ranks": (_read("perftest", "x\n", ranks=4), "--ranks 4 is not valid for perftest, which has 2 ranks: omit --ranks"),
    "osu: no results": (_read("osu", "x\n"),
        "no results of OSU's tests found: use the output from its title on, with the lines of figures"),
    "deepep: no results": (_read("deepep", "x\n"), "no line has a rate and a time: use the output of a newer version of the tests"),
    "log: no rows": (_read("log", "----- collbench: rows begin -----\n"),
        "no rows between the marks: use the whole log of rank 0's pod, of a command that measures collectives"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "text"), WORDS.values(), ids=WORDS)
def test_the_words_of_a_message(call, text):
    assert said(call) == text
