"""Equinox: layers, also with state; ensembles by `filter_vmap`, serialisation, filtered transformations, `error_if`."""

import io

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax

from tests.ecosystem.report import explain, report, shard

keys = iter(jr.split(jr.PRNGKey(0), 30))
rng = np.random.default_rng(0)


def data(*shape):
    return shard(rng.normal(size=shape).astype(np.float32), "data")


attention = eqx.nn.MultiheadAttention(num_heads=2, query_size=8, key=next(keys))
sequence = data(16, 8)
mask = np.tril(np.ones((16, 16), bool))
report("attention", eqx.filter_jit(attention)(sequence, sequence, sequence, mask))

cell = eqx.nn.GRUCell(8, 12, key=next(keys))
lstm = eqx.nn.LSTMCell(8, 12, key=next(keys))


@eqx.filter_jit
def recurrent(cells, xs):
    gru, lstm = cells
    hidden, _ = jax.lax.scan(lambda h, x: (gru(x, h), None), jnp.zeros(12), xs)
    (state, _), _ = jax.lax.scan(lambda s, x: (lstm(x, s), None), (jnp.zeros(12), jnp.zeros(12)), xs)
    return hidden, state


for name, value in zip(("gru", "lstm"), recurrent((cell, lstm), sequence), strict=True):
    report(name, value)

images = data(8, 3, 10, 10)
convolutions = eqx.nn.Sequential(
    [
        eqx.nn.Conv2d(3, 4, 3, padding=1, key=next(keys)),
        eqx.nn.Lambda(jax.nn.relu),
        eqx.nn.MaxPool2d(2, 2),
        eqx.nn.ConvTranspose2d(4, 2, 2, key=next(keys)),
        eqx.nn.AvgPool2d(2, 2),
        eqx.nn.GroupNorm(2, 2),
    ]
)
report("convolutions", eqx.filter_jit(jax.vmap(convolutions))(images))
embedding = eqx.nn.Embedding(20, 4, key=next(keys))
report("embedding", jax.vmap(embedding)(shard(np.arange(16) % 20, "data")))
report("rms norm", jax.vmap(eqx.nn.RMSNorm(8))(sequence))
report("prelu", eqx.nn.PReLU()(sequence))


class Network(eqx.Module):
    convolution: eqx.nn.Conv1d
    norm: eqx.nn.BatchNorm
    spectral: eqx.nn.SpectralNorm
    dropout: eqx.nn.Dropout
    head: eqx.nn.Linear

    def __init__(self, key):
        one, two, three, four = jr.split(key, 4)
        self.convolution = eqx.nn.Conv1d(2, 4, 3, use_bias=False, key=one)
        self.norm = eqx.nn.BatchNorm(4, axis_name="batch", mode="batch")
        self.spectral = eqx.nn.SpectralNorm(eqx.nn.Linear(4, 4, key=two), "weight", key=three)
        self.dropout = eqx.nn.Dropout(0.2)
        self.head = eqx.nn.Linear(4, 3, key=four)

    def __call__(self, x, state, key):
        x, state = self.norm(self.convolution(x), state)
        x, state = self.spectral(jnp.mean(x, axis=-1), state)
        return self.head(self.dropout(jax.nn.relu(x), key=key)), state


network, state = eqx.nn.make_with_state(Network)(next(keys))
optimizer = optax.adamw(1e-2)
optimizer_state = optimizer.init(eqx.filter(network, eqx.is_inexact_array))


@eqx.filter_value_and_grad(has_aux=True)
def loss(network, state, x, y, keys):
    batched = jax.vmap(network, axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None))
    logits, state = batched(x, state, keys)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, y)), state


@eqx.filter_jit
def step(network, state, optimizer_state, x, y, keys):
    (value, state), grads = loss(network, state, x, y, keys)
    updates, optimizer_state = optimizer.update(grads, optimizer_state, eqx.filter(network, eqx.is_inexact_array))
    return eqx.apply_updates(network, updates), state, optimizer_state, value


x, y = data(16, 2, 12), shard(rng.integers(0, 3, 16), "data")
losses = []
for number in range(4):
    dropout_keys = jr.split(jr.PRNGKey(number), 16)
    network, state, optimizer_state, value = step(network, state, optimizer_state, x, y, dropout_keys)
    losses.append(float(value))
report("layers with state", losses)
explain(jax.jit(lambda x: loss(network, state, x, y, dropout_keys)), x)
inference = eqx.nn.inference_mode(network)
logits, _ = eqx.filter_jit(jax.vmap(inference, in_axes=(0, None, None), out_axes=(0, None)))(x, state, None)
report("inference", logits)
file = io.BytesIO()
eqx.tree_serialise_leaves(file, (network, state))
file.seek(0)
loaded = eqx.tree_deserialise_leaves(file, eqx.nn.make_with_state(Network)(jr.PRNGKey(9)))
report("serialisation", [float(eqx.tree_equal(loaded, (network, state)))])


@eqx.filter_vmap
def ensemble(key):
    return eqx.nn.MLP(4, 2, 8, 1, key=key)


@eqx.filter_vmap(in_axes=(eqx.if_array(0), None))
def evaluate(model, x):
    return model(x)


models = ensemble(jr.split(next(keys), 8))
report("ensemble", evaluate(models, jnp.ones(4)))
report("sharded ensemble", eqx.filter_jit(evaluate)(eqx.filter_shard(models, sequence.sharding), jnp.ones(4)))

mlp = eqx.nn.MLP(3, 2, 8, 1, key=next(keys))
point, direction = jnp.array([0.1, -0.2, 0.3]), jnp.array([1.0, 0.0, 2.0])
report("jvp", eqx.filter_jvp(lambda x, n: (mlp(x), n)[0], (point, 3), (direction, None))[1])
_, pullback = eqx.filter_vjp(lambda f, x: f(x), mlp, point)
report("vjp", pullback(jnp.ones(2))[1])
report("hessian", eqx.filter_hessian(lambda x: jnp.sum(mlp(x) ** 2))(point))
converted = eqx.filter_closure_convert(lambda x: mlp(x) * 2, point)
report("closure_convert", converted(point))
shapes = eqx.filter_eval_shape(mlp, point)
report("eval_shape", list(shapes.shape))


@eqx.filter_custom_vjp
def clipped(x, bound):
    return x


@clipped.def_fwd
def clipped_forward(perturbed, x, bound):
    return x, None


@clipped.def_bwd
def clipped_backward(residuals, gradient, perturbed, x, bound):
    return jnp.clip(gradient, -bound, bound)


@eqx.filter_custom_jvp
def doubled(x, *, factor):
    return x * factor


@doubled.def_jvp
def doubled_jvp(primals, tangents, *, factor):
    return doubled(*primals, factor=factor), 10 * tangents[0]


report("custom_vjp", eqx.filter_grad(lambda x: jnp.sum(5 * clipped(x, 2.0)))(point))
report("custom_jvp", jax.jit(jax.grad(lambda x: jnp.sum(doubled(x, factor=2))))(point))
report("checkpoint", jax.grad(lambda x: jnp.sum(eqx.filter_checkpoint(mlp)(x)))(point))
# JAX aborts after 40 s if the array is sharded: the device that raises does not meet the others in their all-reduce.
checked = sequence if hasattr(jax, "explain") else point
try:
    eqx.filter_jit(lambda x: eqx.error_if(x, jnp.any(x < 0), "a negative number"))(checked)
except eqx.EquinoxRuntimeError as error:
    report("error", str("a negative number" in str(error)))
