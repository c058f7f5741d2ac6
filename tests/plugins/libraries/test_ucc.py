"""UCC: the declarations beside its header, every case right to the last element or n/a, and the error where it is missing.

Tests of the library itself need COLLBENCH_UCC, the path of an installed UCC's libucc.so.1.
"""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from collbench.backends.backend import Available, Unavailable
from collbench.backends.registry import backend_class
from collbench.backends.unavailable import DoesNotLoad, LibraryNotFound, UnknownVersion, WrongBuild
from collbench.native.library import library as native_library
from collbench.operations.registry import every_operation
from collbench.plugins.libraries.ucc import library as ucc
from collbench.plugins.libraries.ucc.backend import STEPS, UccBackend
from collbench.plugins.libraries.ucc.choice import ChoiceLog, read_choices, read_tables
from collbench.plugins.libraries.ucc.findings import examined_ucc, no_rdma
from collbench.plugins.libraries.ucc.library import CHOSEN
from collbench.plugins.overlap.records import overlap_of
from collbench.results.reader import read_run
from tests.cli.command import run
from tests.conftest import ROOT, needs_ucc, sample
from tests.contract.launch import launch
from tests.contract.test_every_case import assert_as_promised, cases_of, launched
from tests.plugins.libraries.stack import LINK_BYTES_PER_S, PAYLOAD, across
from tools.benchmarks import ucc_perftest
from tools.benchmarks.launches import Missing

long = pytest.mark.long
FOUR = ("--sizes", "4M", "--iterations", "4", "--warmup", "2")
pytestmark = pytest.mark.timeout(320)  # under --long a launch has a thousand cases


def test_it_is_found_under_its_name_with_each_operation_of_mpi_but_scans_and_messages():
    assert backend_class("ucc") is UccBackend
    others = {name for name, operation in every_operation().items() if operation.steps_of("mpi") and name not in STEPS}
    assert set(STEPS) <= set(every_operation())
    assert others >= {"scan", "exscan", "scatter", "sendrecv"}


def fact_of_probe(monkeypatch, path):
    monkeypatch.setenv(ucc.CHOSEN, str(path))
    found = UccBackend.probe()
    assert isinstance(found, Unavailable)
    return found.fact


def test_a_missing_library_is_named_and_another_one_refused(monkeypatch):
    missing = fact_of_probe(monkeypatch, "/nowhere/libucc.so.1")
    assert isinstance(missing, LibraryNotFound)
    assert missing.library == "UCC"
    other = next((ROOT / "collbench/native").glob("_loop*.so"))
    assert isinstance(fact_of_probe(monkeypatch, other), WrongBuild)


# Broken installations: a made-up libucc.so.1, which has the functions that the check calls, and layers that load or do not.

MADE_UP_UCC = """
int ucc_init_version(void) { return 0; }
const char *ucc_get_version_string(void) { return "1.4.0"; }
const char *ucc_status_string(int code) { return code ? "made up" : ""; }
int ucc_lib_config_read(void *a, void *b, void **c) { return 0; }
void ucc_get_version(unsigned *major, unsigned *minor, unsigned *release) { *major = %d; *minor = 4; *release = 0; }
"""
LOADS, NEEDS_OTHER_UCX = "int layer(void) { return 1; }", "int ucp_of_a_newer_ucx(void); int layer(void) { return ucp_of_a_newer_ucx(); }"
CRASHES = "#include <stdlib.h>\n__attribute__((constructor)) static void crash(void) { abort(); }"


def made_up_ucc(folder: Path, major: int = 1, **layers: str) -> str:
    sources = {"libucc.so.1": MADE_UP_UCC % major} | {f"ucc/libucc_{name}.so": text for name, text in layers.items()}
    (folder / "ucc").mkdir(parents=True)
    for name, text in sources.items():
        subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-z,now", "-xc", "-", "-o", str(folder / name)], input=text, text=True, check=True)
    return str(folder / "libucc.so.1")


with_compiler = pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
WHOLE = {"cl_basic": LOADS, "mc_cpu": LOADS, "ec_cpu": LOADS, "tl_ucp": LOADS}


@pytest.mark.system
@with_compiler
def test_a_library_with_its_layers_is_available(tmp_path, monkeypatch):
    monkeypatch.setenv(ucc.CHOSEN, made_up_ucc(tmp_path, **WHOLE))
    assert UccBackend.probe() == Available("UCC 1.4.0")


@pytest.mark.system
@with_compiler
def test_a_build_without_ucx_lacks_a_layer(tmp_path, monkeypatch):
    fact = fact_of_probe(monkeypatch, made_up_ucc(tmp_path, **{name: text for name, text in WHOLE.items() if name != "tl_ucp"}))
    assert isinstance(fact, WrongBuild)
    assert (fact.version, "tl_ucp" in fact.defect) == ("1.4.0", True)


@pytest.mark.system
@with_compiler
@pytest.mark.parametrize(("layer", "why"), [
    (NEEDS_OTHER_UCX, "undefined symbol: ucp_of_a_newer_ucx"), (CRASHES, "ends with code -6"),
], ids=["needs another UCX", "crashes"])  # fmt: skip
def test_a_layer_for_another_ucx_does_not_load(tmp_path, monkeypatch, layer, why):
    fact = fact_of_probe(monkeypatch, made_up_ucc(tmp_path, **WHOLE | {"tl_ucp": layer}))
    assert isinstance(fact, DoesNotLoad)
    assert fact.error.endswith(why)
    assert "LD_LIBRARY_PATH" in fact.remedy()


@pytest.mark.system
@with_compiler
def test_another_major_version_is_not_supported(tmp_path, monkeypatch):
    assert isinstance(fact_of_probe(monkeypatch, made_up_ucc(tmp_path, 2, **WHOLE)), UnknownVersion)


# UCC's log: lines of 1.8.0.

TABLE = """\
[1795874634.685739] [node1:21753:0]        ucc_team.c:471  UCC  INFO  ===== COLL_SCORE_MAP (team_id 1, size 2) =====
[1795874634.685787] [node1:21753:0] ucc_coll_score_map.c:225  UCC  INFO  Allreduce:
[1795874634.685787] [node1:21753:0] ucc_coll_score_map.c:225  UCC  INFO  \tHost: {0..4095}:TL_UCP:10=ucc_tl_ucp_allreduce_knomial_init \
{4K..inf}:TL_UCP:10=ucc_tl_ucp_allreduce_sra_knomial_init
[1795874634.685794] [node1:21753:0] ucc_coll_score_map.c:225  UCC  INFO  Alltoall:
[1795874634.685794] [node1:21753:0] ucc_coll_score_map.c:225  UCC  INFO  \tHost: {0..257}:TL_UCP:10=ucc_tl_ucp_alltoall_bruck_init \
{258..inf}:TL_UCP:10=ucc_tl_ucp_coll_init
[1795874634.685794] [node1:21753:0] ucc_coll_score_map.c:225  UCC  INFO  \tCuda: {0..inf}:TL_CUDA:40=ucc_tl_cuda_alltoall_ce_init
[1795874634.685813] [node1:21753:0] ucc_coll_score_map.c:225  UCC  INFO  Gather:
[1795874634.685813] [node1:21753:0] ucc_coll_score_map.c:225  UCC  INFO  \tHost: {0..64}:TL_UCP:10=ucc_tl_ucp_gather_knomial_init
[1795874634.685844] [node1:21753:0] ucc_coll_score_map.c:225  UCC  INFO  Reduce_scatterv:
[1795874634.685844] [node1:21753:0] ucc_coll_score_map.c:225  UCC  INFO  \tHost: {0..inf}:TL_UCP:10=ucc_tl_ucp_reduce_scatterv_ring_init
""".splitlines()


def made(request: str, layers: str = "CL_BASIC {TL_UCP}", team: int = 1) -> list[dict[str, object]]:
    line = f"[1795874634.77] [node1:21753:0]        ucc_coll.c:338  UCC_COLL INFO  coll_init: {request}; {layers}, team_id {team}"
    return read_choices([line, line], read_tables(TABLE))


@pytest.mark.parametrize(("request_line", "algorithm"), [
    ("Allreduce sum: src={0x7f, 1023, float32, Host}, dst={0x7f, 1023, float32, Host}", "knomial"),
    ("Allreduce sum: src={0x7f, 1024, float32, Host}, dst={0x7f, 1024, float32, Host}", "sra_knomial"),
    ("Allreduce sum inplace persistent: dst={0x7f, 4095, int8, Host}", "knomial"),
    ("Allreduce max: src={0x7f, 512, float64, Host}, dst={0x7f, 512, float64, Host}", "sra_knomial"),
    ("Alltoall: src={0x7f, 64, int32, Host}, dst={0x7f, 64, int32, Host}", "bruck"),
    ("Alltoall: src={0x7f, 65, int32, Host}, dst={0x7f, 65, int32, Host}", None),  # UCC has one function for all
    ("Gather root 1: src={0x7f, 32, int8, Host}", "knomial"),  # 32 bytes from each of 2 ranks
    ("Gather root 1: src={0x7f, 33, int8, Host}", None),
    ("Reduce_scatterv sum: src={0x7f, 8, int8, Host}, dst={0x7f, 8, int8, Host}", "ring"),
    ("Allreduce sum: src={0x7f, 8, userdefined, Host}, dst={0x7f, 8, userdefined, Host}", None),
    ("Bcast root 0: src={0x7f, 8, int8, Host}", None),  # not in the table
])  # fmt: skip
def test_the_algorithm_of_a_size_is_in_the_table_of_the_team(request_line, algorithm):
    (choice,) = made(request_line)
    assert (choice["composition"], choice["layers"], choice["algorithm"]) == ("CL_BASIC", ["TL_UCP"], algorithm)


def test_without_a_known_layer_team_or_line_the_algorithm_is_unknown():
    request = "Allreduce sum: src={0x7f, 8, float32, Host}, dst={0x7f, 8, float32, Host}"
    assert [choice["algorithm"] for choice in made(request, "CL_BASIC {TL_SHARP}") + made(request, team=2)] == [None, None]
    (choice,) = made(request, "CL_HIER {TL_UCP, TL_SHARP}")
    assert (choice["composition"], choice["layers"], choice["algorithm"]) == ("CL_HIER", ["TL_UCP", "TL_SHARP"], None)
    assert read_choices(["", "coll_init: Allreduce", "UCC  WARN  coll_init: failed; CL_BASIC, team_id 1"], {}) == []
    log = ChoiceLog()
    with log.making_team(), log.witness() as choices:
        pass
    log.close()
    assert choices == []


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


def test_a_call_makes_starts_awaits_and_frees_a_request_also_if_it_is_started_and_then_awaited():
    steps = Steps()
    assert steps.run("call") == 0
    assert steps.calls == ["init", "post", "progress", "progress", "finalize"]
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
    fields = ("src", "dst", "op", "flags", "root")
    numbers |= {f"offsetof(ucc_coll_args_t, {name})": getattr(ucc.CollectiveArguments, name).offset for name in fields}
    numbers |= {f"offsetof(ucc_team_params_t, {name})": getattr(ucc.TeamParameters, name).offset for name in ("ep", "oob", "ep_map")}
    numbers |= {f"UCC_COLL_TYPE_{name}": number for name, number in ucc.COLLECTIVES.items()}
    numbers |= {f"UCC_DT_{name.upper()}": number for name, number in ucc.DATATYPES.items()}
    numbers |= {f"UCC_OP_{name.upper()}": number for name, number in ucc.REDOPS.items()}
    numbers |= {
        "UCC_MEMORY_TYPE_HOST": ucc.HOST, "UCC_INPROGRESS": ucc.IN_PROGRESS, "UCC_EP_MAP_ARRAY": ucc.BY_ARRAY, "UCC_THREAD_SINGLE": 0,
        "UCC_COLL_ARGS_FLAG_IN_PLACE": ucc.IN_PLACE, "UCC_COLL_ARGS_FLAG_PERSISTENT": ucc.PERSISTENT,
        "UCC_COLL_ARGS_FLAG_COUNT_64BIT": ucc.COUNT_64, "UCC_COLL_ARGS_FLAG_DISPLACEMENTS_64BIT": ucc.DISPLACEMENTS_64,
        "UCC_TEAM_PARAM_FIELD_EP_MAP": ucc.TEAM_MAP, "UCC_TEAM_PARAM_FIELD_EP_RANGE": ucc.TEAM_RANGE,
        "UCC_TEAM_PARAM_FIELD_EP": ucc.TEAM_EP, "UCC_CONTEXT_PARAM_FIELD_OOB": ucc.CONTEXT_OOB, "UCC_COLL_ARGS_FIELD_FLAGS": ucc.FLAGS,
    }  # fmt: skip
    checks = "\n".join(f'_Static_assert(({name}) == {number}, "{name}");' for name, number in numbers.items())
    source = tmp_path / "check.c"
    source.write_text(f"#include <stddef.h>\n#include <ucc/api/ucc.h>\n{checks}\n")
    line = ["cc", "-fsyntax-only", f"-I{header().parents[2]}", str(source)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@needs_ucc
@long
@pytest.mark.parametrize("n", [2, *sample([3, 4], 1)])
def test_every_case_is_right_or_not_applicable(n):
    asked, outcome = launched("ucc", n)
    assert outcome.code == 0, outcome.stderr
    assert {row.operation for row in outcome.rows if row.na is None} >= set(STEPS)
    for row, case in zip(outcome.rows, cases_of(asked, "ucc", n), strict=True):
        assert_as_promised(row, case, "ucc", n)


@needs_ucc
@long
@pytest.mark.parametrize("call", ["nonblocking", "persistent"])
def test_every_operation_in_the_other_forms_of_calls(tmp_path, call):
    sweep = {"operations": sorted(set(STEPS) - {"barrier"}), "sizes": [4096], "dtypes": ["float32"], "calls": [call]}
    outcome = launch(tmp_path, "ucc", 3, [sweep])
    assert outcome.code == 0, outcome.stderr
    assert len(outcome.rows) == len(STEPS) - 1
    for row in outcome.rows:
        assert (row.na, row.checked, row.wrong) == (None, 1, 0), row


@needs_ucc
@long
def test_groups_side_by_side_and_what_the_rows_report_of_the_library(tmp_path):
    sweep = {"operations": sorted(STEPS), "sizes": [1003], "dtypes": ["float32"], "roots": [1], "split": "MOD 2"}
    outcome = launch(tmp_path, "ucc", 4, [sweep])
    assert (outcome.code, {(row.na, row.wrong, row.group) for row in outcome.rows}) == (0, {(None, 0, "MOD 2")}), outcome.stderr
    libraries = outcome.rows[0].evidence["libraries"]
    assert (libraries["ucc"][:2], libraries["ucx"][:2]) == ("1.", "1.")


@needs_ucc
@long
def test_overlap_is_measured_with_and_without_test_calls(tmp_path):
    words = ("allreduce", "--overlap", "--backend", "ucc", "--sizes", "64K", "-n", "5", "--ranks", "2", "--out", "run")
    done = run(tmp_path, *words, env={ucc.CHOSEN: os.environ[ucc.CHOSEN]})
    (row,) = read_run(tmp_path / "run").rows
    known = overlap_of(row.overlap)
    assert (done.returncode, row.na, row.wrong, row.samples["states_s"]["shape"]) == (0, None, 0, [4, 5]), done.stderr
    assert known is not None and (known.progress, known.assisted is None) == ("calls", False)


# The choice of layers and algorithms.


@needs_ucc
@long
@pytest.mark.parametrize("call", [None, "nonblocking", "persistent"])
def test_the_row_has_the_layer_and_the_algorithm(tmp_path, call):
    sweep = {"operations": ["allreduce"], "sizes": [8, 1 << 20], "dtypes": ["float32"], "calls": [call]}
    outcome = launch(tmp_path, "ucc", 2, [sweep])
    assert outcome.code == 0, outcome.stderr
    both = {"collective": "allreduce", "composition": "CL_BASIC", "layers": ["TL_UCP"]}
    for row, algorithm in zip(outcome.rows, ("knomial", "sra_knomial"), strict=True):
        assert row.evidence["ucc"]["choices"] == [both | {"algorithm": algorithm}]


@needs_ucc
@long
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
@long
@pytest.mark.hosts
def test_two_hosts_use_most_of_the_link_between_them_and_never_more(hosts, tmp_path):
    between = hosts(2, "100mbit")
    for operation in ("allreduce", "allgather", "broadcast"):
        run = across(between, "ucc", tmp_path / operation, [operation, "--backend", "ucc", *FOUR], env={"UCX_TLS": "tcp,self"})
        (row,) = run.rows
        assert (row.na, row.wrong, row.nodes) == (None, 0, 2)
        share = row.busbw_bytes_per_s / (PAYLOAD * LINK_BYTES_PER_S / 10)
        # The shaper lets 256 KB pass at once. 0.90 to 1.01 in nine launches on a quiet machine.
        assert 0.8 <= share <= 1.02, (operation, share)
        moved = row.evidence["moved"]
        ratios = [parts[way]["ratio"] for parts in moved["hosts"].values() for way in ("out", "in") if parts[way]["at_least_bytes"]]
        assert (moved["path"], len(ratios)) == ("network", 2 if operation == "broadcast" else 4)
        assert all(1 <= ratio < 1.01 for ratio in ratios), ratios  # every byte crossed eth0, and few more


# UCC's own program.


def test_a_line_of_ucc_perftest_is_read():
    printed = "       Count        Size                Time, us\n                                 avg         min         max\n"
    printed += "      262144     1048576     2736.61     2510.42     2962.80        0.38        0.42        0.35\n"
    found = ucc_perftest._LINE.search(printed)
    assert found is not None
    assert (found[2], found[5]) == ("1048576", "2962.80")


@needs_ucc
@pytest.mark.long
def test_collbench_and_ucc_perftest_are_both_measured():
    try:
        program = ucc_perftest.program()
    except Missing as why:
        pytest.skip(str(why))
    assert 0 < ucc_perftest.through("64K", 20, warmup=2) < 10
    assert 0 < ucc_perftest.alone(program, "64K", 20, warmup=2) < 10


def test_hosts_without_ucc_or_with_a_missing_one(tmp_path: Path) -> None:
    try:
        ctypes.CDLL("libucc.so.1")
    except OSError:
        assert examined_ucc("node1", {}) == []
    else:
        pytest.skip("the loader finds a UCC here")
    (finding,) = examined_ucc("node1", {CHOSEN: str(tmp_path / "libucc.so.1")})
    assert (finding.code, finding.severity, finding.hostname) == ("CB2811", "warning", "node1")
    assert finding.evidence == f"{CHOSEN}={tmp_path / 'libucc.so.1'}"
    root, modules = made_up_host(tmp_path, "4: ACTIVE", "libuct_cma.so.0", "libuct_cuda.so.0")
    (finding,) = no_rdma("node1", modules, root)
    assert (finding.code, finding.severity) == ("CB2812", "warning")
    assert "mlx5_0" in finding.what


@pytest.mark.system
@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_a_library_that_is_not_ucc(tmp_path: Path) -> None:
    path = tmp_path / "libother.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-xc", "-", "-o", str(path)], input="int other;", text=True, check=True)
    (finding,) = examined_ucc("node1", {CHOSEN: str(path)})
    assert finding.code == "CB2811"
    assert "is not UCC" in finding.what


def made_up_host(root: Path, state: str, *modules: str) -> tuple[Path, Path]:
    port = root / "sys/class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text(f"{state}\n")
    folder = root / "lib/ucx"
    folder.mkdir(parents=True)
    for name in modules:
        (folder / name).write_text("")
    return root, folder


@pytest.mark.parametrize(("state", "modules"), [
    ("4: ACTIVE", ("libuct_cma.so.0", "libuct_ib.so.0")), ("4: ACTIVE", ("libuct_cma.so.0", "libuct_ib_mlx5.so.0")),
    ("1: DOWN", ("libuct_cma.so.0",)), ("4: ACTIVE", ()),  # not a folder of modules: unknown
])  # fmt: skip
def test_a_ucx_with_rdma_or_without_a_use_for_it_is_no_finding(tmp_path: Path, state: str, modules: tuple[str, ...]) -> None:
    root, folder = made_up_host(tmp_path, state, *modules)
    assert list(no_rdma("node1", folder, root)) == []
    assert list(no_rdma("node1", None, root)) == []
