"""Compare the layers with JAX's: output shapes, initial parameters, outputs and gradients; 8 devices with one."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.example_libraries import optimizers, stax

try:
    import jax
    from jax.example_libraries import stax as jax_stax
except ImportError:  # the oracle
    jax = None

# name: (layer of a library, shape of the inputs)
LAYERS = {
    "dense": (lambda s: s.Dense(5), (4, 3)),
    "conv": (lambda s: s.Conv(5, (3, 3), padding="SAME"), (2, 6, 6, 3)),
    "strided conv": (lambda s: s.Conv(5, (3, 2), strides=(2, 1)), (2, 7, 6, 3)),
    "general conv": (lambda s: s.GeneralConv(("NCHW", "OIHW", "NHWC"), 4, (3, 3)), (2, 3, 6, 6)),
    "conv transpose": (lambda s: s.ConvTranspose(4, (3, 3), strides=(2, 2), padding="SAME"), (2, 4, 4, 3)),
    "conv 1d transpose": (lambda s: s.Conv1DTranspose(4, (3,), strides=(2,)), (2, 5, 3)),
    "batch norm": (lambda s: s.BatchNorm(), (2, 4, 4, 3)),
    "batch norm without scale": (lambda s: s.BatchNorm(axis=0, scale=False), (6, 3)),
    "batch norm without both": (lambda s: s.BatchNorm(axis=(0, 1), scale=False, center=False), (6, 3)),
    "max pool": (lambda s: s.MaxPool((2, 2), strides=(2, 2)), (2, 6, 6, 3)),
    "sum pool": (lambda s: s.SumPool((3, 2), padding="SAME"), (2, 5, 6, 3)),
    "avg pool": (lambda s: s.AvgPool((3, 3), padding="SAME"), (2, 5, 6, 3)),
    "avg pool, channels first": (lambda s: s.AvgPool((2, 2), spec="NCHW"), (2, 3, 5, 6)),
    "flatten": (lambda s: s.Flatten, (2, 3, 4)),
    "fan out and in": (lambda s: s.serial(s.FanOut(2), s.parallel(s.Dense(3), s.Identity), s.FanInSum), (4, 3)),
    "concat": (lambda s: s.serial(s.FanOut(2), s.parallel(s.Dense(2), s.Tanh), s.FanInConcat(0 - 1)), (4, 3)),
    "shape dependent": (lambda s: s.shape_dependent(lambda shape: s.Dense(2 * shape[-1])), (4, 3)),
    "classifier": (
        lambda s: s.serial(
            s.Conv(4, (3, 3)), s.BatchNorm(), s.Relu, s.MaxPool((2, 2)), s.Flatten, s.Dense(3), s.LogSoftmax
        ),
        (2, 6, 6, 1),
    ),
    **{
        name: (lambda s, name=name: getattr(s, name), (4, 3))
        for name in ("Tanh", "Relu", "Exp", "Softmax", "Softplus", "Sigmoid", "Elu", "LeakyRelu", "Selu", "Gelu")
    },
}


def inputs(shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.jax
@pytest.mark.table(default=1)
@pytest.mark.parametrize("name", LAYERS)
def test_like_jax(name):
    pytest.importorskip("jax")
    build, shape = LAYERS[name]
    results = []
    for package, library in ((sw, stax), (jax, jax_stax)):
        init, apply = build(library)
        output_shape, params = init(package.random.key(3), shape)
        x = package.numpy.asarray(inputs(shape))
        outputs = package.jit(apply)(params, x)
        loss = lambda params, x, apply=apply: (apply(params, x) ** 2).sum()  # noqa: E731
        gradients = package.jit(package.grad(loss, (0, 1)))(params, x)
        assert tuple(output_shape) == outputs.shape
        results.append(package.tree.leaves((params, outputs, gradients)))
    for x, y in zip(*results, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-5)


@pytest.mark.jax
def test_dropout_like_jax():
    pytest.importorskip("jax")
    x = inputs((4, 6))
    for mode in ("train", "test"):
        _, apply = stax.serial(stax.Tanh, stax.Dropout(0.6, mode))
        _, expected = jax_stax.serial(jax_stax.Tanh, jax_stax.Dropout(0.6, mode))
        np.testing.assert_allclose(
            apply([(), ()], x, rng=sw.random.key(1)), expected([(), ()], x, rng=jax.random.key(1)), rtol=1e-6
        )
    with pytest.raises(ValueError, match="Dropout needs a PRNG key"):
        stax.Dropout(0.5)[1]((), x)


def test_training_on_a_mesh_equals_one_device(mesh):
    init, apply = stax.serial(stax.Dense(16), stax.Relu, stax.Dense(4), stax.LogSoftmax)
    _, params = init(sw.random.key(0), (-1, 8))
    images, labels = inputs((16, 8)), np.eye(4, dtype=np.float32)[np.arange(16) % 4]
    opt_init, opt_update, get_params = optimizers.momentum(0.1, 0.9)

    @sw.jit
    def step(i, state, images, labels):
        loss = lambda params: -jnp.mean(jnp.sum(apply(params, images) * labels, axis=1))  # noqa: E731
        value, gradients = sw.value_and_grad(loss)(get_params(state))
        return value, opt_update(i, gradients, state)

    losses = {}
    for name, place in {
        "one": lambda x, spec: jnp.asarray(x),
        "mesh": lambda x, spec: sw.device_put(x, sw.NamedSharding(mesh, spec)),
    }.items():
        state = opt_init(sw.tree.map(lambda x, place=place: place(x, sw.P()), params))
        batch = place(images, sw.P("data")), place(labels, sw.P("data"))
        losses[name] = []
        for i in range(5):
            value, state = step(i, state, *batch)
            losses[name].append(float(value))
    assert losses["one"][-1] < losses["one"][0]
    np.testing.assert_allclose(losses["mesh"], losses["one"], rtol=1e-5)
