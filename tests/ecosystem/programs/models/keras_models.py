"""Keras: `fit`, `evaluate` and `predict` of a convolutional network, `save` and `load_model`, a transformer and a GRU
with metrics, `DataParallel` and `ModelParallel`, a training loop under `jax.jit` with `stateless_apply`.
"""

import os
import tempfile
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import keras
import numpy as np
from keras import distribution, layers

from tests.ecosystem.report import mesh, report, shard, spec_text

rng = np.random.default_rng(0)
images = rng.normal(size=(64, 12, 12, 1)).astype(np.float32)
labels = rng.integers(0, 10, 64)


def classifier():
    keras.utils.set_random_seed(7)
    return keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            layers.Conv2D(8, 3, padding="same", activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dropout(0.25),
            layers.Dense(10, kernel_regularizer="l2"),
        ]
    )


def compiled(model, optimizer):
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def train(name, model, inputs):
    """Train a model for two epochs and report losses, metrics and weights. Returns the model."""
    history = model.fit(inputs, labels, batch_size=16, epochs=2, verbose=0)
    for metric, values in history.history.items():
        report(f"{name}: {metric}", values)
    report(f"{name}: evaluate", model.evaluate(inputs, labels, batch_size=16, verbose=0))
    report(f"{name}: predict", model.predict(inputs[:16], verbose=0))
    report(f"{name}: weights", [float(jnp.abs(weight.value).sum()) for weight in model.trainable_variables])
    return model


model = train("classifier", compiled(classifier(), keras.optimizers.Adam(1e-2)), images)
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "classifier.keras")
    model.save(path)
    restored = keras.models.load_model(path)
    report("restored", restored.predict(images[:16], verbose=0))
    report("continued", restored.fit(images, labels, batch_size=16, verbose=0).history["loss"])

distribution.set_distribution(distribution.DataParallel(devices=[f"cpu:{device.id}" for device in jax.devices()]))
train("data parallel", compiled(classifier(), keras.optimizers.SGD(0.05, momentum=0.9)), images)


def transformer():
    keras.utils.set_random_seed(11)
    tokens = keras.Input((8,), dtype="int32")
    x = layers.Embedding(20, 16, name="embedding")(tokens)
    attended = layers.MultiHeadAttention(2, 8, use_bias=False, name="attention")(x, x, use_causal_mask=True)
    x = layers.LayerNormalization()(x + attended)
    x = x + layers.Dense(16, name="down")(layers.Dense(32, activation="gelu", name="up")(x))
    return keras.Model(tokens, layers.Dense(10)(layers.GRU(16)(x)))


axes = distribution.DeviceMesh(
    mesh.devices.shape, mesh.axis_names, [f"cpu:{device.id}" for device in mesh.devices.ravel()]
)
layout = distribution.LayoutMap(axes)
layout["embedding/embeddings"] = (None, "model")
layout["up/kernel"] = (None, "model")
layout["up/bias"] = ("model",)
layout["down/kernel"] = ("model", None)
layout[r"attention/(query|key|value)/kernel"] = (None, "model", None)
distribution.set_distribution(distribution.ModelParallel(layout_map=layout, batch_dim_name="data"))
tokens = rng.integers(0, 20, (64, 8)).astype(np.int32)
model = train("model parallel", compiled(transformer(), keras.optimizers.AdamW(5e-3)), tokens)
if mesh.size > 1:  # on one device, JAX's results have a SingleDeviceSharding
    report("shardings", [f"{weight.path} {spec_text(weight.value)}" for weight in model.trainable_variables])
distribution.set_distribution(None)

model = classifier()
optimizer = keras.optimizers.Adam(1e-2)
optimizer.build(model.trainable_variables)
criterion = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def loss_and_updates(trainable, non_trainable, x, y):
    logits, non_trainable = model.stateless_call(trainable, non_trainable, x, training=True)
    return criterion(y, logits), non_trainable


@jax.jit
def step(state, x, y):
    trainable, non_trainable, moments = state
    (loss, non_trainable), grads = jax.value_and_grad(loss_and_updates, has_aux=True)(trainable, non_trainable, x, y)
    trainable, moments = optimizer.stateless_apply(moments, grads, trainable)
    return (trainable, non_trainable, moments), loss


def replicated(variables):
    return [shard(np.asarray(variable.value)) for variable in variables]


state = tuple(
    replicated(variables)
    for variables in (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
)
x, y = shard(images, "data"), shard(labels.astype(np.int32), "data")
losses = []
for _ in range(4):
    state, loss = step(state, x, y)
    losses.append(float(loss))
report("stateless", losses)
report("stateless weights", [float(jnp.abs(weight).sum()) for weight in state[0]])
