"""A damaged trace of any format ends in a trace or in a UsageError, in bounded memory."""

import json
import random
import re
import resource
import shutil
from collections import Counter
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.plugins.traces.matching import differences, match
from collbench.plugins.traces.model import UNKNOWN
from collbench.plugins.traces.reading import read_traces
from tests.conftest import everything
from tests.plugins.traces.torch_files import Call, Node, execution_trace, kineto_trace, protobuf_trace
from tools.benchmarks import mutations, trace_files

RECORDED = Path(__file__).parents[3] / "reports/hang-dumps"
_CALLS = [Call(), Call("all_gather", 8, 16), Call("all_to_allv", 4, 4, parts=((1, 3), (2, 2))), Call("send", 8, 8, 1), Call("broadcast")]
_NODES = [
    Node(1, 7, (), (("comm_type", 0), ("comm_size", 64), ("pg_name", "0")), "allreduce", 5, 9),
    Node(2, 4, (1,)),
    Node(3, 5, (1, 2), (("comm_src", 0), ("comm_dst", 1), ("comm_size", 8)), "send"),
]


FORMS = {
    **{name: lambda folder, write=write: write(folder, 12, 2) for name, write in trace_files.WRITERS.items()},
    "Flight Recorder, pickle": lambda folder: trace_files.flight_recorder_pickle(folder, 12, 2),
    "Flight Recorder of PyTorch": lambda folder: shutil.copy(RECORDED / "dump_rank_0", folder),
    "Chakra": lambda folder: execution_trace(folder / "et.json", _CALLS),
    "Kineto": lambda folder: kineto_trace(folder / "kineto.json", _CALLS),
    "Chakra, protobuf": lambda folder: protobuf_trace(folder / "rank.0.et", _NODES),
}
_NUMBERS = ["-1", "0", "1e999", "NaN", "9" * 30, "9223372036854775807", "-9223372036854775808", "18446744073709551616", "1.5"]
_NUMBERS += ["4294967296", '"x"']
_QUIETLY = settings(deadline=None, suppress_health_check=list(HealthCheck), print_blob=True, database=None)


@cache
def files_of(form):
    with TemporaryDirectory() as folder:
        FORMS[form](Path(folder))
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


@pytest.mark.parametrize("form", FORMS)
def test_the_undamaged_files_are_read(form, tmp_path):
    for name, data in files_of(form).items():
        (tmp_path / name).write_bytes(data)
    assert sum(len(rank.operations) for rank in read_traces([tmp_path]).ranks) > 1


# What may happen to a file: each function returns the damaged bytes.


def _flip(data, draw):
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]


def _truncate(data, draw):
    return data[: draw.randrange(len(data))]


def _duplicate(data, draw):
    begin, length = draw.randrange(len(data)), draw.choice((1, 16, 300, 5000))
    return data[:begin] + data[begin : begin + length] * draw.choice((2, 3, 40)) + data[begin + length :]


def _remove(data, draw):
    begin = draw.randrange(len(data))
    return data[:begin] + data[begin + draw.choice((1, 16, 300, 5000)) :]


def _number(data, draw):
    places = list(mutations._NUMBER.finditer(data))
    if not places:
        return data
    place = draw.choice(places)
    return data[: place.start()] + draw.choice(_NUMBERS).encode() + data[place.end() :]


def _nest(data, draw):
    places = [at for at, byte in enumerate(data) if byte in b"{["]
    at = draw.choice(places) if places else 0
    return data[:at] + draw.choice((b"[", b'{"a":', b"((")) * draw.choice((50, 2000, 200_000)) + data[at:]


def _value(data, draw):
    """Another value, or type, of a field of a JSON file, or of a line."""
    lines = data.split(b"\n")
    whole = (data[:1] == b"{" and b"entries" in data[:4096]) or b"traceEvents" in data or b'"nodes"' in data
    at = draw.randrange(len(lines))
    try:
        content = json.loads(data if whole else lines[at])
    except (ValueError, RecursionError):
        return _number(data, draw)
    holder = content
    while isinstance(holder, dict | list) and holder:
        key = draw.choice(list(holder)) if isinstance(holder, dict) else draw.randrange(len(holder))
        if not isinstance(holder[key], dict | list) or not holder[key] or draw.random() < 0.2:
            holder[key] = draw.choice(mutations._VALUES)(draw)
            break
        holder = holder[key]
    changed = json.dumps(content).encode("utf-8", "surrogatepass")
    if whole:
        return changed
    lines[at] = changed
    return b"\n".join(lines)


def _surrogate(data, draw):
    """A surrogate without its other half within a text: escaped, or three bytes instead of others, since binary texts have a length."""
    places = [match.start() for match in re.finditer(rb"(?<=[a-z])[a-z]{3}", data)]
    if not places:
        return data
    at = draw.choice(places)
    into = draw.choice((b"\\udfff", b"\\ud800", b"\\\\udfff", b"\xed\xbf\xbf", b"\xed\xbf\xbf"))
    return data[:at] + into + data[at + 3 :]


DAMAGES = (_flip, _truncate, _duplicate, _remove, _number, _nest, _value, _value, _surrogate)


@contextmanager
def _limited(most):
    """More memory than `most` bytes beyond what the process has fails in the block with MemoryError."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def _check(trace):
    """Assert that a trace is sound, and that it can be matched."""
    assert trace.world > max(rank.rank for rank in trace.ranks) >= 0
    for rank in trace.ranks:
        rows = rank.operations
        assert ((rows["group"] >= 0) & (rows["group"] < len(trace.groups))).all()
        assert ((rows["root"] >= UNKNOWN) & (rows["root"] < trace.world)).all()
        assert ((rows["splits"] >= UNKNOWN) & (rows["splits"] < len(rank.splits))).all()
        assert (rows["sent"] >= UNKNOWN).all() and (rows["received"] >= UNKNOWN).all()
        assert rank.groups == trace.groups
    texts = (rank.job + rank.host + "".join(rank.notes.values()) for rank in trace.ranks)
    assert "".join((*texts, *(group.name + group.what for group in trace.groups))).encode() is not None
    matches = match(trace)
    matched = sum(int((found.calls != UNKNOWN).sum()) + int((found.messages[:, 1::2] != UNKNOWN).sum()) for found in matches)
    assert matched == sum(len(rank.operations) for rank in trace.ranks)
    for number, difference in enumerate(differences(trace, matches)):
        assert difference.render()
        if number > 20:
            break


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.timeout(1200 if everything() else 120)
@settings(_QUIETLY, max_examples=1000 if everything() else 20)
@given(seed=st.integers(0, 1 << 32), damages=st.lists(st.sampled_from(DAMAGES), min_size=1, max_size=3))
def test_a_damaged_file(form, seed, damages):
    draw = random.Random(seed)
    files = dict(files_of(form))
    name = draw.choice(list(files))
    for damage in damages:
        files[name] = damage(files[name], draw) or b"{"
    with TemporaryDirectory() as folder, _limited(1 << 30):
        for each, data in files.items():
            (Path(folder) / each).write_bytes(data)
        try:
            trace = read_traces(sorted(Path(folder).iterdir()))
        except UsageError as error:
            assert folder in str(error) and "\n" not in str(error).strip()
            return
        _check(trace)


_INSTEAD = (b"", b"[", b"}", b'"', b",", b"-7", b"null", b"9" * 40, b"\xff\xfe", b"\x00" * 5, b"1e999", b"\x80")


@pytest.mark.parametrize("form", ["Flight Recorder of PyTorch", "Chakra", "Kineto", "Chakra, protobuf"])
def test_other_bytes_in_a_file_are_read_or_one_sentence(form, tmp_path):
    """The same 1,000 damages in each run."""
    draw, outcomes = random.Random(5), Counter()
    ((name, whole),) = files_of(form).items()
    for _ in range(1000):
        data = bytearray(whole)
        for _ in range(draw.choice((1, 1, 2))):
            at = draw.randrange(2, len(data))
            data[at : at + draw.choice((0, 1, 1, 40))] = draw.choice((*_INSTEAD, draw.randbytes(1)))
        end = draw.choice((len(data), len(data), len(data), draw.randrange(3, len(data))))
        (tmp_path / name).write_bytes(data[:end])
        try:
            (rank,) = read_traces([tmp_path / name]).ranks
        except UsageError as error:
            assert name in str(error) and "\n" not in str(error)
            outcomes["rejected"] += 1
        else:
            assert (rank.operations["sent"] >= UNKNOWN).all()
            outcomes["read"] += 1
    assert min(outcomes["read"], outcomes["rejected"]) > 10, outcomes
