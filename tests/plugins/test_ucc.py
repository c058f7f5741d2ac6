"""UCC: the declarations beside its header, every case right to the last element or n/a, and the error where it is missing.

Tests of the library itself need COLLBENCH_UCC, the path of an installed UCC's libucc.so.1.
"""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from collbench.backends.backend import Unavailable
from collbench.backends.registry import backend_class
from collbench.backends.ucc import library as ucc
from collbench.backends.ucc.backend import STEPS, UccBackend
from collbench.backends.unavailable import LibraryNotFound, WrongBuild
from collbench.native.library import library as native_library
from collbench.operations.registry import every_operation
from tests.conftest import ROOT, sample
from tests.contract.launch import launch
from tests.contract.test_every_case import assert_as_promised, cases_of, launched
from tests.plugins.stack import LINK_BYTES_PER_S, PAYLOAD, across, needs_ucc

in_turn = pytest.mark.in_turn
FOUR = ("--sizes", "4M", "--iterations", "4", "--warmup", "2")
pytestmark = pytest.mark.timeout(320)  # under --long a launch has a thousand cases


def test_it_is_found_under_its_name():
    assert backend_class("ucc") is UccBackend


def test_it_has_each_operation_that_mpi_has_but_scans_and_messages():
    others = {name for name, operation in every_operation().items() if operation.steps_of("mpi") and name not in STEPS}
    assert set(STEPS) <= set(every_operation())
    assert others >= {"scan", "exscan", "scatter", "sendrecv"}


def test_a_missing_library_is_named_with_the_remedy(monkeypatch):
    monkeypatch.setenv(ucc.CHOSEN, "/nowhere/libucc.so.1")
    found = UccBackend.probe()
    assert isinstance(found, Unavailable)
    assert isinstance(found.fact, LibraryNotFound)
    assert found.fact.library == "UCC"


def test_another_library_is_refused(monkeypatch):
    other = str(next((ROOT / "collbench/native").glob("_loop*.so")))
    monkeypatch.setenv(ucc.CHOSEN, other)
    found = UccBackend.probe()
    assert isinstance(found, Unavailable)
    assert isinstance(found.fact, WrongBuild)


# The calls of native/requests.c, on functions of this test instead of the library's.


class Steps:
    """A library whose requests are done after two calls of progress; it counts the calls."""

    def __init__(self, post: int = 0, progress: int = 0) -> None:
        self.calls: list[str] = []
        self.status = ctypes.c_int32(2)
        self.request = ctypes.c_void_p()
        self._codes = {"post": post, "progress": progress}
        one = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
        three = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)
        self._kept = [three(self.init), one(self.post), one(self.progress), one(self.finalize)]
        self.functions = ucc.RequestFunctions(*(ctypes.cast(each, ctypes.c_void_p) for each in self._kept), None)

    def init(self, _arguments, request, _team):
        self.calls.append("init")
        request[0] = ctypes.addressof(self.status)
        return 0

    def post(self, _request):
        self.calls.append("post")
        self.status.value = 1
        return self._codes["post"]

    def progress(self, _context):
        self.calls.append("progress")
        self.status.value = 0 if self.calls.count("progress") == 2 else 1
        return self._codes["progress"]

    def finalize(self, _request):
        self.calls.append("finalize")
        return 0

    def run(self, name):
        words = (ctypes.byref(self.functions), None, ctypes.byref(self.request), None)
        words = words if name in ("call", "start") else (words[0], words[2])
        return getattr(native_library(), f"collbench_request_{name}")(*words)


def test_a_call_makes_starts_awaits_and_frees_a_request():
    steps = Steps()
    assert steps.run("call") == 0
    assert steps.calls == ["init", "post", "progress", "progress", "finalize"]


def test_started_then_awaited():
    steps = Steps()
    assert (steps.run("start"), steps.calls) == (0, ["init", "post"])
    assert (steps.run("finish"), steps.calls[2:]) == (0, ["progress", "progress", "finalize"])


def test_a_request_that_is_made_once_is_only_started_and_awaited():
    steps = Steps()
    steps.request.value = ctypes.addressof(steps.status)
    assert (steps.run("run"), steps.calls) == (0, ["post", "progress", "progress"])


@pytest.mark.parametrize("failing", ["post", "progress"])
def test_an_error_of_the_library_is_returned(failing):
    assert Steps(**{failing: -7}).run("call") == -7


# The real library.


def header() -> Path:
    return Path(os.environ[ucc.CHOSEN]).parents[1] / "include/ucc/api/ucc.h"


@needs_ucc
def test_the_declarations_are_those_of_the_header(tmp_path):
    if not header().exists() or not shutil.which("cc"):
        pytest.skip(f"no {header()}, or no C compiler")
    sizes = {"ucc_lib_params_t": ucc.LibraryParameters, "ucc_context_params_t": ucc.ContextParameters, "ucc_oob_coll_t": ucc.OutOfBand}
    sizes |= {"ucc_team_params_t": ucc.TeamParameters, "ucc_ep_map_t": ucc.EndpointMap, "ucc_coll_args_t": ucc.CollectiveArguments}
    numbers = {f"sizeof({name})": ctypes.sizeof(kind) for name, kind in sizes.items()}
    numbers |= {
        f"offsetof(ucc_coll_args_t, {name})": getattr(ucc.CollectiveArguments, name).offset
        for name in ("src", "dst", "op", "flags", "root")
    }
    numbers |= {f"offsetof(ucc_team_params_t, {name})": getattr(ucc.TeamParameters, name).offset for name in ("ep", "oob", "ep_map")}
    numbers |= {f"UCC_COLL_TYPE_{name}": number for name, number in ucc.COLLECTIVES.items()}
    numbers |= {f"UCC_DT_{name.upper()}": number for name, number in ucc.DATATYPES.items()}
    numbers |= {f"UCC_OP_{name.upper()}": number for name, number in ucc.REDOPS.items()}
    numbers |= {
        "UCC_MEMORY_TYPE_HOST": ucc.HOST,
        "UCC_INPROGRESS": ucc.IN_PROGRESS,
        "UCC_EP_MAP_ARRAY": ucc.BY_ARRAY,
        "UCC_THREAD_SINGLE": 0,
    }
    numbers |= {"UCC_COLL_ARGS_FLAG_IN_PLACE": ucc.IN_PLACE, "UCC_COLL_ARGS_FLAG_PERSISTENT": ucc.PERSISTENT}
    numbers |= {"UCC_COLL_ARGS_FLAG_COUNT_64BIT": ucc.COUNT_64, "UCC_COLL_ARGS_FLAG_DISPLACEMENTS_64BIT": ucc.DISPLACEMENTS_64}
    numbers |= {
        "UCC_TEAM_PARAM_FIELD_EP_MAP": ucc.TEAM_MAP,
        "UCC_TEAM_PARAM_FIELD_EP_RANGE": ucc.TEAM_RANGE,
        "UCC_TEAM_PARAM_FIELD_EP": ucc.TEAM_EP,
    }
    numbers |= {
        "UCC_CONTEXT_PARAM_FIELD_OOB": ucc.CONTEXT_OOB,
        "UCC_COLL_ARGS_FIELD_FLAGS": ucc.FLAGS,
        "UCC_TEAM_PARAM_FIELD_EP": ucc.TEAM_EP,
    }
    numbers |= {"UCC_COLL_ARGS_FIELD_FLAGS": ucc.FLAGS}
    checks = "\n".join(f'_Static_assert(({name}) == {number}, "{name}");' for name, number in numbers.items())
    source = tmp_path / "check.c"
    source.write_text(f"#include <stddef.h>\n#include <ucc/api/ucc.h>\n{checks}\n")
    line = ["cc", "-fsyntax-only", f"-I{header().parents[2]}", str(source)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@needs_ucc
@in_turn
@pytest.mark.parametrize("n", [2, *sample([3, 4], 1)])
def test_every_case_is_right_or_not_applicable(n):
    asked, outcome = launched("ucc", n)
    assert outcome.code == 0, outcome.stderr
    assert {row.operation for row in outcome.rows if row.na is None} >= set(STEPS)
    for row, case in zip(outcome.rows, cases_of(asked, "ucc", n), strict=True):
        assert_as_promised(row, case, "ucc", n)


@needs_ucc
@in_turn
@pytest.mark.parametrize("call", ["nonblocking", "persistent"])
def test_every_operation_in_the_other_forms_of_calls(tmp_path, call):
    sweep = {"operations": sorted(set(STEPS) - {"barrier"}), "sizes": [4096], "dtypes": ["float32"], "calls": [call]}
    outcome = launch(tmp_path, "ucc", 3, [sweep])
    assert outcome.code == 0, outcome.stderr
    assert len(outcome.rows) == len(STEPS) - 1
    for row in outcome.rows:
        assert (row.na, row.checked, row.wrong) == (None, 1, 0), row


@needs_ucc
@in_turn
def test_groups_side_by_side_and_what_the_rows_report_of_the_library(tmp_path):
    sweep = {"operations": sorted(STEPS), "sizes": [1003], "dtypes": ["float32"], "roots": [1], "split": "MOD 2"}
    outcome = launch(tmp_path, "ucc", 4, [sweep])
    assert (outcome.code, {(row.na, row.wrong, row.group) for row in outcome.rows}) == (0, {(None, 0, "MOD 2")}), outcome.stderr
    libraries = outcome.rows[0].evidence["libraries"]
    assert (libraries["ucc"][:2], libraries["ucx"][:2]) == ("1.", "1.")


# The choice of layers and algorithms.


@needs_ucc
@in_turn
@pytest.mark.parametrize("call", [None, "nonblocking", "persistent"])
def test_the_row_has_the_layer_and_the_algorithm(tmp_path, call):
    sweep = {"operations": ["allreduce"], "sizes": [8, 1 << 20], "dtypes": ["float32"], "calls": [call]}
    outcome = launch(tmp_path, "ucc", 2, [sweep])
    assert outcome.code == 0, outcome.stderr
    both = {"collective": "allreduce", "composition": "CL_BASIC", "layers": ["TL_UCP"]}
    for row, algorithm in zip(outcome.rows, ("knomial", "sra_knomial"), strict=True):
        assert row.evidence["ucc"]["choices"] == [both | {"algorithm": algorithm}]


@needs_ucc
@in_turn
def test_a_forced_algorithm_is_on_the_row_and_the_log_of_the_user_is_left_alone(tmp_path, monkeypatch):
    sweep = {"operations": ["allreduce"], "sizes": [8], "dtypes": ["float32"]}
    monkeypatch.setenv("UCC_TL_UCP_TUNE", "allreduce:@ring:inf")
    (row,) = launch(tmp_path / "forced", "ucc", 2, [sweep]).rows
    assert [choice["algorithm"] for choice in row.evidence["ucc"]["choices"]] == ["ring"]
    assert row.evidence["libraries"]["ucc_tl_ucp_tune"] == "allreduce:@ring:inf"
    assert "ucc_log_file" not in row.evidence["libraries"]
    monkeypatch.setenv("UCC_LOG_FILE", str(tmp_path / "own.log"))
    monkeypatch.setenv("UCC_COLL_TRACE", "info")
    (row,) = launch(tmp_path / "logged", "ucc", 2, [sweep]).rows
    assert "ucc" not in row.evidence
    assert "coll_init: Allreduce" in (tmp_path / "own.log").read_text()


@needs_ucc
@in_turn
@pytest.mark.hosts
def test_two_hosts_use_most_of_the_link_between_them_and_never_more(hosts, tmp_path):
    between = hosts(2, "100mbit")
    least = {"allreduce": 0.0, "allgather": 0.0, "broadcast": 0.0}
    for operation, share_least in least.items():
        run = across(between, "ucc", tmp_path / operation, [operation, "--backend", "ucc", *FOUR], env={"UCX_TLS": "tcp,self"})
        (row,) = run.rows
        share = row.busbw_bytes_per_s / (PAYLOAD * LINK_BYTES_PER_S / 10)
        assert (row.na, row.wrong, row.nodes) == (None, 0, 2)
        assert share_least <= share <= 1.01, (operation, share)  # the shaper lets 256 kbit pass at once
        print(operation, share, row.evidence.get("moved"), row.evidence.get("ucc"), row.time_s, row.ceiling, row.percent_of_ceiling)
