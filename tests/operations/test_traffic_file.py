"""Traffic files: squares of bytes, or one number per rank, with commas or spaces; other contents are rejected in one sentence."""

import hashlib
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.operations import traffic
from collbench.operations.traffic import read_traffic

LIKE = "write one row per sending rank and one number of bytes per receiving rank, separated by commas or spaces; or one number per rank"


def read(folder, text, name="m.csv"):
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_traffic(folder / name)


@pytest.mark.parametrize("text", [
    "0,5\n7,1\n",
    "0 5\n7 1", "0\t5\r\n7\t1\r\n", "# bytes, by rank\n0, 5 # of rank 0\n\n7, 1\n", "\ufeff0,5\n7,1", '"0","5"\n7,1,\n', "0.0 +5\n7e0 1.",
])  # fmt: skip
def test_commas_or_spaces_and_comments(text, tmp_path):
    found = read(tmp_path, text)
    assert (found.matrix, found.own_bytes()) == (((0.0, 5.0), (7.0, 1.0)), 8)
    assert found.name == f"m.csv:{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@pytest.mark.parametrize(("text", "sentence"), [
    ("", f"holds no numbers: {LIKE}"), ("# nothing\n\n", f"holds no numbers: {LIKE}"),
    ("0,0\n0,0", "has only zeros: at least one rank must send data"),
    ("1,2\n3", f", line 2: 1 numbers in one of 2 rows: {LIKE}"), ("1 2 3\n4 5 6", f", line 1: 3 numbers in one of 2 rows: {LIKE}"),
    ("1,-2\n3,4", ", line 1: '-2' is not a number of bytes: use whole numbers from 0 on"),
    ("1,2\n#\n3,x", ", line 3: 'x' is not a number of bytes: use whole numbers from 0 on"),
    ("1,\n3,4", f", line 1: 1 numbers in one of 2 rows: {LIKE}"),
    ("1,,2", ", line 1: '' is not a number of bytes: use whole numbers from 0 on"),
    ("nan", ", line 1: 'nan' is not a number of bytes: use whole numbers from 0 on"),
    ("inf", ", line 1: 'inf' is not a number of bytes: use whole numbers from 0 on"),
    ("1e999", ", line 1: '1e999' is not a number of bytes: use whole numbers from 0 to 2^53"),
    ("0.5", ", line 1: '0.5' is not a number of bytes: use whole numbers from 0 to 2^53"),
    ("1e17", ", line 1: '1e17' is not a number of bytes: use whole numbers from 0 to 2^53"),
    ("9e15 9e15\n9e15 9e15", ": the sum is 3.6e+16 bytes, which is too high: the values must be the bytes of one call"),
    (f"{'1' * 200_000},1", f", line 1: '{'1' * 40}' is not a number of bytes: use whole numbers from 0 on"),
    (b"\xff\xfe1\x002", f"is not text: {LIKE}"),
])  # fmt: skip
def test_what_is_no_matrix_of_bytes(text, sentence, tmp_path):
    with pytest.raises(UsageError) as refused:
        read(tmp_path, text)
    assert str(refused.value) == f"traffic file '{tmp_path / 'm.csv'}'{'' if sentence.startswith((',', ':')) else ' '}{sentence}"


def test_what_cannot_be_read(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"traffic file '.*absent' .*\(No such file or directory\)"):
        read_traffic(tmp_path / "absent")
    with pytest.raises(UsageError, match=r"\(Is a directory\)"):
        read_traffic(tmp_path)
    monkeypatch.setattr(traffic, "_LARGEST_BYTES", 1 << 20)
    with pytest.raises(UsageError, match="more than 1 MiB"):
        read(tmp_path, b"1 " * (1 << 20))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200) | st.text("0123456789.,-+e# \n\t\"'x", max_size=60).map(str.encode))
def test_any_file_is_a_square_a_list_or_one_sentence(tmp_path_factory, raw):
    path = tmp_path_factory.getbasetemp() / "fuzzed"
    path.write_bytes(raw)
    try:
        found = read_traffic(path)
    except UsageError as error:
        assert str(error).startswith(f"traffic file '{path}'") and "\n" not in str(error)
        return
    widths = {len(row) for row in found.matrix}
    assert widths == {len(found.matrix)} or len(found.matrix) == 1 or widths == {1}
    assert all(number >= 0 for row in found.matrix for number in row) and found.own_bytes()


def test_what_would_take_more_memory_than_any_job_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"line 1: .*1 MiB"):
        read(tmp_path, b"1 " * (1 << 20))
    monkeypatch.setattr(traffic, "_MOST_NUMBERS", 8)
    with pytest.raises(UsageError, match=r"line 3: .*8 numbers"):
        read(tmp_path, "1 2 3\n4 5 6\n7 8 9\n")


def test_a_pipe_in_its_place_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match=r"pipe' .*\(it is a pipe"):
        read_traffic(tmp_path / "pipe")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_as_on_any_machine(end, tmp_path):
    assert read(tmp_path, f"\ufeff# x{end}1,2{end}{end}3,4{end}").matrix == ((1.0, 2.0), (3.0, 4.0))
