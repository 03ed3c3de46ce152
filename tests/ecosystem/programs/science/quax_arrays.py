"""quax: low-rank adaptation of a sharded Equinox network, as in the README; units, an array type with rules of its own
under `jit`, `grad`, `vmap` and `scan`.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import quax

from tests.ecosystem.report import report, shard


class LowRank(quax.ArrayValue):
    """A fixed matrix plus a product of two small ones that are trained."""

    fixed: jax.Array
    left: jax.Array
    right: jax.Array

    def aval(self):
        return jax.core.ShapedArray(self.fixed.shape, self.fixed.dtype)

    def materialise(self):
        return jax.lax.stop_gradient(self.fixed) + self.left @ self.right


@quax.register(jax.lax.dot_general_p)
def _(x: LowRank, y: jax.Array, **params):
    assert params["dimension_numbers"] == (((1,), (0,)), ((), ())), params
    return jax.lax.stop_gradient(x.fixed) @ y + x.left @ (x.right @ y)


key = jr.PRNGKey(0)
network = eqx.nn.MLP(8, 8, 16, 1, key=key)
inputs = shard(jr.normal(key, (16, 8)), "data")
targets = jnp.sin(inputs)
weights = [
    LowRank(layer.weight, 0.1 * jr.normal(key, (len(layer.weight), 2)), jr.normal(key, (2, layer.weight.shape[1])))
    for layer in network.layers
]
adapted = eqx.tree_at(lambda network: [layer.weight for layer in network.layers], network, weights)
report("outputs", eqx.filter_jit(jax.vmap(quax.quaxify(adapted)))(inputs))


@eqx.filter_jit
@eqx.filter_value_and_grad
def loss(model, inputs, targets):
    return jnp.mean((jax.vmap(quax.quaxify(model))(inputs) - targets) ** 2)


losses = []
for _ in range(4):
    value, gradients = loss(adapted, inputs, targets)
    adapted = eqx.apply_updates(adapted, jax.tree.map(lambda g: -0.5 * g, gradients))
    losses.append(float(value))
report("losses", losses)
report("adapted", eqx.filter_jit(jax.vmap(quax.quaxify(adapted)))(inputs))


class Quantity(quax.ArrayValue):
    """An array in some power of a meter."""

    array: jax.Array
    power: int = eqx.field(static=True)

    def aval(self):
        return jax.core.ShapedArray(self.array.shape, self.array.dtype)

    def materialise(self):
        raise ValueError("a quantity has a unit")


@quax.register(jax.lax.add_p)
def _(x: Quantity, y: Quantity):
    if x.power != y.power:
        raise ValueError(f"units differ: m^{x.power} and m^{y.power}")
    return Quantity(x.array + y.array, x.power)


@quax.register(jax.lax.mul_p)
def _(x: Quantity, y: Quantity, **params):
    return Quantity(x.array * y.array, x.power + y.power)


length = Quantity(inputs[0], 1)
area = jax.jit(quax.quaxify(lambda x: (x + x) * x))(length)
report("area", area.array)
report("unit", str(area.power))
try:
    quax.quaxify(jnp.add)(length, area)
except ValueError as error:
    report("error", str(error))


class Diagonal(quax.ArrayValue):
    """A diagonal matrix."""

    diagonal: jax.Array

    def aval(self):
        return jax.core.ShapedArray((self.diagonal.size, self.diagonal.size), self.diagonal.dtype)

    def materialise(self):
        return jnp.diag(self.diagonal)


@quax.register(jax.lax.mul_p)
def _(x: Diagonal, y: Diagonal, **params):
    return Diagonal(x.diagonal * y.diagonal)


@quax.register(jax.lax.dot_general_p)
def _(x: Diagonal, y: jax.Array, **params):
    return x.diagonal[:, None] * y if y.ndim == 2 else x.diagonal * y


matrix = Diagonal(shard(jnp.arange(1.0, 9.0), "data"))
product = quax.quaxify(lambda x, y: (x * x) @ y)
report("product", jax.jit(product)(matrix, inputs[:8]))
report("fallback", jax.jit(quax.quaxify(lambda x, y: jnp.exp(x) + y))(matrix, inputs[:8]))
report("gradient", jax.jit(jax.grad(lambda d: product(Diagonal(d), inputs[:8]).sum()))(matrix.diagonal))
report("batch", jax.jit(jax.vmap(lambda v: product(matrix, v)))(inputs))


@quax.quaxify
def powers(x, y):
    return jax.lax.scan(lambda y, _: (x @ y / 4, y.sum()), y, None, 4)


report("powers", jax.jit(powers)(matrix, inputs[0])[1])
report("inner jit", quax.quaxify(jax.jit(lambda x, y: x @ y))(matrix, inputs[0]))
chosen = quax.quaxify(lambda x, y, flag: jax.lax.cond(flag, lambda: x @ y, lambda: y))
report("cond", jax.jit(chosen)(matrix, inputs[0], True))
