"""The current mesh: `with mesh:`, set_mesh, use_mesh, bare PartitionSpecs, and threads."""

import threading

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.errors import ShardingError
from shardwise.sharding import AbstractMesh, AxisType, NamedSharding, get_abstract_mesh, get_mesh, set_mesh, use_mesh
from shardwise.sharding import PartitionSpec as P


def in_thread(function):
    """Run `function` in another thread."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("context", [lambda mesh: mesh, set_mesh, sw.set_mesh, use_mesh])
def test_contexts_nest_and_end(mesh, context):
    other = sw.make_mesh((8,), ("x",))
    assert get_abstract_mesh().empty
    with context(mesh):
        assert get_mesh() is mesh
        assert get_abstract_mesh() == mesh.abstract_mesh
        with context(other):
            assert get_mesh() is other
            with other, mesh, other:
                assert get_mesh() is other
        assert get_mesh() is mesh
        with pytest.raises(ZeroDivisionError), context(other):
            raise ZeroDivisionError
        assert get_mesh() is mesh
    assert get_abstract_mesh().empty


def test_set_mesh_stays_in_its_thread(mesh):
    def called():
        set_mesh(mesh)
        return sw.device_put(np.ones(8), P("data")).sharding

    assert in_thread(called) == NamedSharding(mesh, P("data"))
    assert get_abstract_mesh().empty
    with mesh:
        assert in_thread(lambda: get_abstract_mesh().empty)


def test_bare_specs_use_the_current_mesh(mesh):
    x = np.arange(16.0, dtype=np.float32).reshape(8, 2)
    f = sw.jit(lambda x: {"y": x + 1, "z": x.sum(1)}, in_shardings=P("data"), out_shardings={"y": P(), "z": P("model")})
    with mesh:
        found = f(x)
        put = sw.device_put({"a": x, "b": [x]}, {"a": P("data"), "b": P(None, "model")})
        pinned = sw.jit(lambda x: sw.lax.with_sharding_constraint(x * 2, P("model", None)))(put["a"])
    assert found["y"].sharding == NamedSharding(mesh, P())
    assert found["z"].sharding == NamedSharding(mesh, P("model"))
    assert put["a"].sharding == NamedSharding(mesh, P("data"))
    assert put["b"][0].sharding == NamedSharding(mesh, P(None, "model"))
    assert pinned.sharding == NamedSharding(mesh, P("model"))
    np.testing.assert_array_equal(np.asarray(found["z"]), x.sum(1))


def test_function_is_compiled_per_current_mesh():
    one, other = sw.make_mesh((8,), ("x",)), sw.make_mesh((2,), ("x",))
    traced = []

    @sw.jit
    def f(a):
        traced.append(a)
        return sw.lax.with_sharding_constraint(a * 2, P("x"))

    x = np.ones(8, np.float32)
    for mesh in (one, other, one, other):
        with mesh:
            assert f(x).sharding == NamedSharding(mesh, P("x"))
    assert len(traced) == 2


def test_named_shardings_need_no_current_mesh(mesh):
    other = sw.make_mesh((8,), ("x",))
    with other:
        assert sw.device_put(np.ones(8), NamedSharding(mesh, P("data"))).sharding.mesh is mesh


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda mesh: sw.jit(lambda x: x, out_shardings=P("data"))(1.0),
            TypeError,
            "out_shardings: a bare P('data') needs a mesh: write NamedSharding(mesh, P('data')), or set the current "
            "mesh with `with mesh:` or `set_mesh(mesh)`",
        ),
        (
            lambda mesh: sw.lax.with_sharding_constraint(jnp.ones(8), P("data")),
            TypeError,
            "with_sharding_constraint: a bare P('data') needs a mesh",
        ),
        (lambda mesh: sw.jit(lambda x: (get_mesh(), x)[1])(1.0), ValueError, "use `get_abstract_mesh()`"),
        (lambda mesh: set_mesh(mesh.abstract_mesh), TypeError, "set_mesh needs a Mesh, not AbstractMesh("),
        (lambda mesh: NamedSharding(get_mesh(), P()), ShardingError, "the mesh is empty"),
        (lambda mesh: use_mesh(3).__enter__(), TypeError, "use_mesh needs a Mesh, not 3"),
        (
            lambda mesh: sw.jit(lambda x: (set_mesh(mesh), x)[1])(1.0),
            ValueError,
            "set_mesh cannot be used inside a function that is being traced",
        ),
    ],
)
def test_errors(mesh, call, error, message):
    with pytest.raises(error) as caught:
        call(mesh)
    assert message in str(caught.value)


def test_spec_with_an_unknown_axis_of_the_current_mesh_raises(mesh):
    with mesh, pytest.raises(ShardingError, match=r"has no axis 'date'\. Did you mean 'data'"):
        sw.jit(lambda x: x, in_shardings=P("date"))(np.ones(8))


def test_without_a_mesh_there_is_an_empty_one(mesh):
    assert get_mesh().empty and get_mesh().axis_names == () and get_mesh().shape == {}
    with set_mesh(mesh):
        with set_mesh(None):
            assert get_mesh().empty and get_abstract_mesh().empty
        with set_mesh(get_mesh()):
            assert get_mesh() is mesh


def test_axes_by_type(mesh):
    kinds = (AxisType.Explicit, AxisType.Auto, AxisType.Manual)
    mixed = AbstractMesh((2, 3, 4), ("a", "b", "c"), kinds)
    assert (mixed.explicit_axes, mixed.auto_axes, mixed.manual_axes) == (("a",), ("b",), ("c",))
    assert mixed.shape_tuple == (("a", 2), ("b", 3), ("c", 4)) and mixed.axis_sizes == (2, 3, 4)
    for grid in (mesh, mesh.abstract_mesh):
        explicit = grid.update(axis_types=AxisType.Explicit)
        assert explicit.explicit_axes == mesh.axis_names and explicit.auto_axes == explicit.manual_axes == ()
        assert (grid.are_all_axes_auto, grid.are_all_axes_explicit, grid.are_all_axes_manual) == (True, False, False)
        assert (explicit.are_all_axes_auto, explicit.are_all_axes_explicit) == (False, True)
        assert grid.update(axis_names=("a", "b")).shape == {"a": 4, "b": 2}
    assert mesh.update(axis_types=AxisType.Explicit).flat_devices == mesh.flat_devices
    assert mesh.abstract_mesh.update(axis_sizes=(2, 4)).shape == {"data": 2, "model": 4}


def test_the_setting_of_axis_types():
    with sw.config.override("mesh_axis_types", "explicit"):
        assert sw.make_mesh((4,), ("x",)).axis_types == (AxisType.Explicit,)
        assert sw.make_mesh((4,), ("x",), axis_types=AxisType.Auto).axis_types == (AxisType.Auto,)
        assert AbstractMesh((4,), ("x",)).axis_types == (AxisType.Auto,)
    assert sw.make_mesh((4,), ("x",)).axis_types == (AxisType.Auto,)


@pytest.mark.parametrize(
    "create",
    [
        lambda: jnp.arange(8),
        lambda: jnp.sin(np.arange(8.0)),
        lambda: jnp.array([1, 2]),
        lambda: jnp.asarray(np.arange(8)),
        lambda: sw.random.key(0),
        lambda: sw.jit(lambda x: x * 2)(np.arange(8)),
        sw.jit(lambda: jnp.arange(8)),
        lambda: 2 * jnp.ones(8),
    ],
)
@pytest.mark.parametrize("axis_types", [(AxisType.Explicit, AxisType.Auto), (AxisType.Auto, AxisType.Auto)])
def test_arrays_and_functions_without_shardings_are_on_the_mesh_of_set_mesh(create, axis_types):
    mesh = sw.make_mesh((4, 2), ("x", "y"), axis_types=axis_types)
    expected = create()
    for context in (set_mesh, use_mesh):
        with context(mesh):
            array = create()
        assert array.sharding == NamedSharding(mesh, P()) and array.committed
        assert (array == expected).all()
    with mesh.update(axis_types=AxisType.Auto):
        assert len(create().devices()) == 1
    assert len(create().devices()) == 1


def test_functions_of_uncommitted_arrays_run_on_the_mesh_of_set_mesh(mesh):
    x = jnp.arange(8.0)
    f = sw.jit(lambda x: {"y": jnp.sin(x), "x": x})
    with set_mesh(mesh):
        results = [*f(x).values(), x + 1, x[0], x.at[0].set(1), sw.jit(lambda: 2)(), f.lower(x).compile()(x)["y"]]
        results += [sw.grad(lambda x: (x**2).sum())(x), sw.vmap(jnp.cos)(x), sw.jit(jnp.sin, out_shardings=None)(x)]
        assert jnp.asarray(x) is x and len(sw.device_put(x).devices()) == 1
        assert sw.jit(jnp.sin, in_shardings=P("data"))(x).sharding == NamedSharding(mesh, P("data"))
    assert {result.sharding for result in results} == {NamedSharding(mesh, P())}
    np.testing.assert_allclose(results[1], np.sin(np.arange(8.0)), rtol=1e-6)
    assert len(f(x)["y"].devices()) == 1
    assert f(results[0])["y"].sharding == NamedSharding(mesh, P())


def test_committed_arrays_decide_before_the_current_mesh(mesh):
    device = sw.devices()[3]
    with set_mesh(mesh):
        x = sw.device_put(np.arange(8), device)
        assert (x + 1).devices() == sw.jit(lambda x: x * 2)(x).devices() == {device}
        assert jnp.zeros(3, device=device).devices() == {device}
        assert sw.jit(lambda x: x + 1, out_shardings=sw.sharding.SingleDeviceSharding(device))(1).devices() == {device}


def test_an_abstract_mesh_without_explicit_axes_runs_nothing(mesh):
    with sw.sharding.use_abstract_mesh(mesh.abstract_mesh):
        assert len(jnp.arange(8).devices()) == len(sw.jit(lambda x: x + 1)(1).devices()) == 1
    with set_mesh(mesh), sw.sharding.use_abstract_mesh(AbstractMesh((8,), ("z",))):
        assert jnp.arange(8).sharding == NamedSharding(sw.make_mesh((8,), ("z",)), P())


def test_a_mesh_decorates_a_function():
    mesh = sw.make_mesh((4,), ("rows",))

    @mesh
    def place():
        return sw.device_put(np.arange(8), P("rows"))

    assert place().sharding.mesh == mesh


def test_meshes_with_wrong_axes():
    with pytest.warns(UserWarning, match="Manual axes rows"):
        manual = sw.make_mesh((4,), ("rows",), axis_types=(AxisType.Manual,))
    with pytest.raises(ValueError, match=r"has Manual axes, 'rows', which exist inside shard_map only"):
        sw.set_mesh(manual)
    with pytest.raises(ValueError, match=r"one integer per axis: \(4,\) in \(\(4,\), 2\) is none"):
        sw.make_mesh(((4,), 2), ("x", "y"))
    assert sw.make_mesh((np.int32(1), np.int64(2)), ("x", "y")).size == 2


@pytest.mark.parametrize(
    "place",
    [
        lambda x, s: sw.jit(lambda x: sw.lax.with_sharding_constraint(x, s))(x),
        sw.lax.with_sharding_constraint,
        lambda x, s: sw.jit(lambda x: x, out_shardings=s)(x),
        lambda x, s: sw.jit(lambda x: x, in_shardings=s)(x),
        sw.device_put,
        lambda x, s: jnp.array(x, device=s),
        lambda x, s: sw.make_array_from_callback(x.shape, s, lambda index: np.asarray(x)[index]),
    ],
)
def test_a_sharding_on_the_abstract_mesh_is_on_the_current_mesh(place):
    """Flax and Optax write `NamedSharding(get_abstract_mesh(), spec)`."""
    mesh, x = sw.make_mesh((4,), ("rows",)), jnp.arange(8.0)
    with set_mesh(mesh):
        y = place(x, NamedSharding(sw.sharding.get_abstract_mesh(), P("rows")))
    assert y.sharding == NamedSharding(mesh, P("rows"))
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("is_meshed", [False, True])
def test_the_sharding_of_a_type_leaves_auto_axes_open(is_meshed):
    """`out_sharding=typeof(x).sharding`, as dropout in Flax writes, has no effect without Explicit axes."""
    mesh = sw.make_mesh((4,), ("rows",)) if is_meshed else None
    key = sw.random.key(0)
    expected = sw.random.normal(key, (8,))
    with set_mesh(mesh):

        def noise(x):
            return x + sw.random.normal(key, x.shape, out_sharding=sw.typeof(x).sharding)

        np.testing.assert_array_equal(noise(jnp.zeros(8)), expected)
        np.testing.assert_array_equal(sw.jit(noise)(jnp.zeros(8)), expected)
        if mesh is not None:
            x = sw.device_put(jnp.zeros(8), P("rows"))
            assert sw.explain(noise, advise=False)(x).wire_bytes == 0
            assert sw.jit(noise)(x).sharding.spec == P("rows")


def test_types_name_the_mesh_of_the_arguments(mesh):
    x = sw.device_put(np.ones((8, 2), np.float32), NamedSharding(mesh, P("data")))
    meshes = []

    def read(x):
        meshes.append(sw.typeof(x).sharding.mesh)
        return x * 2

    for wrap in (lambda f: f, sw.vmap, lambda f: lambda x: sw.lax.map(f, x), lambda f: sw.jit(sw.jit(f))):
        np.testing.assert_array_equal(sw.jit(wrap(read))(x), 2 * np.ones((8, 2)))
    assert set(meshes) == {mesh.abstract_mesh}


def test_traces_depend_on_the_mesh_of_the_arguments_only_if_they_read_it(mesh):
    flat = sw.make_mesh((8,), ("rows",))
    traced = []

    def region(x):
        axes = sw.typeof(x).sharding.mesh
        traced.append(axes)
        return sw.shard_map(lambda x: 2 * x, mesh=axes, in_specs=P(axes.axis_names), out_specs=P(axes.axis_names))(x)

    plain = sw.jit(lambda x: (traced.append(None), 2 * x)[1])
    in_loop = sw.jit(lambda x: sw.lax.fori_loop(0, 2, lambda _, x: region(x), x))
    nested = sw.jit(lambda x: sw.jit(lambda x: region(x) + 0)(x) + 0)
    for f, count in ((plain, 1), (sw.jit(region), 2), (nested, 2), (in_loop, 2)):
        traced.clear()
        for _ in range(2):
            for grid in (mesh, flat):
                x = sw.device_put(np.arange(8.0), NamedSharding(grid, P(grid.axis_names)))
                assert f(x).sharding.mesh == grid
                np.testing.assert_array_equal(f(x), np.arange(8.0) * (4 if f is in_loop else 2))
        assert len(traced) == count
