"""A job of torch.distributed on Gloo that records its traces, and logs its own calls: run as RANK WORLD FOLDER JOB.

Writes et_RANK.json, kineto_RANK.json and calls_RANK.json: for each call [kind, dtype, elements sent, received, ranks of the group, root
or peer (-1: none), sizes to each rank, sizes from each rank].
"""

import json
import sys
from functools import wraps
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule

CALLS = []


def log(kind, sent, received, group=None, *, root=-1, parts=((), ())):
    """Log a call. sent, received: tensors, or lists of them."""
    tensors = [each if isinstance(each, list) else [each] for each in (sent, received)]
    dtype = str(next(each for some in tensors for each in some).dtype).removeprefix("torch.")
    numbers = [sum(each.numel() for each in some) for some in tensors]
    CALLS.append([kind, dtype, *numbers, dist.get_process_group_ranks(group or dist.group.WORLD), root, *map(list, parts)])


def wrap(module, name, before):
    original = getattr(module, name)

    @wraps(original)
    def call(*args, **options):
        before(*args, **options)
        return original(*args, **options)

    setattr(module, name, call)


def plain_steps(world):
    """Return a step with each operation of torch.distributed."""
    rank, x = dist.get_rank(), torch.ones(6, 4)
    dist.new_group()  # a second group of all ranks: Gloo's traces do not contain which one an operation uses
    flat = torch.ones(24)

    def out(*shape):
        return torch.empty(shape)

    def step():
        log("allreduce", x, x)
        dist.all_reduce(x)
        doubles = x.double()
        log("allreduce", doubles, doubles)
        dist.all_reduce(doubles, op=dist.ReduceOp.MAX)
        half = flat.to(torch.bfloat16)
        log("allreduce", half, half)
        work = dist.all_reduce(half, async_op=True)
        work.wait()
        log("broadcast", x, x, root=1)
        dist.broadcast(x, src=1)
        log("reduce", x, x, root=1)
        dist.reduce(x, dst=1)
        some = [out(24) for _ in range(world)]
        log("allgather", flat, some)
        dist.all_gather(some, flat)
        log("allgather", flat, out(24 * world))
        dist.all_gather_into_tensor(out(24 * world), flat)
        log("gather", flat, some if rank == 0 else out(0), root=0)
        dist.gather(flat, some if rank == 0 else None, dst=0)
        log("scatter", some if rank == 1 else out(0), flat, root=1)
        dist.scatter(flat, some if rank == 1 else None, src=1)
        CALLS.append(["barrier", "", 0, 0, list(range(world)), -1, [], []])
        dist.barrier()
        log("reducescatter", out(5 * world), out(5))
        dist.reduce_scatter_tensor(out(5), torch.ones(5 * world))
        log("alltoall", out(4 * world), out(4 * world))
        dist.all_to_all_single(out(4 * world), torch.ones(4 * world))
        # Rows of 3 elements; each rank gets as many rows as its number + 1.
        to, back = list(range(1, world + 1)), [rank + 1] * world
        sent, received = torch.ones(sum(to), 3), out(sum(back), 3)
        log("alltoallv", sent, received, parts=([3 * each for each in to], [3 * each for each in back]))
        dist.all_to_all_single(received, sent, back, to)
        if rank < 2:
            log("send" if rank == 0 else "recv", flat if rank == 0 else out(0), out(0) if rank == 0 else flat, root=1 - rank)
            dist.send(flat, 1) if rank == 0 else dist.recv(flat, 0)

    return step


def model_steps(model, inputs):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        model(inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def ddp_steps(model, inputs):
    """Return steps of DistributedDataParallel, with two buckets of gradients."""
    wrapped = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.02)

    def hook(state, bucket):
        log("allreduce", bucket.buffer(), bucket.buffer())
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

    hook.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}  # torch checks them
    wrapped.register_comm_hook(None, hook)
    return model_steps(wrapped, inputs)


def fsdp_steps(model, inputs):
    """Return steps of fully sharded data parallel (FSDP2)."""
    from torch.distributed.fsdp import fully_shard

    def gather(output_tensor, input_tensor, group=None, async_op=False):
        log("allgather", input_tensor, output_tensor, group)

    def scatter(output, input, op=None, group=None, async_op=False):
        log("reducescatter", input, output, group)

    newer = hasattr(dist, "all_gather_single")
    wrap(dist, "all_gather_single" if newer else "all_gather_into_tensor", gather)
    wrap(dist, "reduce_scatter_single" if newer else "reduce_scatter_tensor", scatter)
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    return model_steps(model, inputs)


def tensor_steps(model, inputs, world):
    """Return steps of tensor parallelism in pairs of ranks."""
    import torch.distributed._functional_collectives as functional
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    wrap(functional, "all_reduce", lambda x, *_, **__: log("allreduce", x, x, mesh.get_group("tp")))
    return model_steps(model, inputs)


def main(rank, world, folder, job):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    torch.manual_seed(0)
    model, inputs = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32)), torch.randn(16, 64)
    step = {
        "plain": lambda: plain_steps(world),
        "ddp": lambda: ddp_steps(model, inputs),
        "fsdp": lambda: fsdp_steps(model, inputs),
        "tensor": lambda: tensor_steps(model, inputs, world),
    }[job]()
    for _ in range(2):  # what is done once only is not part of a step; DistributedDataParallel arranges its buckets in the second one
        step()
    CALLS.clear()
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=0, active=2, repeat=1),
        record_shapes=True,
        execution_trace_observer=ExecutionTraceObserver().register_callback(str(folder / f"et_{rank}.json")),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(folder / f"kineto_{rank}.json")),
    ) as profiler:
        for _ in range(2):
            step()
            profiler.step()
    (folder / f"calls_{rank}.json").write_text(json.dumps(CALLS))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
