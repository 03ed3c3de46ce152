"""AQT (aqtp): the README's `DotGeneral` injected into Flax layers, training with int8 forward and backward, stochastic
rounding, FP8; quantized `dot_general`, `einsum`, convolutions, and conversion to stored int8 weights.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from aqt.jax.v2 import aqt_conv_general, config, utils
from aqt.jax.v2.flax import aqt_flax
from flax import linen as nn

from tests.ecosystem.report import report, shard


class Perceptron(nn.Module):
    settings: config.DotGeneral | None
    mode: utils.QuantMode = utils.QuantMode.TRAIN

    @nn.compact
    def __call__(self, x):
        quantized = functools.partial(
            aqt_flax.AqtDotGeneral,
            self.settings,
            rhs_quant_mode=self.mode,
            rhs_freeze_mode=aqt_flax.FreezerMode.CALIBRATION_AND_VALUE,
        )
        x = nn.relu(nn.Dense(32, dot_general_cls=quantized)(x))
        return nn.Dense(8, dot_general_cls=quantized)(x)


rng = np.random.default_rng(0)
x = shard(rng.normal(size=(16, 16)).astype(np.float32), "data")
y = shard(rng.normal(size=(16, 8)).astype(np.float32), "data")
CONFIGS = {
    "forward": config.DotGeneral.make(8, 8),
    "int8": config.fully_quantized(fwd_bits=8, bwd_bits=8, use_stochastic_rounding=False),
    "stochastic": config.fully_quantized(fwd_bits=8, bwd_bits=8, use_stochastic_rounding=True),
    "float8": config.config_fwd_fp8(),
}
optimizer = optax.sgd(0.1)


def train(name, settings):
    """Report the losses of two steps and the gradients of the last one. Returns the parameters."""
    model = Perceptron(settings)
    variables = jax.jit(model.init)({"params": jax.random.key(0)}, x)

    @jax.jit
    def step(params, key):
        def loss(params):
            return ((model.apply({"params": params}, x, rngs={"params": key}) - y) ** 2).mean()

        value, grads = jax.value_and_grad(loss)(params)
        return optax.apply_updates(params, optimizer.update(grads, optimizer.init(params))[0]), value, grads

    params, losses = variables["params"], []
    for key in jax.random.split(jax.random.key(1), 2):
        params, value, grads = step(params, key)
        losses.append(float(value))
    report(f"{name}: losses", losses)
    report(f"{name}: gradients", [float(jnp.abs(leaf).sum()) for leaf in jax.tree.leaves(grads)])
    return params


for name, settings in CONFIGS.items():
    params = train(name, settings)
    if name == "forward":
        weights = params

converter = Perceptron(CONFIGS["forward"], utils.QuantMode.CONVERT)
_, frozen = jax.jit(functools.partial(converter.apply, mutable=True))(
    {"params": weights}, x, rngs={"params": jax.random.key(0)}
)
report("stored", [f"{leaf.shape} {leaf.dtype}" for leaf in jax.tree.leaves(frozen["aqt"])])
server = Perceptron(CONFIGS["forward"], utils.QuantMode.SERVE)
served = jax.jit(server.apply)({"params": weights, "aqt": frozen["aqt"]}, x, rngs={"params": jax.random.key(0)})
report("served", served)

left, right = x, shard(rng.normal(size=(16, 12)).astype(np.float32), None, "model")
dot_general = config.DotGeneral.make(8, 8)
report("dot general", jax.jit(lambda a, b: dot_general(a, b, (((1,), (0,)), ((), ()))))(left, right))


class Contraction(nn.Module):
    @nn.compact
    def __call__(self, a, b):
        return aqt_flax.AqtEinsum(config.DotGeneral.make(8, 8))("mk,kn->nm", a, b)


report("einsum", jax.jit(lambda a, b: Contraction().apply({}, a, b, rngs={"params": jax.random.key(0)}))(left, right))
convolution = aqt_conv_general.make_conv_general_dilated(config.conv_general_dilated_make(2, lhs_bits=8, rhs_bits=8))
images = shard(rng.normal(size=(8, 6, 6, 3)).astype(np.float32), "data")
kernel = shard(rng.normal(size=(3, 3, 3, 4)).astype(np.float32))
dims = jax.lax.conv_dimension_numbers(images.shape, kernel.shape, ("NHWC", "HWIO", "NHWC"))
convolve = functools.partial(convolution, window_strides=(1, 1), padding="SAME", dimension_numbers=dims)
report("convolution", jax.jit(convolve)(images, kernel)[:2])
