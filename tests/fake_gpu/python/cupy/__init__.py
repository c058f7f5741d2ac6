"""FAKE cupy: a test double on the fake libcuda.so.1, with the names that collbench uses and no others."""

from cupy import cuda
from cupy.cuda._module import RawModule

__version__ = "14.2.0+FAKE"
__all__ = ["RawModule", "cuda"]
