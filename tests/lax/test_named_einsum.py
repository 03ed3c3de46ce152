"""pdot and xeinsum: products over named axes."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.experimental.maps import xmap

RANDOM = np.random.default_rng(0)


def normal(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


def close(x, y):
    np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


X, Y = normal(2, 3, 8), normal(2, 8, 5)
PRODUCT = xmap(lambda x, y: lax.pdot(x, y, "i"), in_axes=({0: "j", 2: "i"}, {0: "j", 1: "i"}), out_axes=["j", ...])


def test_pdot_in_xmap():
    close(PRODUCT(X, Y), np.einsum("nij,njk->nik", X, Y))
    program = sw.make_jaxpr(PRODUCT)(X, Y)
    assert "dot[contract=((2,), (1,)), batch=((0,), (0,))]" in str(program)  # one contraction, without a sum
    weights = normal(2, 3, 5)
    ours = sw.grad(lambda x, y: (PRODUCT(x, y) * weights).sum(), (0, 1))(X, Y)
    theirs = sw.grad(lambda x, y: (jnp.einsum("nij,njk->nik", x, y) * weights).sum(), (0, 1))(X, Y)
    for x, y in zip(ours, theirs, strict=True):
        close(x, y)


def test_pdot_with_positional_dims():
    x, y = normal(4, 2, 3, 6), normal(2, 4, 6, 5)
    product = xmap(
        lambda x, y: lax.pdot(x, y, ["i"], ((2,), (1,)), ((0,), (0,))),
        in_axes=({0: "i"}, {1: "i"}),
        out_axes=[...],
    )
    close(product(x, y), np.einsum("ibnk,bikm->bnm", x, y))


@pytest.mark.parametrize("mapped", [(0, 0), (0, None), (None, 0)])
def test_pdot_in_vmap(mapped):
    x, y = (normal(*((6,) if dim == 0 else ()), 3) for dim in mapped)
    result = sw.vmap(lambda x, y: lax.pdot(x, y, "i", ((0,), (0,))), in_axes=mapped, axis_name="i")(x, y)
    batch_x, batch_y = (np.broadcast_to(z, (6, 3)) for z in (x, y))
    close(result, np.full(6, (batch_x * batch_y).sum()))


@pytest.mark.parametrize("check", [True, False])
def test_pdot_in_shard_map(check):
    product = sw.shard_map(
        lambda x, y: lax.pdot(x, y, "i", ((1,), (0,))),
        mesh=sw.make_mesh((8,), ("i",)),
        in_specs=(sw.P(None, "i"), sw.P("i")),
        out_specs=sw.P(),
        check_vma=check,
    )
    close(product(X[0], Y[0]), X[0] @ Y[0])


POSITIONAL = ["ij,ij->i", "ij,ij->ji", "ij,jk->ki", "i,->", "ij->j", "bij,cjk->ik", "ij,jk,kl->il"]


@pytest.mark.parametrize("spec", POSITIONAL)
def test_xeinsum_without_names(spec):
    sizes = dict(zip("bcijkl", (2, 3, 4, 5, 6, 7), strict=True))
    operands = [normal(*map(sizes.__getitem__, term)) for term in spec.partition("->")[0].split(",")]
    close(lax.xeinsum(spec, *operands), np.einsum(spec, *operands))


NAMED = {
    "{i,j},{j,k}->{i,k}": "ij,jk->ik",
    "{i,j},{k,j}->{k,i}": "ij,jk->ik",
    "{j},{k,j}->{k}": "ij,jk->ik",
    "{j},{j}->{}": "ij,jk->ik",
}


@pytest.mark.parametrize("spec", NAMED)
def test_xeinsum_with_names(spec):
    x, y = normal(3, 4), normal(4, 5)
    product = xmap(lambda x, y: jnp.einsum(spec, x, y), in_axes=(["i", "j"], ["j", "k"]), out_axes=["i", "k"])
    close(product(x, y), np.einsum(NAMED[spec], x, y))


def test_xeinsum_with_names_and_dims_on_a_mesh(mesh):
    x = normal(8, 6, 4, 5)
    total = xmap(
        lambda x: lax.xeinsum("jk{i,b}->k{b}", x),
        in_axes=["b", "i", ...],
        out_axes=["b", ...],
        axis_resources={"b": "data", "i": "model"},
    )
    with mesh:
        close(total(x), np.einsum("bijk->bk", x))


@pytest.mark.parametrize(
    ("spec", "count", "text"),
    [
        ("ij,j", 2, "is not an equation such as"),
        ("ij,j->i", 1, "has 2 terms before `->`, but there are 1 operands"),
        ("i,j->i", 2, "names 1 dims of f32"),
        ("ij,jk->l", 2, "has 'l', which no operand has"),
        ("{i}ij,jk->k", 2, "is not an equation such as"),
        ("ii,jk->k", 2, "an entry repeats in the term 'ii'"),
    ],
)
def test_errors_of_xeinsum(spec, count, text):
    with pytest.raises(ValueError, match=f"xeinsum: .*{text}"):
        lax.xeinsum(spec, *(normal(3, 3),) * count)


def test_errors_of_pdot():
    with pytest.raises(NameError, match="unbound axis name 'i'"):
        lax.pdot(1.0, 2.0, "i")
    with pytest.raises(TypeError, match="contracting dims must agree"):
        sw.vmap(lambda x, y: lax.pdot(x, y, "i", ((0,), (0,))), axis_name="i")(normal(2, 3), normal(2, 4))
