"""Test doubles of NVIDIA's driver, NCCL and cupy, and of AMD's HIP and RCCL. They compute right results and measure nothing.

environment(gpus=2, drop_rank=1)   the variables for a subprocess that is to find the doubles in place of the real libraries
amd_environment(gpus=2)            the same for HIP and RCCL
"""

from tests.fake_gpu.build import ROOT, Missing, libraries
from tests.fake_gpu.double import amd_environment, environment

__all__ = ["ROOT", "Missing", "amd_environment", "environment", "libraries"]
