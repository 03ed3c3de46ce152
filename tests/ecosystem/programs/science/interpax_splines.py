"""interpax: the README's cubic interpolation, methods in one, two and three dimensions, spline objects, derivatives,
Fourier interpolation, with sharded queries.
"""

import interpax
import jax
import jax.numpy as jnp
import numpy as np

from tests.ecosystem.report import report, shard

knots = jnp.linspace(0, 2 * np.pi, 20)
values = jnp.sin(knots)
queries = shard(np.linspace(0, 2 * np.pi, 64, dtype=np.float32), "data")

for method in ("nearest", "linear", "cubic2", "catmull-rom", "monotonic", "akima"):
    report(method, jax.jit(lambda q, method=method: interpax.interp1d(q, knots, values, method=method))(queries))
for order in (1, 2):
    report(f"derivative {order}", interpax.interp1d(queries, knots, values, method="cubic2", derivative=order))
report("periodic", interpax.interp1d(queries + 3, knots[:-1], values[:-1], method="cubic", period=2 * np.pi))
report("extrapolated", interpax.interp1d(queries - 1, knots, values, method="linear", extrap=(0.0, 1.0)))


def error(values, queries):
    return jnp.sum((interpax.interp1d(queries, knots, values, method="cubic2") - jnp.cos(queries)) ** 2)


report("gradient", jax.jit(jax.grad(error))(values, queries))
spline = interpax.Interpolator1D(knots, values, method="cubic2")
report("object", jax.jit(jax.vmap(jax.grad(spline)))(queries))

x, y, z = jnp.linspace(0, 1, 6), jnp.linspace(0, 2, 7), jnp.linspace(-1, 1, 5)
plane = jnp.sin(3 * x)[:, None] * jnp.cos(y)[None]
volume = plane[:, :, None] * (1 + z**2)
points = shard(np.random.default_rng(0).uniform(0, 1, size=(32, 3)).astype(np.float32), "data")
for method in ("linear", "cubic"):
    report(f"volume {method}", interpax.interp3d(*points.T, x, y, z, volume, method=method))
    report(f"plane {method}", interpax.interp2d(*points.T[:2], x, y, plane, method=method))
surface = interpax.Interpolator2D(x, y, plane, method="cubic2")
report("mixed derivative", jax.jit(lambda p: surface(p[:, 0], p[:, 1], dx=1, dy=1))(points))

for spline in (
    interpax.CubicSpline(knots, values, bc_type="natural"),
    interpax.PchipInterpolator(knots, values),
):
    name = type(spline).__name__
    report(name, jax.jit(lambda q, spline=spline: spline(q))(queries))
    report(f"integral of {name}", spline.integrate(0.5, 3.0))
    report(f"derivative of {name}", spline.derivative()(queries))
report("fourier", interpax.fft_interp1d(values[:-4], 40))
report("fourier plane", interpax.fft_interp2d(plane, 9, 10))
