"""A rank of Horovod with TensorFlow and Keras for a test: one step of a Keras model of three variables. horovodrun starts it.

Argument: a folder, in which each rank writes what it exchanged as RANK.json.
"""

import json
import os
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

hvd.init()
WIDTH, HIDDEN, OUT, PART, RATE = 16, 24, 8, 4, 0.1


def made_model(seed: int) -> keras.Model:
    """A model of two layers, one with a bias; its values follow from the seed."""
    keras.utils.set_random_seed(seed)
    layers = [keras.Input((WIDTH,)), keras.layers.Dense(HIDDEN, use_bias=False), keras.layers.Dense(OUT)]
    return keras.Sequential(layers)


def loss_of(model: keras.Model, inputs: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.square(model(inputs)))


def update(model: keras.Model, gradients: list[tf.Tensor]) -> None:
    keras.optimizers.SGD(RATE).apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def values(model: keras.Model) -> list[float]:
    return [float(value) for variable in model.trainable_variables for value in tf.reshape(variable, [-1]).numpy()]


model = made_model(hvd.rank())  # each rank has other values until the broadcast
hvd.broadcast_variables([variable.value for variable in model.trainable_variables], root_rank=0)


@tf.function
def gradients(inputs: tf.Tensor) -> list[tf.Tensor]:
    """The gradients of this rank's part, averaged over the ranks by Horovod."""
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = loss_of(model, inputs)
    return tape.gradient(loss, [variable.value for variable in model.trainable_variables])


batch = tf.random.stateless_normal((PART * hvd.size(), WIDTH), [99, 7])
part = batch[PART * hvd.rank() : PART * (hvd.rank() + 1)]
functions = gradients.get_concrete_function(part).graph.as_graph_def(add_shapes=True).library.function
calls = [node for function in functions for node in function.node_def if node.op.startswith("Horovod")]
shapes = [tf.TensorShape(node.attr["_output_shapes"].list.shape[0]) for node in calls]
exchanged = [[node.op, shape.num_elements(), tf.as_dtype(node.attr["T"].type).name] for node, shape in zip(calls, shapes, strict=True)]
update(model, gradients(part))

alone = made_model(0)
with tf.GradientTape() as whole_tape:
    whole = loss_of(alone, batch)
update(alone, whole_tape.gradient(whole, [variable.value for variable in alone.trainable_variables]))

found = {"exchanged": exchanged, "values": values(model), "wanted": values(alone), "parameters": model.count_params()}
Path(sys.argv[1], f"{hvd.rank()}.json").write_text(json.dumps(found), encoding="utf-8")
hvd.shutdown()
