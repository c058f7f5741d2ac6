"""Every reader gives rows or one sentence for its sample and for any text: never a traceback, an impossible row, or quadratic time."""

import codecs
import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.plugins.importers import command, store
from collbench.plugins.importers.importer import UserInput, lines_of
from collbench.plugins.importers.store import READERS, reader_for
from tests.conftest import ROOT
from tests.plugins.importers.examples.netpipe import NETPIPE
from tools.benchmarks import mutations

SAMPLES = sorted((Path(__file__).parent / "samples").iterdir())
BY_NAME = {reader.name: reader for reader in READERS}
DOCS = Path(__file__).parents[3] / "docs" / "reference" / "imports.md"
_CASES = 40
_WORDS = (b"nan", b"inf", b"-1", b"0", b"9" * 30, b"1e999", b"N/A", b"null", b"[", b"}", b"\xff", b"|", b":", b"\t", b"", b"\n")
TEXTS = [path for path in SAMPLES if path.suffix == ".txt" and not path.name.startswith(("param", "rccl", "perftest-several"))]
_LENGTH = 400_000  # where the time grows with the square of the length, this takes minutes
TEXT = "# OSU MPI Allreduce Latency Test v7.4\n4 1.00\n"
LINES = TEXT.splitlines()
EXAMPLES = Path(__file__).parent / "examples"
DEVELOP = ROOT / "docs/develop"


def altered(data, draw):
    """The sample cut, or with words replaced, or with lines left out, repeated or joined."""
    lines = data.split(b"\n")
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(lines))
        match draw.randrange(6):
            case 0:
                lines = lines[: at + 1]
            case 1:
                words = lines[at].split(b" ")
                words[draw.randrange(len(words))] = draw.choice(_WORDS)
                lines[at] = b" ".join(words)
            case 2:
                del lines[at]
                lines = lines or [b""]
            case 3:
                lines.insert(at, lines[draw.randrange(len(lines))])
            case 4:
                lines[at] = lines[at][: draw.randrange(len(lines[at]) + 1)]
            case _:
                lines[at] = b"[1,0]<stdout>: " + lines[at]
    return b"\n".join(lines)


def check(reading):
    for run in reading.runs:
        for row in run.rows:
            assert row.size_bytes >= 0 and 1 <= row.ranks <= 2_000_000
            assert row.na or (row.time_s is not None and row.time_s.p50 > 0)
            assert row.busbw_bytes_per_s is None or row.busbw_bytes_per_s >= 0
    assert all(skipped.reason.strip() and "\n" not in skipped.reason for skipped in reading.skipped)


def first_rows(lines, name):
    """The rows of the first format in the lines, or the sentence why they cannot be read."""
    try:
        reading = store.read_lines(lines, name, UserInput())[0][1]
    except UsageError as error:
        return str(error)
    return [row for run in reading.runs for row in run.rows]


@pytest.mark.parametrize("path", [path for path in SAMPLES if path.name != "param.txt"], ids=lambda path: path.name)
def test_a_sample_is_read_without_the_name_of_its_format_as_with_it(path):
    lines = lines_of(path.read_bytes())
    assert first_rows(lines, None) == first_rows(lines, reader_for(lines, None).name)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_an_altered_sample_gives_rows_or_one_sentence(path):
    data = path.read_bytes()
    own = reader_for(lines_of(data), None)
    for case in range(_CASES):
        draw = random.Random(f"{path.name} {case}")
        text = mutations.of_bytes(data, draw) if case % 4 == 0 else altered(data, draw)
        for user_input in (UserInput(), UserInput(ranks=8, nodes=2, operation="allreduce", dtype="float32")):
            try:
                lines = lines_of(text)
                check(own.read(lines, user_input))
            except UsageError as error:
                assert str(error).strip() and "\n" not in str(error)


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_every_reader_takes_every_sample(reader):
    for path in SAMPLES:
        lines = lines_of(path.read_bytes())
        try:
            check(reader.read(lines, UserInput(ranks=2)))
        except UsageError as error:
            assert str(error).strip()


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_lines_give_rows_or_one_sentence(path, data):
    sample = lines_of(path.read_bytes())
    reader = reader_for(sample, None)
    numbers = st.sampled_from(
        ["8", "2147483648", "0", "0 0.0", "4 nan", "8 1e999", "8 1 nan inf 3 4 5 6", "-1", "9" * 30, "²", "#", "{", "}"]
    )
    lines = data.draw(st.lists(st.sampled_from(sample) | numbers | st.text(max_size=40), max_size=30))
    reader.knows(lines)
    try:
        check(reader.read(lines, data.draw(st.sampled_from([UserInput(), UserInput(ranks=2), UserInput(ranks=8, nodes=2)]))))
    except UsageError as error:
        assert "\n" not in str(error)


PREFIXES = [
    "0: ", "[0] ", "[1,0]<stdout>:", "  [1,0]<stdout>: ", "[rank0]: ", "[rank 0] ", "node-7.cluster: ", "n1.hsn.example 0: ",  # PALS
    "2026-05-04T12:00:00.123Z ", "2026-05-04T12:00:00.123456789Z stdout F ", "[2026-05-04 12:00:00] ", "May  4 12:00:00 ",
    "Mon May  4 12:00:00 2026<stdout>:", "[pod/nccl-launcher-0/mpi] ", "[pod/a/b] 2026-05-04T12:00:00Z [1,0]<stdout>:",
    "(worker1, rank=1, pid=7, ip=192.0.2.7) ", "worker-0  | ", "> ", ">> ", "> [1,0]<stdout>:", "May  4 12:00:00 n1 mpirun[812]: ",
    "<13>May  4 12:00:00 n1 root: ", "2026-05-04T12:00:00+0000 n1 slurm.sh[7]: ", "Mon 2026-05-04 12:00:00 UTC n1 job.service[12]: ",
]  # fmt: skip


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_what_a_launcher_puts_before_each_line_changes_nothing(path, prefix):
    lines = lines_of(path.read_bytes())
    reader = reader_for(lines, None)
    tagged = lines_of("\n".join(f"{prefix}{line}" for line in lines).encode())
    assert reader_for(tagged, None) is reader
    assert rows_of(reader, tagged) == rows_of(reader, lines) != []


def rows_of(reader, lines):
    tables = reader.read(lines, UserInput(ranks=2 if reader.name == "osu" else None)).runs
    return [(run.program, row.operation, row.size_bytes, row.ranks, row.time_s, row.wrong) for run in tables for row in run.rows]


@pytest.mark.parametrize(("name", "head"), [
    ("osu", "# OSU MPI Latency Test v7.4"), ("imb", "# Benchmarking PingPong"), ("perftest", "   Send BW Test"),
    ("gloo", "  BENCHMARK RESULTS"),
])  # fmt: skip
def test_a_head_without_figures_is_no_run(name, head):
    with pytest.raises(UsageError, match="no results of"):
        BY_NAME[name].read([head], UserInput(ranks=2))


def test_every_reader_has_a_sample_and_is_in_the_docs():
    known = {reader_for(lines_of(path.read_bytes()), None).name for path in SAMPLES}
    assert known | {"log"} == {reader.name for reader in READERS} == set(_AGAIN)
    assert set(command.FORMATS.replace(" or ", ", ").split(", ")) == {reader.name for reader in READERS}
    listed = re.findall(r"^\| `([\w-]+)` \| (.+) \|$", DOCS.read_text(), re.MULTILINE)
    assert listed == [(reader.name, reader.tools) for reader in READERS]


# A log may have a line of many megabytes of repeated text: no reader takes quadratic time for it.

_AGAIN = {
    "gloo": ("Options: ", "a"), "osu": ("# Send Buffer on ", "a"), "param": ("", "collective=pt2pt src_ranks=[1, 1], "),
    "imb": ("# Group 1:", " 1"), "rccl-tests-file": ("size,type,redop,inplace,time,algbw,busbw,#wrong\n", ",1"),
    "perftest": ('"test_info" : {\n', " "), "nccl-tests": ("", " "), "nccl-tests-json": ("{", "["),
    "nccl-inspector": ('{"coll_perf":', "{"), "nvbandwidth": ("Running a.\nmemcpy CE GPU(row)\n", " 1"),
    "nvbandwidth-json": ('"nvbandwidth":{', "["), "all-reduce-bench": ("| 1KiB | 1GBps |", " "),
    "deepep": ("[tuning] Best dispatch: ", " GB/s"), "fi-pingpong": ("fi_a ", " -p"), "ucx-perftest": ("| Test: ", " a"),
    "mpigraph": ("START mpiGraph\n", "a:"), "gpcnet": ("Network Tests v1.3\n| Isolated Network Tests |\n|", " |"),
    "log": ("----- collbench: rows begin -----\n{", "["),
}  # fmt: skip
_MORE = (
    ("deepep", "", "[rank 1] Dispatch bandwidth: "), ("deepep", " EP:", " - EP:"), ("nccl-tests", "", "[1,0]<stdout>:"),
    ("nccl-tests", "mpirun ", "-x A="), ("osu", "[0]", " [0]"), ("param", "", "backend: a nw-stack: "),
    ("param", "", "Hello from Rank 1: host a, device: b, "), ("perftest", "", " a"),
    ("all-reduce-bench", "", "bandwidth of all_reduce 1GiB payload "), ("gpcnet", "", "| Isolated Network Tests "),
)  # fmt: skip


@pytest.mark.parametrize(("name", "before", "again"), [*((name, *parts) for name, parts in _AGAIN.items()), *_MORE])
def test_a_line_that_repeats_itself(name, before, again):
    reader = BY_NAME[name]
    lines = (before + again * (_LENGTH // len(again)) + "\x00").split("\n")
    reader.knows(lines)
    with pytest.raises(UsageError):
        reader.read(lines, UserInput(ranks=2, operation="allreduce"))


@pytest.mark.parametrize(("name", "line"), [
    ("param", "collective=pt2pt x src_ranks=[1 2, 3], dst_ranks=[" + "9" * 5000 + "]"), ("osu", "# [ pairs: 2 ] [ window size: ² ]"),
    ("imb", "# Group 1: " + "9" * 5000),
])  # fmt: skip
def test_numbers_that_python_does_not_take_are_none(name, line):
    lines = ["# OSU MPI Multiple Bandwidth / Message Rate Test v7.4", "#  size", line]
    with pytest.raises(UsageError):
        BY_NAME[name].read(lines, UserInput(ranks=2, operation="allreduce"))


def test_a_root_with_two_signs_is_none():
    (run,) = BY_NAME["nccl-tests"].read(["8 2 float sum --5 1.0 0.1 0.1 0"], UserInput(ranks=2, operation="allreduce")).runs
    assert [row.root for row in run.rows] == [None]


@pytest.mark.parametrize("data", [
    TEXT.encode(), TEXT.replace("\n", "\r\n").encode(), codecs.BOM_UTF8 + TEXT.encode(), TEXT.encode("utf-16"),
    codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"), f"\x1b[1;32m# OSU\x1b[0m{TEXT[5:]}\x1b[K".encode(),
], ids=["plain", "of Windows", "with a mark", "of PowerShell", "big-endian", "coloured"])  # fmt: skip
def test_the_lines_are_the_same(data):
    assert [line for line in lines_of(data) if line] == LINES


def test_what_is_no_text_is_lines_and_a_line_longer_than_any_tool_prints_is_refused():
    assert lines_of(b"\xff\xfe\x00") == ["\ufffd"]
    assert lines_of(b"") == []
    with pytest.raises(UsageError, match=r"^line 2 .*16 MiB"):
        lines_of(b"a\n" + b"x" * (17 << 20) + b"\n")


@pytest.mark.parametrize("end", ["\n", "\r", "\x0b", "\x1d", "\x85", "\u2028"])
def test_more_lines_than_a_log_has_are_refused_before_they_are_made(end):
    with pytest.raises(UsageError, match=r"4,194,304 lines"):
        lines_of(end.encode() * ((1 << 22) + 1))


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\x0b", "\x85", "\u2028"])
def test_a_line_ends_where_python_ends_it(end):
    text = f"a{end}b{end}{end}c{end}"
    assert lines_of(text.encode()) == text.splitlines() == ["a", "b", "", "c"]


def test_the_reader_is_found_by_the_output_that_no_other_one_knows_and_returns_its_rows(monkeypatch):
    lines = (EXAMPLES / "netpipe.txt").read_text(encoding="utf-8").splitlines()
    assert not [reader.name for reader in store.READERS if reader.knows(lines)]
    monkeypatch.setattr(store, "READERS", (*store.READERS, NETPIPE))
    assert reader_for(lines, None) is NETPIPE
    (run,) = NETPIPE.read(lines, UserInput(nodes=1)).runs
    first = run.rows[0]
    assert first.time_s.p50 == pytest.approx(6.46e-6)
    assert (first.operation, first.size_bytes, first.ranks, first.nodes, first.wrong) == ("p2p_latency", 8, 2, 1, None)
    assert first.busbw_bytes_per_s == pytest.approx(8 / 6.46e-6)
    assert [row.evidence["line"] for row in run.rows] == list(range(4, len(lines) + 1))


def test_the_pages_include_files_that_exist():
    included = [line for page in DEVELOP.glob("*.md") for line in re.findall(r'^(?:# )?--8<-- "([^"]+)"$', page.read_text(), re.MULTILINE)]
    assert len(included) >= 5
    assert not [name for name in included if not (ROOT / name).is_file()]
