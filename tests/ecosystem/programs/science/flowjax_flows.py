"""FlowJAX: the README's block neural autoregressive flow fitted to data, coupling, masked autoregressive and spline
flows, variational inference, distributions, with sharded data.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from flowjax import bijections, distributions, flows
from flowjax.train import fit_to_data, fit_to_key_based_loss
from flowjax.train.losses import ElboLoss

from tests.ecosystem.report import report, shard

data_key, flow_key, train_key, sample_key = jr.split(jr.key(0), 4)
points = shard(jr.uniform(data_key, (64, 2)), "data")
base = distributions.Normal(jnp.zeros(2))
flow = flows.block_neural_autoregressive_flow(key=flow_key, base_dist=base, nn_block_dim=4)
flow, losses = fit_to_data(
    key=train_key, dist=flow, data=points, learning_rate=5e-3, max_epochs=2, batch_size=16, show_progress=False
)
report("losses", losses["train"] + losses["val"])
report("log probabilities", eqx.filter_jit(flow.log_prob)(points))
report("samples", flow.sample(sample_key, (4,)))

for name, flow in {
    "coupling": flows.coupling_flow(flow_key, base_dist=base, flow_layers=2, nn_width=8),
    "autoregressive": flows.masked_autoregressive_flow(
        flow_key,
        base_dist=base,
        transformer=bijections.RationalQuadraticSpline(knots=4, interval=4),
        flow_layers=2,
        nn_width=8,
    ),
}.items():
    report(f"{name} flow", eqx.filter_jit(flow.log_prob)(points))
    report(f"{name} samples", flow.sample(sample_key, (4,)))
    _, losses = fit_to_data(train_key, flow, points, max_epochs=2, batch_size=16, show_progress=False)
    report(f"{name} losses", losses["train"])


def target(x):
    return distributions.Normal(jnp.array([1.0, -1.0]), jnp.array([0.5, 2.0])).log_prob(x)


guide = flows.masked_autoregressive_flow(flow_key, base_dist=base, invert=False, flow_layers=2, nn_width=8)
_, losses = fit_to_key_based_loss(
    train_key, guide, loss_fn=ElboLoss(target, num_samples=16), steps=4, learning_rate=1e-2, show_progress=False
)
report("variational losses", losses)
for distribution in (distributions.StudentT(4.0), distributions.Gumbel(0.5, 2.0), distributions.LogNormal(0.1, 0.5)):
    drawn = distribution.sample(sample_key, (8,))
    report(type(distribution).__name__, np.concatenate([drawn, distribution.log_prob(drawn)]))
chain = bijections.Chain(
    [bijections.Affine(jnp.ones(2), 2 * jnp.ones(2)), bijections.Tanh((2,)), bijections.Flip((2,))]
)
transformed, determinants = eqx.filter_jit(jax.vmap(chain.transform_and_log_det))(points)
report("bijections", np.concatenate([np.ravel(transformed), determinants]))
