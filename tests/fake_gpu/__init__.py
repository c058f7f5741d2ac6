"""A test double of NVIDIA's driver, of NCCL and of cupy, and of AMD's HIP and RCCL, for machines without a GPU. It computes right results and measures nothing.

environment(gpus=2, drop_rank=1)   the variables for a subprocess that is to find the doubles in place of the real libraries
amd_environment(gpus=2)            the same for HIP and RCCL
"""

from tests.fake_gpu.build import ROOT, Missing, libraries
from tests.fake_gpu.double import amd_environment, environment

__all__ = ["ROOT", "Missing", "amd_environment", "environment", "libraries"]
