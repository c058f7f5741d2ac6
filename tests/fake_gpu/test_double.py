"""The double of driver, NCCL and cupy behaves like the original, and its names show that it is a double."""

import ctypes
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from tests import conftest
from tests.fake_gpu import ROOT, Missing, build, environment, libraries

pytestmark = pytest.mark.system

GPUS = 4


@pytest.fixture(scope="module", autouse=True)
def built():
    return libraries()


def python(code, env):
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_everything_inside(tmp_path):
    actual = {
        "NCCL_RAS_ADDR": f"127.0.0.1:{free_port()}", "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,TUNING",
        "NCCL_DEBUG_FILE": f"{tmp_path}/%h.%p",
    }  # fmt: skip
    files = ["tests/fake_gpu/inside.py", "tests/fake_gpu/inside_refusals.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, env=environment(GPUS) | actual, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


RANK = """
import sys, numpy as np, tests.fake_gpu.ranks as ranks
rank, n, hexadecimal = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
me = ranks.Ranks.__new__(ranks.Ranks)
identity = ranks.UniqueId.from_buffer_copy(bytes.fromhex(hexadecimal))
me.n, me.comms, me.streams = 1, [ranks.ctypes.c_void_p()], []
with ranks.cupy.cuda.Device(rank):
    ranks.check(ranks.NCCL.ncclCommInitRank(ranks.ctypes.byref(me.comms[0]), n, identity, rank))
    me.streams.append(ranks.cupy.cuda.Stream(non_blocking=True))
sent = np.full(100_000, rank + 1, np.float32)
print(*{*me.run("ncclAllReduce", [sent], sent.size, (7, 0))[0].tolist()}, *me.run("ncclAllGather", [sent[:1]], 1, (7,), receive=n)[0])
me.close()
"""


def test_ranks_in_processes_of_their_own(built):
    env, before = environment(3), {*Path("/dev/shm").glob("collbench-fake-nccl-*")}
    identity = (ctypes.c_char * 128)()
    assert ctypes.CDLL(str(built / "nccl/libnccl.so.2")).ncclGetUniqueId(identity) == 0
    command = [sys.executable, "-c", RANK]
    started = [
        subprocess.Popen([*command, str(rank), "3", bytes(identity.raw).hex()], env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for rank in range(3)
    ]
    assert [process.communicate(timeout=60)[0].split() for process in started] == [["6.0", "1.0", "2.0", "3.0"]] * 3
    assert {*Path("/dev/shm").glob("collbench-fake-nccl-*")} <= before


def test_shared_memory_of_dead_processes_is_removed(built):
    with subprocess.Popen(["true"]) as ended:
        pass
    left = Path(f"/dev/shm/collbench-fake-nccl-{ended.pid}-0123456789abcdef")
    left.write_bytes(b"x")
    ctypes.CDLL(str(built / "nccl/libnccl.so.2")).ncclGetUniqueId((ctypes.c_char * 128)())
    assert not left.exists()


@pytest.mark.parametrize(("required", "ending"), [("", pytest.skip.Exception), ("1", pytest.fail.Exception)])
@pytest.mark.parametrize("hook", [conftest.pytest_runtest_setup, conftest.pytest_runtest_call])
def test_without_a_compiler_tests_are_skipped_but_fail_where_they_must_run(hook, required, ending, monkeypatch, tmp_path):
    monkeypatch.setenv(conftest.REQUIRED, required)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Missing) as missing:
        build._made(tmp_path / "none", lambda folder: None)
    next(around := hook())
    with pytest.raises(ending, match=r"apt-get install g\+\+"):
        around.throw(missing.value)


def test_of_two_builds_at_once_both_get_a_whole_one(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "BUILD", tmp_path)
    both = Barrier(2, timeout=30)

    def slowly(folder):
        (folder / "whole").touch()
        both.wait()

    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda _: build._made(tmp_path / "made", slowly), range(2)))
    assert made == [tmp_path / "made"] * 2
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*")] == [Path("made"), Path("made/whole")]


FIRST = "import cupy; r = cupy.cuda.runtime\n"


def test_it_reports_that_it_is_a_double():
    said = python(FIRST + "print(cupy.__version__, r.getDeviceProperties(0)['name'].decode())", environment())
    assert said == "14.2.0+FAKE FAKE GPU (test double)"


@pytest.mark.parametrize(
    ("visible", "wanted"),
    [("1,0", "2 0000:20:00.0"), ("1,7,0", "1 0000:20:00.0"), ("GPU-fa4efa4e-0000-0000-0000-000000000001", "1 0000:20:00.0")],
)
def test_cuda_visible_devices_chooses_and_orders(visible, wanted):
    assert python(FIRST + "print(r.getDeviceCount(), r.deviceGetPCIBusId(0))", environment() | {"CUDA_VISIBLE_DEVICES": visible}) == wanted


REFUSED = FIRST + "try: r.malloc(4096)\nexcept r.CUDARuntimeError as error: print(error.status)"


@pytest.mark.parametrize(("env", "status"), [
    (lambda: environment() | {"CUDA_VISIBLE_DEVICES": ""}, 100),
    (lambda: environment() | {"CUDA_VISIBLE_DEVICES": "0,0"}, 100),
    (lambda: environment(driver=False), 35),
    (lambda: environment(driver_version=12080), 35),
    (lambda: environment(compute_mode="prohibited"), 46),
    (lambda: environment(busy=0), 46),
    (lambda: environment(memory=4095), 2),
])  # fmt: skip
def test_a_gpu_that_cannot_be_had(env, status):
    assert callable(env)
    assert python(REFUSED, env()) == str(status)


def test_an_exclusive_gpu_belongs_to_one_process():
    env = environment(compute_mode="exclusive")
    holder = subprocess.Popen(
        [sys.executable, "-c", FIRST + "r.malloc(1); print('held', flush=True); input()"],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert python(REFUSED, env) == "46"
    holder.communicate("\n", timeout=30)
    assert python(REFUSED, env) == ""


def test_a_library_without_a_function():
    code = "import ctypes; n = ctypes.CDLL('libnccl.so.2'); print(hasattr(n, 'ncclAlltoAll'), hasattr(n, 'ncclAllReduce'))"
    assert python(code, environment(lacks=["ncclAlltoAll"])) == "False True"


def test_memory_is_opened_by_another_process():
    env = environment()
    owner = subprocess.Popen(
        [sys.executable, "-c", FIRST + "p = r.malloc(4096); r.memset(p, 7, 4096); print(r.ipcGetMemHandle(p).hex(), flush=True); input()"],
        env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert owner.stdout is not None
    handle = owner.stdout.readline().strip()
    code = f"import ctypes\np = r.ipcOpenMemHandle(bytes.fromhex('{handle}'))\nprint(ctypes.string_at(p + 4095, 1))\nr.ipcCloseMemHandle(p)"
    assert python(FIRST + code, env) == r"b'\x07'"
    owner.communicate("\n", timeout=30)
