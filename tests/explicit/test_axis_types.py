"""auto_axes, explicit_axes and use_abstract_mesh: other axis types, names and sizes in a part of a program."""

import jax
import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.ir.parse import parse_program
from shardwise.errors import ShardingError, ShardingTypeError
from shardwise.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    auto_axes,
    explicit_axes,
    get_abstract_mesh,
    reshard,
    use_abstract_mesh,
)
from shardwise.sharding import PartitionSpec as P
from tests.explicit.typed_arrays import put, type_text

AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 4)).astype(np.float32)
W = RNG.normal(size=(4, 8)).astype(np.float32)


def make_mesh(*axis_types):
    return sw.make_mesh((4, 2), ("X", "Y"), axis_types=axis_types)


@pytest.fixture
def auto_mesh():
    with sw.set_mesh(make_mesh(AUTO, AUTO)) as mesh:
        yield mesh


def check(x, text, expected):
    assert type_text(x) == text
    np.testing.assert_allclose(x, expected, rtol=1e-4, atol=1e-5)


def collectives(function, *args):
    return sorted((row.kind, row.axes, row.times, row.sent) for row in sw.jit(function).lower(*args).plan.collectives)


def jit_or_not(function, under_jit):
    return sw.jit(function) if under_jit else function


@pytest.mark.parametrize("under_jit", [True, False])
def test_axes_are_auto_inside(explicit_mesh, under_jit):
    seen = []

    @auto_axes(axes="X", out_sharding=P("X", "Y"))
    def inner(x):
        y = jnp.sin(x)
        seen.extend([type_text(x), type_text(y), y.aval.sharding.spec, y.aval.sharding.mesh, get_abstract_mesh()])
        return y

    result = jit_or_not(lambda x: inner(x * 2), under_jit)(put(X, "X", "Y"))
    mixed = explicit_mesh.abstract.update_axis_types({"X": AUTO})
    assert seen == ["f32[8,4@Y]", "f32[8,4@Y]", P(None, "Y"), mixed, mixed]
    check(result, "f32[8@X,4@Y]", np.sin(2 * X))
    assert result.sharding == NamedSharding(explicit_mesh, P("X", "Y"))


@pytest.mark.parametrize("under_jit", [True, False])
def test_out_sharding_may_be_passed_to_the_call(explicit_mesh, under_jit):
    product = auto_axes(lambda x, w: {"y": x @ w})
    for spec, text in ((P("X"), "f32[8@X,8]"), ({"y": P(None, "Y")}, "f32[8,8@Y]"), (P(), "f32[8,8]")):
        call = jit_or_not(lambda x, w, spec=spec: product(x, w, out_sharding=spec), under_jit)
        check(call(put(X, "X", "Y"), put(W, "Y", None))["y"], text, X @ W)


def mlp(x, w, v):
    return jnp.tanh(x @ w) @ v + x


@pytest.mark.parametrize(
    ("specs", "out"),
    [
        ([P("X", None), P(None, "Y"), P("Y", None)], P("X", None)),
        ([P("X", "Y"), P("Y", None), P(None, "Y")], P("X", "Y")),
        ([P("X"), P("X"), P("X")], P("X")),
        ([P(("X", "Y")), P(), P()], P(None, "X")),
        ([P(None, "X"), P("X", "Y"), P("Y")], P()),
    ],
)
def test_the_plan_is_that_of_an_auto_mesh_with_the_same_pins(explicit_mesh, specs, out):
    arrays = [X, W, RNG.normal(size=(8, 4)).astype(np.float32)]
    auto = make_mesh(AUTO, AUTO)
    typed = [sw.device_put(x, NamedSharding(explicit_mesh, spec)) for x, spec in zip(arrays, specs, strict=True)]
    planned = [sw.device_put(x, NamedSharding(auto, spec)) for x, spec in zip(arrays, specs, strict=True)]
    jitted = sw.jit(mlp, out_shardings=NamedSharding(auto, out))
    wanted = sorted((row.kind, row.axes, row.times, row.sent) for row in jitted.lower(*planned).plan.collectives)
    assert collectives(auto_axes(mlp, out_sharding=out), *typed) == wanted
    result = sw.jit(auto_axes(mlp, out_sharding=out))(*typed)
    assert result.sharding == NamedSharding(explicit_mesh, out)
    np.testing.assert_allclose(result, np.tanh(X @ W) @ arrays[2] + X, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("under_jit", [True, False])
def test_gradients(explicit_mesh, under_jit):
    @auto_axes(out_sharding=P())
    def loss(x, w):
        return (jnp.tanh(x @ w) ** 2).sum()

    gradient = jit_or_not(sw.grad(lambda x, w: loss(jnp.sin(x), w), argnums=(0, 1)), under_jit)
    dx, dw = gradient(put(X, "X", "Y"), put(W, "Y", None))
    wanted = jax.grad(lambda x, w: (jax.numpy.tanh(jax.numpy.sin(x) @ w) ** 2).sum(), argnums=(0, 1))(X, W)
    check(dx, "f32[8@X,4@Y]", wanted[0])
    check(dw, "f32[4@Y,8]", wanted[1])


@pytest.mark.parametrize("under_jit", [True, False])
def test_vmap(explicit_mesh, under_jit):
    call = auto_axes(lambda x: jnp.where(x > 0, jnp.ones(4), x @ jnp.eye(4)), out_sharding=P())
    result = jit_or_not(sw.vmap(call), under_jit)(put(X, "X", "Y"))
    check(result, "f32[8@X,4]", np.where(X > 0, 1, X))


def test_scan_over_a_function_with_auto_axes(explicit_mesh):
    @auto_axes(out_sharding=P("X", "Y"))
    def layer(h, w):
        return jnp.tanh(h @ w)

    def f(x, ws):
        return lax.scan(lambda h, w: (layer(h, w), None), x, ws)[0].sum()

    ws = np.stack([np.eye(4, dtype=np.float32), W[:, :4]])
    expected = np.tanh(np.tanh(X) @ W[:, :4]).sum()
    np.testing.assert_allclose(sw.jit(f)(put(X, "X", "Y"), put(ws, None, "Y")), expected, rtol=1e-4)
    gradient = sw.jit(sw.grad(f))(put(X, "X", "Y"), put(ws, None, "Y"))
    wanted = jax.grad(lambda x: jax.numpy.tanh(jax.numpy.tanh(x) @ W[:, :4]).sum())(X)
    check(gradient, "f32[8@X,4@Y]", wanted)


def test_a_loop_and_a_branch_inside(explicit_mesh):
    @auto_axes(out_sharding=P("X"))
    def f(x):
        y = lax.scan(lambda c, _: (jnp.cos(c), c.sum()), x, None, length=3)[0]
        y = lax.cond(y.sum() > 0, lambda z: z * 2, lambda z: z + 1, y)
        return lax.fori_loop(0, 2, lambda _, z: z + jnp.ones(z.shape), y)

    y = np.cos(np.cos(np.cos(X)))
    expected = (y * 2 if y.sum() > 0 else y + 1) + 2
    check(sw.jit(f)(put(X, "X", "Y")), "f32[8@X,4]", expected)


def test_carries_and_branches_that_start_as_constants(explicit_mesh):
    @auto_axes(out_sharding=P("X"))
    def f(x):
        total = lax.scan(lambda c, row: (c + row.sum(), None), jnp.zeros(()), x)[0]
        count = lax.while_loop(lambda c: c[1].sum() < 3, lambda c: (c[0] + 1, c[1] + 0 * x[0] + 1), (0, jnp.zeros(4)))[
            0
        ]
        return x + total + count + lax.cond(x.sum() > 0, lambda: x[0, 0] * 0, lambda: jnp.zeros(()))

    check(sw.jit(f)(put(X, "X", "Y")), "f32[8@X,4]", X + X.sum() + 1)


def test_a_jitted_function_is_traced_once_per_mode(explicit_mesh):
    traced = []

    @sw.jit
    def double(x):
        traced.append(type_text(x))
        return x * 2

    def f(x):
        return double(x) + auto_axes(double, out_sharding=P("X"))(x)

    check(sw.jit(f)(put(X, "X")), "f32[8@X,4]", 4 * X)
    assert traced == ["f32[8@X,4]", "f32[8,4]"]


def test_values_that_a_function_closes_over(explicit_mesh):
    def f(x, w):
        return auto_axes(lambda x: x @ w, out_sharding=P("X"))(x)

    check(sw.jit(f)(put(X, "X", "Y"), put(W)), "f32[8@X,8]", X @ W)
    with pytest.raises(ShardingTypeError, match=r"operand 1, f32\[4@Y,8\], is on the mesh .* pass it as an argument"):
        sw.jit(f)(put(X, "X", "Y"), put(W, "Y"))


def test_constraints_pin_along_the_axes_that_are_auto_inside(explicit_mesh):
    @auto_axes(out_sharding=P())
    def f(x):
        return lax.with_sharding_constraint(x * 2, P(None, "X")) + 1

    kinds = [(row[0], row[1]) for row in collectives(f, put(X))]
    assert kinds == [("all_gather", ("X",))]
    check(sw.jit(f)(put(X)), "f32[8,4]", 2 * X + 1)


def test_constraints_check_the_type_along_the_axes_that_stay_explicit(explicit_mesh):
    def constrained(spec):
        return auto_axes(lambda x: lax.with_sharding_constraint(x, spec), axes="X", out_sharding=P("X", "Y"))

    for spec in (P("X", "Y"), P("X"), P()):  # a spec without Explicit axes leaves the type as it is
        check(sw.jit(constrained(spec))(put(X, "X", "Y")), "f32[8@X,4@Y]", X)
    with pytest.raises(ShardingTypeError, match=r"has type f32\[8,4@Y\], and P\('Y'\) means f32\[8@Y,4\]"):
        sw.jit(constrained(P("Y")))(put(X, "X", "Y"))


def test_constraints_on_meshes_that_mix_axis_types():
    mixed = make_mesh(EXPLICIT, AUTO)
    with sw.set_mesh(mixed):
        x = put(X, "X")
        for spec, result in ((P(None, "Y"), P("X", "Y")), (P("Y"), P(("X", "Y"))), (P(), P("X")), (P("X"), P("X"))):
            constrained = sw.jit(lambda x, spec=spec: lax.with_sharding_constraint(x * 2, spec))(x)
            assert constrained.sharding == NamedSharding(mixed, result)
            check(constrained, "f32[8@X,4]", 2 * X)


def test_constraints_on_an_abstract_mesh():
    auto = make_mesh(AUTO, AUTO)
    x = sw.device_put(X, NamedSharding(auto, P("X", "Y")))
    abstract = NamedSharding(auto.abstract, P("Y"))
    for function in (
        sw.jit(lambda x: lax.with_sharding_constraint(x, abstract) * 2),
        lambda x: lax.with_sharding_constraint(x, abstract),
    ):
        assert function(x).sharding == NamedSharding(auto, P("Y"))
    lowered = sw.jit(lambda x: lax.with_sharding_constraint(x, abstract)).lower(sw.ShapeDtypeStruct((8, 4), np.float32))
    assert lowered.plan.outputs[0].shard_shape == (4, 4)


@pytest.mark.parametrize("under_jit", [True, False])
def test_explicit_axes(auto_mesh, under_jit):
    seen = []

    @explicit_axes(in_sharding=(P("X", None), P(None, "Y")))
    def inner(x, w):
        y = x @ w
        seen.extend([type_text(x), type_text(w), type_text(y), get_abstract_mesh()])
        return y

    result = jit_or_not(lambda x, w: jnp.sin(inner(x * 2, w)), under_jit)(put(X, "X", "Y"), put(W))
    assert seen == ["f32[8@X,4]", "f32[4,8@Y]", "f32[8@X,8@Y]", make_mesh(EXPLICIT, EXPLICIT).abstract]
    check(result, "f32[8,8]", np.sin(2 * X @ W))
    assert result.sharding == NamedSharding(auto_mesh, P("X", "Y"))


def test_explicit_axes_have_gradients_and_errors(auto_mesh):
    product = explicit_axes(lambda x, w: x @ w)
    specs = (P("X", None), P(None, "Y"))
    gradient = sw.jit(sw.grad(lambda x, w: (product(x, w, in_sharding=specs) ** 2).sum()))(put(X), put(W))
    np.testing.assert_allclose(gradient, 2 * (X @ W) @ W.T, rtol=1e-4)
    with pytest.raises(ShardingTypeError, match="shard the contracted dim along 'Y'"):
        sw.jit(lambda x, w: product(x, w, in_sharding=(P(None, "Y"), P("Y"))))(put(X), put(W))


@pytest.mark.parametrize("under_jit", [True, False])
def test_functions_nest(explicit_mesh, under_jit):
    seen = []

    @explicit_axes(axes="Y", in_sharding=P(None, "Y"))
    def innermost(x):
        seen.append((type_text(x), get_abstract_mesh().axis_types))
        return x * 2

    @auto_axes(out_sharding=P("X"))
    def middle(x):
        y = innermost(x + 1)
        seen.append((type_text(y), get_abstract_mesh().axis_types))
        return auto_axes(lambda z: z.sum(1), out_sharding=P())(y)

    check(jit_or_not(middle, under_jit)(put(X, "X", "Y")), "f32[8@X]", (2 * (X + 1)).sum(1))
    assert seen == [("f32[8,4@Y]", (AUTO, EXPLICIT)), ("f32[8,4]", (AUTO, AUTO))]


@pytest.mark.parametrize("under_jit", [True, False])
def test_meshes_that_mix_axis_types(under_jit):
    mixed = make_mesh(EXPLICIT, AUTO)
    with sw.set_mesh(mixed):
        f = auto_axes(lambda x, w: jnp.sin(x) @ w, axes="X", out_sharding=P("X"))
        check(jit_or_not(f, under_jit)(put(X, "X", "Y"), put(W, "X")), "f32[8@X,8]", np.sin(X) @ W)
        g = explicit_axes(lambda x: x.sum(1), axes="Y", in_sharding=P("X", "Y"))
        result = jit_or_not(lambda x: g(x * 2) + 1, under_jit)(put(X, "X"))
        check(result, "f32[8@X]", 2 * X.sum(1) + 1)
        assert result.sharding.mesh == mixed


def test_manual_axes_keep_their_type(explicit_mesh):
    def inside(axes):
        return auto_axes(lambda z: z * 2, axes=axes, out_sharding=P())

    for axes in (None, "X"):
        region = sw.shard_map(inside(axes), mesh=explicit_mesh, in_specs=P("X"), out_specs=P("X"), axis_names={"X"})
        with pytest.raises(NotImplementedError, match="'X' is a manual axis of the enclosing shard_map"):
            sw.jit(region)(put(X, "X"))
    region = sw.shard_map(inside("Y"), mesh=explicit_mesh, in_specs=P("X"), out_specs=P("X"), axis_names={"X"})
    check(sw.jit(region)(put(X, "X", "Y")), "f32[8@X,4]", 2 * X)


def test_shard_map_inside_auto_axes(explicit_mesh):
    @auto_axes(out_sharding=P("X"))
    def f(x):
        region = sw.shard_map(lambda x: lax.psum(x, "Y"), mesh=explicit_mesh, in_specs=P("X", "Y"), out_specs=P("X"))
        return region(x * 2) + 1

    check(sw.jit(f)(put(X, "X", "Y")), "f32[8@X,2]", 2 * (X[:, :2] + X[:, 2:]) + 1)


THREE = ((2, 2, 2), ("X", "Y", "Z"), (EXPLICIT, EXPLICIT, AUTO))


def product_in_region(x):
    """Return the sum over the halves of x of `sin(half) @ half.T`: Manual along X, and Y is Auto in the product."""

    def region(shard):
        product = auto_axes(lambda s: jnp.sin(s) @ s.T, axes="Y", out_sharding=P(None, "Y"))(shard)
        assert type_text(product) == "f32[4,4@Y]{V:X}"
        return lax.psum(product, "X")

    return sw.shard_map(region, in_specs=P("X"), out_specs=P(), axis_names={"X"})(x)


def region_in_auto_axes(x):
    """Return the rows of x times the index of their half, plus 1: X is Auto, and Manual in a region inside."""

    @auto_axes(axes="X", out_sharding=P("X", "Y"))
    def f(x):
        region = sw.shard_map(lambda s: s * lax.axis_index("X"), in_specs=P("X"), out_specs=P("X"), axis_names={"X"})
        y = region(x)
        assert type_text(y) == "f32[8,4@Y]" and y.aval.sharding.mesh.axis_types == (AUTO, EXPLICIT, AUTO)
        return y + 1

    return f(x)


def explicit_in_region(x):
    """Return 2 x: Manual along X, Auto along Z outside, and Explicit along Y and Z inside."""
    double = explicit_axes(lambda s: s * 2, axes="Z", in_sharding=P("Z", "Y"))
    return sw.shard_map(double, in_specs=P("X"), out_specs=P("X"), axis_names={"X"})(x)


@pytest.mark.parametrize("under_jit", [True, False])
@pytest.mark.parametrize(
    ("function", "text", "reference"),
    [
        (product_in_region, "f32[4,4@Y]", lambda lib, x: sum(lib.sin(half) @ half.T for half in (x[:4], x[4:]))),
        (region_in_auto_axes, "f32[8@X,4@Y]", lambda lib, x: x * np.repeat([0, 1], 4).astype(np.float32)[:, None] + 1),
        (explicit_in_region, "f32[8@X,4@Y]", lambda lib, x: 2 * x),
    ],
)
def test_manual_explicit_and_auto_axes_together(function, text, reference, under_jit):
    with sw.set_mesh(sw.make_mesh(*THREE)) as mesh:
        result = jit_or_not(function, under_jit)(put(X, "X", "Y"))
        check(result, text, reference(np, X))
        assert result.sharding.mesh == mesh
        gradient = jit_or_not(sw.grad(lambda x: (function(x) ** 2).sum()), under_jit)(put(X, "X", "Y"))
        check(gradient, "f32[8@X,4@Y]", jax.grad(lambda x: (reference(jax.numpy, x) ** 2).sum())(X))


def test_nothing_changes_if_the_axes_have_the_type_already(auto_mesh):
    text = str(sw.make_jaxpr(auto_axes(lambda x: x * 2, out_sharding=P("X")))(put(X)))
    assert "reshard" not in text and "constrain" not in text
    sw.set_mesh(None)
    check(auto_axes(lambda x: x * 2, out_sharding=P())(X), "f32[8,4]", 2 * X)


def test_the_mesh_of_arguments_without_a_current_mesh():
    mesh = make_mesh(EXPLICIT, EXPLICIT)
    x = sw.device_put(X, NamedSharding(mesh, P("X", "Y")))
    for spec in (P("X"), NamedSharding(mesh, P("X"))):
        f = auto_axes(lambda x: x @ x.T, out_sharding=spec)
        for function in (f, sw.jit(f)):
            result = function(x)
            check(result, "f32[8@X,8]", X @ X.T)
            assert result.sharding.mesh == mesh


def test_wrong_arguments(explicit_mesh):
    x = put(X, "X")
    with pytest.raises(TypeError, match="missing keyword argument 'out_sharding'"):
        auto_axes(lambda x: x)(x)
    with pytest.raises(TypeError, match="missing keyword argument 'in_sharding'"):
        explicit_axes(lambda x: x)(x)
    with pytest.raises(TypeError, match="auto_axes"):
        auto_axes(3)
    with pytest.raises(ShardingError, match=r"auto_axes: the mesh .* has no axis 'Z'"):
        auto_axes(lambda x: x, axes="Z", out_sharding=P())(x)
    with pytest.raises(ShardingError, match="auto_axes: out_sharding must be a tree prefix"):
        auto_axes(lambda x: (x, x), out_sharding=(P(), P(), P()))(x)
    with pytest.raises(ShardingTypeError, match=r"f32\[8,4\]\{U:X\} is unreduced over 'X'"):
        sw.jit(lambda x: auto_axes(jnp.sin, out_sharding=P())(reshard(x, P(unreduced={"X"}))))(put(X))


def test_programs_print_and_read_back(explicit_mesh):
    def f(x):
        return auto_axes(lambda x: lax.scan(lambda c, _: (c * 2, None), x, None, length=2)[0], out_sharding=P("X"))(x)

    axes = explicit_mesh.abstract
    x = sw.ShapeDtypeStruct((8, 4), jnp.float32, sharding=NamedSharding(axes, P("X", "Y")))
    with sw.set_mesh(None), use_abstract_mesh(axes):
        program = sw.make_jaxpr(f)(x).program
    text = str(program)
    assert "f32[8,4] on mesh(X=4, Y=2)" in text and text.startswith("program f on mesh(X=4 explicit, Y=2 explicit)(")
    assert parse_program(text) == program


def test_use_abstract_mesh_changes_names_and_sizes(explicit_mesh):
    def f(x):
        x = jnp.sin(x)
        with use_abstract_mesh(explicit_mesh.abstract.update(axis_sizes=(2, 4), axis_names=("a", "b"))):
            x = reshard(x, P("b", "a"))
            y = x * 2
            assert type_text(y) == "f32[8@b,4@a]" and y.sharding.mesh.axis_names == ("a", "b")
        return y

    result = sw.jit(f)(put(X, "X", "Y"))
    check(result, "f32[8@b,4@a]", 2 * np.sin(X))
    assert result.sharding.mesh.flat_devices == explicit_mesh.flat_devices
    back = sw.jit(lambda x: reshard(f(x), P("Y")))(put(X, "X", "Y"))
    check(back, "f32[8@Y,4]", 2 * np.sin(X))
    gradient = sw.jit(sw.grad(lambda x: reshard(f(x), P()).sum()))(put(X, "X", "Y"))
    check(gradient, "f32[8@X,4@Y]", 2 * np.cos(X))


def test_use_abstract_mesh_with_axes_of_size_1(explicit_mesh):
    def f(x):
        with use_abstract_mesh(explicit_mesh.abstract.update(axis_sizes=(8, 1), axis_names=("a", "b"))):
            return reshard(x, P(("a", "b"), None)) * 2

    result = sw.jit(f)(put(X, "X", "Y"))
    assert result.sharding.spec == P(("a", "b"), None)
    check(result, "f32[8@(a,b),4]", 2 * X)
    thin = sw.make_mesh((8, 1), ("a", "b"), axis_types=(EXPLICIT, EXPLICIT))
    with sw.set_mesh(thin):
        call = auto_axes(lambda x: x * 2, axes="a", out_sharding=P("a", "b"))
        check(sw.jit(call)(put(X, "a", "b")), "f32[8@a,4@b]", 2 * X)


def test_use_abstract_mesh_changes_types(explicit_mesh):
    @sw.jit
    def f(x):
        with use_abstract_mesh(explicit_mesh.abstract.update_axis_types({"X": AUTO})):
            y = reshard(x, P(None, "Y"))
            assert type_text(jnp.sin(y)) == "f32[8,4@Y]"
            return y @ jnp.ones((4, 4))

    result = f(put(X, "X", "Y"))
    assert result.sharding.mesh.axis_types == (AUTO, EXPLICIT)
    np.testing.assert_allclose(result, X @ np.ones((4, 4)), rtol=1e-5)

    def mixes(x):
        with use_abstract_mesh(explicit_mesh.abstract.update_axis_types({"X": AUTO})):
            return jnp.sin(x)

    with pytest.raises(ShardingTypeError, match=r"but the current mesh is X=4, Y=2 explicit. Reshard it first"):
        sw.jit(mixes)(put(X, "X", "Y"))

    def names_auto_axis(x):
        with use_abstract_mesh(explicit_mesh.abstract.update_axis_types({"X": AUTO})):
            return reshard(x, P("X"))

    with pytest.raises(ShardingTypeError, match="names 'X', an Auto axis of the mesh X=4, Y=2 explicit"):
        sw.jit(names_auto_axis)(put(X, "X", "Y"))


def test_use_abstract_mesh_outside_of_traced_functions(explicit_mesh):
    with use_abstract_mesh(AbstractMesh((8,), ("Z",), EXPLICIT)) as axes:
        assert get_abstract_mesh() == axes
        assert type_text(put(X, "Z")) == "f32[8@Z,4]"
        assert jnp.arange(8).sharding == NamedSharding(Mesh(explicit_mesh.flat_devices, "Z", EXPLICIT), P())
    assert get_abstract_mesh() == explicit_mesh.abstract
    with pytest.raises(ValueError, match=r"cannot change the size .* has 8 devices, but Z=4 needs 4"):
        use_abstract_mesh(AbstractMesh((4,), ("Z",))).__enter__()
    with pytest.raises(TypeError, match="needs an AbstractMesh"):
        use_abstract_mesh(explicit_mesh).__enter__()


def test_use_abstract_mesh_without_devices():
    axes = AbstractMesh((16, 4), ("X", "Y"), (EXPLICIT, EXPLICIT))
    x = sw.ShapeDtypeStruct((32, 8), jnp.float32, sharding=NamedSharding(axes, P("X")))
    with use_abstract_mesh(axes):
        lowered = sw.jit(lambda x: jnp.dot(x, x.T, out_sharding=P("X", None))).lower(x)
        assert [row.kind for row in lowered.plan.collectives] == ["all_gather"]
        assert lowered.out_info.sharding.spec == P("X", None)
        assert sw.jit(lambda: jnp.arange(8)).lower().out_info.sharding.mesh == axes


def test_arguments_on_a_mesh_of_another_size_than_that_of_use_abstract_mesh_raise():
    axes = AbstractMesh((2,), ("x",), EXPLICIT)
    f = sw.jit(lambda x: 2 * x)
    for mesh in (AbstractMesh((1,), ("x",), EXPLICIT), sw.make_mesh((1,), ("x",), axis_types=EXPLICIT)):
        x = sw.ShapeDtypeStruct((8, 2), np.float32, sharding=NamedSharding(mesh, P("x")))
        with use_abstract_mesh(axes), pytest.raises(ValueError, match=r"which has 2 devices, but `x`.* needs 1"):
            f.trace(x).lower()
    x = sw.ShapeDtypeStruct((8, 2), np.float32, sharding=NamedSharding(axes, P("x")))
    with use_abstract_mesh(axes):
        assert f.trace(x).lower().out_info.sharding == NamedSharding(axes, P("x", None))
