"""Horovod's own: hvd.allreduce_ on a torch tensor, over its Gloo, with the rendezvous server that horovodrun would start."""

from __future__ import annotations

import os

from tools.benchmarks.stacks.loop import Call, Opened, Place, main


def ready(place: Place) -> Call:
    """An in-place all-reduce of zeros, so that the sum does not grow, on the open stack."""
    import horovod.torch as hvd
    import torch

    tensor = torch.zeros(place.count)
    return lambda: hvd.allreduce_(tensor, op=hvd.Sum, name="sum")


def open_stack(place: Place) -> Opened:
    """One host, so all ranks are local."""
    import horovod.torch as hvd
    import torch
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
    from horovod.runner.util.threads import in_thread

    address, _, port = place.addresses[0].partition(":")
    places = {"RANK": place.rank, "SIZE": place.ranks, "LOCAL_RANK": place.rank, "LOCAL_SIZE": place.ranks}
    places |= {"CROSS_RANK": 0, "CROSS_SIZE": 1}
    actual = {"HOSTNAME": "here", "CONTROLLER": "gloo", "CPU_OPERATIONS": "gloo", "GLOO_IFACE": "lo", "GLOO_RENDEZVOUS_ADDR": address}
    os.environ |= {f"HOROVOD_{name}": str(value) for name, value in {**places, **actual, "GLOO_RENDEZVOUS_PORT": port}.items()}
    if place.rank == 0:
        server = RendezvousHTTPServer((address, int(port)), RendezvousHandler, 0)
        in_thread(server.serve_forever)
    torch.set_num_threads(1)
    hvd.init()
    return ready(place), hvd.shutdown


if __name__ == "__main__":
    main(open_stack)
