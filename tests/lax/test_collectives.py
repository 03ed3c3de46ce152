"""Collectives over vmap's named axes, compared with numpy operations along the batch dim."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.op import BatchAxis
from shardwise.compiler.ir.parse import parse_program
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import parse_type
from shardwise.compiler.ops.collective.named import NamedIndex, NamedMinMax, NamedSum
from shardwise.compiler.ops.collective.named_exchange import (
    NamedAllGather,
    NamedAllToAll,
    NamedPermute,
    NamedReduceScatter,
)
from shardwise.compiler.reduction import MAX
from shardwise.compiler.transforms.jvp import jvp_program
from shardwise.compiler.transforms.transpose import transpose_program
from shardwise.compiler.transforms.vmap import vmap_program
from shardwise.errors import UnboundAxisError
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 3)).astype(np.float32)
Y = RNG.normal(size=(4, 3, 2)).astype(np.float32)
WRAPPED = pytest.mark.parametrize("wrap", [lambda f: f, sw.jit], ids=["eager", "jit"])


def over(f, axis_name="i", **keywords):
    return sw.vmap(f, axis_name=axis_name, **keywords)


def close(got, wanted):
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-5, atol=1e-6)


@WRAPPED
def test_sums_and_means(wrap):
    close(wrap(over(lambda x: lax.psum(x, "i")))(X), np.broadcast_to(X.sum(0), X.shape))
    close(wrap(over(lambda x: x - lax.pmean(x, "i")))(X), X - X.mean(0))
    close(wrap(over(lambda x: lax.psum(x, "i"), out_axes=None))(X), X.sum(0))
    tree = wrap(over(lambda x: lax.psum({"a": x, "b": (x[0], 2)}, "i"), out_axes=None))(X)
    close(tree["a"], X.sum(0))
    close(tree["b"][0], X[:, 0].sum())
    assert int(tree["b"][1]) == 8


def test_psum_of_a_python_number_is_a_python_number():
    seen = []

    def f(x):
        seen.extend([lax.psum(1, "i"), lax.psum(2.5, "i"), lax.psum(True, "i"), lax.axis_size("i"), lax.pmean(3, "i")])
        return x

    over(f)(X)
    assert seen == [4, 10.0, 4, 4, 3.0]
    assert [type(n) for n in seen] == [int, float, int, int, float]


@WRAPPED
def test_unmapped_value_counts_once_per_member(wrap):
    w = jnp.arange(3.0)
    found = wrap(over(lambda x, w: lax.psum(w, "i"), in_axes=(0, None), out_axes=None))(X, w)
    close(found, 4 * np.arange(3.0))
    close(wrap(over(lambda x: lax.psum(w, "i") + x))(X), X + 4 * np.arange(3.0))
    gathered = wrap(over(lambda x: lax.all_gather(w, "i", axis=1), out_axes=None))(X)
    close(gathered, np.stack([np.arange(3.0)] * 4, 1))
    own = wrap(over(lambda x: lax.psum_scatter(jnp.arange(4.0), "i")))(X)
    close(own, 4 * np.arange(4.0))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "uint8", "bool", "complex64"])
def test_sums_of_narrow_dtypes_match_sum_over_a_dim(dtype):
    x = np.arange(300) % 5
    whole = jnp.array(x).astype(dtype)
    got = over(lambda x: lax.psum(x, "i"), out_axes=None)(whole)
    wanted = (whole.astype(np.int32) if dtype == "bool" else whole).sum(axis=0, dtype=got.dtype)
    assert got.dtype == (np.int32 if dtype == "bool" else np.dtype(whole.dtype))
    np.testing.assert_array_equal(np.asarray(got), np.asarray(wanted))
    one = jnp.array(3).astype(dtype)
    got = over(lambda x: lax.psum(one, "i"), out_axes=None)(whole)
    ones = (jnp.full((300,), 1, np.int32) if dtype == "bool" else jnp.full((300,), 3).astype(dtype)).sum(
        axis=0, dtype=got.dtype
    )
    np.testing.assert_array_equal(np.asarray(got), np.asarray(ones))


@WRAPPED
def test_largest_and_smallest(wrap):
    close(wrap(over(lambda x: lax.pmax(x, "i"), out_axes=None))(X), X.max(0))
    close(wrap(over(lambda x: x - lax.pmin(x, "i")))(X), X - X.min(0))
    w = jnp.arange(3.0)
    close(wrap(over(lambda x: lax.pmax(w, "i"), out_axes=None))(X), w)
    close(wrap(nested(lambda y: lax.pmax(y, ("i", "j")), out_axes=None))(Y), Y.max((0, 1)))
    close(wrap(nested(lambda y: lax.pmin(y, "i")))(Y), Y.min(0, keepdims=True) * np.ones_like(Y))
    close(wrap(over(lambda x: lax.pmax(x, "i"), out_axes=None))(np.array([1, np.nan, 2], np.float32)), np.nan)


@WRAPPED
def test_pmax_shares_its_derivative_among_ties(wrap):
    x = np.array([3.0, 1.0, 3.0, 2.0], np.float32)
    w = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    wanted = np.where(x == 3, w.sum() / 2, 0)
    close(wrap(sw.grad(lambda x: (over(lambda x: lax.pmax(x, "i"))(x) * w).sum()))(x), wanted)
    close(wrap(over(sw.grad(lambda x, w: lax.pmax(x, "i") * w)))(x, w), wanted)
    _, moved = wrap(over(lambda x, w: sw.jvp(lambda x: lax.pmin(x, "i"), (x,), (w,)), out_axes=None))(x, w)
    close(moved, 2.0)


@WRAPPED
def test_gather(wrap):
    close(wrap(over(lambda x: lax.all_gather(x, "i"), out_axes=None))(Y), Y)
    close(wrap(over(lambda x: lax.all_gather(x, "i", axis=-1), out_axes=None))(Y), np.moveaxis(Y, 0, -1))
    tiled = wrap(over(lambda x: lax.all_gather(x, "i", axis=1, tiled=True), out_axes=None))(Y)
    close(tiled, np.concatenate(list(Y), 1))


@WRAPPED
def test_scatter(wrap):
    z = RNG.normal(size=(4, 3, 8)).astype(np.float32)
    total = z.sum(0)
    own = wrap(over(lambda x: lax.psum_scatter(x, "i", scatter_dimension=1, tiled=True)))(z)
    close(own, np.stack(np.split(total, 4, 1)))
    own = wrap(over(lambda x: lax.psum_scatter(x.reshape(3, 2, 4), "i", scatter_dimension=-1)))(z)
    close(own, np.moveaxis(total.reshape(3, 2, 4), -1, 0))


@WRAPPED
def test_exchange(wrap):
    z = RNG.normal(size=(4, 3, 8, 2)).astype(np.float32)
    tiled = wrap(over(lambda x: lax.all_to_all(x, "i", 1, 2, tiled=True)))(z)
    wanted = [np.concatenate([np.split(z[j], 4, 1)[k] for j in range(4)], 2) for k in range(4)]
    close(tiled, np.stack(wanted))
    square = RNG.normal(size=(4, 3, 4, 2)).astype(np.float32)
    stacked = wrap(over(lambda x: lax.all_to_all(x, "i", 1, 0)))(square)
    close(stacked, np.stack([np.stack([square[j][:, k] for j in range(4)], 0) for k in range(4)]))
    close(wrap(over(lambda x: lax.pswapaxes(x, "i", 1)))(square), np.swapaxes(square, 0, 2))


@WRAPPED
def test_permutations(wrap):
    shift = [(k, (k + 1) % 4) for k in range(4)]
    close(wrap(over(lambda x: lax.ppermute(x, "i", shift)))(X), np.roll(X, 1, 0))
    some = wrap(over(lambda x: lax.ppermute(x, "i", [(0, 2), (1, 3), (3, 0)])))(X)
    close(some, np.stack([X[3], np.zeros(3), X[0], X[1]]))
    close(wrap(over(lambda x: lax.pshuffle(x, "i", [2, 0, 3, 1])))(X), X[[2, 0, 3, 1]])
    constant = wrap(over(lambda x: lax.ppermute(jnp.ones(2), "i", [(0, 2)])))(X)
    close(constant, [[0, 0], [0, 0], [1, 1], [0, 0]])


@WRAPPED
def test_index(wrap):
    found = wrap(over(lambda x: (lax.axis_index("i"), x * lax.axis_index("i"))))(X)
    assert found[0].dtype == np.int32
    close(found[0], np.arange(4))
    close(found[1], X * np.arange(4)[:, None])


def nested(f, outer="i", inner="j", **keywords):
    return sw.vmap(sw.vmap(f, axis_name=inner, **keywords), axis_name=outer, **keywords)


@WRAPPED
def test_two_names(wrap):
    full = np.ones_like(Y)
    close(wrap(nested(lambda y: lax.psum(y, "j")))(Y), Y.sum(1, keepdims=True) * full)
    close(wrap(nested(lambda y: lax.psum(y, "i")))(Y), Y.sum(0, keepdims=True) * full)
    close(wrap(nested(lambda y: lax.psum(y, ("i", "j"))))(Y), Y.sum((0, 1)) * full)
    close(wrap(nested(lambda y: lax.pmean(y, ("j", "i"))))(Y), Y.mean((0, 1)) * full)
    close(wrap(nested(lambda y: lax.all_gather(y, ("i", "j"))))(Y)[0, 0], Y.reshape(12, 2))
    close(wrap(nested(lambda y: lax.all_gather(y, ("j", "i"), tiled=True)))(Y)[1, 2], np.swapaxes(Y, 0, 1).reshape(24))
    close(wrap(nested(lambda y: lax.axis_index(("i", "j"))))(Y), np.arange(12).reshape(4, 3))
    close(wrap(nested(lambda y: lax.axis_index("i") * 10 + lax.axis_index("j")))(Y)[3], [30, 31, 32])
    z = RNG.normal(size=(4, 3, 12)).astype(np.float32)
    close(wrap(nested(lambda z: lax.psum_scatter(z, ("i", "j"))))(z), z.sum((0, 1)).reshape(4, 3))
    close(wrap(nested(lambda z: lax.ppermute(z, "i", [(0, 1), (1, 0), (2, 3), (3, 2)])))(z), z[[1, 0, 3, 2]])
    swapped = wrap(nested(lambda z: lax.all_to_all(z.reshape(4, 3), "i", 0, 1)))(z)
    close(swapped, np.transpose(z.reshape(4, 3, 4, 3), (2, 1, 3, 0)))


def test_an_inner_name_hides_an_outer_one():
    close(nested(lambda y: lax.psum(y, "i"), "i", "i")(Y), Y.sum(1, keepdims=True) * np.ones_like(Y))

    def f(y):  # `y` belongs to the outer axis; the name means the inner one
        total = sw.vmap(lambda z: lax.psum(y, "i") + z * lax.axis_index("i"), axis_name="i")(jnp.ones(5))
        return total, lax.axis_index("i")

    found, index = over(f)(X[:, 0])
    close(found, 5 * X[:, :1] + np.arange(5))
    close(index, np.arange(4))


def test_an_outer_index_inside_an_inner_axis_of_its_name():
    def f(x):
        mine = lax.axis_index("i")
        return sw.vmap(lambda z: z + mine, axis_name="i")(jnp.zeros(2))

    close(over(f)(X), np.repeat(np.arange(4.0)[:, None], 2, 1))


@WRAPPED
def test_gradients_inside_and_outside(wrap):
    def inside(x):
        return (jnp.exp(x) * lax.psum(x * x, "i")).sum()

    def whole(x):
        return over(inside)(x).sum()

    # Member k's x reaches every member's loss: the gradient inside a vmap is of the sum of all losses.
    wanted = np.exp(X) * (X * X).sum(0) + 2 * X * np.exp(X).sum(0)
    close(wrap(sw.grad(whole))(X), wanted)
    close(wrap(over(sw.grad(inside)))(X), wanted)
    value, gradient = wrap(over(sw.value_and_grad(inside)))(X)
    close(gradient, wanted)
    close(value, (np.exp(X) * (X * X).sum(0)).sum(1))


@pytest.mark.parametrize(
    ("f", "shape"),
    [
        (lambda x: lax.psum(x, "i"), (3,)),
        (lambda x: lax.pmean(x * x, "i"), (3,)),
        (lambda x: lax.all_gather(x, "i", axis=1), (3,)),
        (lambda x: lax.all_gather(x, "i", axis=1, tiled=True), (3, 2)),
        (lambda x: lax.psum_scatter(x * x, "i", scatter_dimension=1), (3, 4)),
        (lambda x: lax.all_to_all(x * x, "i", 1, 0, tiled=True), (3, 8)),
        (lambda x: lax.ppermute(x, "i", [(0, 2), (2, 3), (3, 0)]) * x, (3,)),
        (lambda x: x * lax.axis_index("i") * lax.axis_size("i"), (3,)),
    ],
    ids=["psum", "pmean", "gather", "gather tiled", "scatter", "exchange", "permute", "index"],
)
def test_derivatives_of_each(f, shape):
    x, dx = (RNG.normal(size=(4, *shape)).astype(np.float32) for _ in range(2))
    weights = RNG.normal(size=sw.eval_shape(over(f), x).shape).astype(np.float32)

    @sw.jit
    def loss(x):
        return (over(f)(x) * weights).sum()

    # All of these are of second degree at most, so that a central difference is exact.
    slope = (float(loss(x + dx)) - float(loss(x - dx))) / 2
    np.testing.assert_allclose(float(sw.jvp(loss, (x,), (dx,))[1]), slope, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(float((sw.grad(loss)(x) * dx).sum()), slope, rtol=1e-3, atol=1e-3)

    def member(x, w):
        return (f(x) * w).sum()

    close(sw.jit(over(sw.grad(member)))(x, weights), np.asarray(sw.grad(loss)(x)))
    close(sw.jit(over(lambda x, w, d: sw.jvp(lambda x: member(x, w), (x,), (d,))[1]))(x, weights, dx).sum(), slope)


def normalized(x):
    """Normalize by the mean of all members, as batch norm does."""
    y = x - lax.pmean(x, "i")
    return y / lax.pmean(y * y, "i")


def by_hand(x):
    y = x - x.mean(axis=0, keepdims=True)
    return y / (y * y).mean(axis=0, keepdims=True)


REWRITTEN = {
    "plain": lambda f: f,
    "jit": sw.jit,
    "inlined": lambda f: sw.jit(f, inline=True),
    "jit of jit": lambda f: sw.jit(lambda x: sw.jit(f)(x * 1.0)),
    "checkpoint": sw.checkpoint,
    "jit of checkpoint": lambda f: sw.jit(sw.checkpoint(f)),
}


@pytest.mark.parametrize("inner", REWRITTEN)
@WRAPPED
def test_names_are_bound_in_called_functions(wrap, inner):
    f = REWRITTEN[inner](normalized)
    close(wrap(over(f))(X), np.asarray(by_hand(jnp.array(X))))
    wanted = np.asarray(sw.grad(lambda x: (by_hand(x) * X).sum())(X))
    close(wrap(sw.grad(lambda x: (over(f)(x) * X).sum()))(X), wanted)
    close(wrap(over(sw.grad(lambda x, w: (f(x) * w).sum())))(X, X), wanted)
    again = np.asarray(sw.grad(lambda x: sw.grad(lambda x: (by_hand(x) * X).sum())(x).sum())(X))
    twice = sw.grad(lambda x: over(sw.grad(lambda x, w: (f(x) * w).sum()))(x, X).sum())
    np.testing.assert_allclose(np.asarray(wrap(twice)(X)), again, rtol=1e-3, atol=1e-4)


def test_jit_of_an_unmapped_value():
    w = jnp.arange(3.0)
    f = sw.jit(lambda w: lax.psum(w, "i"))
    close(over(lambda x: f(w) + x)(X), X + 4 * np.arange(3.0))
    close(sw.grad(lambda w: over(lambda x: (f(w) * x).sum())(X).sum())(w), 4 * X.sum(0))
    close(over(lambda x: x + sw.jit(lambda: lax.axis_index("i"))())(X), X + np.arange(4)[:, None])


def test_names_are_bound_in_loops_and_branches():
    def totals(x):
        def step(carry, y):
            carry = carry + lax.psum(y * y, "i")
            return carry, carry * lax.axis_index("i")

        return lax.scan(step, jnp.zeros(()), x)

    last, all_of_them = over(totals, out_axes=(None, 0))(X)
    running = np.cumsum((X * X).sum(0))
    close(last, running[-1])
    close(all_of_them, np.arange(4)[:, None] * running)
    close(over(sw.grad(lambda x: totals(x)[0]))(X), 8 * X)
    close(sw.grad(lambda x: over(totals)(x)[0].sum())(X), 8 * X)

    def from_nothing_mapped(x):
        same, _ = lax.scan(lambda c, _: (c + lax.psum(c, "i"), None), jnp.ones(()), None, length=3)
        own, _ = lax.scan(lambda c, _: (c + lax.axis_index("i"), None), np.int32(0), None, length=3)
        return same, own

    same, own = over(from_nothing_mapped, out_axes=(None, 0))(X)
    close(same, 125)
    close(own, 3 * np.arange(4))

    def grown(x):  # every member iterates until the sum of all is large
        return lax.while_loop(lambda c: lax.psum(c, "i") < 50, lambda c: c * 2 + lax.axis_index("i"), x)

    close(over(grown)(np.arange(4, dtype=np.float32)), [0, 15, 30, 45])

    def chosen(x):
        return lax.cond(lax.psum(x[0], "i") > 0, lambda y: lax.psum(y, "i"), lambda y: y, x)

    sign = np.sign(X[:, 0].sum())
    close(sw.jit(over(chosen))(sign * X), np.tile(sign * X.sum(0), (4, 1)))
    close(sw.jit(over(chosen))(-sign * X), -sign * X)


def custom_jvp_scaled():
    @sw.custom_jvp
    def scaled(x):
        return x / lax.psum(x.sum(), "i")

    @scaled.defjvp
    def rule(primals, tangents):
        (x,), (dx,) = primals, tangents
        total = lax.psum(x.sum(), "i")
        return scaled(x), 2 * (dx / total - x * lax.psum(dx.sum(), "i") / (total * total))

    return scaled


def custom_vjp_scaled():
    @sw.custom_vjp
    def scaled(x):
        return x / lax.psum(x.sum(), "i")

    def forward(x):
        return scaled(x), (x, lax.psum(x.sum(), "i"))

    def backward(residuals, ct):
        x, total = residuals
        return (2 * (ct / total - lax.psum((ct * x).sum(), "i") / (total * total)),)

    scaled.defvjp(forward, backward)
    return scaled


@pytest.mark.parametrize("make", [custom_jvp_scaled, custom_vjp_scaled])
@pytest.mark.parametrize("inner", [lambda f: f, sw.jit, sw.checkpoint], ids=["plain", "jit", "checkpoint"])
@WRAPPED
def test_rules_of_custom_derivatives_use_names(wrap, inner, make):
    """The rules return twice the derivative, so that their use shows."""
    f = inner(make())
    x = np.abs(X) + 1
    close(wrap(over(f))(x), x / x.sum())
    wanted = 2 * np.asarray(sw.grad(lambda x: (x / x.sum() * X).sum())(x))
    close(wrap(sw.grad(lambda x: (over(f)(x) * X).sum()))(x), wanted)
    close(wrap(over(sw.grad(lambda x, w: (f(x) * w).sum())))(x, X), wanted)


def test_jit_retraces_for_other_names_and_sizes():
    sizes = []

    @sw.jit
    def f(x):
        sizes.append(lax.axis_size("i"))
        return x / lax.axis_size("i")

    close(over(f)(np.ones(4, np.float32)), np.full(4, 1 / 4))
    close(over(f)(np.ones(5, np.float32)), np.full(5, 1 / 5))
    close(over(f)(np.ones(4, np.float32)), np.full(4, 1 / 4))
    assert sizes == [4, 5]
    with pytest.raises(NameError, match="unbound axis name 'i'"):
        f(np.float32(1))
    with pytest.raises(NameError, match="unbound axis name 'i'"):
        over(f, "j")(np.ones(4, np.float32))
    with pytest.raises(NameError, match="unbound axis name 'i'"):
        sw.vmap(f)(np.ones(4, np.float32))


def test_any_hashable_can_be_an_axis_name():
    name = ("rows", 3)
    close(over(lambda x: lax.psum(x, [name]), name, out_axes=None)(X), X.sum(0))


def test_on_eight_devices(mesh):
    x = sw.device_put(X, NamedSharding(mesh, P("data")))
    y = sw.jit(over(lambda row: row - lax.pmean(row, "i")))(x)
    close(y, X - X.mean(0))
    assert y.sharding.spec == P("data")


def message_of(error_type, function, *args):
    with pytest.raises(error_type) as caught:
        function(*args)
    assert type(caught.value) is error_type
    return str(caught.value)


@pytest.mark.parametrize(
    "use",
    [
        lambda x: lax.psum(x, "k"),
        lambda x: lax.pmean(x, ("i", "k")),
        lambda x: lax.all_gather(x, "k"),
        lambda x: lax.axis_index("k"),
        lambda x: lax.axis_size("k"),
        lambda x: lax.ppermute(x, "k", []),
    ],
)
def test_unbound_name_raises(use):
    way_out = "`vmap(fun, axis_name='k')` binds a name in `fun`, and shard_map binds the axes of its mesh."
    text = f"unbound axis name 'k'. The bound names are: 'i', 'j'. {way_out}"
    assert message_of(UnboundAxisError, nested(use), Y) == text
    text = f"unbound axis name 'k'. No axis name is bound. {way_out}"
    assert message_of(UnboundAxisError, sw.jit(lambda x: lax.psum(x, "k")), X) == text


def test_error_is_at_the_users_line():
    def f(x):
        return lax.psum(x, "k")

    with pytest.raises(NameError) as caught:
        over(sw.jit(f))(X)
    last = caught.traceback[-1]
    assert (last.name, last.lineno) == ("f", f.__code__.co_firstlineno)  # pytest counts lines from 0


def test_mismatches_raise():
    y = jnp.ones((4, 3, 6))

    def said(f):
        return message_of(ValueError, over(f), y)

    assert said(lambda x: lax.psum(x, ("i", "i"))) == "psum: an axis name repeats in ('i', 'i')"
    assert said(lambda x: lax.all_gather(x, "i", axis=3)) == (
        "all_gather: axis 3 does not exist in f32[3,6] with one more dim"
    )
    assert said(lambda x: lax.all_gather(x, "i", axis=2, tiled=True)) == "all_gather: axis 2 does not exist in f32[3,6]"
    assert said(lambda x: lax.psum_scatter(x, "i")) == (
        "psum_scatter: the size of dim 0 of f32[3,6] must be 4, the number of members"
    )
    assert said(lambda x: lax.psum_scatter(x, "i", scatter_dimension=1, tiled=True)) == (
        "psum_scatter: the size of dim 1 of f32[3,6] must be a multiple of 4, the number of members"
    )
    assert said(lambda x: lax.all_to_all(x, "i", 5, 0)) == "all_to_all: split_axis 5 does not exist in f32[3,6]"
    assert said(lambda x: lax.ppermute(x, "i", [(0, 4)])) == (
        "ppermute: perm [(0, 4)] must contain only the members 0 to 3 of 'i'"
    )
    assert said(lambda x: lax.ppermute(x, "i", [(0, 1), (2, 1)])) == (
        "ppermute: a destination repeats in [(0, 1), (2, 1)]; each member may send and receive only once"
    )
    assert said(lambda x: lax.pshuffle(x, "i", [0, 1])) == (
        "pshuffle: [0, 1] is not a permutation of the 4 members of 'i'"
    )


PAIRS = ((0, 5), (3, 1), (2, 4), (6, 7), (9, 8), (10, 15), (11, 12), (13, 14))
OPS = [
    (NamedSum(("i",)), "f32[3,4]"),
    (NamedSum(("i", "j")), "f32[3,4]"),
    (NamedSum(("i",), groups=((3, 0), (1, 2))), "f32[3,4]"),
    (NamedMinMax(("j", "i"), reduction=MAX), "f32[3,4]"),
    (NamedAllGather(("i",), (4,), 1), "f32[3,4]"),
    (NamedAllGather(("j", "i", "k"), (4, 4, 4), 1), "f32[3,4]"),
    (NamedAllGather(("i",), (4,), 1, ((0, 2), (3, 1))), "f32[3,4]"),
    (NamedReduceScatter(("i",), (4,), 1), "f32[3,4]"),
    (NamedReduceScatter(("j", "i"), (4, 4), 0), "f32[16,3]"),
    (NamedReduceScatter(("j", "i", "k"), (4, 4, 4), 1), "f32[2,64]"),
    (NamedReduceScatter(("i",), (4,), 1, ((0, 2), (3, 1))), "f32[3,2]"),
    (NamedAllToAll(("i",), (4,), 1, 0), "f32[3,4]"),
    (NamedAllToAll(("j", "i", "k"), (4, 4, 4), 1, 0), "f32[2,64,3]"),
    (NamedAllToAll(("i", "j"), (4, 4), 0, 1, PAIRS), "f32[2,3]"),
    (NamedPermute(("i",), (4,), ((0, 1), (3, 0))), "f32[3,4]"),
    (NamedPermute(("i", "j"), (4, 4), ((0, 7), (3, 0), (9, 15))), "f32[3,4]"),
    (NamedIndex("i"), ""),
]


def program_of(op, text):
    inputs = [Value(parse_type(word)) for word in text.split()]
    output = Value(op.out_type(*(value.type for value in inputs)))
    return Program(tuple(inputs), (Equation(op, inputs, [output]),), (output,), "one")


@pytest.mark.parametrize(("op", "text"), OPS, ids=str)
def test_op_with_an_unbound_name_raises(op, text):
    program = program_of(op, text)
    names = ", ".join(map(repr, sorted(op.axis_names)))
    wanted = (
        f"{op.name}: the axis name {names} is not bound. Call it inside a function that vmap(..., axis_name=...) "
        "or shard_map maps over that axis."
    )
    args = [np.ones(value.type.shape, np.float32) for value in program.inputs]
    assert message_of(NameError, evaluate, program, args) == wanted
    assert message_of(NameError, lambda: op(*map(jnp.array, args))) == wanted
    assert parse_program(str(program)) == program


@pytest.mark.parametrize(("op", "text"), [row for row in OPS if row[0].linear_in()], ids=str)
def test_named_axis_programs_under_every_transformation(op, text):
    """Derivatives before and after the name is resolved agree, with another dim in between."""
    program = program_of(op, text)
    assert program.axis_names == op.axis_names
    mapped, dims = vmap_program(program, BatchAxis(2), (1,))
    assert mapped.axis_names == op.axis_names
    assert mapped.outputs[0].type.shape[dims[0]] == 2

    def resolved(program):
        for name in sorted(op.axis_names):
            program, _ = vmap_program(program, BatchAxis(4, name), (0,) * len(program.inputs), everywhere=True)
        assert not program.axis_names
        return program

    moved, _ = jvp_program(program, (True,))
    back, _ = transpose_program(program, (True,), (True,))
    here, there = resolved(program), resolved(back)
    x, ct = (RNG.normal(size=which.inputs[0].type.shape).astype(np.float32) for which in (here, there))
    (y,), (sent,) = evaluate(here, [x]), evaluate(there, [ct])
    np.testing.assert_allclose((y * ct).sum(), (x * sent).sum(), rtol=1e-4, atol=1e-4)
    y_again, dy = evaluate(resolved(moved), [x, 2 * x])
    close(y_again, y)
    close(dy, 2 * y)
