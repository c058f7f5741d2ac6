"""Test beds: real clusters on one machine. Hosts are network namespaces with shaped links; Slurm runs across them or on one host.

with Hosts(2, "1gbit") as hosts, SlurmBed(hosts, cpus=2) as slurm:
    slurm.srun(["-N2"], [sys.executable, "-m", "collbench", "allreduce"])
"""

from tests.testbeds.bed import Missing
from tests.testbeds.hosts import Bottleneck, Hosts
from tests.testbeds.slurm import SlurmBed

__all__ = ["Bottleneck", "Hosts", "Missing", "SlurmBed"]
