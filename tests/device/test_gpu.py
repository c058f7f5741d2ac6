"""Whether a GPU can be used, in one sentence where not; and the room's work, on the double of driver and cupy."""

import ctypes
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from collbench.device import unavailable
from collbench.device.unavailable import gpu_obstacle
from tests.fake_gpu import ROOT, environment


def on_the_double(*command, **told):
    env = environment(2, **told)
    return subprocess.run([sys.executable, *command], env=env, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.contract
def test_everything_inside():
    done = on_the_double("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/device/inside.py")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.contract
def test_a_gpu_that_refuses_is_one_sentence():
    code = "from collbench.device.gpu import OpenGpu\nfrom collbench.errors import UsageError\n"
    code += "try: OpenGpu(1)\nexcept UsageError as e: print(e)"
    done = on_the_double("-c", code, compute_mode="exclusive", busy="1")
    assert done.stdout.startswith("GPU 1 (FAKE GPU (test double)) is in exclusive mode "), done.stderr


class CudaError(Exception):
    def __init__(self, status):
        super().__init__(f"cudaError{status}")
        self.status = status


@pytest.fixture
def machine(monkeypatch):
    """A machine with the given driver, cupy and GPUs."""

    def machine(*, gpus=2, driver=13020, needed=13020, library=True, cupy=True, installed=("cupy-cuda13x",), error=None, mode=0):
        load = Mock(side_effect=None if library else OSError("no such library"))
        count = Mock(return_value=gpus, side_effect=CudaError(error or 100) if error or not gpus else None)
        runtime = SimpleNamespace(
            driverGetVersion=lambda: driver, runtimeGetVersion=lambda: needed, getDeviceCount=count, CUDARuntimeError=CudaError,
            deviceGetAttribute=lambda attribute, index: mode,
        )  # fmt: skip
        monkeypatch.setattr(ctypes, "CDLL", load)
        monkeypatch.setattr(unavailable, "find_spec", lambda name: name if cupy else None)
        monkeypatch.setattr(unavailable, "version_of", lambda name: "14.2.0" if name in installed else "")
        monkeypatch.setattr(unavailable, "cupy_runtime", lambda: runtime)

    return machine


@pytest.mark.parametrize(("expected", "why", "remedy"), [
    ({"library": False}, unavailable.NoDriver(), "install"),
    ({"cupy": False}, unavailable.NoCupy(), "collbench[cuda13]"),
    ({"installed": ("cupy-cuda12x", "cupy-cuda13x")}, unavailable.SeveralCupys(("cupy-cuda12x", "cupy-cuda13x")),
        "pip uninstall -y cupy-cuda12x cupy-cuda13x"),
    ({"driver": 12040}, unavailable.DriverTooOld("12.4", "13.2"), "collbench[cuda12]"),
    ({"driver": 11080}, unavailable.DriverTooOld("11.8", "13.2"), "CUDA 12"),
    ({"error": 35}, unavailable.DriverTooOld("13.2", "13.2"), "collbench[cuda13]"),
    ({"error": 802}, unavailable.FabricManagerNotRunning(), "nvidia-fabricmanager"),
    ({"error": 3}, unavailable.CudaFailed("cudaError3"), "nvidia-smi"),
    ({"gpus": 0}, unavailable.NoGpu(), "nvidia-smi"),
    ({"mode": 2}, unavailable.GpusProhibited(), "nvidia-smi -c DEFAULT"),
])  # fmt: skip
def test_why_no_gpu_can_be_used(machine, expected, why, remedy):
    machine(**expected)
    found = gpu_obstacle({})
    assert found == why
    assert remedy in found.remedy()


@pytest.mark.parametrize(("variable", "gpus", "why"), [
    ("", 2, unavailable.GpusHidden()), (" ", 2, unavailable.GpusHidden()), ("-1", 2, unavailable.GpusHidden()),
    ("NoDevFiles", 2, unavailable.NoGpuFromSlurm()), ("7", 0, unavailable.UnknownGpu("7", "7")),
    ("0,7,1", 1, unavailable.UnknownGpu("0,7,1", "7")), ("0,0", 0, unavailable.GpuListedTwice("0,0")), ("0,1", 2, None),
    ("1, -1, 0", 1, None), ("MIG-GPU-8932/1/2,MIG-2", 1, None), ("MIG-GPU-8932/1/2", 0, unavailable.NoGpu()), ("GPU-8932", 1, None),
])  # fmt: skip
def test_what_hides_a_gpu_is_named(machine, variable, gpus, why):
    machine(gpus=gpus)
    assert gpu_obstacle({"CUDA_VISIBLE_DEVICES": variable}) == why


def test_a_machine_with_gpus_is_fine_and_asking_never_raises(machine, monkeypatch):
    machine()
    assert gpu_obstacle({}) is None
    monkeypatch.setattr(unavailable, "cupy_runtime", lambda: 1 // 0)
    assert gpu_obstacle({}) == unavailable.CudaFailed("ZeroDivisionError: integer division or modulo by zero")
