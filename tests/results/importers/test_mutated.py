"""Every reader gives rows or one sentence for its sample, however that was cut or altered: never a traceback, never an impossible row."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.results.importers.importer import Reading, UserInput, lines_of
from collbench.results.importers.store import READERS, reader_for
from tests.benchmarks import mutations

SAMPLES = sorted((Path(__file__).parent / "samples").iterdir())
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
        for given in (UserInput(), UserInput(ranks=8, nodes=2, operation="allreduce", dtype="float32")):
            try:
                lines = lines_of(text)
                check(own.read(lines, given))
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


def test_every_reader_has_a_sample() -> None:
    known = {reader_for(lines_of(path.read_bytes()), None).name for path in SAMPLES}
    assert known | {"log"} == {reader.name for reader in READERS}
