"""Small functions of JAX, which together emit JAX's primitives: `inside_jax.jit` computes what `jax.jit` computes.

A module of tests has a table of cases, and runs each by every check of `CHECKS`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
inside_jax = pytest.importorskip("shardwise.inside_jax")
jnp = jax.numpy
NamedSharding, P = jax.sharding.NamedSharding, jax.sharding.PartitionSpec


@dataclass(frozen=True, eq=False)
class Case:
    """A function of JAX with arguments.

    Attributes:
        name: the id of the case.
        function: the function.
        args: its arguments: arrays, whose leading dims are sharded if the mesh's axes divide them.
        no_grad: why the gradient is not compared; "" if it is.
        tolerance: the relative and absolute tolerance of floating-point results. 0 means equal bits.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    no_grad: str = ""
    tolerance: float = 2e-5

    def __str__(self) -> str:
        return self.name


def case(name: str, function: Callable[..., Any], *args: Any, **options: Any) -> Case:
    return Case(name, function, args, **options)


@cache
def mesh() -> Any:
    """Return a 4 × 2 mesh of virtual devices."""
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def place(x: Any) -> Any:
    """Return an array that is sharded along `data` and `model`, as far as they divide its first two dims."""
    x = jnp.asarray(x)
    parts = (
        axis if size and size % count == 0 else None
        for size, (axis, count) in zip(x.shape, mesh().shape.items(), strict=False)
    )
    return jax.device_put(x, NamedSharding(mesh(), P(*parts)))


def is_inexact(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def weighted_sum(results: Any) -> Any:
    """Return a real number that depends on every floating-point result."""
    total = 0.0
    for leaf in jax.tree.leaves(results):
        if is_inexact(leaf):
            weights = jnp.cos(jnp.arange(leaf.size, dtype=jnp.float32)).reshape(leaf.shape)
            total += jnp.sum(jnp.real(leaf) * weights) + jnp.sum(jnp.imag(leaf) * weights)
    return total


def gradient_of(case: Case) -> Callable[..., Any]:
    """Return the gradient of a case with respect to its floating-point arguments."""
    argnums = tuple(number for number, x in enumerate(case.args) if is_inexact(jnp.asarray(x)))
    return jax.grad(lambda *args: weighted_sum(case.function(*args)), argnums, holomorphic=False)


def assert_same(ours: Any, theirs: Any, tolerance: float) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert isinstance(x, jax.Array)
        assert (x.shape, x.dtype, x.aval.weak_type) == (y.shape, y.dtype, y.aval.weak_type)
        a, b = (jax.random.key_data(z) if jnp.issubdtype(z.dtype, jax.dtypes.prng_key) else z for z in (x, y))
        if is_inexact(a) and tolerance:
            wide = np.complex128 if np.iscomplexobj(b) else np.float64
            np.testing.assert_allclose(np.asarray(a).astype(wide), np.asarray(b).astype(wide), tolerance, tolerance)
        else:
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def not_placed(case: Case) -> None:
    """Check a case on one device, or on the mesh that the function names."""
    assert_same(inside_jax.jit(case.function)(*case.args), jax.jit(case.function)(*case.args), case.tolerance)


def on_a_mesh(case: Case) -> None:
    ours = inside_jax.jit(case.function)(*map(place, case.args))
    assert_same(ours, jax.jit(case.function)(*case.args), case.tolerance)


def differentiated(case: Case) -> None:
    gradient = gradient_of(case)
    ours = inside_jax.jit(gradient)(*map(place, case.args))
    assert_same(ours, jax.jit(gradient)(*case.args), 10 * case.tolerance)


CHECKS = [on_a_mesh, differentiated, not_placed]


def like_jax(cases: list[Case]) -> Any:
    """Parametrize a test by cases and checks. By default, the first 12 cases run on the mesh."""
    runs = [
        pytest.param(check, case, id=f"{case}-{check.__name__}")
        for check in CHECKS
        for case in cases
        if not (check is differentiated and case.no_grad)
    ]

    def decorate(test: Any) -> Any:
        return pytest.mark.table(default=min(12, len(cases)))(pytest.mark.parametrize(("check", "case"), runs)(test))

    return decorate
