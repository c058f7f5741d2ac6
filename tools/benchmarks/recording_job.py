"""A job for `recording_cost`: 150 DDP steps on Gloo; rank 0 prints the median seconds of steps 20 to 50, 50 to 100 and 100 to 150."""

from __future__ import annotations

import json
import statistics
import time

import torch
import torch.distributed as dist

HIDDEN, STEPS, SLICES = 256, 150, {"before": (20, 50), "recorded": (50, 100), "after": (101, 150)}


def main() -> None:
    """Train, and print the medians."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    layers = [torch.nn.TransformerEncoderLayer(HIDDEN, 4, batch_first=True, dropout=0.0) for _ in range(4)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    batch, seconds = torch.randn(4, 16, HIDDEN), []
    for _ in range(STEPS):
        began = time.perf_counter()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    if dist.get_rank() == 0:
        print(json.dumps({name: statistics.median(seconds[first:last]) for name, (first, last) in SLICES.items()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
