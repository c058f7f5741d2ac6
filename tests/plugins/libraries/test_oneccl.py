"""oneCCL: why it is not available, every case right to the last element or n/a, corrupted data, faults, and its transports.

Tests of the library itself need .venv-oneccl. Its threads wait busily and a machine for tests has few cores, so they run without worker
threads, and yield.
"""

import ctypes
import os
import re
import shutil
import signal
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest

from collbench import compiled
from collbench.backends.backend import Available, Unavailable
from collbench.backends.registry import backend_class
from collbench.backends.unavailable import DoesNotLoad, LibraryNotFound, Misconfigured, NotInstalled
from collbench.errors import RunFailed
from collbench.operations.registry import every_operation
from collbench.operations.unsupported import DtypeUnsupported, RedopUnsupported, decode_reason
from collbench.plugins.libraries.oneccl import backend, library
from collbench.plugins.libraries.oneccl.backend import STEPS, OneCclBackend
from tests.cli.command import Finished, one_sentence, run
from tests.conftest import ROOT, sample
from tests.contract.asked import asked_for
from tests.contract.launch import launch
from tests.contract.made_up import SPOILT, spoilt_rank
from tests.contract.test_faults import Spoilt, exchanged, lacking
from tests.faults.launch import TIMEOUT_S, Launch
from tests.helpers import make_case
from tests.plugins.libraries.stack import LINK_BYTES_PER_S, PAYLOAD, across, collbench_of, environment_of, program_of, rows_of

pytestmark = pytest.mark.system

GENTLE = {"CCL_WORKER_OFFLOAD": "0", "CCL_YIELD": "sched_yield"}
SMALL = ("allreduce", "--backend", "oneccl", "--ranks", "2", "--sizes", "8", "--max-time", "1")
long = pytest.mark.long


def oneccl(folder: Path, *argv: str, env: dict[str, str] | None = None, **options: float) -> Finished:
    """collbench of .venv-oneccl, whose ranks yield."""
    return collbench_of("oneccl", folder, *argv, env={**GENTLE, **(env or {})}, **options)


def test_it_is_found_under_its_name():
    assert backend_class("oneccl") is OneCclBackend
    assert set(STEPS) <= set(every_operation())


# Where it is not available. A library with its name, which the C compiler makes, is enough for what is looked at before its start.


@pytest.fixture
def prefix(tmp_path, monkeypatch):
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    for name in ("lib", "include/oneapi", "tmp"):
        (tmp_path / name).mkdir(parents=True)
    subprocess.run(["cc", "-shared", "-x", "c", os.devnull, "-o", str(tmp_path / "lib" / library.NAME)], check=True)
    (tmp_path / "include/oneapi/ccl.hpp").write_text("#error made up\n")
    monkeypatch.setenv(library.CHOSEN, str(tmp_path))
    monkeypatch.setenv("COLLBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compiled.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    for name in ("CXX", "CCL_ATL_TRANSPORT", library.ROOT_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def fact_of_probe():
    found = OneCclBackend.probe()
    assert isinstance(found, Unavailable)
    assert found.fact is not None
    return found.fact


def test_a_missing_wheel_is_named_with_the_remedy(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.delenv(library.CHOSEN, raising=False)
    monkeypatch.delenv(library.ROOT_VARIABLE, raising=False)
    monkeypatch.setattr(library, "distribution", missing)
    assert fact_of_probe() == NotInstalled("oneccl-cpu", library.INSTALL)


def test_a_library_that_does_not_load_is_named_with_what_it_lacks(prefix):
    other, own = prefix / "libmade_up_ccl.so.2", prefix / "lib" / library.NAME
    line = ["cc", "-shared", "-x", "c", os.devnull, "-x", "none"]
    subprocess.run([*line, f"-Wl,-soname,{other.name}", "-o", str(other)], check=True)
    subprocess.run([*line, "-Wl,--no-as-needed", str(other), "-o", str(own)], check=True)
    other.unlink()
    fact = fact_of_probe()
    assert isinstance(fact, DoesNotLoad)
    assert (fact.package, fact.fix) == (f"the oneCCL of {library.CHOSEN}", library.INSTALL)
    assert fact.error.startswith(f"{other.name}: cannot open shared object file")


def test_a_folder_without_the_library_is_named(prefix):
    (prefix / "lib" / library.NAME).unlink()
    fact = fact_of_probe()
    assert isinstance(fact, LibraryNotFound)
    assert str(prefix / "lib" / library.NAME) in fact.error


def test_missing_headers_are_named(prefix):
    (prefix / "include/oneapi/ccl.hpp").unlink()
    assert fact_of_probe() == NotInstalled("oneccl-cpu-devel", library.INSTALL, f"the oneCCL of {library.CHOSEN}")


def test_unknown_transports_and_headers_that_do_not_compile(prefix, monkeypatch):
    monkeypatch.setenv("CCL_ATL_TRANSPORT", "tcp")
    fact = fact_of_probe()
    assert isinstance(fact, Misconfigured)
    assert fact.variable == "CCL_ATL_TRANSPORT"
    monkeypatch.setenv("CXX", str(prefix / "c++"))
    assert fact_of_probe() == NotInstalled("a C++ compiler", "apt-get install g++", "collbench's interface to oneCCL")


def test_headers_that_do_not_compile_are_one_sentence(prefix):
    if not shutil.which("c++"):
        pytest.skip("no C++ compiler")
    assert OneCclBackend.probe() == Available(f"oneCCL (the oneCCL of {library.CHOSEN}), over libfabric")
    with pytest.raises(RunFailed, match=r"c\+\+ does not compile collbench's interface to .*#error made up"):
        library.OneCcl()


# What follows from settings and hosts.


@pytest.mark.parametrize(("env", "path"), [
    ({"FI_PROVIDER": "tcp"}, "loopback"), ({"FI_PROVIDER": "tcp;ofi_rxm"}, "loopback"), ({"FI_PROVIDER": "psm3"}, ""),
    ({"FI_PROVIDER": "tcp", "CCL_ATL_SHM": "0"}, "loopback"), ({"FI_PROVIDER": "tcp", "CCL_ATL_SHM": "1"}, "memory"),
    ({"CCL_ATL_TRANSPORT": "mpi"}, "memory"),
])  # fmt: skip
def test_the_path_inside_a_host_follows_from_the_settings(env, path):
    assert backend._local_path(env) == path


@pytest.mark.parametrize(("threads", "ranks", "cores", "crowded"), [(1, 2, 2, False), (2, 2, 4, False), (2, 2, 3, True), (3, 1, 2, True)])
def test_busy_threads_beyond_the_cores_are_noticed(threads, ranks, cores, crowded):
    world = SimpleNamespace(hosts=("a",), on_host=lambda host: [None] * ranks, cores_on=lambda host: cores)
    assert OneCclBackend._crowded(world, threads) is crowded


@pytest.mark.parametrize(("dtype", "redop", "reason"), [
    ("float8_e5m2", "sum", DtypeUnsupported("oneCCL", "float8_e5m2")),
    ("float32", "avg", RedopUnsupported("oneCCL on host memory", "avg", supported=("sum", "prod", "min", "max"))), ("uint64", "prod", None),
])  # fmt: skip
def test_what_it_cannot_reduce_is_a_fact(dtype, redop, reason):
    case = make_case(operation="allreduce", backend="oneccl", dtype=dtype, redop=redop)
    assert OneCclBackend().supports(every_operation()["allreduce"], case) == reason


# The real library.


@pytest.mark.long
def test_the_declarations_are_those_of_the_headers(tmp_path):
    headers = Path(environment_of("oneccl")).parents[1] / "include"
    numbers = {f"ccl::datatype::{name}": number for name, number in library.DATATYPES.items()}
    numbers |= {f"ccl::reduction::{name}": number for name, number in library.REDOPS.items()}
    checks = [f'static_assert(static_cast<int>({name}) == {number}, "{name}");' for name, number in numbers.items()]
    checks += [f"static_assert(sizeof(ccl::kvs::address_type) == {library._ADDRESS_BYTES});"]
    checks += [f"static_assert(sizeof(arguments) == {ctypes.sizeof(library.Arguments)});"]
    for name, _ in library.Arguments._fields_:
        checks.append(f"static_assert(offsetof(arguments, {name}) == {getattr(library.Arguments, name).offset});")
    checks += [
        f"static_assert({number} == {'RECEIVE' if name == 'recv' else name.upper()});" for name, number in library.OPERATIONS.items()
    ]
    source = tmp_path / "check.cpp"
    shim = (ROOT / "collbench/plugins/libraries/oneccl/shim.cpp").as_posix()
    source.write_text("\n".join(["#include <cstddef>", f'#include "{shim}"', *checks, ""]))
    line = ["c++", "-std=c++17", "-fsyntax-only", f"-I{headers}", str(source)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@long
@pytest.mark.timeout(320)
@pytest.mark.parametrize("n", sample([2, 3, 4], 1))
def test_every_case_is_right_or_not_applicable(tmp_path, monkeypatch, n):
    gently(monkeypatch)
    outcome = launch(tmp_path, "oneccl", n, asked_for("oneccl", n), python=environment_of("oneccl"))
    assert outcome.code == 0, outcome.stderr
    assert {row.operation for row in outcome.rows if row.na is None} >= {*STEPS, "sendrecv", "p2p_latency", "p2p_bandwidth", "gatherv"}
    for row in outcome.rows:
        if row.na is not None:
            assert type(decode_reason(row.na_fact)).__name__ != "Text", row
        else:
            assert (row.checked, row.wrong, row.wrong_detail) == (1, 0, None), row


def gently(monkeypatch):
    for name, value in GENTLE.items():
        monkeypatch.setenv(name, value)


@long
@pytest.mark.timeout(200)
@pytest.mark.parametrize("call", sample(["nonblocking", "persistent"], 1))
def test_every_operation_in_the_other_forms_of_calls(tmp_path, monkeypatch, call):
    gently(monkeypatch)
    names = sorted(set(STEPS) - {"barrier"})
    sweep = {"operations": names, "sizes": [4096], "dtypes": ["float32"], "calls": [call], "buffers": "rotating"}
    outcome = launch(tmp_path, "oneccl", 3, [sweep], python=environment_of("oneccl"))
    assert outcome.code == 0, outcome.stderr
    assert {row.operation for row in outcome.rows} == set(names)
    for row in outcome.rows:
        assert (row.na, row.checked, row.wrong) == (None, 1, 0), row


WRONG = {name: Spoilt(name) for name in sorted(set(STEPS) & set(SPOILT))}


@cache
def spoilt_rows():
    asked = [one.asked(one.name, *(f"{fault}_{one.name}" for fault in ("dropped", "swapped", "flipped"))) for one in WRONG.values()]
    asked.append({"operations": ["silent"], "sizes": [240], "dtypes": ["float32"]})
    with TemporaryDirectory() as folder:
        outcome = launch(Path(folder), "oneccl", 2, asked, python=environment_of("oneccl"))
    return outcome.code, {row.operation: row for row in outcome.rows}, outcome.stderr


@long
@pytest.mark.parametrize("name", WRONG)
def test_corrupted_data_is_found_to_the_last_element(monkeypatch, name):
    environment_of("oneccl")
    gently(monkeypatch)
    code, rows, stderr = spoilt_rows()
    assert code == 4, stderr
    right, dropped, swapped, flipped = (rows[f"{fault}{name}"] for fault in ("", "dropped_", "swapped_", "flipped_"))
    assert (right.checked, right.wrong) == (1, 0)
    assert dropped.wrong == lacking(dropped, WRONG[name]) > 0
    assert swapped.wrong == exchanged(swapped, WRONG[name]) > 0
    assert flipped.wrong == 1
    where = f"rank {spoilt_rank(WRONG[name].operation, WRONG[name].root)}: 1 wrong element, first at 3: "
    assert flipped.wrong_detail.startswith(where)


@long
def test_a_run_has_its_settings_and_stdout_has_rows_alone(tmp_path):
    done = oneccl(tmp_path, *SMALL, "--dtype", "float32,bfloat16", "--format", "json")
    assert done.returncode == 0, done.stderr
    rows = rows_of(done)
    assert {(row["dtype"], row["wrong"], row["api"]) for row in rows} == {("float32", 0, "oneccl"), ("bfloat16", 0, "oneccl")}
    actual = rows[0]["evidence"]["libraries"]
    wanted = {"ccl_atl_transport": "ofi", "ccl_worker_offload": "0", "ccl_worker_count": "1", "ccl_yield": "sched_yield"}
    assert actual["oneccl"].startswith("2021.")
    assert wanted.items() <= actual.items()
    assert (actual["ccl_kvs_iface"], actual["fi_tcp_iface"]) == ("lo", "lo")
    assert "CCL_" not in done.stderr


@long
@pytest.mark.parametrize(("env", "words"), [
    ({"CCL_ATL_TRANSPORT": "mpi"}, "these ranks were not started by the mpiexec of Intel MPI"),
    ({"CCL_ATL_TRANSPORT": "tcp"}, "CCL_ATL_TRANSPORT is 'tcp'"), ({"COLLBENCH_ONECCL": "/nowhere"}, "/nowhere/lib/libccl.so.1 is missing"),
])  # fmt: skip
def test_a_setting_that_cannot_work_is_one_sentence(tmp_path, env, words):
    assert words in one_sentence(oneccl(tmp_path, *SMALL, env=env))


@long
def test_a_number_of_workers_that_it_refuses_ends_with_its_reason(tmp_path):
    done = oneccl(tmp_path, *SMALL, env={"CCL_WORKER_COUNT": "0"})
    assert done.returncode == 2
    assert re.search(r"collbench: oneCCL's init failed \(.*CCL_WORKER_COUNT.*\): check the CCL_\* and FI_\* variables", done.stderr)
    assert "Traceback" not in done.stderr


@long
def test_over_intel_mpi_by_its_own_mpiexec(tmp_path):
    mpiexec = Path(environment_of("oneccl")).parent / "mpiexec"
    words = (
        "-n", "2", *program_of("oneccl"), "allreduce", "--backend", "oneccl", "--sizes", "8,64K", "--max-time", "1", "--format", "json",
    )  # fmt: skip
    done = run(tmp_path, *words, program=(str(mpiexec),), env={**GENTLE, "CCL_ATL_TRANSPORT": "mpi"})
    assert done.returncode == 0, done.stderr
    rows = rows_of(done)
    assert [(row["na"], row["wrong"]) for row in rows] == [(None, 0)] * 2
    assert {row["evidence"]["libraries"]["ccl_atl_transport"] for row in rows} == {"mpi"}


# Faults, in the middle of a run.

LONG = ("allreduce", "--backend", "oneccl", "--sizes", "8,1K,1K-64M", "-n", "20", "--out", "run", "--timeout", str(TIMEOUT_S))


@pytest.fixture
def in_the_middle(tmp_path):
    """Start a run; processes that remain when the test ends are killed."""
    from tests.cli.command import running

    yield lambda *words: Launch(tmp_path, *LONG, *words, program=program_of("oneccl"), env=GENTLE)
    for pid in running(tmp_path):
        os.kill(pid, signal.SIGKILL)


@long
@pytest.mark.parametrize("victim", sample([0, 1], 1))
def test_a_killed_rank_ends_the_run_with_its_name(in_the_middle, victim):
    assert in_the_middle().ends_after_a_kill_of(victim).rows


@long
@pytest.mark.parametrize("victim", sample([0, 1], 1))
def test_a_stopped_rank_is_named_and_the_run_ends(in_the_middle, victim):
    assert in_the_middle("--max-time", "2").ends_after_a_stop_of(victim).rows


@long
@pytest.mark.hosts
@pytest.mark.timeout(180)
def test_over_a_link_of_1_gbit_it_reads_what_tcp_can_have_of_it_or_less(hosts, tmp_path):
    words = ["allreduce", "--backend", "oneccl", "--sizes", "16M", "--max-time", "6"]
    (row,) = across(hosts(2, "1gbit"), "oneccl", tmp_path / "run", words, env=GENTLE).rows
    assert (row.na, row.wrong, row.evidence["libraries"]["fi_tcp_iface"]) == (None, 0, "eth0")
    assert row.time_s is not None
    fastest = row.busbw_bytes_per_s * row.time_s.p50 / row.time_s.min  # a rank that waits for a core reads less
    assert 0.9 < fastest / LINK_BYTES_PER_S / PAYLOAD < 1.03  # 1.00 to 1.01 in four launches on a quiet machine
