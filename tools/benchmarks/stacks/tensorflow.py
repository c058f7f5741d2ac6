"""TensorFlow by itself: the raw collective operation that MultiWorkerMirroredStrategy uses, to its result in numpy's memory."""

from __future__ import annotations

import json
import os
from importlib import import_module

from tools.benchmarks.stacks.loop import Call, Opened, Place, main

_KEY = 2_000_000  # of the group: different from those of the stack's own group


def ready(place: Place) -> Call:
    """All-reduce in a ring, on what is open; `.numpy()` waits for the result and copies it. The tensor is made before."""
    tf = import_module("tensorflow")
    words = {"group_size": place.ranks, "group_key": _KEY, "instance_key": 1, "ordering_token": []}
    words |= {"merge_op": "Add", "final_op": "Id", "communication_hint": "ring", "input": tf.zeros(place.count)}
    return lambda: tf.raw_ops.CollectiveReduceV2(**words).numpy()


def open_stack(place: Place) -> Opened:
    """gRPC over loopback."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    cluster = {"worker": list(place.addresses)}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": place.rank}})
    tf = import_module("tensorflow")
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    return ready(place), lambda: strategy  # must live as long as it is used; the process's end stops its server


if __name__ == "__main__":
    main(open_stack)
