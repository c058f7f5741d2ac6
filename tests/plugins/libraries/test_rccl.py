"""RCCL on HIP: its tables as the headers have them, and whole commands on the test double. Nothing here has run on an AMD GPU."""

import ctypes
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from collbench.backends.nccl import library as nccl_library
from collbench.backends.nccl.library import REDOPS, RESULTS, UNIQUE_ID_BYTES, NcclLibrary, NcclNotFound, features_of, load_nccl
from collbench.backends.unavailable import WrongBuild
from collbench.operations.unsupported import Fp8FormatUnsupported, OptionUnsupported, StartUnsupported
from collbench.plugins.libraries.hip import CONSTANTS, FUNCTIONS, NoHip, architecture
from collbench.plugins.libraries.rccl import OWN_DATATYPES, OWN_NAMES, RCCL, fp8_on_hip, load_rccl
from collbench.report.answer import answers
from collbench.results.flags import FLAGS
from collbench.results.reader import read_run
from tests.backends.nccl.test_nccl_library import Library
from tests.fake_gpu import amd_environment
from tests.fake_gpu.facts import exported, header_facts

RCCL_HEADERS = header_facts("rccl", "COLLBENCH_TEST_RCCL_HEADER")
HIP_HEADERS = header_facts("hip", "COLLBENCH_TEST_HIP_HEADERS")
OLD_NAMES = {"ncclFloat8e4m3": "ncclFp8E4M3", "ncclFloat8e5m2": "ncclFp8E5M2"}  # in 2.20 to 2.2x


@pytest.mark.parametrize("header", RCCL_HEADERS, ids=lambda header: header.version or header.source)
def test_numbers_and_names_of_functions_are_those_of_the_header(header):
    numbers = header.numbers
    for word in (*OWN_DATATYPES.values(), *REDOPS.values()):
        assert numbers.get(word.name, numbers.get(OLD_NAMES.get(word.name, ""))) == word.number
    assert all(numbers[word.name] == word.number for word in RESULTS.values() if word.name in numbers)
    assert (numbers["ncclNumTypes"], numbers["ncclNumOps"]) == (len(OWN_DATATYPES), len(REDOPS))
    assert numbers["NCCL_UNIQUE_ID_BYTES"] == UNIQUE_ID_BYTES
    assert all(name in header.functions or own in header.functions for name, own in OWN_NAMES.items())
    assert set(nccl_library.ONLY_RCCL) & header.functions  # by which RCCL is known


@pytest.mark.parametrize(("header", "double"), [
    *((header, "nccl") for header in RCCL_HEADERS), *((header, "hip") for header in HIP_HEADERS),
], ids=lambda each: each if isinstance(each, str) else each.version or each.source)  # fmt: skip
def test_every_function_takes_its_parameters_as_the_double_which_takes_them_as_nccl(header, double):
    own = exported(double)
    both = own.keys() & header.parameters.keys()
    assert {name: own[name] for name in both} == {name: header.parameters[name] for name in both}
    assert own.keys() - both <= header.lacks | {"ncclCommWindowDeregister", "ncclResetDebugInit"}  # the latter is not called on RCCL


@pytest.mark.parametrize("header", HIP_HEADERS, ids=lambda header: header.version or header.source)
def test_hip_has_the_functions_and_numbers_that_collbench_uses(header):
    assert {name: header.numbers.get(name) for name in CONSTANTS} == dict(CONSTANTS)
    assert header.functions >= FUNCTIONS


@pytest.mark.parametrize(("arch", "runs"), [("gfx942", False), ("gfx90a", False), ("gfx950", True), ("gfx1201", True), ("", False)])
def test_floats_of_8_bits_are_reduced_only_where_they_have_the_format_of_the_data(arch, runs):
    assert fp8_on_hip("RCCL", "float8_e4m3fn", arch) == (None if runs else Fp8FormatUnsupported("RCCL", "float8_e4m3fn", arch))


def node(root, number, **facts):
    folder = root / str(number)
    folder.mkdir(parents=True)
    (folder / "properties").write_text("".join(f"{name} {value}\n" for name, value in facts.items()))


def test_the_architecture_of_a_gpu_is_that_of_its_pci_address(tmp_path):
    node(tmp_path, 0, cpu_cores_count=64, location_id=0, domain=0, gfx_target_version=0)
    node(tmp_path, 1, location_id=0x0500, domain=0, gfx_target_version=90402)
    node(tmp_path, 2, location_id=0x2600, domain=1, gfx_target_version=90010)
    (tmp_path / "3").mkdir()
    (tmp_path / "3/properties").write_text("no numbers here")
    assert [architecture(bus, tmp_path) for bus in ("0000:05:00.0", "0001:26:00.0", "0000:26:00.0", "?")] == ["gfx942", "gfx90a", "", ""]


class Loaded:
    """A library whose functions exist and return success."""

    _name = "libdouble.so"

    def __init__(self, *functions):
        self.kept = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda at: 0)
        for name in ("ncclGetVersion", *functions):
            setattr(self, name, self.kept)


@pytest.mark.parametrize(
    ("load", "functions", "found"), [(load_nccl, ("ncclAllToAllv",), "is RCCL, not NCCL"), (load_rccl, (), "is NCCL, not RCCL")]
)
def test_a_library_is_never_taken_for_the_other_one(monkeypatch, load, functions, found):
    monkeypatch.setattr(nccl_library.ctypes, "CDLL", lambda name, mode=0: Loaded(*functions))
    with pytest.raises(NcclNotFound) as error:
        load({"COLLBENCH_NCCL": "libother.so"})
    assert isinstance(error.value.obstacle, WrongBuild) and error.value.obstacle.defect == found


def test_a_function_is_found_under_nccl_s_name_and_under_rccl_s_own():
    old, new = (NcclLibrary(SimpleNamespace(**{name: 1}), "", (2, 21, 5), RCCL) for name in ("ncclAllToAll", "ncclAlltoAll"))
    assert (old.has("ncclAlltoAll"), new.has("ncclAlltoAll"), new.has("ncclCommShrink")) == (True, True, False)


# Whole commands, on the double.

QUICK = ("--max-time", "0.02", "-n", "1", "-w", "1", "--buffers", "fixed")


def collbench(folder, *words, **told):
    """Runs a command where the doubles of HIP and RCCL are found; (exit code, JSON objects, stderr)."""
    line = ["timeout", "-k", "5", "60", sys.executable, "-m", "collbench", *words, "--format", "json"]
    done = subprocess.run(line, env=amd_environment(**told), capture_output=True, text=True, check=False, cwd=folder)
    return done.returncode, [json.loads(row) for row in done.stdout.splitlines()], done.stderr


@pytest.mark.system
def test_the_backend_has_its_version_and_without_hip_the_reason(tmp_path):
    code, found, stderr = collbench(tmp_path, "backends")
    states = {each["backend"]: each for each in found}
    rccl, parts = states["rccl"], {part["name"]: part for part in states["rccl"]["features"]}
    assert (code, rccl["available"], rccl["default"], rccl["about"]) == (0, True, False, "RCCL 2.27.7, not run on hardware"), stderr
    assert (parts["device API"]["available"], parts["communicator without some ranks"]["available"]) == (False, True)
    assert (states["nccl"]["available"], states["nccl"]["fact"]["kind"]) == (False, "no_driver")
    _, found, _ = collbench(tmp_path, "backends", hip=False)
    (rccl,) = (each for each in found if each["backend"] == "rccl")
    assert (rccl["available"], rccl["why"]) == (False, NoHip().cause())


@pytest.mark.long
@pytest.mark.parametrize("mode", ["pipelined", "graph"])
def test_collectives_over_two_processes_are_right_and_marked(tmp_path, mode):
    words = ("-d", "float32,float8_e4m3fn", "--mode", mode, "--sizes", "1000", "--ranks", "2", "--backend", "rccl", *QUICK)
    code, rows, stderr = collbench(tmp_path, "allreduce", *words)
    right, other = sorted(rows, key=lambda row: row["dtype"] != "float32")  # they are measured in random order
    assert (code, right["na"], right["wrong"], right["checked"], "not_run_on_hardware" in right["flags"]) == (0, None, 0, 1, True), stderr
    assert (right["backend"], right["evidence"]["libraries"]["rccl"]) == ("rccl", "2.27.7")
    assert other["na"] == Fp8FormatUnsupported("RCCL", "float8_e4m3fn", "").render()


@pytest.mark.long
def test_every_form_of_a_result_is_marked(tmp_path):
    out, page = tmp_path / "run", tmp_path / "page.html"
    words = ("--sizes", "1000", "--ranks", "1", "-g", "2", "--backend", "rccl", "--out", str(out), *QUICK)
    code, _, stderr = collbench(tmp_path, "allreduce", *words)
    assert code == 0, stderr
    (answer,) = answers(read_run(out).rows)
    assert FLAGS["not_run_on_hardware"].name in answer.render()
    report = [sys.executable, "-m", "collbench", "report", str(out)]
    forms = [subprocess.run([*report, *more], capture_output=True, text=True, check=True).stdout for more in ([], ["--format", "csv"])]
    subprocess.run([*report, "--html", str(page)], capture_output=True, check=True)
    flag = FLAGS["not_run_on_hardware"]
    assert [flag.name in forms[0], flag.code in forms[1], flag.name in page.read_text()] == [True, True, True]


@pytest.mark.long
@pytest.mark.parametrize("operation", ["alltoall", "alltoallv", "gather", "scatter", "p2p", "reducescatter"])
def test_the_other_operations_are_right_with_several_gpus_per_process(tmp_path, operation):
    code, rows, stderr = collbench(tmp_path, operation, "--sizes", "1000", "--ranks", "1", "-g", "2", "--backend", "rccl", *QUICK)
    assert (code, {(row["na"], row["wrong"]) for row in rows}) == (0, {(None, 0)}), stderr


@pytest.mark.long
def test_dropped_data_is_found_and_tunings_are_not_measured(tmp_path):
    code, rows, _ = collbench(tmp_path, "allreduce", "--sizes", "1000", "--ranks", "1", "-g", "2", "--backend", "rccl", *QUICK, drop_rank=1)
    assert (code, rows[0]["wrong"] > 0) == (4, True)
    words = ("--sizes", "1000", "--ranks", "1", "-g", "2", "--backend", "rccl", *QUICK)
    code, rows, _ = collbench(tmp_path, "allreduce", *words, "--algorithms", "ring")
    assert (code, {row["algorithm"]: row["na"] for row in rows}) == (
        0,
        {None: None, "ring": OptionUnsupported(("--algorithms",), "rccl", "nccl").render()},
    )
    code, rows, _ = collbench(tmp_path, "allreduce", *words, "--calls", "nonblocking")
    assert (code, [row["na"] for row in rows]) == (2, [StartUnsupported("rccl", "allreduce").render()])


def test_parts_of_rccl_are_known_by_its_functions_alone():
    found = features_of(Library("ncclCommRevoke", version=(2, 30, 7), dialect=RCCL))
    parts = {part.name: part.available for part in found}
    assert {part.since for part in found} == {""}
    assert (parts["revoked communicator"], parts["device API"]) == (True, False)
    assert not {"network calls of kernels (GIN)", "collectives by copy engines"} & set(parts)
