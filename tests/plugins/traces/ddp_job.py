"""A job for the tests of `collbench trace`: eight DDP steps on Gloo, without a line for collbench.

An argument makes it go wrong, or ("groups", four ranks) adds process groups of its own and a message to each step.
"""

import sys
import time

import torch
import torch.distributed as dist

HIDDEN = 48

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.Linear(HIDDEN, HIDDEN)))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
groups = [dist.new_group([0, 1]), dist.new_group([2, 3])] if sys.argv[1:] == ["groups"] else []
for _ in range(8):
    optimizer.zero_grad()
    model(torch.randn(4, HIDDEN)).sum().backward()
    if groups:
        dist.all_reduce(torch.ones(30 + rank // 2), group=groups[rank // 2])
    if groups and rank == 0:
        dist.send(torch.ones(777), 3)
    if groups and rank == 3:
        dist.recv(torch.ones(777), 0)
    optimizer.step()
match sys.argv[1:]:
    case ["skip"]:  # rank 1 never calls the operation
        if rank == 0:
            dist.all_reduce(torch.ones(10))
        time.sleep(600)
    case ["pause"]:  # long enough for a hang, and then a hang
        time.sleep(8 * rank)
        dist.all_reduce(torch.ones(20))
        if rank == 0:
            dist.all_reduce(torch.ones(10))
        time.sleep(600)
    case ["raise"]:
        if rank == 1:
            raise ValueError("made up")
        dist.all_reduce(torch.ones(10))
    case ["exit"]:
        dist.destroy_process_group()
        sys.exit(7)
dist.destroy_process_group()
