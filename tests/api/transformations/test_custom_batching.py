"""custom_vmap and sequential_vmap: the rules differ from the functions, so that their use shows."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.custom_batching import custom_vmap, sequential_vmap
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

X = np.array([0.5, -1.5, 2.0], np.float32)
Y = np.array([1.0, 2.0, 3.0], np.float32)
WRAPS = {"eager": lambda f: f, "jit": sw.jit}


def traced_rule():
    """Return a function `x * y` whose batching rule computes `10 * x * y`, and the list of calls of the rule."""
    calls = []

    @custom_vmap
    def product(x, y):
        return x * y

    @product.def_vmap
    def rule(axis_size, in_batched, x, y):
        calls.append((axis_size, in_batched, x.shape, y.shape))
        return 10 * x * y, any(in_batched)

    return product, calls


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_vmap_uses_the_rule(wrap):
    product, calls = traced_rule()
    np.testing.assert_allclose(product(X, Y), X * Y)
    np.testing.assert_allclose(wrap(product)(X, Y), X * Y)
    np.testing.assert_allclose(wrap(sw.vmap(wrap(product)))(X, Y), 10 * X * Y)
    assert calls == [(3, [True, True], (3,), (3,))]
    matrix = np.outer(X, Y)
    result = wrap(sw.vmap(product, in_axes=(1, None), out_axes=1))(matrix, Y)
    np.testing.assert_allclose(result, 10 * matrix * Y[:, None])
    assert calls[1:] == [(3, [True, False], (3, 3), (3,))]


def test_rule_under_two_maps_is_batched_again():
    product, calls = traced_rule()
    a, b = np.outer(X, Y), np.outer(Y, Y)
    np.testing.assert_allclose(sw.vmap(sw.vmap(product))(a, b), 10 * a * b)
    assert calls == [(3, [True, True], (3,), (3,))]


def test_unbatched_results_and_trees():
    @custom_vmap
    def split(p):
        return {"a": p["x"] + 1, "b": p["y"]}

    @split.def_vmap
    def rule(axis_size, in_batched, p):
        (batched,) = in_batched
        assert batched == {"x": True, "y": False}
        return {"a": p["x"] + 2, "b": p["y"]}, {"a": True, "b": False}

    out = sw.vmap(split, in_axes=({"x": 0, "y": None},), out_axes={"a": 0, "b": None})({"x": X, "y": Y[0]})
    np.testing.assert_allclose(out["a"], X + 2)
    np.testing.assert_allclose(out["b"], Y[0])


def test_rule_inside_loops_branches_and_checkpoint():
    product, _ = traced_rule()

    def scanned(x, y):
        return lax.scan(lambda carry, _: (product(carry, y), None), x, None, length=2)[0]

    np.testing.assert_allclose(sw.vmap(scanned)(X, Y), 100 * X * Y**2, rtol=1e-6)
    np.testing.assert_allclose(sw.vmap(lambda x, y: lax.cond(True, product, lambda x, y: x, x, y))(X, Y), 10 * X * Y)
    np.testing.assert_allclose(sw.vmap(sw.checkpoint(product))(X, Y), 10 * X * Y)


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_jvp_differentiates_function_and_rule(wrap):
    product, calls = traced_rule()
    both = wrap(lambda x, y, dx, dy: sw.jvp(product, (x, y), (dx, dy)))
    value, tangent = both(2.0, 3.0, 5.0, 7.0)
    assert (float(value), float(tangent)) == (6.0, 29.0)
    value, tangent = sw.vmap(both)(X, Y, Y, X)
    np.testing.assert_allclose(value, 10 * X * Y, rtol=1e-6)
    np.testing.assert_allclose(tangent, 10 * (Y * Y + X * X), rtol=1e-6)
    # An argument is batched if its tangent is, and the other way round.
    value, tangent = sw.vmap(both, in_axes=(None, 0, 0, None))(2.0, Y, X, 3.0)
    np.testing.assert_allclose(value, 20 * Y, rtol=1e-6)
    np.testing.assert_allclose(tangent, 10 * (X * Y + 2 * 3.0), rtol=1e-6)
    assert all(batched == [True, True] for _, batched, *_ in calls)


def test_jvp_of_jvp_uses_the_rule():
    product, _ = traced_rule()

    def second(x):
        return sw.jvp(lambda x: sw.jvp(product, (x, x), (1.0, 1.0))[1], (x,), (1.0,))[1]

    assert float(second(3.0)) == 2.0
    np.testing.assert_allclose(sw.vmap(second)(X), [20.0, 20.0, 20.0])
    np.testing.assert_allclose(sw.vmap(sw.jacfwd(product))(X, Y), 10 * Y, rtol=1e-6)


def test_integer_results_have_no_tangent():
    @custom_vmap
    def rounded(x):
        return x * x, x.astype(jnp.int32)

    @rounded.def_vmap
    def rule(axis_size, in_batched, x):
        return (3 * x, jnp.zeros(axis_size, jnp.int32)), (True, True)

    (value, number), (tangent, _) = sw.vmap(lambda x: sw.jvp(rounded, (x,), (1.0,)))(X)
    np.testing.assert_allclose(value, 3 * X)
    np.testing.assert_array_equal(number, [0, 0, 0])
    np.testing.assert_allclose(tangent, [3.0, 3.0, 3.0])


def test_reverse_mode_needs_custom_vjp():
    product, _ = traced_rule()
    with pytest.raises(NotImplementedError, match=r"`product` cannot be differentiated in reverse mode.*custom_vjp"):
        sw.grad(product)(1.0, 2.0)
    with pytest.raises(NotImplementedError, match=r"`product` cannot be differentiated in reverse mode"):
        sw.linear_transpose(lambda x: product(x, 2.0), 1.0)(1.0)
    # grad of vmap differentiates what the rule computes
    np.testing.assert_allclose(sw.grad(lambda x: sw.vmap(product)(x, Y).sum())(X), 10 * Y)


def test_custom_vjp_around_custom_vmap_forwards_def_vmap():
    @sw.custom_vjp
    @custom_vmap
    def f(x, y):
        return jnp.sin(x) * y

    @f.def_vmap
    def rule(axis_size, in_batched, x, y):
        return jnp.cos(x) * y, True

    f.defvjp(lambda x, y: (f(x, y), (x, y)), lambda residuals, ct: (5 * ct, 7 * ct))
    np.testing.assert_allclose(sw.vmap(f)(X, Y), np.cos(X) * Y, rtol=1e-6)
    assert float(sw.grad(f)(0.0, 1.0)) == 5.0
    np.testing.assert_allclose(sw.vmap(sw.value_and_grad(f))(X, Y)[0], np.cos(X) * Y, rtol=1e-6)
    assert not hasattr(sw.custom_vjp(lambda x: x), "def_vmap")


def test_sequential_vmap_calls_one_slice_after_the_other(capsys):
    @sequential_vmap
    def show(x, y):
        sw.debug.print("{}", x)
        return {"sum": x + y}

    out = sw.vmap(show, in_axes=(0, None))(np.arange(3), 10)
    sw.effects_barrier()
    np.testing.assert_array_equal(out["sum"], [10, 11, 12])
    assert capsys.readouterr().out == "0\n1\n2\n"
    nested = sw.vmap(sw.vmap(show))(np.arange(6).reshape(2, 3), np.ones((2, 3), int))
    np.testing.assert_array_equal(nested["sum"], np.arange(6).reshape(2, 3) + 1)


def test_sharded_over_eight_devices():
    product, calls = traced_rule()
    mesh = sw.make_mesh((8,), ("data",))
    x = np.arange(16, dtype=np.float32)
    sharded = sw.device_put(x, NamedSharding(mesh, P("data")))
    out = sw.jit(sw.vmap(product))(sharded, sharded)
    np.testing.assert_allclose(out, 10 * x * x)
    assert out.sharding.is_equivalent_to(sharded.sharding, 1)
    assert calls == [(16, [True, True], (16,), (16,))]


def test_jaxpr_has_the_call():
    product, _ = traced_rule()
    closed = sw.make_jaxpr(product)(1.0, 2.0)
    assert [eqn.primitive.name for eqn in closed.eqns] == ["custom_vmap_call"]
    assert [eqn.primitive.name for eqn in closed.eqns[0].params["call"].eqns] == ["mul"]
    again = sw.core.jaxpr_as_fun(closed)
    np.testing.assert_allclose(sw.vmap(again)(X, Y)[0], 10 * X * Y)


def test_closed_over_values():
    def scaled_by(scale):
        @custom_vmap
        def scaled(x):
            return x * scale

        scaled.def_vmap(lambda axis_size, in_batched, x: (10 * x * scale, True))
        return scaled

    np.testing.assert_allclose(sw.jit(lambda x, scale: sw.vmap(scaled_by(scale))(x))(X, 2.0), 20 * X)
    with pytest.raises(
        TypeError, match=r"`scaled`.* closes over a value that is mapped.*Pass the value as an argument"
    ):
        sw.vmap(lambda x, scale: scaled_by(scale)(x))(X, Y)
    np.testing.assert_allclose(sw.vmap(lambda scale: scaled_by(scale)(2.0))(Y), 2 * Y)  # no argument is mapped


def double(rule=None):
    function = custom_vmap(lambda x: 2 * x)
    if rule is not None:
        function.def_vmap(rule)
    return function


@pytest.mark.parametrize(
    ("rule", "error", "message"),
    [
        (None, AttributeError, "has no batching rule: define it with `def_vmap`"),
        (lambda n, batched, x: 2 * x, TypeError, r"must return \(results, out_batched\)"),
        (lambda n, batched, x: (2 * x, [True]), ValueError, "results of structure"),
        (lambda n, batched, x: ((x, x), (True, True)), ValueError, "but the function returns"),
        (lambda n, batched, x: (x[1:], True), TypeError, r"must return float32 of shape \(3,\)"),
        (lambda n, batched, x: (x, False), TypeError, r"must return float32 of shape \(\)"),
        (lambda n, batched, x: (x.astype(int), True), TypeError, "must return float32"),
        (lambda n, batched, x: (x, 1), TypeError, "it must consist of True and False"),
    ],
)
def test_bad_rules(rule, error, message):
    with pytest.raises(error, match=message):
        sw.vmap(double(rule))(X)


def test_bad_arguments():
    with pytest.raises(TypeError, match="custom_vmap"):
        custom_vmap(3)
    with pytest.raises(AttributeError, match="define it with `def_vmap`"):
        double()(1.0)

    @custom_vmap
    def keyword(x, *, scale):
        return x * scale

    keyword.def_vmap(lambda *args: args)
    with pytest.raises(TypeError, match="keyword-only parameters"):
        keyword(1.0, scale=2.0)
