"""Usage errors of `emit`, each with the command line that ends so."""

from __future__ import annotations

from tests.messages import Message
from tests.messages.cli import FILES, typed

LINES = """\
emit slurm allreduce --sizes 8
emit
emit slrum -- allreduce
emit slurm
emit slurm --nodes 0 -- allreduce
emit slurm --node 2 -- allreduce
emit slurm --name a/b -- allreduce
emit slurm --image 'my image' -- allreduce
emit slurm --env A -- allreduce
emit slurm --site nowhere -- allreduce
emit slurm slurm -- allreduce
emit ansible --image a:b -- allreduce
emit ansible --submit -- allreduce
emit slurm -- allredcue
emit slurm -- allreduce --sise 8
emit slurm -- allreduce --ranks 8
emit slurm -- run gate --ranks-per-node=8
emit kubernetes -- allreduce
emit kubernetes --image 'a b' -- allreduce
emit kubernetes --image ./c.sif -- allreduce
emit kubernetes --image a/b --name Bench_1 -- allreduce
emit kubernetes --image a/b --name 1bench -- allreduce
emit kubernetes --image a/b --namespace a/b -- allreduce
emit kubernetes --image a/b --volume 'a b' -- allreduce
emit kubernetes --image a/b --rdma hca -- allreduce
emit kubernetes --image a/b --rdma a/b=1 --rdma a/b=2 -- allreduce
emit kubernetes --image a/b --hugepages 2Mi=1Gi -- allreduce
emit kubernetes --image a/b --hugepages 2Mi -- allreduce
emit kubernetes --image a/b --shm lots -- allreduce
emit kubernetes --image a/b --kind pod -- allreduce
emit kubernetes --image a/b --kind trainjob --pull-policy Never -- allreduce
emit kubernetes --image a/b --runtime torch -- allreduce
emit kubernetes --image a/b --env MASTER_ADDR=x -- allreduce
emit kubernetes --image a/b --nodes 0 -- allreduce
emit slurm --container pyxis -- allreduce
emit slurm --image a/b:1 --container apptainer -- allreduce
emit slurm --image a.sif --container pyxis -- allreduce
emit slurm --image oras://a/b -- allreduce
emit slurm --image a/b -- allreduce --out /x
emit slurm --image a/b --runs a:b -- allreduce
emit slurm --image a.sif --runs a,b -- allreduce
emit slurm --array 0 -- allreduce
emit slurm --minutes 0 -- allreduce
emit slurm --mpi openmpi -- allreduce
emit slurm --gpu-type h100 -- allreduce
"""
MESSAGES: dict[str, Message] = {line: typed(line, FILES) for line in LINES.splitlines()}
