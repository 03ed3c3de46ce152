"""OTT-JAX (ott-jax): the README's Sinkhorn coupling of point clouds, its gradient, divergences, unbalanced and low-rank
transport, Gromov-Wasserstein, barycenters, soft sorting, with sharded points.
"""

import jax
import jax.numpy as jnp
import numpy as np
from ott.geometry import costs, pointcloud
from ott.problems.linear import barycenter_problem, linear_problem
from ott.problems.quadratic import quadratic_problem
from ott.solvers import linear
from ott.solvers.linear import continuous_barycenter, sinkhorn, sinkhorn_lr
from ott.solvers.quadratic import gromov_wasserstein
from ott.tools import sinkhorn_divergence, soft_sort

from tests.ecosystem.report import explain, report, shard

keys = jax.random.split(jax.random.key(42), 4)
x, y = jax.random.uniform(keys[0], (16, 2)), jax.random.uniform(keys[1], (24, 2))
a, b = jax.random.uniform(keys[2], (16,)) + 0.2, jax.random.uniform(keys[3], (24,)) + 0.2
x, y, a, b = shard(x, "data"), shard(y, "data"), shard(a / jnp.sum(a), "data"), shard(b / jnp.sum(b), "data")


@jax.jit
def couple(x, y, a, b):
    out = linear.solve(pointcloud.PointCloud(x, y, epsilon=0.05), a, b)
    return out.matrix, out.reg_ot_cost, out.f, out.g


matrix, cost, f, g = couple(x, y, a, b)
report("coupling", matrix)
report("cost", cost)
report("potentials", np.concatenate([f, g]))
explain(couple, x, y, a, b)


def transport_cost(x, epsilon):
    return linear.solve(pointcloud.PointCloud(x, y, epsilon=epsilon), a, b).reg_ot_cost


report("gradient", jax.jit(jax.grad(transport_cost))(x, 0.05))
report("default epsilon", jax.jit(linear.solve)(pointcloud.PointCloud(x, y), a, b).reg_ot_cost)
divergence = jax.jit(lambda x, y: sinkhorn_divergence.sinkhorn_divergence(pointcloud.PointCloud, x, y, epsilon=0.1)[0])
report("divergence", divergence(x, y))
report("gradient of the divergence", jax.grad(divergence)(x, y))
manhattan = pointcloud.PointCloud(x, y, cost_fn=costs.PNormP(1.5), epsilon=0.1)
report("other cost", jax.jit(linear.solve)(manhattan).matrix.sum(1))
unbalanced = linear_problem.LinearProblem(pointcloud.PointCloud(x, y, epsilon=0.1), a, b, tau_a=0.9, tau_b=0.8)
report("unbalanced", jax.jit(sinkhorn.Sinkhorn(max_iterations=200))(unbalanced).matrix)
online = pointcloud.PointCloud(x, y, epsilon=0.1, batch_size=8)
report("online", jax.jit(linear.solve)(online, a, b).apply(jnp.arange(24.0), axis=1))
low_rank = sinkhorn_lr.LRSinkhorn(rank=4, max_iterations=30, inner_iterations=10)
balanced = linear_problem.LinearProblem(pointcloud.PointCloud(x, y), a, b)
report("low rank", jax.jit(lambda problem: low_rank(problem).matrix)(balanced))
quadratic = quadratic_problem.QuadraticProblem(pointcloud.PointCloud(x), pointcloud.PointCloud(y))
gromov = gromov_wasserstein.GromovWasserstein(linear_solver=sinkhorn.Sinkhorn(), epsilon=0.05, max_iterations=5)
report("gromov-wasserstein", jax.jit(gromov)(quadratic).reg_gw_cost)
clouds = shard(jax.random.normal(keys[0], (4, 8, 2)), "data")
problem = barycenter_problem.FreeBarycenterProblem(clouds, jnp.full((4, 8), 1 / 8), epsilon=0.1)
barycenter = continuous_barycenter.FreeWassersteinBarycenter(linear_solver=sinkhorn.Sinkhorn(), max_iterations=4)
report("barycenter", barycenter(problem, bar_size=6, x_init=jax.random.normal(keys[1], (6, 2))).x)
values = shard(jax.random.normal(keys[2], (8, 12)), "data")
report("soft sort", jax.jit(lambda v: soft_sort.sort(v, axis=1))(values))
report("soft ranks", jax.jit(lambda v: soft_sort.ranks(v, axis=1))(values))
