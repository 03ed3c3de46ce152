"""Types in manual regions: varying, unreduced and reduced values along Manual axes, and the boundary of shard_map."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.parse import parse_program
from shardwise.errors import ShardingError, ShardingTypeError
from shardwise.sharding import AbstractMesh, AxisType, NamedSharding, get_abstract_mesh, reshard
from shardwise.sharding import PartitionSpec as P
from tests.explicit.typed_arrays import put, type_text

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 4)).astype(np.float32)
W = RNG.normal(size=(4, 4)).astype(np.float32)


@pytest.fixture
def mesh():
    mesh = sw.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    with sw.set_mesh(mesh):
        yield mesh


def collectives(function, *args):
    return [row.kind for row in sw.jit(function).lower(*args).plan.collectives]


def blocks(x):
    """Return the shards of the rows along x."""
    return np.split(x, 4)


def test_states_along_manual_axes(mesh):
    seen = {}

    def body(a, w):
        values = {
            "argument": a,
            "unreduced": lax.pcast(a, "x", to="unreduced"),
            "reduced": lax.pcast(w, "x", to="reduced"),
            "product": a @ lax.pcast(w, "x", to="reduced"),
            "both": lax.pcast(lax.pcast(w, "x", to="reduced"), "y", to="varying"),
        }
        values["sum of unreduced"] = lax.psum(values["unreduced"], "x")
        values["scattered"] = lax.psum_scatter(values["unreduced"], "x", scatter_dimension=1, tiled=True)
        values["gathered"] = lax.all_gather(a, "x", tiled=True, to="reduced")
        values["linear"] = -(values["unreduced"] + values["unreduced"])
        values["scaled"] = values["unreduced"] * values["reduced"][:2]
        seen.update({name: type_text(x) for name, x in values.items()})
        mats["product"], mats["scaled"] = sw.typeof(values["product"]).mat, sw.typeof(values["scaled"]).mat
        return a

    mats = {}
    sw.jit(sw.shard_map(body, in_specs=(P("x"), P()), out_specs=P("x")))(put(X, "x"), put(W))
    assert seen == {
        "argument": "f32[2,4]{V:x}",
        "unreduced": "f32[2,4]{U:x}",
        "reduced": "f32[4,4]{R:x}",
        "product": "f32[2,4]{V:x}",
        "both": "f32[4,4]{V:y, R:x}",
        "sum of unreduced": "f32[2,4]",
        "scattered": "f32[2,1]{V:x}",
        "gathered": "f32[8,4]{R:x}",
        "linear": "f32[2,4]{U:x}",
        "scaled": "f32[2,4]{U:x}",
    }
    assert mats["product"].varying == {"x"} and mats["product"].invarying(get_abstract_mesh()) == frozenset()
    assert mats["scaled"].unreduced == {"x"} and not mats["scaled"].reduced


def test_sum_of_unreduced_and_its_gradient(mesh):
    @sw.shard_map(in_specs=(P("x"), P()), out_specs=P())
    def total(a, w):
        terms = lax.pcast(a @ w, "x", to="unreduced")
        return lax.psum(terms + terms, "x")

    x, w = put(X, "x"), put(W)
    expected = 2 * sum(block @ W for block in blocks(X))
    np.testing.assert_allclose(sw.jit(total)(x, w), expected, rtol=1e-5)
    assert collectives(total, x, w) == ["all_reduce"]
    gradient = sw.jit(sw.grad(lambda w: (total(x, w) ** 2).sum()))(w)
    np.testing.assert_allclose(gradient, 2 * sum(blocks(X)).T @ (2 * expected), rtol=1e-4)


def test_reduced_weights_have_unreduced_gradients_without_a_collective(mesh):
    @sw.shard_map(in_specs=(P("x"), P(reduced={"x"})), out_specs=P("x"))
    def layer(a, w):
        assert type_text(w) == "f32[4,4]{R:x}"
        return jnp.sin(a @ w)

    def gradient(x, w):
        terms = sw.grad(lambda w: layer(x, w).sum())(w)
        assert type_text(terms) == "f32[4,4]{U:x}"
        return terms

    x, w = put(X, "x"), put(W, reduced={"x"})
    assert collectives(gradient, x, w) == []
    assert collectives(lambda x, w: reshard(gradient(x, w), P()), x, w) == ["all_reduce"]
    terms = sw.jit(gradient)(x, w)
    assert terms.sharding.spec == P(None, None, unreduced={"x"})
    np.testing.assert_allclose(reshard(terms, P()), X.T @ np.cos(X @ W), rtol=1e-4, atol=1e-5)


def test_gather_to_reduced_scatters_its_gradient(mesh):
    @sw.shard_map(in_specs=P("x"), out_specs=P(reduced={"x"}))
    def gather(a):
        return lax.all_gather(a, "x", tiled=True, to="reduced")

    x = put(X, "x")
    assert type_text(sw.jit(gather)(x)) == "f32[8,4]{R:x}"
    np.testing.assert_array_equal(sw.jit(gather)(x), X)

    @sw.shard_map(in_specs=(P("x"), P("x")), out_specs=P("x"))
    def product(a, b):
        return b * lax.all_gather(a, "x", tiled=True, to="reduced").sum(0)

    def loss(a):
        return product(a, x).sum()

    assert collectives(sw.grad(loss), x) == ["reduce_scatter"]
    np.testing.assert_allclose(sw.jit(sw.grad(loss))(x), np.broadcast_to(X.sum(0), X.shape), rtol=1e-4)


def test_scatter_of_unreduced_gathers_its_gradient(mesh):
    @sw.shard_map(in_specs=P("x"), out_specs=P(None, "x"))
    def scatter(a):
        return lax.psum_scatter(lax.pcast(a, "x", to="unreduced"), "x", scatter_dimension=1, tiled=True)

    x = put(X, "x")
    expected = sum(blocks(X))
    np.testing.assert_allclose(sw.jit(scatter)(x), expected, rtol=1e-5)
    gradient = sw.jit(sw.grad(lambda x: (scatter(x) ** 2).sum()))(x)
    np.testing.assert_allclose(gradient, np.tile(2 * expected, (4, 1)), rtol=1e-5)


@pytest.mark.parametrize("under_jit", [True, False])
def test_unreduced_values_leave_and_enter_regions(mesh, under_jit):
    @sw.shard_map(in_specs=P("x"), out_specs=P(unreduced={"x"}))
    def terms(a):
        return a * 3

    @sw.shard_map(in_specs=P(unreduced={"x"}), out_specs=P())
    def total(u):
        assert type_text(u) == "f32[2,4]{U:x}"
        return lax.psum(-u, "x")

    jit = sw.jit if under_jit else lambda f: f
    x = put(X, "x")
    unreduced = jit(terms)(x)
    assert type_text(unreduced) == "f32[2,4]{U:x}"
    assert [np.asarray(shard.data).tolist() for shard in unreduced.addressable_shards][::2] == [
        (3 * block).tolist() for block in blocks(X)
    ]
    expected = 3 * sum(blocks(X))
    np.testing.assert_allclose(reshard(unreduced, P()), expected, rtol=1e-5)
    np.testing.assert_allclose(jit(total)(unreduced), -expected, rtol=1e-5)
    gradient = jit(sw.grad(lambda u: total(u).sum()))(unreduced)
    assert type_text(gradient) == "f32[2,4]{R:x}"
    np.testing.assert_array_equal(gradient, np.full((2, 4), -1))
    gradient = jit(sw.grad(lambda x: (total(terms(x)) ** 2).sum()))(x)
    np.testing.assert_allclose(gradient, np.tile(6 * expected, (4, 1)), rtol=1e-5)


def test_regions_without_tracked_types(mesh):
    """Without check_vma, specs alone say what is unreduced and reduced."""
    options = {"check_vma": False}

    @sw.shard_map(in_specs=P("x"), out_specs=P(unreduced={"x"}), **options)
    def terms(a):
        assert type_text(a) == "f32[2,4]"
        return a * 2

    @sw.shard_map(in_specs=P(unreduced={"x"}), out_specs=P(), **options)
    def total(u):
        assert type_text(u) == "f32[2,4]"
        return lax.psum(u, "x")

    @sw.shard_map(in_specs=(P("x"), P(reduced={"x"})), out_specs=P("x"), **options)
    def layer(a, w):
        return a @ w

    x = put(X, "x")
    expected = 2 * sum(blocks(X))
    np.testing.assert_allclose(sw.jit(lambda x: total(terms(x)))(x), expected, rtol=1e-5)
    gradient = sw.jit(sw.grad(lambda x: (total(terms(x)) ** 2).sum()))(x)
    np.testing.assert_allclose(gradient, np.tile(4 * expected, (4, 1)), rtol=1e-5)
    gradient = sw.jit(sw.grad(lambda x: (reshard(terms(x), P()) ** 2).sum()))(x)
    np.testing.assert_allclose(gradient, np.tile(4 * expected, (4, 1)), rtol=1e-5)
    gradient = sw.jit(sw.grad(lambda w: layer(x, w).sum()))(put(W, reduced={"x"}))
    assert type_text(gradient) == "f32[4,4]{U:x}"
    np.testing.assert_allclose(reshard(gradient, P()), np.tile(X.sum(0)[:, None], 4), rtol=1e-5, atol=1e-5)


def test_specs_are_taken_from_types(mesh):
    seen = []

    @sw.shard_map(out_specs=P("x", reduced={"y"}))
    def f(a, w):
        seen.append((type_text(a), type_text(w)))
        return a * lax.pcast(w, "x", to="varying")[:2]

    result = sw.jit(f)(put(X, "x", reduced={"y"}), put(W, reduced={"x", "y"}))
    assert seen == [("f32[2,4]{V:x, R:y}", "f32[4,4]{R:(x,y)}")]
    assert type_text(result) == "f32[8@x,4]{R:y}"
    np.testing.assert_allclose(result, X * np.tile(W[:2], (4, 1)), rtol=1e-6)


def test_carries_and_branches_of_unreduced_values(mesh):
    @sw.shard_map(in_specs=(P("x"), P(reduced={"x"})), out_specs=P())
    def f(a, w):
        def step(total, _):
            return total + lax.pcast(a @ w, "x", to="unreduced"), None

        start = lax.pcast(a @ w, "x", to="unreduced")
        total = lax.scan(step, start, length=3)[0]
        return lax.psum(lax.cond(jnp.sum(w) < 1e9, lambda t: t, lambda t: -t, total), "x")

    x, w = put(X, "x"), put(W, reduced={"x"})
    expected = 4 * sum(blocks(X)) @ W
    np.testing.assert_allclose(sw.jit(f)(x, w), expected, rtol=1e-4)
    assert collectives(f, x, w) == ["all_reduce"]
    gradient = sw.jit(sw.grad(lambda w: (f(x, w) ** 2).sum()))(w)
    assert type_text(gradient) == "f32[4,4]{U:x}"
    np.testing.assert_allclose(reshard(gradient, P()), sum(blocks(X)).T @ (8 * expected), rtol=1e-4, atol=1e-3)


def test_partly_manual_regions_keep_unreduced_values_along_manual_axes(mesh):
    @sw.shard_map(in_specs=P("x"), out_specs=P(unreduced={"x"}), axis_names={"x"})
    def f(a):
        assert type_text(a) == "f32[2,4@y]{V:x}"
        assert get_abstract_mesh().axis_types == (AxisType.Manual, AxisType.Explicit)
        assert a.sharding.mesh == get_abstract_mesh() and a.sharding.spec == P(None, "y")
        terms = lax.pcast(a, "x", to="unreduced")
        assert type_text(terms) == "f32[2,4@y]{U:x}"
        return reshard(terms, P("y"))

    result = sw.jit(f)(put(X, "x", "y"))
    assert type_text(result) == "f32[2@y,4]{U:x}"
    np.testing.assert_allclose(reshard(result, P()), sum(blocks(X)), rtol=1e-5)


def test_a_dim_that_manual_and_explicit_axes_shard(mesh):
    @sw.shard_map(out_specs=P("x"), axis_names={"x"})
    def f(a):
        assert type_text(a) == "f32[2@y,4]{V:x}"
        return a * 2

    result = sw.jit(f)(put(X, ("x", "y")))
    assert type_text(result) == "f32[8@(x,y),4]"
    np.testing.assert_array_equal(result, X * 2)


def test_nested_regions_on_an_explicit_mesh(mesh):
    @sw.shard_map(in_specs=P(None, "y"), out_specs=P(None, "y"), axis_names={"y"})
    def inner(a):
        assert type_text(a) == "f32[2,2]{V:(x,y)}"
        assert get_abstract_mesh().are_all_axes_manual
        return jnp.sin(a) * lax.axis_index("y")

    @sw.shard_map(in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    def outer(a):
        result = inner(a)
        assert type_text(result) == "f32[2,4@y]{V:x}"
        return result

    x = put(X, "x", "y")
    expected = np.sin(X) * np.array([0, 0, 1, 1], np.float32)
    np.testing.assert_allclose(sw.jit(outer)(x), expected, rtol=1e-6)
    assert type_text(outer(x)) == "f32[8@x,4@y]"
    gradient = sw.jit(sw.grad(lambda x: outer(x).sum()))(x)
    np.testing.assert_allclose(gradient, np.cos(X) * np.array([0, 0, 1, 1]), rtol=1e-6)


@pytest.mark.parametrize("spmd", [None, "x"])
@pytest.mark.parametrize("under_jit", [True, False])
def test_vmap_over_a_sharded_dim_removes_its_axis_from_the_region(mesh, spmd, under_jit):
    @sw.shard_map(in_specs=P("y"), out_specs=P())
    def f(row):
        return lax.psum(jnp.sin(row), "y")

    jit = sw.jit if under_jit else lambda f: f
    x = put(X, "x", "y")
    expected = np.sin(X[:, :2]) + np.sin(X[:, 2:])
    result = jit(sw.vmap(f, spmd_axis_name=spmd))(x)
    assert type_text(result) == "f32[8@x,2]"
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    gradient = jit(sw.vmap(sw.grad(lambda row: f(row).sum()), spmd_axis_name=spmd))(x)
    assert type_text(gradient) == "f32[8@x,4@y]"
    np.testing.assert_allclose(gradient, np.cos(X), rtol=1e-6)


def test_vmap_over_a_dim_that_an_axis_of_the_region_shards(mesh):
    f = sw.shard_map(lambda row: row, in_specs=P("x"), out_specs=P("x"))
    with pytest.raises(ShardingError, match="axis 'x' already shards its arguments or results"):
        sw.jit(sw.vmap(f))(put(X, "x"))
    with pytest.raises(ShardingTypeError, match=r"the mapped dim of .* is sharded along"):
        sw.jit(sw.vmap(f, spmd_axis_name="y"))(put(X, "x"))


def test_untracked_regions_under_vmap_with_spmd_axis_name():
    mesh = sw.make_mesh((4, 2), ("x", "y"))
    f = sw.shard_map(lambda x: jnp.sin(x.sum()), mesh=mesh, in_specs=P("y"), out_specs=P(), check_vma=False)
    x = sw.device_put(X, NamedSharding(mesh, P("x", "y")))
    np.testing.assert_array_equal(sw.vmap(sw.grad(f), spmd_axis_name="x")(x), sw.vmap(sw.grad(f))(x))


def test_evaluate_adds_up_unreduced_values(mesh):
    """The numpy meaning of a program: an unreduced operand is on the first device, and a result is the sum."""
    total = sw.shard_map(lambda u: lax.psum(lax.psum(-u, "y"), "x"), in_specs=P(unreduced={"x", "y"}), out_specs=P())
    terms = sw.shard_map(lambda a: a, in_specs=P(None, ("x", "y")), out_specs=P(unreduced={"x", "y"}))
    a, b = RNG.normal(size=(4, 8)).astype(np.float32), X
    functions = {
        lambda a, b: total(jnp.dot(a, b, out_sharding=P(unreduced={"x", "y"}))): -a @ b,
        lambda a, b: terms(a): a.reshape(4, 8, 1).sum(1),
    }
    placed = put(a, None, ("x", "y")), put(b, ("x", "y"), None)
    for function, expected in functions.items():
        program = sw.make_jaxpr(function)(*placed).program
        np.testing.assert_allclose(evaluate(program, [a, b])[0], expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(reshard(sw.jit(function)(*placed), P()), expected, rtol=1e-4, atol=1e-4)


def test_programs_with_states_along_manual_axes_print_and_read_back():
    mesh = AbstractMesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    x = sw.ShapeDtypeStruct((8, 4), jnp.float32, sharding=NamedSharding(mesh, P("x", "y")))
    w = sw.ShapeDtypeStruct((4, 4), jnp.float32, sharding=NamedSharding(mesh, P(reduced={"x"})))

    def body(a, w):
        terms = lax.pcast(a @ w, "x", to="unreduced")
        total = lax.scan(lambda c, _: (c + terms, None), terms, length=3)[0]
        return lax.psum(total, "x"), terms

    specs = {"in_specs": (P("x"), P(reduced={"x"})), "out_specs": (P(), P(unreduced={"x"}))}
    f = sw.shard_map(body, mesh=mesh, axis_names={"x"}, **specs)
    gradient = sw.grad(lambda w, x: f(x, w)[0].sum())
    for program in (sw.make_jaxpr(f)(x, w).program, sw.make_jaxpr(gradient)(w, x).program):
        assert "on mesh(x=4 manual, y=2 explicit)" in str(program)
        assert parse_program(str(program)) == program
    assert "a: f32[2,4@y]{V:x}, b: f32[4,4]{R:x}" in str(sw.make_jaxpr(f)(x, w).program)


def region_error(body, in_specs, out_specs, *args):
    with pytest.raises(ShardingTypeError) as caught:
        sw.jit(sw.shard_map(body, in_specs=in_specs, out_specs=out_specs))(*args)
    return str(caught.value)


def test_errors_at_the_boundary(mesh):
    x, w = put(X, "x"), put(W, reduced={"x"})
    text = region_error(lambda w: w, P(), P(), w)
    assert "`w` has type f32[4,4]{R:x}, but in_specs has P(None, None)" in text
    assert "write P(None, None, reduced={'x'})" in text
    text = region_error(lambda a: lax.pcast(a, "x", to="unreduced"), P("x"), P(), x)
    assert "result 0, which has type f32[2,4]{U:x}" in text and "`lax.psum(x, 'x')`" in text
    text = region_error(lambda a: lax.psum(a, "x"), P("x"), P(unreduced={"x"}), x)
    assert "only a value that varies along 'x' can become unreduced" in text
    text = region_error(lambda a: lax.psum(a, "x"), P("x"), P(reduced={"x"}), x)
    assert "`lax.pcast(x, 'x', to='reduced')`" in text
    text = region_error(lambda w: w, P(reduced={"x"}), P(), w)
    assert "name 'x' in `P(..., reduced=...)`" in text


def test_errors_of_ops(mesh):
    x = put(X, "x")

    def terms(a):
        return lax.pcast(a, "x", to="unreduced")

    text = region_error(lambda a: jnp.sin(terms(a)), P("x"), P(unreduced={"x"}), x)
    assert "the op is not linear in it. Reduce it first: `lax.psum(x, 'x')`" in text
    text = region_error(lambda a: a * terms(a), P("x"), P(unreduced={"x"}), x)
    assert "is unreduced over 'x', and meets values that vary over it" in text
    text = region_error(lambda a: terms(a) + 1, P("x"), P(unreduced={"x"}), x)
    assert "the other operands are not" in text


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda a: lax.pcast(lax.psum(a, "x"), "x", to="unreduced"), "cannot be cast to unreduced along 'x'"),
        (lambda a: lax.pcast(a, ("x", "y"), to="reduced"), "it is varying along 'x', replicated along 'y'"),
        (lambda a: lax.pcast(a, "x", to="reduced"), "cannot be cast to reduced"),
        (lambda a: lax.pcast(a, "x", to="other"), "to must be 'varying', 'reduced' or 'unreduced'"),
        (lambda a: lax.pmax(lax.pcast(a, "x", to="unreduced"), "x"), "pmax: a value of type .* is unreduced over 'x'"),
        (
            lambda a: lax.psum(lax.all_gather(a, "x", to="reduced"), "x"),
            "psum: a value of type .* is reduced along 'x'",
        ),
        (lambda a: lax.psum(lax.pcast(a, "x", to="unreduced"), ("x", "y")), "sum it over exactly these axes"),
    ],
)
def test_errors_of_casts_and_collectives(mesh, function, text):
    with pytest.raises(ValueError, match=text):
        sw.jit(sw.shard_map(function, in_specs=P("x"), out_specs=P("x")))(put(X, "x"))
    with pytest.raises(TypeError, match="axis_name must be a name or a tuple of names"):
        sw.shard_map(lambda a: lax.pcast(a, {"x"}, to="varying"), in_specs=P("x"), out_specs=P("x"))(put(X, "x"))


def test_a_region_does_not_close_over_a_value_that_its_axes_shard(mesh):
    x = put(X, "x")
    assert (
        type_text(sw.jit(sw.shard_map(lambda a: a + put(W[0]), in_specs=P("x"), out_specs=P("x")))(x)) == "f32[8@x,4]"
    )
    text = region_error(lambda a: a + x[:2], P("x"), P("x"), x)
    assert "closes over a value of type f32[8@x,4]" in text and "Pass the value as an argument" in text


# Derivatives of derivatives, loops and custom rules. The oracle is the same function on one device.


def on_one_device(function, *args):
    with sw.set_mesh(sw.make_mesh((1,), ("one",))):
        return np.asarray(function(*map(jnp.asarray, args)))


def assert_close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-4)


def reduced_layer(x, w):
    return sw.shard_map(lambda a, w: jnp.tanh(a @ w), in_specs=(P("x"), P(reduced={"x"})), out_specs=P("x"))(x, w)


def sum_of_terms(x, w):
    def body(a, w):
        return lax.psum(lax.pcast(jnp.tanh(a @ w), "x", to="unreduced"), "x")

    return sw.shard_map(body, in_specs=(P("x"), P()), out_specs=P())(x, w)


def test_second_derivative_of_a_sum_of_unreduced_terms(mesh):
    def gradient(w, x, total):
        return sw.grad(lambda w: (total(x, w) ** 2).sum())(w)

    def total_on_one_device(x, w):
        return jnp.tanh(x @ w).reshape(4, 2, 4).sum(0)

    v = RNG.normal(size=W.shape).astype(np.float32)
    expected = on_one_device(lambda w, v: sw.jvp(lambda w: gradient(w, X, total_on_one_device), (w,), (v,))[1], W, v)
    x = put(X, "x")
    forward = sw.jit(lambda w, v: sw.jvp(lambda w: gradient(w, x, sum_of_terms), (w,), (v,))[1])
    assert_close(forward(put(W), put(v)), expected)
    backward = sw.jit(lambda w, v: sw.grad(lambda w: (gradient(w, x, sum_of_terms) * v).sum())(w))
    assert_close(backward(put(W), put(v)), expected)


def test_second_derivative_with_respect_to_reduced_weights(mesh):
    x = put(X, "x")
    v = RNG.normal(size=W.shape).astype(np.float32)

    def gradient(w):
        return sw.grad(lambda w: (reduced_layer(x, w) ** 2).sum())(w)

    def forward(w, v):
        w, v = (reshard(t, P(reduced={"x"})) for t in (w, v))
        tangent = sw.jvp(gradient, (w,), (v,))[1]
        assert type_text(tangent) == "f32[4,4]{U:x}"
        return reshard(tangent, P())

    def backward(w, v):
        return sw.grad(lambda w: (reshard(gradient(reshard(w, P(reduced={"x"}))), P()) * v).sum())(w)

    expected = on_one_device(lambda w, v: sw.jvp(sw.grad(lambda w: (jnp.tanh(X @ w) ** 2).sum()), (w,), (v,))[1], W, v)
    assert_close(sw.jit(forward)(put(W), put(v)), expected)
    assert_close(sw.jit(backward)(put(W), put(v)), expected)


@pytest.mark.parametrize("remat", [False, True])
def test_gradients_of_reduced_layers_in_a_scan_need_no_collective(mesh, remat):
    def step(h, w):
        return jnp.tanh(h @ w), None

    def body(a, weights):
        return lax.scan(sw.checkpoint(step) if remat else step, a, weights)[0]

    region = sw.shard_map(body, in_specs=(P("x"), P(reduced={"x"})), out_specs=P("x"))
    x, weights = put(X, "x"), RNG.normal(size=(3, 4, 4)).astype(np.float32)
    gradient = sw.grad(lambda weights: (region(x, weights) ** 2).sum())
    placed = put(weights, reduced={"x"})
    assert collectives(gradient, placed) == []
    result = sw.jit(gradient)(placed)
    assert type_text(result) == "f32[3,4,4]{U:x}"
    expected = on_one_device(sw.grad(lambda weights: (lax.scan(step, jnp.asarray(X), weights)[0] ** 2).sum()), weights)
    assert_close(reshard(result, P()), expected)


def test_vmap_inside_and_of_regions_with_sums(mesh):
    def body(a):
        def one(row):
            gathered = lax.pcast(lax.all_gather(row, "x", tiled=True, to="reduced"), "x", to="varying")
            terms = lax.pcast(gathered, "x", to="unreduced")
            return lax.psum(lax.pcast(row, "x", to="unreduced"), "x"), lax.psum_scatter(terms, "x", tiled=True)

        return sw.vmap(one)(a)

    total, scattered = sw.jit(sw.shard_map(body, in_specs=P("x"), out_specs=(P(), P("x"))))(put(X, "x"))
    assert_close(total, sum(blocks(X)))
    assert_close(scattered, 4 * X)
    terms = sw.shard_map(lambda a: a, in_specs=P("x"), out_specs=P(unreduced={"x"}))
    total = sw.shard_map(lambda u: lax.psum(u + u, "x"), in_specs=P(unreduced={"x"}), out_specs=P())
    mapped = sw.jit(lambda x: sw.vmap(total, in_axes=1, out_axes=1)(terms(x)))
    assert_close(mapped(put(X, "x")), 2 * sum(blocks(X)))


def test_custom_rule_returns_an_unreduced_cotangent(mesh):
    @sw.custom_vjp
    def product(a, w):
        return a @ w

    def backward(residuals, cotangent):
        a, w = residuals
        return cotangent @ w.T, lax.pcast(a.T @ cotangent, "x", to="unreduced")

    product.defvjp(lambda a, w: (a @ w, (a, w)), backward)
    region = sw.shard_map(lambda a, w: jnp.tanh(product(a, w)), in_specs=(P("x"), P(reduced={"x"})), out_specs=P("x"))
    gradient = sw.jit(sw.grad(lambda w: region(put(X, "x"), w).sum()))(put(W, reduced={"x"}))
    assert type_text(gradient) == "f32[4,4]{U:x}"
    assert_close(reshard(gradient, P()), X.T @ (1 - np.tanh(X @ W) ** 2))


def test_unreduced_values_along_axes_outside_the_region(mesh):
    region = sw.shard_map(lambda u: u + u, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})

    def f(a, b):
        terms = region(jnp.dot(a, b, out_sharding=P("x", None, unreduced={"y"})))
        assert type_text(terms) == "f32[8@x,4]{U:y}"
        return reshard(terms, P("x"))

    a, b = put(X, "x", "y"), put(W, "y", None)
    assert_close(sw.jit(f)(a, b), 2 * X @ W)
    assert collectives(f, a, b) == ["all_reduce"]
    assert_close(sw.jit(sw.grad(lambda b: (f(a, b) ** 2).sum()))(b), X.T @ (8 * X @ W))


def test_nested_regions_with_unreduced_values(mesh):
    def outer(a):
        terms = lax.pcast(a, "x", to="unreduced")
        inner = sw.shard_map(lambda b: lax.psum(b, "y"), in_specs=P(None, "y"), out_specs=P(), axis_names={"y"})
        result = inner(terms)
        assert type_text(result) == "f32[2,2]{U:x}"
        return lax.psum(result, "x")

    region = sw.shard_map(outer, in_specs=P("x"), out_specs=P(), axis_names={"x"})
    a = put(X, "x", "y")
    expected = X.reshape(4, 2, 2, 2).sum((0, 2))
    assert_close(sw.jit(region)(a), expected)
    assert_close(sw.jit(sw.grad(lambda a: (region(a) ** 2).sum()))(a), np.tile(2 * expected, (4, 2)))


def test_python_control_flow_in_a_region_on_an_explicit_mesh(mesh):
    def body(a):
        total = lax.psum(a.sum(), "x")
        assert type_text(jnp.ones((4,), out_sharding=P("y"))) == "f32[4@y]"
        return a * 2 if total > X.sum() - 1 else a

    region = sw.shard_map(body, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    result = region(put(X, "x", "y"))
    assert type_text(result) == "f32[8@x,4@y]"
    np.testing.assert_array_equal(result, X * 2)


def test_reshard_does_not_name_manual_axes(mesh):
    for spec, text in (
        (P("x"), "which is a manual axis"),
        (P(unreduced={"x"}), "Cast values along it with `lax.pcast`"),
    ):
        with pytest.raises(ShardingError, match=text):
            sw.shard_map(lambda a, spec=spec: reshard(a, spec), in_specs=P("x"), out_specs=P("x"))(put(X, "x"))


@pytest.mark.parametrize("axis_names", [set(), {"x"}], ids=["all axes", "one axis"])
@pytest.mark.parametrize("kinds", ["Auto Auto", "Explicit Auto", "Auto Explicit"])
def test_states_on_meshes_with_other_types_of_axes(kinds, axis_names):
    mesh = sw.make_mesh((4, 2), ("x", "y"), axis_types=tuple(AxisType[kind] for kind in kinds.split()))

    def body(a, w):
        terms = lax.pcast(jnp.tanh(a @ lax.pcast(w, "x", to="reduced")), "x", to="unreduced")
        gathered = lax.all_gather(a, "x", tiled=True, to="reduced")
        scattered = lax.psum_scatter(terms, "x", scatter_dimension=1, tiled=True)
        return lax.psum(terms, "x"), a * gathered[:2], scattered

    specs = {"in_specs": (P("x"), P()), "out_specs": (P(), P("x"), P(None, "x"))}
    region = sw.shard_map(body, mesh=mesh, axis_names=axis_names, **specs)

    def loss(x, w):
        total, product, scattered = region(x, w)
        return (total**2).sum() + (product**2).sum() + (scattered**3).sum()

    def loss_on_one_device(x, w):
        total = jnp.tanh(x @ w).reshape(4, 2, 4).sum(0)
        return (total**2).sum() + ((x * jnp.tile(x[:2], (4, 1))) ** 2).sum() + (total**3).sum()

    with sw.set_mesh(mesh):
        args = put(X, "x"), put(W)
        gradients = sw.jit(sw.grad(loss, (0, 1)))(*args)
        assert_close(sw.jit(loss)(*args), on_one_device(loss_on_one_device, X, W))
    for index, gradient in enumerate(gradients):
        assert_close(gradient, on_one_device(sw.grad(loss_on_one_device, index), X, W))


def test_specs_with_sums_need_explicit_axes():
    mesh = sw.make_mesh((4, 2), ("x", "y"))
    region = sw.shard_map(lambda a: a, mesh=mesh, in_specs=P("x"), out_specs=P(unreduced={"x"}))
    with pytest.raises(ShardingError, match="needs Explicit axes for unreduced and reduced values, and 'x'"):
        region(X)
