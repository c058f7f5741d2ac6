"""A suite from TOML: its form, what it extends, its defaults; each mistake is one sentence with file, place and remedy."""

import json
import os
import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.builtin.p2p import P2P_BANDWIDTH
from collbench.operations.dtypes import DTYPES, REDOPS
from collbench.operations.registry import BrokenEntry, commands, operations
from collbench.operations.suite import BUILT_IN, SCHEMA_FILE, check_form, check_names, concerns, operations_of, read_suite, schema
from collbench.operations.sweep import ALGORITHMS, MODES, PROTOCOLS, REGISTRATIONS

BACKENDS = ("nccl", "mpi", "gloo", "simulated")


@pytest.fixture
def suite(tmp_path, monkeypatch):
    """Writes files, the text without a name as a.toml, and reads a.toml with its names checked."""
    monkeypatch.chdir(tmp_path)

    def read(text, **files):
        for name, content in {"a": text, **files}.items():
            Path(f"{name}.toml").write_text(content)
        found = read_suite("a.toml")
        check_names(found, BACKENDS)
        return found

    return read


ONE = 'schema = 1\n[[sweeps]]\noperations = ["allreduce"]\n'


def test_a_single_value_is_a_list_of_one_and_a_path_is_meant_from_its_file(suite, tmp_path):
    found = suite('schema = 1\ntitle = "t"\n[run]\nmax_time = 2\n[[sweeps]]\noperations = "allreduce"\nsizes = 8\nin_place = "both"\n')
    (table,) = found.sweeps
    assert dict(table.values) == {"operations": ["allreduce"], "sizes": [8], "in_place": ["both"]}
    assert (found.name, found.title, found.run, table.place) == ("a", "t", {"max_time": 2}, "sweeps[1] of a.toml")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "base.toml").write_text('schema = 1\nextends = "deep.toml"\n[defaults]\ntraffic = "t.csv"\n')
    (tmp_path / "lib" / "deep.toml").write_text('schema = 1\n[[sweeps]]\noperations = ["alltoallv"]\n')
    (table,) = suite('schema = 1\nextends = "lib/base.toml"\n').sweeps
    assert table.values["traffic"] == ["lib/t.csv"]


def test_defaults_fill_what_a_sweep_leaves_out(suite):
    defaults = '[defaults]\nbackends = ["mpi"]\nskew = 4\nmodes = "batched"\n'
    text = f'schema = 1\n{defaults}[[sweeps]]\noperations = ["alltoallv"]\nmodes = "isolated"\n'
    (table,) = suite(text).sweeps
    assert dict(table.values) == {"backends": ["mpi"], "skew": [4], "modes": ["isolated"], "operations": ["alltoallv"]}
    assert table.own == ("operations", "modes")
    (table,) = suite(text + 'traffic = "t.csv"\n').sweeps
    assert ("skew" in table.values, table.values["traffic"]) == (False, ["t.csv"])


def test_a_suite_extends_others_key_by_key_and_sweep_by_sweep(suite):
    base = """schema = 1
title = "base"
[run]
max_time = 1
check = 0
[defaults]
backends = ["mpi"]
[[sweeps]]
name = "small"
operations = ["allreduce"]
[[sweeps]]
operations = ["broadcast"]
"""
    more = 'schema = 1\n[[sweeps]]\nname = "pairs"\noperations = ["p2p"]\n'
    found = suite(
        'schema = 1\nextends = ["base.toml", "more.toml"]\n[run]\nmax_time = 9\n[defaults]\nsizes = "1K"\n'
        '[[sweeps]]\nname = "small"\noperations = ["barrier"]\n',
        base=base, more=more,
    )  # fmt: skip
    assert (found.title, found.run, found.files) == ("base", {"max_time": 9, "check": 0}, ("a.toml", "base.toml", "more.toml"))
    assert [(table.place, table.values["operations"]) for table in found.sweeps] == [
        ("sweeps[1] 'small' of a.toml", ["barrier"]),
        ("sweeps[2] of base.toml", ["broadcast"]),
        ("sweeps[1] 'pairs' of more.toml", ["p2p"]),
    ]
    assert all((table.values["backends"], table.values["sizes"]) == (["mpi"], ["1K"]) for table in found.sweeps)


def test_the_digest_is_of_every_text_read_and_run_json_keeps_it(suite):
    first = suite('schema = 1\nextends = "b.toml"\n', b=ONE)
    assert first.digest == suite('schema = 1\nextends = "b.toml"\n', b=ONE).digest
    assert first.digest != suite('schema = 1\nextends = "b.toml"\n', b=ONE + "# other\n").digest
    assert len(first.digest) == 64
    found = suite('schema = 1\n[run]\nseed = 3\n[[sweeps]]\nname = "x"\noperations = ["allreduce"]\n').as_json()
    assert json.loads(json.dumps(found)) == {
        "name": "a", "title": "", "digest": found["digest"], "files": ["a.toml"], "run": {"seed": 3},
        "sweeps": [{"place": "sweeps[1] 'x' of a.toml", "name": "x", "operations": ["allreduce"]}],
    }  # fmt: skip


SWEEP = 'schema = 1\n[[sweeps]]\noperations = ["allreduce"]\nname = "large"\n'
MISTAKES = {  # what follows "suite a.toml"
    "": " has no schema version: write schema = 1 as its first line",
    "schema = 2": " has schema = 2, and this collbench knows up to 1: update collbench",
    'schema = "1"': ': schema = "1" does not fit: the version of this form: 1',
    "schema = 1": ' measures nothing: add a table [[sweeps]] with operations = ["allreduce"], or extends = "quick"',
    "schema = 1\n[run\n": ", line 2, column 5: invalid TOML (expected ']' at the end of a table declaration)",
    "schema = 1\ntitle = 'x": ", at its end: invalid TOML (expected \"'\")",
    "schema = 1\ntitel = 'x'": ": key 'titel' is unknown: did you mean title?",
    "schema = 1\nsizes = '8'": ": 'sizes' is unknown here: it belongs below [[sweeps]]",
    SWEEP + "size = '8'": ", sweeps[1] 'large': key 'size' is unknown: did you mean sizes?",
    SWEEP + "max_time = 1": ", sweeps[1] 'large': 'max_time' is unknown here: it belongs below [run]",
    SWEEP + "title = 'x'": ", sweeps[1] 'large': 'title' is unknown here: it belongs above all tables",
    SWEEP + "[defaults]\nname = 'x'": ", [defaults]: 'name' is unknown here: it belongs below [[sweeps]]",
    SWEEP + "[run]\nbogus_word = 1":
        f", [run]: key 'bogus_word' is unknown: choose from {', '.join(schema()['properties']['run']['properties'])}",
    SWEEP + "modes = 'isolate'": ", sweeps[1] 'large': modes 'isolate' is unknown: did you mean isolated?",
    SWEEP + "redops = ['sum', 'maxx']": ", sweeps[1] 'large': redops 'maxx' is unknown: did you mean max?",
    SWEEP + "in_place = 'x'": ", sweeps[1] 'large': in_place 'x' is unknown: choose from true, false, both",
    SWEEP + "dtypes = ['float23']": ", sweeps[1] 'large': dtype 'float23' is unknown: did you mean float32?",
    SWEEP + "backends = 'mpl'": ", sweeps[1] 'large': backend 'mpl' is unknown: did you mean mpi?",
    "schema = 1\n[[sweeps]]\noperations = ['alreduce']": ", sweeps[1]: operation 'alreduce' is unknown: did you mean allreduce?",
    "schema = 1\n[[sweeps]]\nname = 'x'": ", sweeps[1] 'x' names no operations: add a line like operations = [\"allreduce\"]",
    SWEEP + "roots = 1": ", sweeps[1] 'large': roots is for operations with a root, and this sweep has none: take it out, or put "
                         "it below [defaults]",
    "schema = 1\n[[sweeps]]\noperations = ['barrier']\nsizes = 8":
        ", sweeps[1]: sizes is for operations that move data, and this sweep has none: take it out, or put it below [defaults]",
    SWEEP + "streams = 4": ", sweeps[1] 'large': streams is for p2p and multipair, and this sweep has none: take it "
                            "out, or put it below [defaults]",
    SWEEP + "dtypes = ['int8', 'int8']": ", sweeps[1] 'large': dtypes = [\"int8\", \"int8\"] contains a value twice: remove one",
    SWEEP + "sizes = 0": ", sweeps[1] 'large': sizes = 0 does not fit: message sizes as --sizes takes them, like \"1K-1G\", "
                         "\"1K-1G:x4\", \"1K-64K:+1K\" or [8, \"1K\", \"1M\"]; K = 1024; left out: 8-64M on CPUs, 8-1G on NCCL",
    SWEEP + "[run]\nmax_time = 'fast'":
        ', [run]: max_time = "fast" does not fit: seconds per case, before all counts, a number above 0; left out: 5',
    "schema = 1\nsweeps = [3]": ", sweeps[1]: not a table: write its keys below [[sweeps]], one key = value per line",
    "schema = 1\nrun = 3":
        ": run = 3 does not fit: a table of what concerns the whole launch, with the names of the long options",
    SWEEP + SWEEP.removeprefix("schema = 1\n"): ", sweeps[2] 'large': sweeps[1] has that name: choose another",
    "schema = 1\nextends = 'quack'":
        "suite quack, which a.toml extends, cannot be read (No such file or directory): name a file, or one of quick, full, gate",
    "schema = 1\nextends = 'a.toml'": " extends itself (a.toml -> a.toml): take one of these out",
}  # fmt: skip


@pytest.mark.parametrize("text", MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_is_one_sentence(text, suite):
    with pytest.raises(UsageError) as raised:
        suite(text)
    expected = MISTAKES[text]
    assert str(raised.value) == (expected if expected.startswith("suite") else f"suite a.toml{expected}")


def test_a_circle_is_refused_wherever_it_closes_but_two_ways_to_the_same_suite_are_none(suite):
    with pytest.raises(UsageError, match=r"a\.toml .*\(b\.toml -> c\.toml -> b\.toml\)"):
        suite('schema = 1\nextends = "b.toml"', b='schema = 1\nextends = "c.toml"', c='schema = 1\nextends = "b.toml"')
    named = 'schema = 1\n[[sweeps]]\nname = "x"\noperations = ["allreduce"]\n'
    onward = 'schema = 1\nextends = "d.toml"'
    found = suite('schema = 1\nextends = ["b.toml", "c.toml"]', b=onward, c=onward, d=named)
    assert [table.place for table in found.sweeps] == ["sweeps[1] 'x' of d.toml"]


def test_a_file_that_is_no_text_or_a_pipe_is_refused(suite, tmp_path):
    (tmp_path / "a.toml").write_bytes(b"schema = 1\ntitle = '\xff'\n")
    with pytest.raises(UsageError, match=r"^suite a.toml, line 2: .*UTF-8"):
        read_suite("a.toml")
    os.mkfifo(tmp_path / "b.toml")
    with pytest.raises(UsageError, match=r"^suite b.toml, which a.toml extends, .*\(it is a pipe"):
        suite('schema = 1\nextends = "b.toml"')


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_suite_is_sound_and_begins_with_its_schema(name):
    found = read_suite(name)
    check_names(found, BACKENDS)
    first = (SCHEMA_FILE.parent / f"{name}.toml").read_text().splitlines()[0]
    assert (first, found.title.partition(":")[0], found.files) == ("#:schema ./suite.schema.json", name, (name,))
    assert all(table.name for table in found.sweeps), "by its name another suite replaces a sweep"


def test_full_has_every_operation_and_gate_the_cases_of_the_gate():
    full = {one.name for table in read_suite("full").sweeps for one in operations_of(table.values["operations"])}
    assert full == set(operations())
    (gate,) = read_suite("gate").sweeps
    assert (len(gate.values["operations"]), gate.values["sizes"]) == (4, ["8-1G"])


def test_the_schema_describes_every_key_and_offers_the_words_that_collbench_knows():
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(schema())
    properties = schema()["properties"]
    described = [*properties.values(), *properties["run"]["properties"].values(), *schema()["$defs"].values()]
    assert all(len(each["description"]) > 10 for each in described)
    names = sorted({*operations(), *commands()})
    if os.environ.get("COLLBENCH_GOLDEN") == "1":
        text = SCHEMA_FILE.read_text(encoding="utf-8")
        SCHEMA_FILE.write_text(re.sub(r'(?<="enum": )\[[^]]*"allreduce"[^]]*\]', json.dumps(names), text), encoding="utf-8")
    keys = schema()["$defs"]

    def offered(key):
        item = keys[key]["anyOf"][0]
        return list((item.get("anyOf") or [item])[0]["enum"])

    assert offered("operations") == names
    assert (offered("dtypes"), offered("redops")) == (list(DTYPES), list(REDOPS))
    assert (offered("modes"), offered("algorithms")) == (list(MODES), list(ALGORITHMS))
    assert (offered("protocols"), offered("registrations")) == (list(PROTOCOLS), list(REGISTRATIONS))


WORDS = st.sampled_from(["quick", "mpi", "allreduce", "8"])
KEYS = st.sampled_from(["schema", "run", "defaults", "sweeps", "name", "operations", "sizes", "in_place", "max_time", "x"])
TREE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(), st.text(max_size=5), WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
TEXTS = st.one_of(
    st.text(alphabet="schema=1[]{}\"\n.#'\\ \t-_0x:runsweeps\u00e4\x00", max_size=60),
    st.binary(max_size=40).map(lambda raw: raw.decode("latin-1")),
    st.integers(1, 3000).map(lambda n: "x = " + "[" * n),
    st.integers(1, 6000).map(lambda n: "x = " + "9" * n),
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(["run", "defaults", "sweeps", "title", "extends", "x"]), TREE, max_size=4))
def test_no_document_is_a_traceback(document):
    try:
        check_form({"schema": 1, **document}, "a.toml")
    except UsageError as error:
        assert str(error).startswith("suite a.toml") and "\n" not in str(error)


@settings(max_examples=100, deadline=None)
@given(text=TEXTS)
def test_no_text_is_a_traceback(text, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "fuzzed.toml"
    path.write_text("schema = 1\n" + text, encoding="utf-8", newline="")
    try:
        found = read_suite(str(path))
    except UsageError as error:
        assert str(error).startswith("suite ")
    else:
        assert tomllib.loads(path.read_text())["schema"] == 1 and found.sweeps


def test_what_extends_the_next_one_twice_or_itself_by_ever_longer_ways_ends(suite):
    names = [f"s{number}" for number in range(20)]
    files = {name: f'schema = 1\nextends = ["{after}.toml", "./x/../{after}.toml"]' for name, after in pairwise(names)}
    Path("x").mkdir()
    with pytest.raises(UsageError, match=r"^suite a.toml .*32 suites"):
        suite('schema = 1\nextends = "s0.toml"', **files, s19=ONE)
    with pytest.raises(UsageError, match="32 suites"):
        suite('schema = 1\nextends = "x/../a.toml"')


def test_a_long_list_is_compared_in_time_and_sweeps_have_a_limit(suite):
    sizes = ", ".join(f'{number}, "{number}K"' for number in range(1, 3_000))
    assert len(suite(f"{ONE}sizes = [{sizes}]").sweeps[0].values["sizes"]) == 5_998
    with pytest.raises(UsageError, match=r"sizes = .* twice"):
        suite(f'{ONE}sizes = [{sizes}, "7K"]')
    with pytest.raises(UsageError, match=r"^suite a.toml .*1,001 sweeps.* 1,000"):
        suite("schema = 1\n" + "[[sweeps]]\n" * 1001)


@pytest.mark.parametrize(("key", "most"), [("ranks", 4096), ("ranks_per_node", 4096), ("gpus_per_process", 1024), ("launches", 10000)])
def test_an_untrusted_suite_cannot_start_a_million_processes(key, most, suite):
    assert suite(f"{ONE}[run]\n{key} = {most}").run == {key: most}
    with pytest.raises(UsageError, match=rf"\[run\]: {key} = {most + 1} .* 1 to {most}"):
        suite(f"{ONE}[run]\n{key} = {most + 1}")


def test_an_operation_of_a_plug_in_that_is_broken_is_reported_with_the_reason(tmp_path, monkeypatch):
    why = BrokenEntry("shift", "shifting:SHIFT", "does not load (ImportError: no rings)", "fix or uninstall shifting")
    monkeypatch.setattr("collbench.operations.suite.broken", lambda: {"shift": why})
    file = tmp_path / "a.toml"
    file.write_text("schema = 1\n[[sweeps]]\nname = 'large'\noperations = ['shift']\n")
    with pytest.raises(UsageError) as actual:
        check_names(read_suite(str(file)), ["mpi"])
    assert str(actual.value) == f"suite {file}, sweeps[1] 'large': operation 'shift': {why}"


@pytest.mark.parametrize(("key", "collective", "pair"), [
    ("window", False, True), ("streams", False, True), ("split", True, False), ("sizes", True, True), ("mode", True, True),
])  # fmt: skip
def test_a_key_concerns_a_sweep_if_it_concerns_one_of_its_operations(key, collective, pair):
    assert concerns(key, [ALLREDUCE]) is collective
    assert concerns(key, [P2P_BANDWIDTH]) is pair
    assert concerns(key, [ALLREDUCE, P2P_BANDWIDTH])
