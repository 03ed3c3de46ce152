"""FlowJAX: the README's block neural autoregressive flow with `fit_to_data`; conditional coupling and
masked autoregressive flows with splines; transformed distributions, variational inference.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import paramax
from flowjax.bijections import Affine, RationalQuadraticSpline, Tanh
from flowjax.distributions import MultivariateNormal, Normal, StudentT, Transformed
from flowjax.flows import block_neural_autoregressive_flow, coupling_flow, masked_autoregressive_flow
from flowjax.train import fit_to_data, fit_to_key_based_loss
from flowjax.train.losses import ElboLoss

from tests.ecosystem.report import report, shard

data_key, flow_key, train_key, sample_key = jr.split(jr.key(0), 4)
points = shard(jr.uniform(data_key, (256, 2)), "data")
flow = block_neural_autoregressive_flow(flow_key, base_dist=Normal(jnp.zeros(2)), nn_block_dim=2)
flow, losses = fit_to_data(
    train_key, flow, points, learning_rate=5e-3, max_epochs=2, batch_size=64, show_progress=False
)
report("training", losses["train"])
report("validation", losses["val"])
report("log prob", flow.log_prob(points)[:32])
report("samples", flow.sample(sample_key, (8,)))

FLOWS = {
    "coupling": lambda key: coupling_flow(key, base_dist=Normal(jnp.zeros(2)), flow_layers=2, nn_width=8, cond_dim=3),
    "autoregressive": lambda key: masked_autoregressive_flow(
        key,
        base_dist=Normal(jnp.zeros(2)),
        transformer=RationalQuadraticSpline(knots=4, interval=3),
        flow_layers=2,
        nn_width=8,
        cond_dim=3,
    ),
}
condition = shard(jr.normal(jr.key(1), (256, 3)), "data")
optimizer = optax.adam(1e-2)


@eqx.filter_jit
def step(params, static, state):
    def loss(params):
        flow = paramax.unwrap(eqx.combine(params, static))
        return -flow.log_prob(points, condition).mean()

    value, grads = eqx.filter_value_and_grad(loss)(params)
    updates, state = optimizer.update(grads, state)
    return eqx.apply_updates(params, updates), state, value


for name, build in FLOWS.items():
    params, static = eqx.partition(
        build(jr.key(2)), eqx.is_inexact_array, is_leaf=lambda leaf: isinstance(leaf, paramax.NonTrainable)
    )
    state, values = optimizer.init(params), []
    for _ in range(3):
        params, state, value = step(params, static, state)
        values.append(float(value))
    report(f"{name} losses", values)
    trained = paramax.unwrap(eqx.combine(params, static))
    report(f"{name} log prob", trained.log_prob(points, condition)[:16])
    report(f"{name} samples", trained.sample(jr.key(3), condition=condition[:8]))

shifted = Transformed(StudentT(jnp.full(2, 3.0)), Affine(1.0, jnp.array([2.0, 0.5])))
report("transformed", shifted.log_prob(points)[:16])
report("bijection", jax.vmap(Tanh((2,)).transform_and_log_det)(points)[1][:16])

target = MultivariateNormal(jnp.array([1.0, -1.0]), jnp.array([[1.0, 0.5], [0.5, 2.0]]))
posterior, losses = fit_to_key_based_loss(
    jr.key(4),
    Normal(jnp.zeros(2)),
    loss_fn=ElboLoss(target.log_prob, num_samples=16),
    steps=5,
    learning_rate=0.05,
    show_progress=False,
)
report("evidence lower bound", losses)
report("posterior", np.asarray([*paramax.unwrap(posterior).loc, *paramax.unwrap(posterior).scale]))
