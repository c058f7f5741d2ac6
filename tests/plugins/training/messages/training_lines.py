"""Usage errors of `workload`, each with the command line that ends so."""

from __future__ import annotations

from tests.messages import Message
from tests.messages.cli import FILES, typed

LINES = """\
workload nothing
workload ''
workload
workload fsdp --model bert
workload ddp --backend mpi
workload fsdp2 --model 100K
workload data-parallel --bucket 0
workload data-parallel --ranks 1
workload fsdp --update sharded
workload fsdp,pipeline --tensor 2
workload fsdp --step-time 0
workload pipeline --compute real
workload pipeline --model resnet50
workload hierarchical --ranks 4
workload fsdp --steps 0
workload data-parallel --ranks 1 --dry-run
"""
MESSAGES: dict[str, Message] = {line: typed(line, FILES) for line in LINES.splitlines()}
