"""A worker of MultiWorkerMirroredStrategy for a test: one step of a model of two matrices and a bias; prints what it exchanged, as JSON.

Arguments: the worker's number, then the port of each worker.
"""

import json
import os
import sys

index, ports = int(sys.argv[1]), sys.argv[2:]
workers = [f"127.0.0.1:{port}" for port in ports]
os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf  # noqa: E402  it reads the variables

SHAPES = [(16, 24), (24, 8), (8,)]
strategy = tf.distribute.MultiWorkerMirroredStrategy(
    communication_options=tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
)


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
    """A step of the strategy: each worker's gradients, their sum over the workers, the update."""

    def replica(inputs: tf.Tensor) -> None:
        context = tf.distribute.get_replica_context()
        summed = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients(variables, inputs))
        for variable, each in zip(variables, summed, strict=True):
            variable.assign_sub(0.1 * each / len(ports))

    strategy.run(replica, args=(inputs,))


alone = [tf.Variable(made(shape, seed)) for seed, shape in enumerate(SHAPES)]
batch = made((4 * len(ports), SHAPES[0][0]), 99)
part = batch[4 * index : 4 * index + 4]
graph = step.get_concrete_function(part).graph
collectives = [op for op in graph.get_operations() if "Collective" in op.type]
exchanged = [[op.type, int(op.inputs[0].shape.num_elements()), op.inputs[0].dtype.name] for op in collectives]
step(part)
for variable, each in zip(alone, gradients(alone, batch), strict=True):
    variable.assign_sub(0.1 * each)
values = [float(value) for variable in variables for value in tf.reshape(variable, [-1]).numpy()]
wanted = [float(value) for variable in alone for value in tf.reshape(variable, [-1]).numpy()]
print(json.dumps({"exchanged": exchanged, "values": values, "wanted": wanted, "parameters": len(values)}))
sys.stdout.flush()
os._exit(0)  # the other worker may have ended, for which TensorFlow would wait
