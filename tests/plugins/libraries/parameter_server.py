"""A task of ParameterServerStrategy for a test: a parameter server, a worker, or the coordinator, which trains one step per worker.

Arguments: the task ("ps", "worker" or "coordinator"), its number, then the ports of the server, of the two workers and of the coordinator.
The coordinator prints, as JSON, the variables with their device, what a worker's step reads and updates of them, and their values.
"""

import json
import os
import sys

task, index, ports = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf  # noqa: E402  it reads the variable

server, *workers, coordinator = [f"127.0.0.1:{port}" for port in ports]
cluster = tf.train.ClusterSpec({"ps": [server], "worker": workers, "chief": [coordinator]})
if task != "coordinator":
    tf.distribute.Server(cluster, job_name=task, task_index=index, protocol="grpc").join()

SHAPES = [(16, 24), (24, 8), (8,)]
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, task_type="chief", task_id=0, rpc_layer="grpc")
strategy = tf.distribute.ParameterServerStrategy(resolver)


def made(shape: tuple[int, ...], seed: int) -> tf.Tensor:
    return tf.random.stateless_normal(shape, [seed, 7])


def gradients(variables: list[tf.Variable], inputs: tf.Tensor) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(inputs @ variables[0] @ variables[1] + variables[2]))
    return tape.gradient(loss, variables)


with strategy.scope():
    variables = [tf.Variable(made(shape, seed)) for seed, shape in enumerate(SHAPES)]


@tf.function
def step(inputs: tf.Tensor) -> None:
    """A step of one worker: it reads the variables, and subtracts its gradients from them on the server."""
    for variable, each in zip(variables, gradients(variables, inputs), strict=True):
        variable.assign_sub(0.1 * each, read_value=False)


coordination = tf.distribute.coordinator.ClusterCoordinator(strategy)
alone = [tf.Variable(made(shape, seed)) for seed, shape in enumerate(SHAPES)]
for part in range(len(workers)):
    batch = made((4, SHAPES[0][0]), 99 + part)
    coordination.schedule(step, args=(batch,))
    coordination.join()  # the next worker's step starts from this one's result: the values do not depend on chance
    for variable, each in zip(alone, gradients(alone, batch), strict=True):
        variable.assign_sub(0.1 * each)
operations = step.get_concrete_function(tf.zeros((4, SHAPES[0][0]))).graph.get_operations()
pulled = [int(op.outputs[0].shape.num_elements()) for op in operations if op.type == "ReadVariableOp"]
pushed = [int(op.inputs[1].shape.num_elements()) for op in operations if op.type == "AssignSubVariableOp"]
values, wanted = ([float(value) for one in ones for value in tf.reshape(one.read_value(), [-1]).numpy()] for ones in (variables, alone))
devices = [variable.device for variable in variables]
print(json.dumps({"pulled": pulled, "pushed": pushed, "devices": devices, "values": values, "wanted": wanted}))
sys.stdout.flush()
os._exit(0)  # the servers never end
