"""torch.distributed's own: all_reduce over Gloo, what the other stacks are set beside."""

from __future__ import annotations

from tools.benchmarks.stacks.loop import Call, Opened, Place, main


def ready(place: Place) -> Call:
    """An in-place all-reduce of zeros, so that the sum does not grow, on the open stack."""
    import torch

    tensor = torch.zeros(place.count)
    return lambda: torch.distributed.all_reduce(tensor)


def open_stack(place: Place) -> Opened:
    """Gloo over loopback."""
    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"tcp://{place.addresses[0]}", rank=place.rank, world_size=place.ranks)
    return ready(place), torch.distributed.destroy_process_group


if __name__ == "__main__":
    main(open_stack)
