"""nccl-tests' and rccl-tests' text of every version becomes rows; missing and inconsistent parts are reported."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.plugins.importers import notes
from collbench.plugins.importers.importer import UserInput
from collbench.plugins.importers.nccl_tests import NCCL_TESTS, NCCL_TESTS_JSON
from tests.machines import captures

SAMPLES = Path(__file__).parent / "samples"
NDV4, P4DE = "ndv4-8xa100-nccl-tests", "p4de-p5-nccl-tests"
DEVICES = [f"#  Rank {rank:2d} Group  0 Pid   4711 on     node01 device {rank:2d} [0000:1{rank}:00] NVIDIA H100" for rank in range(8)]
HEAD = ["# nThread 1 nGpus 8 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0", *DEVICES]
COLUMNS = "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong"
LINE = "  8589934592    2147483648     float     sum      -1    63896  134.44  235.26      0    63959  134.30  235.03      0"
GATHERED = LINE.replace("    sum      -1", "              ").replace("2147483648", " 268435456")
BROADCAST, SMALL = "# Collective test starting: broadcast_perf", "  4096  1024  float  sum  -1  9.80"
NOTHING = UserInput()
PROGRAM = "# Collective test starting: all_reduce_perf"
TEXT = (SAMPLES / "nccl_tests.json").read_text()
_KEYS = st.sampled_from(["results", "config", "args", "env", "nccl_version", "out_of_bounds", "version"])
_FIELDS = st.sampled_from(["size", "count", "type", "redop", "root", "out_of_place", "in_place", "in_place_per_iter"])


def only(lines, given_=NOTHING):
    runs = NCCL_TESTS.read(lines, given_).runs
    assert len(runs) == 1
    return runs[0]


def peak(run):
    return round(max(row.busbw_bytes_per_s or 0 for row in run.rows) / 1e9, 1)


@pytest.mark.parametrize("operation", ["allreduce", "allgather", "reducescatter", "broadcast", "alltoall"])
def test_the_published_figures_of_eight_a100(operation):
    lines = captures.text(NDV4, f"nccl_{operation}.log").splitlines()
    run = only(lines, UserInput(file=f"nccl_{operation}.log"))
    expected = captures.expected(NDV4)["peak_busbw_GBps"][operation]
    assert NCCL_TESTS.knows(lines[:400])
    assert peak(run) == pytest.approx(expected, rel=0.001)
    assert {(row.operation, row.ranks, row.nodes, row.backend, row.mode, row.buffers) for row in run.rows} == {
        (operation, 8, 1, "nccl", "pipelined", "rotating")
    }
    assert all(row.flags == ("imported",) and row.wrong is None and row.checked == 0 for row in run.rows)
    assert list(run.hosts) == ["localhost"] * 8
    assert (run.doubts, run.statistic) == ([], "the mean over 20 iterations, averaged over the ranks")
    assert notes.NotInOutput(notes.MissingItem.VERIFICATION) in run.missing


def test_tables_without_any_head_and_separate_jobs_are_runs_of_their_own():
    runs = NCCL_TESTS.read(captures.text(P4DE, "results.log").splitlines(), UserInput(nodes=2)).runs
    assert [(peak(run), run.rows[0].ranks, run.rows[0].nodes) for run in runs] == [(78.3, 16, 2), (487.3, 16, 2), (437.9, 16, 2)]
    assert notes.NotInOutput(notes.MissingItem.DEVICES, source="the number of ranks is from busbw / algbw") in runs[0].missing
    assert runs[1].doubts == [notes.RepeatedCases(2, has_header=False)]
    gather = "  8388608  262144  float  none  -1  100.0  83.89  73.40  0"
    second_head = ["$ ./all_gather_perf -g 8", HEAD[0].replace("iters: 20", "iters: 50"), *DEVICES]
    runs = NCCL_TESTS.read([*HEAD, PROGRAM, LINE, "# Avg bus bandwidth    : 235", *second_head, gather], UserInput()).runs
    assert [(run.program, run.rows[0].operation, run.rows[0].evidence["iterations"]) for run in runs] == [
        ("all_reduce_perf", "allreduce", 20), ("all_gather_perf", "allgather", 50),
    ]  # fmt: skip


@pytest.mark.parametrize("before", ["3: ", "[1,0]<stdout>:", "node01: "])
def test_rccl_tests_is_known_behind_what_a_launcher_puts_before_its_lines_and_by_a_version_in_the_first_line(before):
    first, second, version, *others = [f"{before}{line}" for line in (SAMPLES / "rccl_tests.txt").read_text().splitlines()]
    run = only([first, second, version, *others])
    assert only([version, first, second, *others]) == run
    assert (run.tool, run.version, {row.backend for row in run.rows}) == ("rccl-tests", "develop:83d38d9", {"rccl"})


def test_ranks_that_the_bandwidths_contradict_are_refused_or_doubted():
    with pytest.raises(UsageError, match=r"line 3 .*8 ranks, not --ranks 1"):
        NCCL_TESTS.read([PROGRAM, COLUMNS, LINE], UserInput(ranks=1))
    with pytest.raises(UsageError, match=r"line 2: .*12 to 18 ranks, not --ranks 8"):
        NCCL_TESTS.read([PROGRAM, f"{SMALL} 0.43  0.80  0"], UserInput(ranks=8))
    run = only([*HEAD[:5], PROGRAM, LINE])
    assert run.rows[0].ranks == 4
    assert run.doubts == [notes.RankMismatch("busbw / algbw", 4, "allreduce", 8, 8)]
    apart = LINE.replace("235.03", "134.30")
    with pytest.raises(UsageError, match="busbw / algbw"):
        NCCL_TESTS.read([PROGRAM, apart], NOTHING)
    run = only([PROGRAM, apart], UserInput(ranks=8))
    assert (run.rows[0].ranks, run.rows[0].flags) == (8, ("imported", "ranks_doubtful"))
    with pytest.raises(UsageError, match="allows 12 to 18"):
        NCCL_TESTS.read(["mpirun -np 8 ./all_reduce_perf -g 1", PROGRAM, f"{SMALL} 0.43  0.80  0"], NOTHING)
    assert only(["mpirun -np 2 ./all_reduce_perf -g 8", PROGRAM, f"{SMALL} 0.43  0.80  0"]).rows[0].ranks == 16
    assert only([*HEAD, PROGRAM, LINE.replace("63896", "53896").replace("63959", "53959")]).doubts == [
        notes.RateMismatch("134.44", 8589934592, pytest.approx(159.38, abs=0.01), 11)
    ]


def test_ranks_fill_tables_that_allow_them_and_a_table_of_unknown_ranks_is_skipped():
    many = "  8589934592  2147483648  float  sum  -1  63896  134.44  267.98  0"
    reading = NCCL_TESTS.read([PROGRAM, LINE, COLUMNS, PROGRAM, many], UserInput(ranks=300))
    assert [run.rows[0].ranks for run in reading.runs] == [8, 300]
    assert [[each.option for each in run.contradicted] for run in reading.runs] == [["--ranks"], []]
    assert notes.NotInOutput(notes.MissingItem.DEVICES, source="the number of ranks is from --ranks") in reading.runs[1].missing
    assert {row.flags for run in reading.runs for row in run.rows} == {("imported",)}
    reading = NCCL_TESTS.read([PROGRAM, LINE, COLUMNS, PROGRAM, f"{SMALL} 0.43  0.80  0"], NOTHING)
    assert [run.rows[0].ranks for run in reading.runs] == [8]
    (skipped,) = reading.skipped
    assert skipped.line == 5 and "allows 12 to 18" in skipped.reason


@pytest.mark.parametrize(("program", "operation"), [
    ("all_reduce", "allreduce"), ("all_gather", "allgather"), ("reduce_scatter", "reducescatter"), ("broadcast", "broadcast"),
    ("reduce", "reduce"), ("alltoall", "alltoall"), ("alltoallv", "alltoallv"), ("gather", "gather"), ("scatter", "scatter"),
    ("sendrecv", "sendrecv"), ("hypercube", "hypercube"),
])  # fmt: skip
@pytest.mark.parametrize("suffix", ["", "_mpi", "_mpi_cuda12"])
def test_a_programs_name_may_have_any_suffix(program, operation, suffix):
    line = "  8388608  262144  float  none  -1  100.0  83.89  73.40  0  100.0  83.89  73.40  0"
    name = f"{program}_perf{suffix}"
    run = only([*HEAD, f"# Collective test starting: {name}", line], UserInput(file="reduce_night.log"))
    assert (run.program, run.rows[0].operation) == (name, operation)
    command = f"$ mpirun -np 8 ./build/{name} -b 8M -e 8M"
    if operation in ("allgather", "alltoall", "alltoallv", "hypercube"):  # its columns fit
        assert only([command, *HEAD, line], UserInput(file="alltoall_night.log")).rows[0].operation == operation
    else:
        with pytest.raises(UsageError, match="the operation is unknown"):
            NCCL_TESTS.read([command, *HEAD, line], UserInput(file="hypercube_night.log"))


def test_a_printed_program_that_is_unknown_is_refused_under_any_file_name():
    lines = [*HEAD, "# Collective test starting: all_shuffle_perf_mpi", GATHERED]
    with pytest.raises(UsageError, match="unknown program 'all_shuffle_perf_mpi'"):
        NCCL_TESTS.read(lines, UserInput(file="alltoall_night.log"))
    assert only(lines, UserInput(operation="alltoall")).rows[0].operation == "alltoall"
    with pytest.raises(UsageError, match=r"--operation allreduce .*allgather, alltoall, alltoallv, hypercube"):
        NCCL_TESTS.read(lines, UserInput(operation="allreduce"))
    with pytest.raises(UsageError, match="the operation is unknown"):
        NCCL_TESTS.read(["$ ./all_shuffle_perf -g 8", *HEAD, GATHERED], UserInput(file="alltoall_night.log"))


@pytest.mark.parametrize(("in_place", "operation"), [("0", "allreduce"), ("N/A", "sendrecv")])
def test_what_is_checked_in_place_distinguishes_operations_of_two_ranks(in_place, operation):
    line = f"  1048576  262144  float  sum  -1  100.0  10.49  10.49  0  100.0  10.49  10.49  {in_place}"
    assert only([*HEAD[:3], COLUMNS, line]).rows[0].operation == operation


def test_devices_and_columns_without_their_head_are_read():
    bare = [line.removeprefix("# ") for line in (*HEAD, "# Using devices", COLUMNS)]
    run = only([*bare[1:], LINE.removesuffix("0") + "2", " Out of bounds values : 2 FAILED"])
    assert (run.rows[0].ranks, list(run.hosts)) == (8, ["node01"] * 8)
    assert [row.flags for row in run.rows] == [("imported",), ("imported", "wrong_data")]
    assert run.doubts == [notes.OutOfBoundsValues(2)]
    old = LINE.replace("      0    63959", "  2e-01    63959").removesuffix("0") + "1e+00"
    assert [(row.wrong, row.checked) for row in only([*HEAD, old]).rows] == [(None, 0), (None, 0)]
    assert only([*HEAD, GATHERED], UserInput(file="nccl_AllToAll-8.log")).rows[0].operation == "alltoall"
    assert only([*HEAD, LINE], UserInput(file="nccl_alltoall.log")).rows[0].operation == "allreduce"
    cut, replay = LINE[: LINE.index("    63959")], f"{LINE[:54]}{' ' * 32}{LINE[LINE.index('    63959') :]}"
    assert [row.in_place for row in only([*HEAD, PROGRAM, cut]).rows] == [False]
    assert [row.in_place for row in only([*HEAD, PROGRAM, replay]).rows] == [True]


def test_graphs_and_what_the_log_reports_of_the_start_are_kept():
    log = [
        "+ mpirun -np 8 -x NCCL_PROTO=LL --mca pml ucx ./build/broadcast_perf_mpi -b 4K -g 1",
        "n1:100:101 [0] NCCL INFO NCCL_ALGO set by environment to Ring",
        "NCCL version 2.99.1+cuda12.9",
        BROADCAST, f"{SMALL} 0.41  0.41  0",
    ]  # fmt: skip
    run = only(log)
    assert (run.rows[0].ranks, run.facts["library"]) == (8, "2.99.1+cuda12.9")
    assert run.facts["environment"] == {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}
    assert notes.NotInOutput(notes.MissingItem.DEVICES, source="the number of ranks is from the launcher's command") in run.missing
    graph = only([HEAD[0].replace("graph: 0", "graph: 1"), *DEVICES, PROGRAM, LINE])
    blocking = only([HEAD[0], "# Blocking Enabled: wait and barrier after each inner iteration (-m) ", *DEVICES, PROGRAM, LINE])
    assert graph.rows[0].mode == "graph"
    assert blocking.statistic == "the mean over 20 iterations, waited for and met after each, averaged over the ranks"


@pytest.mark.parametrize(
    ("command", "environment"),
    [
        ("mpirun -np 8 -x NCCL_ALGO=Ring", {"NCCL_ALGO": "Ring"}),
        ("mpiexec -n 8 -genv NCCL_ALGO Ring -env NCCL_PROTO LL", {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}),
        ("mpiexec -n 8 -genv NCCL_IB_HCA =mlx5_0", {"NCCL_IB_HCA": "=mlx5_0"}),  # "=": this name exactly
        ("mpiexec -genv NCCL_ALGO=Ring -n 8", {"NCCL_ALGO": "Ring"}),
        ("srun -n 8 --export=ALL,NCCL_ALGO=Ring", {"NCCL_ALGO": "Ring"}),
        ("srun -n 8 --export ALL,NCCL_ALGO=Ring", {"NCCL_ALGO": "Ring"}),
    ],
)
def test_the_variables_that_a_launcher_sets_are_kept(command, environment):
    assert only([f"{command} ./broadcast_perf -g 1", BROADCAST, f"{SMALL} 0.41  0.41  0"]).facts["environment"] == environment


def test_spaces_after_the_backslash_do_not_end_a_command():
    assert only(["mpirun -np 2 \\  ", "  ./all_reduce_perf -g 8", PROGRAM, f"{SMALL} 0.43  0.80  0"]).rows[0].ranks == 16


def test_nccls_own_table_is_kept_without_what_it_does_not_use():
    table = [
        "n1:1:1 [0] NCCL INFO   Algorithm   |                            Ring                  |",
        "n1:1:1 [0] NCCL INFO   Protocol    |             LL |          LL128 |         Simple |",
        "n1:1:1 [0] NCCL INFO     AllReduce |     9.3/   1.2 |    18.0/   0.0 |    22.4/   2.4 |",
    ]
    used = [["AllReduce", "Ring", "LL", 9.3, 1.2], ["AllReduce", "Ring", "Simple", 22.4, 2.4]]
    assert only([*table, *HEAD, PROGRAM, LINE]).facts["nccl_tuning"] == used


@pytest.mark.parametrize(("lines", "given_", "sentence"), [
    ([PROGRAM, LINE], UserInput(operation="allgather"), "the table at line 2 has allreduce, not --operation allgather"),
    ([*HEAD, PROGRAM, LINE], UserInput(ranks=4), "the table at line 11 has 8 ranks, not --ranks 4"),
    ([*HEAD, GATHERED], NOTHING, "the operation is unknown (allgather, alltoall, alltoallv, hypercube)"),
    ([BROADCAST, f"{SMALL} 0.41  0.41  0"], NOTHING, "the number of ranks is unknown"),
    ([PROGRAM, f"{SMALL} 0.43  0.80  0"], NOTHING, "(busbw / algbw allows 12 to 18): the number of ranks is unknown"),
    ([*HEAD, COLUMNS.replace("  time", "cputime"), PROGRAM, LINE], NOTHING, "CPU times"),
])  # fmt: skip
def test_what_only_the_user_can_show_is_one_sentence(lines, given_, sentence):
    with pytest.raises(UsageError) as said:
        NCCL_TESTS.read(lines, given_)
    assert sentence in str(said.value)


def test_sizes_are_what_the_others_had_and_repeated_ones_are_left_out():
    line = "  8388608  262144  float  none  -1  73.40  100.00  100.00  0"
    run = only([*HEAD, "# Collective test starting: hypercube_perf", line])
    assert (run.rows[0].size_bytes, run.doubts) == (7 << 20, [])
    small = "  128  4  float  none  -1  10.00  0.01  0.01  0"
    run = only([*HEAD, "# Collective test starting: all_gather_perf", small, small, small.replace("128  4", "256  8")])
    assert [row.size_bytes for row in run.rows] == [128, 256]
    assert notes.SkippedLines(1, notes.SkippedReason.SIZE_REPEATED) in run.missing
    # An all-reduce has any size; an all-gather over eight ranks has multiples of eight elements.
    assert [len(run.rows) for run in NCCL_TESTS.read([*HEAD, COLUMNS, PROGRAM, LINE, LINE], NOTHING).runs] == [2, 2]
    gathered = [*HEAD, COLUMNS, PROGRAM.replace("all_reduce", "all_gather"), GATHERED, GATHERED]
    assert [len(run.rows) for run in NCCL_TESTS.read(gathered, NOTHING).runs] == [2]


@pytest.mark.parametrize("tag", ["[0]", "[1,0]<stdout>:", "(head, rank=0, pid=100) [1,0]<stdout>:"])
def test_a_tag_that_a_launcher_repeats_inside_a_line(tag):
    inner = tag.rpartition(" ")[2]
    pieces = f"{tag}{LINE[:52]}{inner}{LINE[52:81]}{inner}{LINE[81:]}"
    assert len(only([*(f"{tag}{line}" for line in (*HEAD, PROGRAM)), pieces]).rows) == 2


@pytest.mark.parametrize(("printed", "mode"), [
    ("wait and barrier after each inner iteration (-m)", "isolated"), ("wait and no barrier after each inner iteration (-m)", "isolated"),
    ("wait and barrier after each outer iteration (-n)", "pipelined"), (None, "pipelined"),
])  # fmt: skip
def test_the_mode_of_each_way_of_blocking(printed, mode):
    blocking = [] if printed is None else [f"# Blocking Enabled: {printed} "]
    assert {row.mode for row in only([HEAD[0], *blocking, *DEVICES, PROGRAM, LINE]).rows} == {mode}


@pytest.mark.parametrize(("title", "foot", "text", "wrong"), [
    (" error", "# Out of bounds values : 0 OK", "1e-07", 0), (" error", "# Out of bounds values : 3 FAILED", "1e-07", None),
    (" error", "#", "1e-07", None), ("#wrong", "#", "0", 0), ("#wrong", "#", "5", 5), ("#wrong", "#", "N/A", None),
])  # fmt: skip
def test_an_old_output_has_no_wrong_values_only_if_its_foot_reports_it(title, foot, text, wrong):
    lines = [*HEAD, COLUMNS.replace("#wrong", title), PROGRAM, LINE.replace("      0", f"  {text}"), foot]
    assert {row.wrong for row in only(lines).rows if row.na is None} == {wrong}


def test_wrong_data_that_no_column_shows_is_of_a_case_without_a_size():
    run = only([*HEAD, COLUMNS, PROGRAM, LINE, "# Out of bounds values : 3 FAILED"])
    assert [(row.size_bytes, row.count, row.wrong) for row in run.rows] == [(8 << 30, 2 << 30, 0), (8 << 30, 2 << 30, 0), (0, 0, 3)]
    assert [row.time_s is None for row in run.rows] == [False, False, True]


def test_without_validation_nothing_was_compared_whatever_the_column_shows():
    run = only([HEAD[0].replace("validation: 1", "validation: 0"), *DEVICES, COLUMNS, PROGRAM, LINE])
    assert [(row.wrong, row.checked) for row in run.rows] == [(None, 0), (None, 0)]
    assert notes.NotInOutput(notes.MissingItem.VERIFICATION) in run.missing


# The JSON of nccl-tests: the same rows as its text, with names, arguments and the variables that steer NCCL; no secrets.


def test_the_json_reports_that_each_call_was_waited_for():
    document = json.loads(TEXT)
    document["config"] |= {"blocking_collectives": "true", "graph": 0}
    document["args"] = ["all_reduce_perf", "--blocking=2"]
    (run,) = NCCL_TESTS_JSON.read(json.dumps(document).splitlines(), NOTHING).runs
    assert run.rows[0].mode == "isolated"
    assert run.statistic == "the mean over 20 iterations, waited for after each, averaged over the ranks"


@pytest.mark.parametrize(("text", "sentence"), [
    (TEXT[:900], "the program was stopped"), (json.dumps(json.loads(TEXT) | {"version": 4}), "unknown version 4"),
    (json.dumps(json.loads(TEXT) | {"results": []}), "no results"), (TEXT.replace('"time"', '"cpu_time"'), "CPU times"),
])  # fmt: skip
def test_json_that_cannot_be_read_is_one_sentence(text, sentence):
    with pytest.raises(UsageError) as said:
        NCCL_TESTS_JSON.read(text.splitlines(), UserInput())
    assert sentence in str(said.value)


_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["size", "time", "rank", "type"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(_KEYS, _VALUES, _FIELDS, _VALUES)
def test_any_object_gives_rows_or_one_sentence(key, value, inner, other):
    document = json.loads(TEXT)
    document["results"][0][inner] = other
    document[key] = value
    try:
        runs = NCCL_TESTS_JSON.read([json.dumps(document)], UserInput()).runs
    except UsageError as error:
        assert "\n" not in str(error)
        return
    assert all(row.time_s and row.time_s.p50 > 0 for run in runs for row in run.rows)
