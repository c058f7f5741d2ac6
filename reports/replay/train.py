"""Train a small transformer with DDP over Gloo: the job of `reports/replay`. It has no line for collbench."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
layers = [nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True) for _ in range(4)]
model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=13)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(10):
    optimizer.zero_grad()
    model(torch.randn(4, 64, 512)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
