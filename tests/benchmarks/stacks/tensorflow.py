"""TensorFlow by itself: the raw collective operation that MultiWorkerMirroredStrategy uses, to its result in numpy's memory."""

from __future__ import annotations

import json
import os
from importlib import import_module

from tests.benchmarks.stacks.loop import Opened, Place, main


def open_stack(place: Place) -> Opened:
    """All-reduce in a ring over gRPC; `.numpy()` waits for the result and copies it. The tensor is made before."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    cluster = {"worker": list(place.addresses)}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": place.rank}})
    tf = import_module("tensorflow")
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    words = {"group_size": place.ranks, "group_key": 1_000_001, "instance_key": 1, "ordering_token": []}
    words |= {"merge_op": "Add", "final_op": "Id", "communication_hint": "ring", "input": tf.zeros(place.count)}

    def allreduce() -> object:
        return tf.raw_ops.CollectiveReduceV2(**words).numpy()

    return allreduce, lambda: strategy  # must live as long as it is used; the process's end stops its server


if __name__ == "__main__":
    main(open_stack)
