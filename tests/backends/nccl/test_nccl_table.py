"""NCCL's numbers: as its header has them, and what each version lacks."""

import re
from pathlib import Path

import pytest

from collbench.backends.nccl.library import (
    DATATYPES,
    REDOPS,
    RESULTS,
    SAME_WIDTH,
    SYMMETRIC_FLAG,
    UNIQUE_ID_BYTES,
    code_of,
    datatype,
    dotted,
    version_of,
)
from collbench.operations.dtypes import DTYPES


@pytest.fixture(scope="module")
def header(cuda_python):
    """The names that nccl.h gives numbers to."""
    (file,) = Path(cuda_python).parents[1].glob("lib/python3*/site-packages/nvidia/nccl/include/nccl.h")
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", file.read_text(), flags=re.DOTALL)
    numbers = {name: int(value, 0) for name, value in re.findall(r"\b(nccl\w+)\s*=\s*(-?\w+)\s*[,}\n]", text) if value[-1].isdigit()}
    return numbers | {name: int(value, 0) for name, value in re.findall(r"#define\s+(NCCL_\w+)\s+(0x[0-9a-fA-F]+|\d+)\b", text)}


@pytest.mark.parametrize("word", [*DATATYPES.values(), *REDOPS.values(), *RESULTS.values()], ids=lambda word: word.name)
def test_every_word_has_the_number_of_the_header_from_its_version_on(header, word):
    assert header.get(word.name) == (word.number if word.since <= version_of(header["NCCL_VERSION_CODE"]) else None)


@pytest.mark.parametrize(
    ("count", "words"), [("ncclNumTypes", DATATYPES.values()), ("ncclNumOps", REDOPS.values()), ("ncclNumResults", RESULTS.values())]
)
def test_the_header_has_no_word_that_the_table_lacks(header, count, words):
    assert header[count] == sum(word.since <= version_of(header["NCCL_VERSION_CODE"]) for word in words)


def test_the_header_has_the_same_constants(header):
    assert header["NCCL_WIN_COLL_SYMMETRIC"] == SYMMETRIC_FLAG
    assert header["NCCL_UNIQUE_ID_BYTES"] == UNIQUE_ID_BYTES


def test_every_type_of_collbench_is_in_the_table():
    assert set(DATATYPES) == set(DTYPES)


@pytest.mark.parametrize(("code", "version"), [(2708, (2, 7, 8)), (2832, (2, 8, 32)), (21003, (2, 10, 3)), (23203, (2, 32, 3))])
def test_versions_are_numbered_in_two_ways(code, version):
    assert (version_of(code), code_of(version)) == (version, code)


def test_versions_are_written_with_dots():
    assert dotted((2, 32, 3)) == "2.32.3"


@pytest.mark.parametrize(("name", "version", "reduces", "number"), [
    ("float32", (2, 7, 8), True, 7),
    ("bfloat16", (2, 9, 9), True, None),
    ("bfloat16", (2, 10, 3), True, 9),
    ("bfloat16", (2, 9, 9), False, 6),  # moved as float16
    ("float8_e4m3fn", (2, 23, 4), True, None),
    ("float8_e4m3fn", (2, 23, 4), False, 1),  # moved as uint8
    ("float8_e5m2", (2, 24, 3), True, 11),
    ("complex64", (2, 32, 3), True, None),
])  # fmt: skip
def test_a_type_that_a_version_lacks_can_be_moved_but_not_reduced(name, version, reduces, number):
    assert datatype(name, DTYPES[name].size if name in DTYPES else 8, version, reduces) == number


def test_types_of_one_width_replace_another():
    assert {DTYPES[name].size: name for name in SAME_WIDTH.values()} == SAME_WIDTH
