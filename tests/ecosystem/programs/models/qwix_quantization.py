"""Qwix: the README's model of Flax linen with post-training quantization to int8, weights alone in int4 and nf4, FP8,
quantization-aware training of weights, LoRA, a model of Flax NNX; `QArray`, `einsum` and `dot_general` of such arrays.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import qwix
from flax import linen as nn
from flax import nnx

from tests.ecosystem.report import report, shard


class Perceptron(nn.Module):
    hidden: int
    features: int

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(self.hidden, use_bias=False)(x))
        return nn.Dense(self.features, use_bias=False)(x)


model = Perceptron(64, 16)
x = shard(jax.random.uniform(jax.random.key(0), (8, 16)), "data")
params = model.init(jax.random.key(1), x)["params"]
params["Dense_0"]["kernel"] = shard(params["Dense_0"]["kernel"], None, "model")
params["Dense_1"]["kernel"] = shard(params["Dense_1"]["kernel"], "model", None)
report("unquantized", jax.jit(model.apply)({"params": params}, x))

RULES = {
    "int8": {"weight_qtype": "int8", "act_qtype": "int8"},
    "weights in int4": {"weight_qtype": "int4", "tile_size": 8},
    "weights in nf4": {"weight_qtype": "nf4"},
    "float8": {"weight_qtype": jnp.float8_e4m3fn, "act_qtype": jnp.float8_e4m3fn},
}
for name, options in RULES.items():
    rules = [qwix.QuantizationRule(module_path=".*", **options)]
    quantized = qwix.quantize_model(model, qwix.PtqProvider(rules))
    abstract = jax.eval_shape(quantized.init, jax.random.key(1), x)["params"]
    weights = qwix.quantize_params(params, abstract)
    report(f"{name}: types", [f"{leaf.shape} {leaf.dtype}" for leaf in jax.tree.leaves(abstract)])
    report(f"{name}: scale", weights["Dense_0"]["kernel"].array.scale)
    report(f"{name}: output", jax.jit(quantized.apply)({"params": weights}, x))

y = shard(jax.random.normal(jax.random.key(2), (8, 16)), "data")


def train(name, apply, params, is_trained=lambda path: True):
    """Report the losses of two steps."""
    labels = jax.tree_util.tree_map_with_path(lambda path, _: "trained" if is_trained(path) else "frozen", params)
    optimizer = optax.multi_transform({"trained": optax.sgd(0.5), "frozen": optax.set_to_zero()}, labels)

    @jax.jit
    def step(params, state):
        loss, grads = jax.value_and_grad(lambda params: ((apply({"params": params}, x) - y) ** 2).mean())(params)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, loss

    state, losses = optimizer.init(params), []
    for _ in range(2):
        params, state, loss = step(params, state)
        losses.append(float(loss))
    report(name, losses)


rules = [qwix.QuantizationRule(module_path=".*", weight_qtype="int8", act_qtype="int8")]
# Rounded activations would differ between one device and eight, where a value lies between two integers.
weight_rules = [qwix.QuantizationRule(module_path=".*", weight_qtype="int8")]
trained = qwix.quantize_model(model, qwix.QtProvider(weight_rules))
train("quantization-aware training", trained.apply, params)
adapted = qwix.apply_lora_to_model(model, qwix.LoraProvider(module_path="Dense_0", rank=4, alpha=2.0))
adapted_params = adapted.init(jax.random.key(1), x)["params"]
train("LoRA", adapted.apply, adapted_params, is_trained=lambda path: "lora" in str(path[-1]))


class Network(nnx.Module):
    def __init__(self, rngs):
        self.first, self.second = nnx.Linear(16, 32, rngs=rngs), nnx.Linear(32, 16, rngs=rngs)

    def __call__(self, x):
        return self.second(nnx.gelu(self.first(x)))


network = qwix.quantize_model(Network(nnx.Rngs(0)), qwix.PtqProvider(rules), x)
report("NNX", nnx.jit(lambda network, x: network(x))(network, x))

left, right = shard(np.asarray(jax.random.normal(jax.random.key(3), (8, 16))), "data"), params["Dense_0"]["kernel"]
quantized_left = qwix.quantize(left, jnp.int8, channelwise_axes=[0])
report("quantized values", quantized_left.qvalue)
report("dequantized", qwix.dequantize(quantized_left))
report("einsum", jax.jit(lambda a, b: qwix.einsum("mk,kn->mn", a, b))(quantized_left, right))
report("dot general", jax.jit(lambda a, b: qwix.dot_general(a, b, (((1,), (0,)), ((), ()))))(quantized_left, right))
