"""Compare functions that reshape and rearrange arrays with JAX: values, types, gradients, vmap and meshes."""

import numpy as np
import pytest

import shardwise.numpy as jnp
from tests.agreement import (
    Case,
    batch_name,
    batches,
    eagerly_like,
    gradients_like,
    mesh_like_one_device,
    values_like,
    vmap_like_loop,
)
from tests.numpy.structure_cases import (
    CHOICES,
    COMPLEX,
    FILL_DIAGONAL,
    GRIDS,
    INTEGERS,
    JAX_ONLY,
    MOVES,
    ROW,
    SHAPES,
    TRIANGLES,
    X,
)

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

REARRANGING = [*SHAPES, *MOVES, *TRIANGLES, *FILL_DIAGONAL, *CHOICES, *JAX_ONLY]
CASES = [*REARRANGING, *GRIDS]
VALUE_DEPENDENT_SHAPES = [
    Case("repeat", (X, np.array([1, 0, 2]), 0)),
    Case("repeat", (ROW, np.array([3]))),
    Case("delete", (X, np.array([0, 2, 2]), 1)),
    Case("delete", (ROW, ROW > 2)),
    Case("delete", (INTEGERS, np.array([0, 2, 4, 6]))),
    Case("compress", (np.array([0, 1, 1]), X, 0)),
    Case("extract", (X > 4, X)),
    Case("trim_zeros", (np.array([0, 0, 1, 0, 2, 0]),)),
    Case("trim_zeros", (np.array([0, 0, 1, 0, 2, 0]), "b")),
    Case("trim_zeros", (np.array([[0, 0], [0, 3], [0, 0]]), "fb", 0)),
    Case("trim_zeros", (np.zeros(3),)),
    Case("mask_indices", (3, lambda m, k: m - np.eye(3, k=k, dtype=np.float32), 1)),
    Case("choose", (np.array([1, 0]), [1, 2])),
    Case("ravel_multi_index", ((np.array([1, 0]), np.array([2, 1])), (2, 3))),
    Case("fromfunction", (lambda i, j: i * 2 + j, (2, 3))),
    Case("frombuffer", (b"abcd", np.int16)),
    Case("fromstring", ("1 2 3", np.int32), {"sep": " "}),
]


@pytest.mark.table(default=1)
@pytest.mark.parametrize("cases", batches(CASES), ids=batch_name)
def test_values_match_jax(cases):
    values_like(jnp, jax.numpy, cases, jax)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("cases", batches(REARRANGING, 40), ids=batch_name)
def test_gradients_match_jax(cases):
    gradients_like(jnp, jax.numpy, cases, jax)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("cases", batches(REARRANGING, 40), ids=batch_name)
def test_vmap_matches_a_loop(cases):
    vmap_like_loop(jnp, cases)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("which", ["first", "last"])
@pytest.mark.parametrize("cases", batches(REARRANGING, 30), ids=batch_name)
def test_mesh_matches_one_device(mesh, cases, which):
    mesh_like_one_device(mesh, jnp, cases, which)


@pytest.mark.slow
def test_value_dependent_shapes_match_jax_eagerly():
    eagerly_like(jnp, jax.numpy, VALUE_DEPENDENT_SHAPES)


@pytest.mark.table(default=2)
@pytest.mark.parametrize(
    "take",
    {
        "mgrid": lambda np: np.mgrid[0:2, 0:3.0],
        "mgrid one": lambda np: np.mgrid[2:8:2],
        "mgrid points": lambda np: np.mgrid[0:1:5j, 0:2],
        "ogrid": lambda np: np.ogrid[0:2, 0:3],
        "ogrid one": lambda np: np.ogrid[:3],
        "r_": lambda np: np.r_[1, 2:5, np.arange(2), 7.5],
        "r_ points": lambda np: np.r_[-1:1:5j],
        "r_ axis": lambda np: np.r_["1,2,0", np.arange(2), np.arange(2)],
        "r_ rows": lambda np: np.r_["0,2", 1:3, 4:6],
        "r_ r": lambda np: np.r_["r", 1:3],
        "r_ c": lambda np: np.r_["c", 1:3],
        "c_": lambda np: np.c_[1:3, 3:5],
        "c_ one": lambda np: np.c_[1],
        "s_": lambda np: np.arange(9)[np.s_[1:7:2]],
        "index_exp": lambda np: np.arange(9)[np.index_exp[2:4]],
    }.items(),
    ids=lambda item: item[0],
)
def test_index_objects_match_jax(take):
    ours, theirs = take[1](jnp), take[1](jax.numpy)
    pairs = zip(ours, theirs, strict=True) if isinstance(theirs, list) else [(ours, theirs)]
    for x, y in pairs:
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


def test_complex_geomspace_and_logspace_match_jax():
    values_like(jnp, jax.numpy, [Case("geomspace", (1j, -8j, 4), atol=1e-5), Case("logspace", (COMPLEX, 1, 3))], jax)
