"""Haiku (dm-haiku): the README's classifier, Conv2D, BatchNorm with `transform_with_state`, dropout, LSTM with
`dynamic_unroll`, `layer_stack`, `to_dot`.
"""

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax

from tests.ecosystem.report import explain, report, shard

rng = np.random.default_rng(0)
images = shard(rng.normal(size=(32, 28, 28)).astype(np.float32), "data")
labels = shard(rng.integers(0, 10, 32), "data")


def softmax_cross_entropy(logits, labels):
    one_hot = jax.nn.one_hot(labels, logits.shape[-1])
    return -jnp.sum(jax.nn.log_softmax(logits) * one_hot, axis=-1)


def loss_fn(images, labels):
    mlp = hk.Sequential(
        [hk.Flatten(), hk.Linear(300), jax.nn.relu, hk.Linear(100), jax.nn.relu, hk.Linear(10)],
    )
    return jnp.mean(softmax_cross_entropy(mlp(images), labels))


loss_fn_t = hk.without_apply_rng(hk.transform(loss_fn))
params = loss_fn_t.init(jax.random.PRNGKey(42), images, labels)


@jax.jit
def update(params, images, labels):
    loss, grads = jax.value_and_grad(loss_fn_t.apply)(params, images, labels)
    return jax.tree.map(lambda param, grad: param - 0.01 * grad, params, grads), loss


explain(update, params, images, labels)
losses = []
for _ in range(4):
    params, loss = update(params, images, labels)
    losses.append(float(loss))
report("readme", losses)


def residual(images, is_training):
    x = hk.Conv2D(8, 3, stride=2)(images[..., None])
    x = hk.BatchNorm(True, True, 0.9)(x, is_training)
    x = x + hk.Conv2D(8, 3)(jax.nn.relu(x))
    x = hk.dropout(hk.next_rng_key(), 0.1, x) if is_training else x
    x = hk.LayerNorm(-1, True, True)(hk.avg_pool(x, 2, 2, "SAME"))
    return hk.Linear(10, w_init=hk.initializers.TruncatedNormal(0.1))(hk.Flatten()(x))


net = hk.transform_with_state(residual)
params, state = net.init(jax.random.PRNGKey(0), images, True)
optimizer = optax.sgd(0.05, momentum=0.9)
optimizer_state = optimizer.init(params)


@jax.jit
def train(params, state, optimizer_state, key):
    def loss(params):
        logits, new_state = net.apply(params, state, key, images, True)
        return softmax_cross_entropy(logits, labels).mean(), new_state

    (value, new_state), grads = jax.value_and_grad(loss, has_aux=True)(params)
    updates, new_optimizer_state = optimizer.update(grads, optimizer_state)
    return optax.apply_updates(params, updates), new_state, new_optimizer_state, value


explain(train, params, state, optimizer_state, jax.random.PRNGKey(1))
losses = []
for key in jax.random.split(jax.random.PRNGKey(1), 4):
    params, state, optimizer_state, loss = train(params, state, optimizer_state, key)
    losses.append(float(loss))
report("residual", losses)
report("running mean", state["batch_norm/~/mean_ema"]["average"])


def language_model(tokens):
    x = hk.Embed(20, 8)(tokens)
    core = hk.LSTM(16)
    outputs, _ = hk.dynamic_unroll(core, x, core.initial_state(tokens.shape[1]))
    layers = hk.experimental.layer_stack(2)(lambda x: x + hk.Linear(16)(jnp.tanh(x)))
    return hk.Linear(20)(layers(outputs))


model = hk.without_apply_rng(hk.transform(language_model))
tokens = shard(rng.integers(0, 20, (6, 16)), None, "data")
params = model.init(jax.random.PRNGKey(3), tokens)
report("parameters", [f"{module}/{name} {x.shape}" for module, name, x in sorted(hk.data_structures.traverse(params))])
value, grads = jax.jit(
    jax.value_and_grad(lambda params: softmax_cross_entropy(model.apply(params, tokens)[:-1], tokens[1:]).mean())
)(params)
report("lstm", [float(value), *(float(jnp.abs(grad).sum()) for grad in jax.tree.leaves(grads))])

mlp = hk.without_apply_rng(hk.transform(lambda x: hk.Linear(4)(jnp.tanh(hk.Linear(8)(x)))))
small = jnp.ones((2, 3))
dot = hk.to_dot(mlp.apply)(mlp.init(jax.random.PRNGKey(0), small), small)
report(
    "dot", [line.split("label=<")[1].split(">,")[0] for line in dot.splitlines() if "label=<" in line and ">," in line]
)
