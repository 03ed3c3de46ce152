"""custom_jvp, custom_vjp, stop_gradient: the rules differ from the true derivatives, so that their use shows."""

from functools import partial

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.api.transformations.derivative_rules import SymbolicZero
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

X = np.array([0.5, -1.5, 2.0], np.float32)
HELD = jnp.full((3,), 100.0)  # rules close over it


@sw.custom_jvp
def cube(x):
    return x * x * x


@cube.defjvp
def cube_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    return cube(x), 7.0 * x * dx  # not the true derivative


@sw.custom_vjp
def scaled(p, x):
    return {"y": p["a"] * x, "n": (x * x).sum()}


def scaled_fwd(p, x):
    return scaled(p, x), (p["a"], x, 2.0)


def scaled_bwd(residuals, ct):
    a, x, two = residuals
    return {"a": ct["y"] * x * HELD}, ct["y"] * a + two * x * ct["n"]


scaled.defvjp(scaled_fwd, scaled_bwd)
WRAPS = {"eager": lambda f: f, "jit": sw.jit}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_jvp_rule_is_used_in_every_mode(wrap):
    np.testing.assert_allclose(cube(X), X**3, rtol=1e-6)
    total = lambda x: wrap(cube)(x).sum()  # noqa: E731
    np.testing.assert_allclose(wrap(sw.grad(total))(X), 7 * X, rtol=1e-6)
    np.testing.assert_allclose(wrap(lambda x: sw.jvp(total, (x,), (x,))[1])(X), (7 * X * X).sum(), rtol=1e-6)
    np.testing.assert_allclose(wrap(sw.jacfwd(wrap(cube)))(X), np.diag(7 * X), rtol=1e-6)
    np.testing.assert_allclose(wrap(sw.jacrev(wrap(cube)))(X), np.diag(7 * X), rtol=1e-6)
    np.testing.assert_allclose(wrap(sw.vmap(sw.grad(cube)))(X), 7 * X, rtol=1e-6)
    np.testing.assert_allclose(wrap(sw.grad(lambda x: sw.vmap(wrap(cube))(x).sum()))(X), 7 * X, rtol=1e-6)
    np.testing.assert_allclose(wrap(sw.vmap(sw.grad(sw.grad(cube))))(X), [7, 7, 7], rtol=1e-6)


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_vjp_rule_is_used(wrap):
    def loss(p, x):
        out = wrap(scaled)(p, x)
        return out["y"].sum() + 3.0 * out["n"]

    a = np.full(3, 2.0, np.float32)
    gp, gx = wrap(sw.grad(loss, argnums=(0, 1)))({"a": a}, X)
    np.testing.assert_allclose(gp["a"], 100 * X, rtol=1e-6)
    np.testing.assert_allclose(gx, 2 + 6 * X, rtol=1e-6)
    second = wrap(sw.jacrev(sw.grad(loss, argnums=1), argnums=1))({"a": a}, X)
    np.testing.assert_allclose(second, 6 * np.eye(3), rtol=1e-6)


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_vjp_rule_under_vmap(wrap):
    a, xs = np.full(3, 2.0, np.float32), np.stack([X, X + 1])

    def loss(a, x):
        return scaled({"a": a}, x)["y"].sum()

    each = wrap(sw.vmap(sw.grad(loss, argnums=(0, 1)), in_axes=(None, 0)))(a, xs)
    np.testing.assert_allclose(each[0], 100 * xs, rtol=1e-6)
    np.testing.assert_allclose(each[1], np.full((2, 3), 2), rtol=1e-6)
    shared = wrap(sw.grad(lambda a: sw.vmap(loss, in_axes=(None, 0))(a, xs).sum()))(a)
    np.testing.assert_allclose(shared, 100 * xs.sum(0), rtol=1e-6)


def test_nondiff_argnums():
    @partial(sw.custom_vjp, nondiff_argnums=(0,))
    def apply(f, x):
        return f(x)

    apply.defvjp(lambda f, x: (f(x), x), lambda f, x, ct: (ct * f(x) * 10.0,))
    np.testing.assert_allclose(sw.grad(lambda x: apply(jnp.exp, x).sum())(X), 10 * np.exp(X), rtol=1e-5)

    @partial(sw.custom_jvp, nondiff_argnums=(1,))
    def power(x, n):
        return x * n

    power.defjvp(lambda n, primals, tangents: (power(primals[0], n), tangents[0] * (n + 1)))
    assert float(sw.grad(lambda x: power(x, 4))(2.0)) == 5.0


def test_defjvps():
    @sw.custom_jvp
    def product(x, y):
        return x * y

    product.defjvps(lambda t, z, x, y: t * y, None)
    assert [float(g) for g in sw.grad(product, argnums=(0, 1))(3.0, 5.0)] == [5.0, 0.0]


def test_symbolic_zeros():
    seen = []

    @sw.custom_jvp
    def add(x, y):
        return x + y

    def rule(primals, tangents):
        seen.extend(isinstance(t, SymbolicZero) for t in tangents)
        return add(*primals), tangents[0]

    add.defjvp(rule, symbolic_zeros=True)
    assert float(sw.grad(add)(1.0, 2.0)) == 1.0
    assert seen == [False, True]

    @sw.custom_vjp
    def pair(x, y):
        return x * y, x + y

    def fwd(x, y):
        seen.append((x.perturbed, y.perturbed))
        return (x.value * y.value, x.value + y.value), (x.value, y.value)

    def bwd(residuals, ct):
        seen.append(isinstance(ct[1], SymbolicZero))
        return ct[0] * residuals[1], None

    pair.defvjp(fwd, bwd, symbolic_zeros=True)
    assert float(sw.grad(lambda x: pair(x, 5.0)[0])(3.0)) == 5.0
    assert seen[2:] == [(True, False), True]


def test_on_eight_devices(mesh):
    x = sw.device_put(np.arange(10.0, dtype=np.float32), NamedSharding(mesh, P("data")))
    np.testing.assert_allclose(sw.jit(sw.grad(lambda x: cube(x).sum()))(x), 7 * np.arange(10), rtol=1e-6)
    np.testing.assert_allclose(cube(x), np.arange(10.0) ** 3, rtol=1e-6)


def test_stop_gradient():
    tree = sw.lax.stop_gradient({"x": X, "n": 3})
    np.testing.assert_array_equal(tree["x"], X)
    assert int(tree["n"]) == 3
    for wrap in WRAPS.values():
        g = wrap(sw.grad(lambda x: (x * sw.lax.stop_gradient(x * x)).sum()))(X)
        np.testing.assert_allclose(g, X * X, rtol=1e-6)
        np.testing.assert_allclose(wrap(sw.vmap(sw.grad(lambda x: x * sw.lax.stop_gradient(x))))(X), X)


def raised(error, function, *args):
    with pytest.raises(error) as caught:
        function(*args)
    return str(caught.value)


def test_errors():
    no_rule = sw.custom_jvp(lambda x: x)
    no_rules = sw.custom_vjp(lambda x: x)
    for transform in (lambda f: f, sw.jit, sw.grad):
        text = raised(AttributeError, transform(no_rule), 2.0)
        assert "has no derivative rule: define it with `defjvp`" in text
        text = raised(AttributeError, transform(no_rules), 2.0)
        assert "has no derivative rules: define them with `defvjp`" in text
    text = raised(TypeError, lambda: sw.jvp(lambda x: scaled({"a": x}, x)["n"], (X,), (X,)))
    assert text.startswith(
        "custom_vjp: `scaled` has a rule for reverse mode only: jvp and jacfwd cannot differentiate it"
    )

    def with_rules(fwd, bwd, wrap=lambda f: f):
        f = sw.custom_vjp(lambda x: x * 2.0)
        f.defvjp(fwd, bwd)
        return sw.grad(wrap(f))

    assert "must return (result, residuals)" in raised(TypeError, with_rules(lambda x: x, lambda r, c: (c,)), 1.0)
    assert "returned result 0 of type f32[2], but the function returns f32[]" in (
        raised(TypeError, with_rules(lambda x: (jnp.ones(2), ()), lambda r, c: (c,), sw.jit), 1.0)
    )
    assert "must return a tuple of 1 cotangents" in (
        raised(TypeError, with_rules(lambda x: (x, ()), lambda r, c: (c, c)), 1.0)
    )
    assert "returned a cotangent of type f32[2]" in (
        raised(ValueError, with_rules(lambda x: (x, ()), lambda r, c: (jnp.ones(2),)), 1.0)
    )
    assert "returned a cotangent of type i32[]" in (
        raised(ValueError, with_rules(lambda x: (x, ()), lambda r, c: (c.astype(jnp.int32),)), 1.0)
    )
    converted = with_rules(lambda x: (x, ()), lambda r, c: (c.astype(jnp.bfloat16),))(1.0)
    assert (converted.dtype, float(converted)) == (jnp.float32, 1.0)

    @sw.custom_jvp
    def wrong(x):
        return x

    wrong.defjvp(lambda p, t: (p[0], (t[0], t[0])))
    assert "returned a tangent of structure" in raised(TypeError, sw.grad(wrong), 1.0)


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_differentiated_closure_raises(wrap):
    def outer(w):
        @sw.custom_jvp
        def f(x):
            return x * w

        f.defjvp(lambda p, t: (f(*p), t[0]))
        return wrap(f)(2.0 * w)

    assert "`f` closes over a value that is being differentiated" in raised(TypeError, sw.grad(outer), 3.0).replace(
        " or its derivative rule", ""
    )


@pytest.mark.parametrize("outer", WRAPS.values(), ids=WRAPS)
@pytest.mark.parametrize("kind", ["jvp", "vjp"])
def test_the_rule_runs_instead_of_the_function(kind, outer):
    """A function that is differentiated is not traced besides its rule, so that its side effects happen once."""
    calls = []

    def double(x, n):
        calls.append("function")
        return {"y": 2 * x, "n": n}

    if kind == "jvp":
        f = sw.custom_jvp(double)

        def rule(primals, tangents):
            calls.append("rule")
            return {"y": 2 * primals[0], "n": primals[1]}, {"y": 3 * tangents[0], "n": np.zeros((), sw.dtypes.float0)}

        f.defjvp(rule)
    else:
        f = sw.custom_vjp(double)

        def forward(x, n):
            calls.append("rule")
            return {"y": 2 * x, "n": n}, None

        f.defvjp(forward, lambda _, ct: (3 * ct["y"], None))

    def loss(x):
        out = f(x * x, 4)
        return out["y"] * out["n"]

    assert float(outer(sw.grad(loss))(5.0)) == 120 and calls == ["rule"]
    calls.clear()
    np.testing.assert_array_equal(outer(sw.vmap(sw.grad(loss)))(jnp.arange(3.0)), [0, 24, 48])
    assert calls == ["rule"]
    calls.clear()
    second = outer(sw.grad(sw.grad(loss)))(5.0)
    assert float(second) == 24 and calls == ["rule"]
    calls.clear()
    # Nothing of the call is differentiated: the function runs.
    assert float(outer(sw.grad(lambda x: x * f(lax.stop_gradient(x), 4)["y"]))(5.0)) == 10 and calls == ["function"]


def test_calls_that_are_differentiated_see_values():
    """Outside of jit, the results of a rule have values, on which Python can branch."""
    np.testing.assert_allclose(sw.grad(lambda x: cube(x) if cube(x) > 0 else -x)(2.0), 14)
    np.testing.assert_allclose(sw.grad(lambda x: cube(x) if cube(x) > 0 else -x)(-2.0), -1)


def test_residuals_that_are_python_scalars_stay_python_scalars():
    @sw.custom_vjp
    def scale(x, y):
        return x * y

    def forward(x, y):
        return x * y, (x, y, True, 3)

    def backward(residuals, cotangent):
        x, y, is_scaled, count = residuals
        assert is_scaled is True and list(range(count)) == [0, 1, 2]
        return count * cotangent * y, cotangent * x

    scale.defvjp(forward, backward)
    for transform in (lambda f: f, sw.jit):
        assert [float(ct) for ct in transform(sw.grad(scale, (0, 1)))(2.0, 5.0)] == [15, 2]
    gradients = sw.vmap(sw.grad(scale, (0, 1)), in_axes=(0, None))(jnp.arange(3.0), 5.0)
    np.testing.assert_array_equal(gradients, [[15, 15, 15], [0, 1, 2]])
    total = sw.grad(lambda x, y: sw.vmap(scale, in_axes=(0, None))(x, y).sum(), (0, 1))(jnp.arange(3.0), 5.0)
    np.testing.assert_array_equal(total[0], [15, 15, 15])
    assert total[1] == 3


def test_residuals_of_calls_with_different_active_arguments():
    """Each call of the fwd rule has its own residuals, whose structure may depend on what is differentiated."""

    @sw.custom_vjp
    def product(x, y):
        return x * y

    def forward(x, y):
        saved = {"y": y.value} if x.perturbed else {}
        if y.perturbed:
            saved["x"] = x.value
        return x.value * y.value, saved

    def backward(residuals, cotangent):
        return tuple(cotangent * residuals[name] if name in residuals else None for name in ("y", "x"))

    product.defvjp(forward, backward, symbolic_zeros=True)
    first, pull_first = sw.vjp(lambda x: product(x, 3.0), 2.0)
    second, pull_second = sw.vjp(lambda y: product(2.0, y), 3.0)
    third, pull_third = sw.vjp(product, 2.0, 3.0)
    assert first == second == third == 6
    assert pull_first(1.0)[0] == 3 and pull_second(1.0)[0] == 2
    assert [float(ct) for ct in pull_third(1.0)] == [3, 2]


@pytest.mark.parametrize("kind", ["jvp", "vjp"])
def test_vmap_keeps_unbatched_results_without_tangents(kind):
    """A loop counter that passes through a function with rules stays unbatched, so that conditions on it do."""

    def function(count, x):
        return count + 1, 2 * x

    if kind == "jvp":
        step = sw.custom_jvp(function)
        step.defjvp(lambda primals, tangents: (step(*primals), (np.zeros((), sw.dtypes.float0), 3 * tangents[1])))
    else:
        step = sw.custom_vjp(function)
        step.defvjp(lambda count, x: (function(count, x), None), lambda _, cotangents: (None, 3 * cotangents[1]))

    def outer(count, x):
        count, x = step(count, x)
        return lax.cond(count > 3, lambda: x, lambda: x + 1)

    def mapped(x):
        return sw.vmap(outer, in_axes=(None, 0))(4, x)

    jaxpr = sw.make_jaxpr(mapped)(jnp.arange(3.0))
    seen = [equation.primitive.name for equation in jaxpr.eqns]
    assert "cond" in seen and "select_n" not in seen
    np.testing.assert_array_equal(mapped(jnp.arange(3.0)), [0, 2, 4])
    np.testing.assert_array_equal(sw.grad(lambda x: mapped(x).sum())(jnp.arange(3.0)), [3, 3, 3])
    np.testing.assert_array_equal(sw.vmap(sw.grad(lambda x: outer(4, x)))(jnp.arange(3.0)), [3, 3, 3])


def test_a_zero_cotangent_of_a_rule_is_not_propagated():
    """A rule that returns None for an argument does not run the transpose rules before it."""
    calls = []

    @sw.custom_vjp
    def marked(x):
        return x

    def backward(_, cotangent):
        calls.append(cotangent)
        return (cotangent,)

    marked.defvjp(lambda x: (x, None), backward)

    @sw.custom_vjp
    def first(x, y):
        return x

    first.defvjp(lambda x, y: (x, None), lambda _, cotangent: (cotangent, None))
    gradients = sw.grad(lambda x, y: first(x, marked(y)), (0, 1))(1.0, 2.0)
    assert [float(ct) for ct in gradients] == [1, 0]
    assert not calls


def test_cotangents_may_be_a_tree_prefix():
    """A cotangent of a subtree belongs to each of its leaves; Flax returns arrays in place of nodes with one leaf."""

    @sw.custom_vjp
    def f(tree, x):
        return tree["a"][0] * tree["b"] * x

    def fwd(tree, x):
        return f(tree, x), (tree, x)

    def bwd(residuals, ct):
        tree, x = residuals
        return {"a": ct * tree["b"] * x, "b": None}, ct * tree["a"][0] * tree["b"]

    f.defvjp(fwd, bwd)
    grads = sw.grad(f, argnums=(0, 1))({"a": [2.0], "b": 3.0}, 5.0)
    assert sw.tree.map(float, grads) == ({"a": [15.0], "b": 0.0}, 6.0)
    f.defvjp(fwd, lambda residuals, ct: ({"a": ct}, ct))
    with pytest.raises(TypeError, match="returned a cotangent of structure"):
        sw.grad(f)({"a": [2.0], "b": 3.0}, 5.0)


def _scaled_sine(kind, scale, rules_use_scale):
    """Return 'scale · sin(x)' with a custom derivative, whose function, and possibly rules, close over `scale`."""

    def slope(x):
        return jnp.cos(scale) * x if rules_use_scale else 3.0 * x

    if kind == "custom_jvp":
        f = sw.custom_jvp(lambda x: scale * jnp.sin(x))
        f.defjvp(lambda primals, tangents: (f(*primals), slope(*primals) * tangents[0]))
    else:
        f = sw.custom_vjp(lambda x: scale * jnp.sin(x))
        f.defvjp(lambda x: (f(x), (x, scale)), lambda residuals, ct: (slope(residuals[0]) * ct,))
    return f


REGIONS = {
    "scan": lambda f: lambda x: lax.scan(lambda carry, _: (f(carry), None), x, length=2)[0],
    "cond": lambda f: lambda x: lax.cond(x > 0, lambda x: f(f(x)), lambda x: x, x),
    "checkpoint": lambda f: sw.checkpoint(lambda x: f(f(x))),
    "jit": lambda f: sw.jit(lambda x: f(f(x))),
}


@pytest.mark.parametrize("rules_use_scale", [False, True])
@pytest.mark.parametrize("kind", ["custom_jvp", "custom_vjp"])
@pytest.mark.parametrize("region", REGIONS.values(), ids=REGIONS)
def test_rules_in_regions_may_close_over_traced_values(region, kind, rules_use_scale):
    def gradient(scale, x):
        return sw.grad(region(_scaled_sine(kind, scale, rules_use_scale)))(x)

    def expected(scale, x):
        slope = np.cos(scale) if rules_use_scale else 3.0
        return slope * x * slope * scale * np.sin(x)

    scales, x = np.array([1.5, 2.0], np.float32), np.float32(0.75)
    np.testing.assert_allclose(sw.jit(gradient)(scales[0], x), expected(scales[0], x), rtol=1e-5)
    np.testing.assert_allclose(sw.vmap(gradient, (0, None))(scales, x), expected(scales, x), rtol=1e-5)
    inner = sw.vmap(gradient, (None, 0))
    np.testing.assert_allclose(
        sw.vmap(inner, (0, None))(scales, scales), expected(scales[:, None], scales[None, :]), rtol=1e-5
    )


@pytest.mark.parametrize("kind", ["custom_jvp", "custom_vjp"])
@pytest.mark.parametrize("region", REGIONS.values(), ids=REGIONS)
def test_second_derivatives_in_regions_use_the_rules(region, kind):
    # The first derivative is 'slope · x · slope · f(x)' with 'slope = 3'; the rule of `f` applies to its second factor.
    x, scale = np.float32(0.75), np.float32(2.0)
    second = sw.grad(sw.grad(region(_scaled_sine(kind, scale, rules_use_scale=False))))
    expected = 9.0 * (scale * np.sin(x) + x * 3.0 * x)
    np.testing.assert_allclose(second(x), expected, rtol=1e-5)
    np.testing.assert_allclose(sw.jit(second)(x), expected, rtol=1e-5)
