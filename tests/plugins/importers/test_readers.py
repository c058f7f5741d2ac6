"""Every reader gives rows or one sentence for its sample and for any text: never a traceback, an impossible row, or quadratic time."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.plugins.importers.importer import Importer, Reading, UserInput, lines_of
from collbench.plugins.importers.store import READERS, reader_for
from tools.benchmarks import mutations

SAMPLES = sorted((Path(__file__).parent / "samples").iterdir())
BY_NAME = {reader.name: reader for reader in READERS}
DOCS = Path(__file__).parents[3] / "docs" / "reference" / "imports.md"
_CASES = 40
_WORDS = (b"nan", b"inf", b"-1", b"0", b"9" * 30, b"1e999", b"N/A", b"null", b"[", b"}", b"\xff", b"|", b":", b"\t", b"", b"\n")


def altered(data: bytes, draw: random.Random) -> bytes:
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


def check(reading: Reading) -> None:
    for run in reading.runs:
        for row in run.rows:
            assert row.size_bytes >= 0 and 1 <= row.ranks <= 2_000_000
            assert row.na or (row.time_s is not None and row.time_s.p50 > 0)
            assert row.busbw_bytes_per_s is None or row.busbw_bytes_per_s >= 0
    assert all(skipped.reason.strip() and "\n" not in skipped.reason for skipped in reading.skipped)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_an_altered_sample_gives_rows_or_one_sentence(path: Path) -> None:
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
def test_every_reader_takes_every_sample(reader: object) -> None:
    for path in SAMPLES:
        lines = lines_of(path.read_bytes())
        try:
            check(reader.read(lines, UserInput(ranks=2)))  # type: ignore[attr-defined]
        except UsageError as error:
            assert str(error).strip()


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_lines_give_rows_or_one_sentence(path: Path, data: st.DataObject) -> None:
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
TEXTS = [path for path in SAMPLES if path.suffix == ".txt" and not path.name.startswith(("param", "rccl", "perftest-several"))]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_what_a_launcher_puts_before_each_line_changes_nothing(path: Path, prefix: str) -> None:
    lines = lines_of(path.read_bytes())
    reader = reader_for(lines, None)
    tagged = lines_of("\n".join(f"{prefix}{line}" for line in lines).encode())
    assert reader_for(tagged, None) is reader
    assert rows_of(reader, tagged) == rows_of(reader, lines) != []


def rows_of(reader: Importer, lines: list[str]) -> list[tuple[object, ...]]:
    tables = reader.read(lines, UserInput(ranks=2 if reader.name == "osu" else None)).runs
    return [(run.program, row.operation, row.size_bytes, row.ranks, row.time_s, row.wrong) for run in tables for row in run.rows]


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("osu", "# OSU MPI Latency Test v7.4"), ("imb", "# Benchmarking PingPong"), ("perftest", "   Send BW Test"),
        ("gloo", "  BENCHMARK RESULTS"),
    ],
)  # fmt: skip
def test_a_head_without_figures_is_no_run(name: str, head: str) -> None:
    with pytest.raises(UsageError, match="no results of"):
        BY_NAME[name].read([head], UserInput(ranks=2))


def test_every_reader_has_a_sample_and_is_in_the_docs() -> None:
    known = {reader_for(lines_of(path.read_bytes()), None).name for path in SAMPLES}
    assert known | {"log"} == {reader.name for reader in READERS} == set(_AGAIN)
    listed = re.findall(r"^\| `([\w-]+)` \| (.+) \|$", DOCS.read_text(), re.MULTILINE)
    assert listed == [(reader.name, reader.tools) for reader in READERS]


# A log may have a line of many megabytes of repeated text: no reader takes quadratic time for it.

_LENGTH = 400_000  # where the time grows with the square of the length, this takes minutes
_AGAIN = {
    "gloo": ("Options: ", "a"),
    "osu": ("# Send Buffer on ", "a"),
    "param": ("", "collective=pt2pt src_ranks=[1, 1], "),
    "imb": ("# Group 1:", " 1"),
    "rccl-tests-file": ("size,type,redop,inplace,time,algbw,busbw,#wrong\n", ",1"),
    "perftest": ('"test_info" : {\n', " "),
    "nccl-tests": ("", " "),
    "nccl-tests-json": ("{", "["),
    "nccl-inspector": ('{"coll_perf":', "{"),
    "nvbandwidth": ("Running a.\nmemcpy CE GPU(row)\n", " 1"),
    "nvbandwidth-json": ('"nvbandwidth":{', "["),
    "all-reduce-bench": ("| 1KiB | 1GBps |", " "),
    "deepep": ("[tuning] Best dispatch: ", " GB/s"),
    "fi-pingpong": ("fi_a ", " -p"),
    "ucx-perftest": ("| Test: ", " a"),
    "mpigraph": ("START mpiGraph\n", "a:"),
    "gpcnet": ("Network Tests v1.3\n| Isolated Network Tests |\n|", " |"),
    "log": ("----- collbench: rows begin -----\n{", "["),
}
_MORE = (
    ("deepep", "", "[rank 1] Dispatch bandwidth: "),
    ("deepep", " EP:", " - EP:"),
    ("nccl-tests", "", "[1,0]<stdout>:"),
    ("nccl-tests", "mpirun ", "-x A="),
    ("osu", "[0]", " [0]"),
    ("param", "", "backend: a nw-stack: "),
    ("param", "", "Hello from Rank 1: host a, device: b, "),
    ("perftest", "", " a"),
    ("all-reduce-bench", "", "bandwidth of all_reduce 1GiB payload "),
    ("gpcnet", "", "| Isolated Network Tests "),
)


@pytest.mark.parametrize(("name", "before", "again"), [*((name, *parts) for name, parts in _AGAIN.items()), *_MORE])
def test_a_line_that_repeats_itself(name: str, before: str, again: str) -> None:
    reader = BY_NAME[name]
    lines = (before + again * (_LENGTH // len(again)) + "\x00").split("\n")
    reader.knows(lines)
    with pytest.raises(UsageError):
        reader.read(lines, UserInput(ranks=2, operation="allreduce"))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("param", "collective=pt2pt x src_ranks=[1 2, 3], dst_ranks=[" + "9" * 5000 + "]"),
        ("osu", "# [ pairs: 2 ] [ window size: ² ]"),
        ("imb", "# Group 1: " + "9" * 5000),
    ],
)
def test_numbers_that_python_does_not_take_are_none(name: str, line: str) -> None:
    with pytest.raises(UsageError):
        BY_NAME[name].read(
            ["# OSU MPI Multiple Bandwidth / Message Rate Test v7.4", "#  size", line], UserInput(ranks=2, operation="allreduce")
        )


def test_a_root_with_two_signs_is_none() -> None:
    (run,) = BY_NAME["nccl-tests"].read(["8 2 float sum --5 1.0 0.1 0.1 0"], UserInput(ranks=2, operation="allreduce")).runs
    assert [row.root for row in run.rows] == [None]
