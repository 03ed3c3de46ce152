"""jaxlie: batches of SO2, SE2, SO3 and SE3 with `exp`, `log`, `adjoint`, `apply`, products and Euler angles,
derivatives at the identity, a pose graph that is optimized on the manifold.
"""

import jax
import jax.numpy as jnp
import jaxlie
import numpy as np
import optax

from tests.ecosystem.report import explain, report, shard, spec_text

rng = np.random.default_rng(0)


@jax.jit
def round_trip(tangents, points):
    poses = jaxlie.SE3.exp(tangents)
    moved = poses.apply(points)
    back = poses.inverse().apply(moved)
    products = poses @ poses.inverse()
    return poses.log(), moved, back - points, products.as_matrix() - jnp.eye(4), poses.adjoint()


tangents = shard(rng.normal(size=(16, 6)).astype(np.float32), "data")
points = shard(rng.normal(size=(16, 3)).astype(np.float32), "data")
names = ("log", "moved points", "points moved back", "pose times inverse", "adjoint")
for name, result in zip(names, round_trip(tangents, points), strict=True):
    report(f"SE3: {name}", result)
report("SE3: sharding of the moved points", spec_text(round_trip(tangents, points)[1]))


@jax.jit
def rotations(key, angles):
    samples = jaxlie.SO3.sample_uniform(key, (8,))
    return {
        "samples": samples.wxyz,
        "Euler angles": samples.as_rpy_radians(),
        "matrices read back": jaxlie.SO3.from_matrix(samples.as_matrix()).log(),
        "rotated vector": samples.apply(jnp.array([1.0, 2.0, 3.0])),
        "angles in the plane": jaxlie.SO2.from_radians(angles).log(),
        "SE2 product": (jaxlie.SE2.from_xy_theta(1.0, 2.0, 0.3) @ jaxlie.SE2.exp(jnp.array([0.1, 0.2, -0.4]))).log(),
    }


for name, result in rotations(jax.random.key(0), shard(np.linspace(-4, 4, 8, dtype=np.float32), "data")).items():
    report(f"rotations: {name}", result)


def displacement(tangent):
    """Return a function of a pose that uses the Taylor series near the identity."""
    return jaxlie.SE3.exp(tangent).apply(jnp.array([1.0, -2.0, 0.5]))


report("derivatives at the identity", jax.jit(jax.jacrev(displacement))(jnp.zeros(6)))

# A chain of poses, of which each neighbour's relative pose was measured, and the first one is known.
steps = shard(rng.normal(scale=0.3, size=(15, 6)).astype(np.float32))
noise = shard(rng.normal(scale=0.2, size=(16, 6)).astype(np.float32), "data")


def true_poses(steps):
    def advance(pose, step):
        following = pose @ jaxlie.SE3.exp(step)
        return following, following.wxyz_xyz

    first = jaxlie.SE3.identity()
    return jnp.concatenate([first.wxyz_xyz[None], jax.lax.scan(advance, first, steps)[1]])


truth = jaxlie.SE3(jax.jit(true_poses)(steps))
start = jax.jit(jaxlie.manifold.rplus)(truth, noise)


def cost(poses, steps):
    before, after = jaxlie.SE3(poses.wxyz_xyz[:-1]), jaxlie.SE3(poses.wxyz_xyz[1:])
    errors = (jaxlie.SE3.exp(steps).inverse() @ before.inverse() @ after).log()
    anchor = jaxlie.SE3(poses.wxyz_xyz[0]).log()
    return jnp.sum(errors**2) + jnp.sum(anchor**2)


optimizer = optax.adam(3e-2)


@jax.jit
def update(poses, state, steps):
    value, gradients = jaxlie.manifold.value_and_grad(cost)(poses, steps)
    updates, state = optimizer.update(gradients, state)
    return jaxlie.manifold.rplus(poses, updates), state, value


poses, state = start, optimizer.init(jaxlie.manifold.zero_tangents(start))
explain(update, poses, state, steps)
values = []
for _ in range(20):
    poses, state, value = update(poses, state, steps)
    values.append(float(value))
report("pose graph: costs", values)
report("pose graph: distance to the truth", jax.jit(jaxlie.manifold.rminus)(truth, poses))
