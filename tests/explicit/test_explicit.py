"""Explicit axes: reshard, `out_sharding`, conflicts, derivatives, loops, unreduced and reduced values."""

import operator

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.ir.parse import parse_program
from shardwise.errors import ProgramError, ShardingError, ShardingTypeError
from shardwise.sharding import AbstractMesh, AxisType, NamedSharding, reshard
from shardwise.sharding import PartitionSpec as P
from tests.explicit.typed_arrays import put, type_text

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 4)).astype(np.float32)


def collectives(function, *args):
    """Return the collectives of a function: for each, its name and how often it runs."""
    return [(row.kind, row.times) for row in sw.jit(function).lower(*args).plan.collectives]


def test_types_print_as_in_jax(explicit_mesh):
    assert type_text(put(X, "X", None)) == "f32[8@X,4]"
    assert type_text(put(X, ("X", "Y"))) == "f32[8@(X,Y),4]"
    assert type_text(put(X)) == "f32[8,4]"
    assert put(X, "X").aval is sw.typeof(put(X, "X"))


def test_types_are_known_while_a_function_is_traced(explicit_mesh):
    seen = []

    def f(x):
        seen.append((type_text(x), x.sharding.spec, x.sharding.mesh))
        return x

    sw.jit(f)(put(X, "X"))
    assert seen == [("f32[8@X,4]", P("X", None), explicit_mesh.abstract)]


@pytest.mark.parametrize("under_jit", [True, False])
def test_out_sharding_decides_an_ambiguous_sum(explicit_mesh, under_jit):
    x, w = put(X, "X", "Y"), put(X.T.copy(), "Y", None)
    for spec, text in [(P("X", None), "f32[8@X,8]"), (P("X", "Y"), "f32[8@X,8@Y]"), (P(), "f32[8,8]")]:
        for product in (
            jnp.dot,
            jnp.matmul,
            lambda x, w, out_sharding: jnp.einsum("ij,jk->ik", x, w, out_sharding=out_sharding),
        ):
            call = lambda x, w: product(x, w, out_sharding=spec)  # noqa: B023, E731
            result = (sw.jit(call) if under_jit else call)(x, w)
            assert type_text(result) == text
            np.testing.assert_allclose(result, X @ X.T, rtol=1e-5)


def test_an_ambiguous_sum_is_one_collective(explicit_mesh):
    x, w = put(X, "X", "Y"), put(X.T.copy(), "Y", None)
    assert collectives(lambda x, w: jnp.dot(x, w, out_sharding=P("X", None)), x, w) == [("all_reduce", 1)]
    assert collectives(lambda x, w: jnp.dot(x, w, out_sharding=P("X", "Y")), x, w) == [("reduce_scatter", 1)]


def add_conflict(x, y):
    return x + y


@pytest.mark.parametrize(
    ("function", "specs", "words"),
    [
        (
            add_conflict,
            [("X", None), ("Y", None)],
            ["add: operands are sharded differently", "f32[8@X,4]", "f32[8@Y,4]", "`reshard(x, P('X', None))`"],
        ),
        (
            lambda x, y: x @ y.T,
            [("X", "Y"), (None, "Y")],
            ["contracted dim along 'Y'", "out_sharding=", "unreduced={'Y'}"],
        ),
        (lambda x, y: x @ y.T, [("X", None), ("X", None)], ["axis 'X' would shard dims 0 and 1", "out_sharding="]),
        (lambda x, y: x.reshape(2, 16), [("X", None), ()], ["not contiguous", "out_sharding="]),
    ],
    ids=["conflict", "ambiguous", "twice", "reshape"],
)
@pytest.mark.parametrize("under_jit", [True, False])
def test_conflicts_are_errors_with_types_and_remedy(explicit_mesh, function, specs, words, under_jit):
    x, y = (put(X, *spec) for spec in specs)
    with pytest.raises(ShardingTypeError) as error:
        (sw.jit(function) if under_jit else function)(x, y)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_an_error_in_a_traced_function_names_the_lines_of_both_operands(explicit_mesh):
    with pytest.raises(
        ShardingTypeError, match=r"operand 0, f32\[8@X,4\], was created at test_explicit.py:\d+\n.*operand 1"
    ):
        sw.jit(add_conflict)(put(X, "X", None), put(X, "Y", None))


def test_reshard(explicit_mesh):
    x = put(X, "X", "Y")
    assert type_text(reshard(x, P(None, "X"))) == "f32[8,4@X]"
    np.testing.assert_array_equal(reshard(x, P(None, "X")), X)
    f = sw.jit(lambda x: reshard(jnp.sin(x), P(None, "Y")))
    assert type_text(f(x)) == "f32[8,4@Y]"
    gradient = sw.jit(sw.grad(lambda x: (f(x) ** 2).sum()))(x)
    assert type_text(gradient) == "f32[8@X,4@Y]"
    np.testing.assert_allclose(gradient, 2 * np.sin(X) * np.cos(X), rtol=1e-5)


def test_reshard_checks_its_arguments(explicit_mesh):
    with pytest.raises(TypeError, match="reshard needs a PartitionSpec or a NamedSharding, not 3"):
        reshard(put(X), 3)
    with pytest.raises(ShardingError, match="rank"):
        reshard(put(X), P(None, None, "X"))
    auto = NamedSharding(sw.make_mesh((8,), ("Z",)), P("Z"))
    with pytest.raises(ShardingError, match="no Explicit axes"):
        reshard(jnp.ones(8), auto)


def test_reshard_on_a_mesh_without_explicit_axes_keeps_the_sharding():
    mesh = sw.make_mesh((4, 2), ("X", "Y"))
    with sw.set_mesh(mesh):
        assert reshard(jnp.ones(8), P()).sharding == NamedSharding(mesh, P())
        x = sw.device_put(jnp.arange(8.0), NamedSharding(mesh, P("X")))
        assert reshard(x, P(None)).sharding == x.sharding
        assert sw.jit(sw.grad(lambda x: (reshard(x, P()) ** 2).sum()))(x).sharding == x.sharding


def test_a_constraint_checks_the_type(explicit_mesh):
    x = put(X, "X", None)
    constrain = sw.jit(lax.with_sharding_constraint, static_argnums=1)
    assert type_text(constrain(x, P("X", None))) == "f32[8@X,4]"
    with pytest.raises(ShardingTypeError, match=r"f32\[8@X,4\].*f32\[8@Y,4\].*reshard"):
        constrain(x, P("Y", None))


@pytest.mark.parametrize("under_jit", [True, False])
def test_gradients_have_the_types_of_their_primals(explicit_mesh, under_jit):
    x, w = put(X, "X", None), put(X[:4].T.copy(), None, "Y")
    gradient = sw.grad(lambda w, x: (jnp.sin(x @ w) ** 2).sum(), argnums=(0, 1))
    grads = (sw.jit(gradient) if under_jit else gradient)(w, x)
    assert list(map(type_text, grads)) == ["f32[4,4@Y]", "f32[8@X,4]"]
    product = X @ np.asarray(w)
    cotangent = 2 * np.sin(product) * np.cos(product)
    np.testing.assert_allclose(grads[0], X.T @ cotangent, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(grads[1], cotangent @ np.asarray(w).T, rtol=1e-4, atol=1e-5)


def scanned_loss(ws, x):
    layer = lambda c, w: (jnp.tanh(jnp.dot(c, w, out_sharding=P("X", None))), c.sum())  # noqa: E731
    out, sums = lax.scan(layer, x, ws)
    return (out**2).sum() + sums.sum()


def test_scan_keeps_types_and_has_gradients(explicit_mesh):
    ws = RNG.normal(size=(3, 4, 4)).astype(np.float32)
    gradient = sw.jit(sw.grad(scanned_loss))(put(ws, None, None, "Y"), put(X, "X"))
    assert type_text(gradient) == "f32[3,4,4@Y]"

    def plain(ws, x):
        out, sums = lax.scan(lambda c, w: (jnp.tanh(c @ w), c.sum()), x, ws)
        return (out**2).sum() + sums.sum()

    np.testing.assert_allclose(gradient, sw.jit(sw.grad(plain))(ws, X), rtol=1e-4, atol=1e-5)


def test_a_carry_must_keep_its_type(explicit_mesh):
    with pytest.raises(TypeError, match=r"f32\[8@X,4\].*f32\[8,4@Y\]|f32\[8,4@Y\].*f32\[8@X,4\]"):
        sw.jit(lambda x: lax.scan(lambda c, _: (reshard(c, P(None, "Y")), None), x, length=3))(put(X, "X"))


@pytest.mark.parametrize("transform", [sw.checkpoint, lambda f: f], ids=["remat", "plain"])
def test_vmap_and_remat_keep_types(explicit_mesh, transform):
    x = put(X, "X", "Y")
    f = transform(lambda row: jnp.sin(row) * 2)
    assert type_text(sw.jit(sw.vmap(f))(x)) == "f32[8@X,4@Y]"
    assert type_text(sw.jit(sw.grad(lambda x: sw.vmap(f)(x).sum()))(x)) == "f32[8@X,4@Y]"


def test_unreduced_values_flow_through_linear_ops(explicit_mesh):
    x, w = put(X, "X", "Y"), put(X.T.copy(), "Y", None)

    def f(x, w):
        partial = jnp.dot(x, w, out_sharding=P("X", None, unreduced={"Y"}))
        assert type_text(partial * 2 + partial) == "f32[8@X,8]{U:Y}"
        return reshard(partial * 2 + partial, P("X", None))

    np.testing.assert_allclose(sw.jit(f)(x, w), 3 * X @ X.T, rtol=1e-5)
    assert collectives(f, x, w) == [("all_reduce", 1)]


def test_an_unreduced_value_in_a_nonlinear_op_is_an_error(explicit_mesh):
    def f(x, w):
        return jnp.sin(jnp.dot(x, w, out_sharding=P("X", None, unreduced={"Y"})))

    with pytest.raises(
        ShardingTypeError, match=r"sin: operand 0 of type f32\[8@X,8\]\{U:Y\} is unreduced.*not linear.*reshard"
    ):
        sw.jit(f)(put(X, "X", "Y"), put(X.T.copy(), "Y", None))


def test_accumulated_gradients_of_reduced_weights_are_reduced_once():
    mesh = sw.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    weights = RNG.normal(size=(3, 4, 4)).astype(np.float32)
    batches = RNG.normal(size=(5, 16, 4)).astype(np.float32)

    def loss(w, x):
        return (lax.scan(lambda c, layer: (jnp.tanh(c @ layer), None), x, w)[0] ** 2).sum()

    def explicit_step(w, batches):
        reduced = reshard(w, P(reduced={"data"}))
        assert type_text(reduced) == "f32[3,4,4]{R:data}"

        def accumulate(total, x):
            gradient = sw.grad(loss)(reduced, x)
            assert type_text(gradient) == "f32[3,4,4]{U:data}"
            return total + gradient, None

        zeros = jnp.zeros(w.shape, out_sharding=P(unreduced={"data"}))
        return reshard(lax.scan(accumulate, zeros, batches)[0], P())

    def step(w, batches):
        return lax.scan(lambda total, x: (total + sw.grad(loss)(w, x), None), jnp.zeros(w.shape), batches)[0]

    with sw.set_mesh(mesh):
        args = put(weights), put(batches, None, "data")
        result = sw.jit(explicit_step)(*args)
        assert collectives(explicit_step, *args) == [("all_reduce", 1)]
    np.testing.assert_allclose(result, sw.jit(step)(weights, batches), rtol=1e-4, atol=1e-5)


def test_in_shardings_decide_the_types_of_arguments(explicit_mesh):
    seen = []
    f = sw.jit(lambda x: seen.append(type_text(x)) or x * 2, in_shardings=P("X", None), out_shardings=P(None, "Y"))
    result = f(X)
    assert seen == ["f32[8@X,4]"] and type_text(result) == "f32[8,4@Y]"
    np.testing.assert_array_equal(result, 2 * X)


def test_uneven_dims(explicit_mesh):
    x = put(np.arange(30, dtype=np.float32).reshape(10, 3), "X", "Y")
    result = sw.jit(lambda x: (x * 2).sum(0))(x)
    assert type_text(result) == "f32[3@Y]"
    np.testing.assert_array_equal(result, 2 * np.arange(30).reshape(10, 3).sum(0))


def test_specs_with_unreduced_and_reduced_axes():
    assert repr(P("X", unreduced={"Y"})) == "P('X', unreduced={'Y'})"
    assert P("X", reduced={"Y"}) == P("X", reduced=("Y",)) != P("X")
    assert hash(P("X")) == hash(("X",)) and P("X") == ("X",)
    with pytest.raises(ShardingError, match="uses axis 'X' twice"):
        P("X", unreduced={"X"})
    with pytest.raises(TypeError, match="unreduced needs a set of axis names"):
        P(unreduced={3})


def test_programs_with_explicit_types_print_and_read_back():
    mesh = AbstractMesh((4, 2), ("X", "Y"), axis_types=(AxisType.Explicit,) * 2)
    x = sw.ShapeDtypeStruct((8, 4), jnp.float32, sharding=NamedSharding(mesh, P(("X", "Y"), None)))
    w = sw.ShapeDtypeStruct((4, 4), jnp.float32, sharding=NamedSharding(mesh, P(reduced={"X"})))

    def f(x, w):
        def layer(c, _):
            return reshard(c, NamedSharding(mesh, P("X", unreduced={"Y"}))) * 2, None

        return lax.scan(layer, reshard(x, NamedSharding(mesh, P("X", unreduced={"Y"}))), length=2)[0], w * 2

    program = sw.make_jaxpr(f)(x, w).program
    text = str(program)
    assert text.startswith("program f on mesh(X=4 explicit, Y=2 explicit)(a: f32[8@(X,Y),4], b: f32[4,4]{R:X})")
    assert "f32[8@X,4]{U:Y}" in text
    assert parse_program(text) == program
    with pytest.raises(ProgramError, match=r"line 1: f32\[8@X\] names Explicit axes, but its mesh is not known"):
        parse_program("program f(a: f32[8@X]) {\n  return a\n}")
    with pytest.raises(ProgramError, match="line 1: the mesh X=4 has not all the Explicit axes"):
        parse_program("program f on mesh(X=4)(a: f32[8@X]) {\n  return a\n}")


def shard_sum(shard):
    return lax.psum(shard.sum(0, keepdims=True), "X")


@pytest.mark.parametrize("options", [{"in_specs": P("X", "Y")}, {}], ids=["in_specs", "from types"])
def test_shard_map_in_explicit_code(explicit_mesh, options):
    total = sw.shard_map(shard_sum, out_specs=P(None, "Y"), **options)
    x = put(X, "X", "Y")
    result = sw.jit(lambda x: total(jnp.sin(x)) * 2)(x)
    assert type_text(result) == "f32[1,4@Y]"
    np.testing.assert_allclose(result, 2 * np.sin(X).sum(0, keepdims=True), rtol=1e-5)
    gradient = sw.jit(sw.grad(lambda x: (total(x) ** 2).sum()))(x)
    assert type_text(gradient) == "f32[8@X,4@Y]"
    np.testing.assert_allclose(gradient, np.broadcast_to(2 * X.sum(0), X.shape), rtol=1e-4)


def test_a_partly_manual_region_keeps_the_other_axes_in_types(explicit_mesh):
    seen = []

    def body(shard):
        seen.append(type_text(shard))
        return shard * lax.axis_index("X")

    region = sw.shard_map(body, in_specs=P("X"), out_specs=P("X"), axis_names={"X"})
    result = sw.jit(lambda x: region(x) + 1)(put(X, "X", "Y"))
    assert seen == ["f32[2,4@Y]{V:X}"] and type_text(result) == "f32[8@X,4@Y]"
    np.testing.assert_allclose(result, X * np.repeat(np.arange(4), 2)[:, None] + 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x: lax.cond(x.sum() > 0, lambda v: v * 2, lambda v: -v, x), "f32[8@X,4@Y]"),
        (lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, x))[1], "f32[8@X,4@Y]"),
        (lambda x: lax.fori_loop(0, 3, lambda i, c: jnp.sin(c), x), "f32[8@X,4@Y]"),
        (lambda x: lax.map(lambda row: row * 2, reshard(x, P("X", None)).T), "f32[4,8@X]"),
        (lambda x: x.at[:, 0].set(1.0), "f32[8@X,4@Y]"),
        (lambda x: x[:, 1], "f32[8@X]"),
        (lambda x: jnp.cumsum(x, 0), "f32[8@X,4@Y]"),
    ],
    ids=["cond", "while", "fori", "map", "at", "index", "cumsum"],
)
def test_results_keep_their_sharding_and_equal_those_of_one_device(explicit_mesh, function, text):
    result = sw.jit(function)(put(X, "X", "Y"))
    assert type_text(result) == text
    auto = sw.make_mesh((1, 1), ("X", "Y"), axis_types=(AxisType.Explicit,) * 2)
    with sw.set_mesh(auto):
        expected = sw.jit(function)(put(X, "X", "Y"))
    np.testing.assert_allclose(result, np.asarray(expected), rtol=1e-5, atol=1e-6)


def test_arrays_are_created_with_out_sharding(explicit_mesh):
    x = put(X, "X", "Y")
    created = {
        "f32[8@X,4]": jnp.zeros((8, 4), out_sharding=P("X")),
        "f32[8@X,4@Y]": jnp.zeros_like(x),
        "f32[4,8@Y]": sw.random.normal(sw.random.key(0), (4, 8), out_sharding=P(None, "Y")),
        "i32[8@X]": jnp.arange(8, out_sharding=P("X")),
    }
    assert {text: type_text(array) for text, array in created.items()} == {text: text for text in created}


def test_lowering_for_an_abstract_mesh():
    mesh = AbstractMesh((64, 8), ("X", "Y"), axis_types=(AxisType.Explicit, AxisType.Auto))
    x = sw.ShapeDtypeStruct((128, 32), jnp.float32, sharding=NamedSharding(mesh, P("X", "Y")))
    lowered = sw.jit(lambda x: (x * 2).sum(1)).lower(x)
    assert str(lowered.out_info.sharding.spec) == "P('X')"
    assert [row.kind for row in lowered.plan.collectives] == ["all_reduce"]


def test_reduced_arrays_keep_their_type(explicit_mesh):
    x = put(X, "X", None)
    for array in (reshard(x, P("X", None, reduced={"Y"})), sw.jit(lambda x: reshard(x, P("X", reduced={"Y"})) * 2)(x)):
        assert type_text(array) == "f32[8@X,4]{R:Y}"
    np.testing.assert_array_equal(array, 2 * X)


def test_arrays_on_auto_and_explicit_meshes_of_the_same_devices(explicit_mesh):
    auto = sw.device_put(X, NamedSharding(sw.make_mesh((4, 2), ("X", "Y")), P("X")))
    result = sw.jit(lambda x, y: x + y)(put(X, "X", None), auto)
    assert type_text(result) == "f32[8@X,4]"
    np.testing.assert_array_equal(result, 2 * X)
    moved = sw.device_put(put(X, "X", None), auto.sharding)
    assert type_text(moved) == "f32[8,4]"
    np.testing.assert_array_equal(moved, X)


def test_explicit_and_auto_axes_in_one_mesh():
    mixed = sw.make_mesh((4, 2), ("X", "Y"), axis_types=(AxisType.Explicit, AxisType.Auto))
    with sw.set_mesh(mixed):
        x, w = put(X, "X", "Y"), put(X.T.copy(), "Y", None)
        assert type_text(x) == "f32[8@X,4]"
        result = sw.jit(lambda x, w: jnp.tanh(x @ w))(x, w)  # the planner decides along Y
        assert type_text(result) == "f32[8@X,8]"
        np.testing.assert_allclose(result, np.tanh(X @ X.T), rtol=1e-5)
        pinned = sw.jit(lambda x: lax.with_sharding_constraint(x * 2, P("X", "Y")))(x)
        assert pinned.sharding.spec == P("X", "Y")
        split = sw.jit(lambda x: x.reshape(8, 2, 2) * 2)(put(X, "X", "Y"))
        np.testing.assert_array_equal(split, 2 * X.reshape(8, 2, 2))


def test_a_sharding_on_the_abstract_mesh_refers_to_the_current_mesh(explicit_mesh):
    abstract = NamedSharding(explicit_mesh.abstract, P("X"))
    for array in (
        jnp.ones((8, 4), out_sharding=abstract),
        sw.jit(lambda x: jnp.ones(x.shape, out_sharding=x.sharding))(put(X, "X")),
        reshard(X, abstract),
        sw.device_put(X, abstract),
    ):
        assert type_text(array) == "f32[8@X,4]" and array.sharding.mesh == explicit_mesh


def test_reshard_to_an_abstract_mesh_needs_devices():
    abstract = AbstractMesh((4, 2), ("X", "Y"), axis_types=(AxisType.Explicit,) * 2)
    with pytest.raises(ShardingError, match=r"reshard at test_explicit.py:\d+: AbstractMesh\(.*set_mesh"):
        sw.jit(lambda x: reshard(x, NamedSharding(abstract, P("X"))))(X)


def test_sums_of_specs(explicit_mesh):
    assert P("X", unreduced={"Y"}) + P("Z", reduced={"W"}) == P("X", "Z", unreduced={"Y"}, reduced={"W"})
    assert operator.add(P("X"), (None, "Y")) == P("X", None, "Y")
    assert operator.add((None,), P("X")) == P(None, "X")
    with pytest.raises(TypeError, match="add a PartitionSpec to it and not a tuple"):
        operator.add(P("X", unreduced={"Y"}), (None,))
    with pytest.raises(ShardingError, match="unreduced needs Explicit axes, and 'b' of the mesh a=4, b=2 is not"):
        NamedSharding(sw.make_mesh((4, 2), ("a", "b")), P("a", unreduced={"b"}))


def test_like_functions_keep_the_sharding_of_their_argument(explicit_mesh):
    struct = sw.ShapeDtypeStruct((8, 4), jnp.float32, sharding=NamedSharding(explicit_mesh, P("X")))
    assert type_text(jnp.zeros_like(struct)) == "f32[8@X,4]"
    assert type_text(sw.jit(jnp.ones_like)(put(X, "X", "Y"))) == "f32[8@X,4@Y]"
    assert type_text(sw.jit(lambda x: jnp.full_like(x, 2, shape=(3,)))(put(X, "X"))) == "f32[3]"
