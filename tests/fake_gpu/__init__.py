"""A test double of NVIDIA's driver, of NCCL and of cupy, for machines without a GPU. It computes right results and measures nothing.

environment(gpus=2, drop_rank=1)   the variables for a subprocess that is to find the doubles in place of the real libraries
"""

from tests.fake_gpu.build import ROOT, Missing, libraries
from tests.fake_gpu.double import environment

__all__ = ["ROOT", "Missing", "environment", "libraries"]
