"""OTT-JAX (ott-jax): the README's Sinkhorn coupling of point clouds, its gradient, divergences, unbalanced
transport, Gromov-Wasserstein, soft sorting, with sharded points.
"""

import jax
import jax.numpy as jnp
import numpy as np
from ott.geometry import pointcloud
from ott.problems.linear import linear_problem
from ott.problems.quadratic import quadratic_problem
from ott.solvers import linear
from ott.solvers.linear import sinkhorn
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
divergence = jax.jit(lambda x, y: sinkhorn_divergence.sinkhorn_divergence(pointcloud.PointCloud, x, y, epsilon=0.1)[0])
report("divergence", divergence(x, y))
unbalanced = linear_problem.LinearProblem(pointcloud.PointCloud(x, y, epsilon=0.1), a, b, tau_a=0.9, tau_b=0.8)
report("unbalanced", jax.jit(sinkhorn.Sinkhorn(max_iterations=200))(unbalanced).matrix)
quadratic = quadratic_problem.QuadraticProblem(pointcloud.PointCloud(x), pointcloud.PointCloud(y))
gromov = gromov_wasserstein.GromovWasserstein(linear_solver=sinkhorn.Sinkhorn(), epsilon=0.05, max_iterations=3)
report("gromov-wasserstein", jax.jit(gromov)(quadratic).reg_gw_cost)
values = shard(jax.random.normal(keys[2], (4, 8)), "data")
report("soft sort", jax.jit(lambda v: soft_sort.sort(v, axis=1))(values))
