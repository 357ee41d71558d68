"""Programs in the manner of Keras's guides to custom training loops and to distribution."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras

from tests.real_programs.registry import Real, Registry, numbers, tokens

PROGRAMS = Registry()


def _train_step(model, optimizer, loss_fn):
    def loss(trainable, fixed, x, y):
        made, fixed = model.stateless_call(trainable, fixed, x, training=True)
        return loss_fn(y, made), fixed

    @jax.jit
    def step(state, data):
        trainable, fixed, moments = state
        (value, fixed), gradients = jax.value_and_grad(loss, has_aux=True)(trainable, fixed, *data)
        trainable, moments = optimizer.stateless_apply(moments, gradients, trainable)
        return value, (trainable, fixed, moments)

    return step


def _state(model, optimizer):
    return tuple(
        [v.value for v in variables]
        for variables in (
            model.trainable_variables,
            model.non_trainable_variables,
            optimizer.variables,
        )
    )


def _program(distribution, model_of):
    keras.distribution.set_distribution(distribution)
    try:
        keras.utils.set_random_seed(0)
        model = model_of()
        optimizer = keras.optimizers.Adam(1e-3)
        optimizer.build(model.trainable_variables)
    finally:
        keras.distribution.set_distribution(None)
    mesh = distribution.device_mesh.backend_mesh
    over = jax.sharding.NamedSharding(mesh, jax.P(mesh.axis_names[0]))
    data = jax.device_put((numbers(16, *model.input_shape[1:]), tokens(16, below=4)), over)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return Real(_train_step(model, optimizer, loss), (_state(model, optimizer), data))


@PROGRAMS
def data_parallel_convolutions() -> Real:
    """A distributed training guide: `stateless_call` and `stateless_apply` under jit."""
    devices = keras.distribution.list_devices("cpu")[:8]
    mesh = keras.distribution.DeviceMesh((8,), ("batch",), devices)

    def model():
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(4, 3, activation="relu"),
                layers.BatchNormalization(),
                layers.GlobalAveragePooling2D(),
                layers.Dropout(0.2),
                layers.Dense(4),
            ]
        )

    return _program(keras.distribution.DataParallel(mesh), model)


@PROGRAMS
def model_parallel_dense() -> Real:
    """The distribution guide: a LayoutMap splits kernels by their paths."""
    devices = keras.distribution.list_devices("cpu")[:8]
    mesh = keras.distribution.DeviceMesh((4, 2), ("batch", "model"), devices)
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[".*up.*kernel"] = (None, "model")
    layouts[".*up.*bias"] = ("model",)
    layouts[".*down.*kernel"] = ("model", None)
    distribution = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")

    def model():
        layers = keras.layers
        up = layers.Dense(32, activation="gelu", name="up")
        return keras.Sequential(
            [keras.Input((16,)), up, layers.LayerNormalization(), layers.Dense(4, name="down")]
        )

    return _program(distribution, model)
