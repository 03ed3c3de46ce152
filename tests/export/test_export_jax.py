"""Files that Shardwise writes and JAX runs, and files that JAX writes and Shardwise runs."""

from collections import OrderedDict, namedtuple

import numpy as np
import pytest

import shardwise as sw
from shardwise import export
from shardwise.sharding import NamedSharding, PartitionSpec
from tests.export.functions import DIFFERENTIABLE, FUNCTIONS, normal

jax = pytest.importorskip("jax")
pytest.importorskip("flatbuffers", reason="JAX serializes exports with it; the extra `peer` installs it")
jax_export = pytest.importorskip("jax.export")

pytestmark = pytest.mark.jax


@pytest.fixture(scope="module")
def jax_mesh():
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def assert_same(ours, theirs):
    """Assert that two pytrees of the two libraries have the same structure, dtypes and elements."""
    leaves, other = sw.tree.leaves(ours), jax.tree.leaves(theirs)
    assert str(sw.tree.structure(ours)) == str(jax.tree.structure(theirs))
    for x, y in zip(leaves, other, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        wide = np.complex128 if x.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(np.asarray(x).astype(wide), np.asarray(y).astype(wide), rtol=2e-4, atol=2e-5)


def files(name, vjp_order=0):
    """Return the file of each library for a function, and its arguments."""
    build, args = FUNCTIONS[name]
    ours = export.export(sw.jit(build(sw)))(*args).serialize(vjp_order)
    theirs = jax_export.export(jax.jit(build(jax)))(*args).serialize(vjp_order)
    return ours, theirs, args


@pytest.mark.parametrize("name", FUNCTIONS)
def test_both_libraries_run_both_files(name):
    ours, theirs, args = files(name)
    expected = jax.jit(FUNCTIONS[name][0](jax))(*args)
    for blob in (ours, theirs):
        assert_same(jax_export.deserialize(blob).call(*args), expected)
        assert_same(export.deserialize(blob).call(*args), expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_attributes_are_as_in_jax(name):
    ours, theirs, _ = files(name)
    mine, other = jax_export.deserialize(ours), jax_export.deserialize(theirs)
    read = export.deserialize(theirs)
    for attribute in ("in_tree", "out_tree", "in_avals", "out_avals", "platforms", "nr_devices", "module_kept_var_idx"):
        assert getattr(mine, attribute) == getattr(other, attribute), attribute
    assert [str(x.dtype) for x in read.in_avals] == [str(x.dtype) for x in other.in_avals]
    assert [x.shape for x in read.out_avals] == [x.shape for x in other.out_avals]
    for attribute in ("fun_name", "platforms", "nr_devices", "calling_convention_version", "module_kept_var_idx"):
        assert getattr(read, attribute) == getattr(other, attribute), attribute


def sum_of_floats(library, results):
    return sum((x * x).sum() for x in library.tree.leaves(results) if x.dtype == np.float32)


@pytest.mark.table(default=2)
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_of_both_files(name):
    ours, theirs, args = files(name, vjp_order=1)
    function = FUNCTIONS[name][0](jax)
    expected = jax.grad(lambda first: sum_of_floats(jax, function(first, *args[1:])))(args[0])
    for blob in (ours, theirs):
        loaded, in_jax = export.deserialize(blob), jax_export.deserialize(blob)
        for library, call in ((sw, loaded.call), (jax, in_jax.call)):

            def loss(first, library=library, call=call):
                return sum_of_floats(library, call(first, *args[1:]))

            assert_same(library.grad(loss)(args[0]), expected)


@pytest.mark.slow
def test_second_derivatives_need_a_vjp_of_order_two():
    ours, theirs, (x,) = files("loop", vjp_order=2)
    function = FUNCTIONS["loop"][0](jax)

    def curvature(library, call):
        slope = library.grad(lambda x: sum_of_floats(library, call(x)))
        return library.grad(lambda x: (slope(x) ** 2).sum())(x)

    for blob in (ours, theirs):
        assert_same(curvature(sw, export.deserialize(blob).call), curvature(jax, function))
        assert_same(curvature(jax, jax_export.deserialize(blob).call), curvature(jax, function))
    first_order = export.deserialize(files("loop", vjp_order=1)[0])
    with pytest.raises(ValueError, match="was serialized without its VJP"):
        curvature(sw, first_order.call)


def test_keys_are_arguments_and_results():
    def build(library):
        return lambda key: (library.random.normal(key, (3,)), library.random.split(key))

    ours = export.export(sw.jit(build(sw)))(sw.random.key(3)).serialize()
    theirs = jax_export.export(jax.jit(build(jax)))(jax.random.key(3)).serialize()
    numbers, keys = build(jax)(jax.random.key(3))
    for blob in (ours, theirs):
        for library, module in ((sw, export), (jax, jax_export)):
            loaded_numbers, loaded_keys = module.deserialize(blob).call(library.random.key(3))
            np.testing.assert_allclose(np.asarray(loaded_numbers), np.asarray(numbers), rtol=1e-5)
            words = library.random.key_data(loaded_keys)
            np.testing.assert_array_equal(np.asarray(words), np.asarray(jax.random.key_data(keys)))


Point = namedtuple("Point", "x y")
export.register_namedtuple_serialization(Point, serialized_name="tests.Point")
jax_export.register_namedtuple_serialization(Point, serialized_name="tests.Point")


def test_pytree_nodes():
    def build(library):
        return lambda p, d, *, k: (OrderedDict(b=p.x, a=p.y), [Point(d["z"], None)], k)

    args = (Point(normal(2), normal(3)), OrderedDict(z=normal(1), a=normal(4)))
    ours = export.export(sw.jit(build(sw)))(*args, k=1.5).serialize()
    theirs = jax_export.export(jax.jit(build(jax)))(*args, k=1.5).serialize()
    for blob in (ours, theirs):
        for module in (export, jax_export):
            ordered, (point,), k = module.deserialize(blob).call(*args, k=1.5)
            assert list(ordered) == ["b", "a"]
            assert (type(point), point.y, float(k)) == (Point, None, 1.5)


def test_shardings_bind_jax_to_the_mesh_and_not_shardwise(mesh, jax_mesh):
    x, w = normal(8, 8), normal(8, 8, seed=1)
    shardings = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec(None, "model"))
    blob = export.export(sw.jit(lambda x, w: sw.numpy.tanh(x) @ w, in_shardings=shardings))(x, w).serialize()
    loaded = jax_export.deserialize(blob)
    assert loaded.nr_devices == 8
    placed = [jax.device_put(a, s) for a, s in zip((x, w), loaded.in_shardings_jax(jax_mesh), strict=True)]
    assert [tuple(a.sharding.spec) for a in placed] == [("data",), (None, "model")]
    np.testing.assert_allclose(np.asarray(jax.jit(loaded.call)(*placed)), np.tanh(x) @ w, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="8 devices"):
        loaded.call(x, w)
    other = NamedSharding(sw.make_mesh((2,), ("q",)), PartitionSpec("q"))
    for place in (lambda a: a, lambda a: sw.device_put(a, other)):
        result = export.deserialize(blob).call(place(x), w)
        np.testing.assert_allclose(np.asarray(result), np.tanh(x) @ w, rtol=1e-4, atol=1e-5)


def test_jax_runs_a_file_without_shardings_on_any_mesh(jax_mesh):
    x = normal(8, 8)
    loaded = jax_export.deserialize(export.export(sw.jit(sw.numpy.tanh))(x).serialize())
    assert loaded.nr_devices == 1
    placed = jax.device_put(x, jax.sharding.NamedSharding(jax_mesh, jax.sharding.PartitionSpec("data", "model")))
    result = jax.jit(loaded.call)(placed)
    np.testing.assert_allclose(np.asarray(result), np.tanh(x), rtol=1e-4, atol=1e-5)
    assert result.sharding.is_equivalent_to(placed.sharding, 2)


def test_jax_runs_the_plan_of_a_partitioned_file(mesh, jax_mesh):
    x, w = normal(8, 16), normal(16, 8, seed=1)
    in_shardings = NamedSharding(mesh, PartitionSpec(None, "data")), NamedSharding(mesh, PartitionSpec("data"))
    function = sw.jit(lambda x, w: x @ w, in_shardings=in_shardings, out_shardings=NamedSharding(mesh, PartitionSpec()))
    exported = export.export(function, partitioned=True)(x, w)
    assert exported.mlir_module().count("stablehlo.all_reduce") == 1
    blob = exported.serialize(vjp_order=1)
    loaded = jax_export.deserialize(blob)
    placed = [jax.device_put(a, s) for a, s in zip((x, w), loaded.in_shardings_jax(jax_mesh), strict=True)]
    assert jax.jit(loaded.call).lower(*placed).compile().as_text().count("all-reduce(") == 1
    np.testing.assert_allclose(np.asarray(jax.jit(loaded.call)(*placed)), x @ w, rtol=1e-4, atol=1e-5)
    gradient = jax.jit(jax.grad(lambda x, w: loaded.call(x, w).sum()))(*placed)
    np.testing.assert_allclose(np.asarray(gradient), np.tile(w.sum(1), (8, 1)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("place", ["same mesh", "other mesh", "one device"])
def test_constraints_of_jax_hold_on_its_mesh_only(mesh, jax_mesh, place):
    x = normal(8, 8)
    sharding = jax.sharding.NamedSharding(jax_mesh, jax.sharding.PartitionSpec("model"))

    def function(x):
        return jax.lax.with_sharding_constraint(jax.numpy.sin(x), sharding)

    blob = jax_export.export(jax.jit(function, in_shardings=sharding))(x).serialize()
    meshes = {"same mesh": mesh, "other mesh": sw.make_mesh((2,), ("q",)), "one device": None}
    chosen = meshes[place]
    axes = None if chosen is None else PartitionSpec(chosen.axis_names[0])
    argument = x if chosen is None else sw.device_put(x, NamedSharding(chosen, axes))
    result = export.deserialize(blob).call(argument)
    np.testing.assert_allclose(np.asarray(result), np.sin(x), rtol=1e-4, atol=1e-5)
    if chosen is not None:
        assert result.sharding.spec == (PartitionSpec("model") if place == "same mesh" else axes)


def test_a_shard_map_of_jax_runs_on_the_same_mesh(mesh, jax_mesh):
    x, specs = normal(8, 4), jax.sharding.PartitionSpec("data")

    def block(x):
        return jax.lax.psum(x, "data")

    mapped = jax.shard_map(block, mesh=jax_mesh, in_specs=specs, out_specs=jax.sharding.PartitionSpec())
    struct = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=jax.sharding.NamedSharding(jax_mesh, specs))
    loaded = export.deserialize(jax_export.export(jax.jit(mapped))(struct).serialize())
    result = loaded.call(sw.device_put(x, NamedSharding(mesh, PartitionSpec("data"))))
    np.testing.assert_allclose(np.asarray(result), x.reshape(4, 2, 4).sum(0), rtol=1e-4, atol=1e-5)
    with pytest.raises(sw.errors.DeviceMismatchError, match="was partitioned for the mesh data=4, model=2"):
        loaded.call(x)


@pytest.mark.parametrize("name", ["linear_algebra", "mlp"])
def test_files_for_several_platforms(name):
    build, args = FUNCTIONS[name]
    platforms = ["cuda", "cpu"]
    expected = jax.jit(build(jax))(*args)
    ours = export.export(sw.jit(build(sw)), platforms=platforms)(*args)
    theirs = jax_export.export(jax.jit(build(jax)), platforms=platforms)(*args)
    assert ours.platforms == theirs.platforms == ("cuda", "cpu")
    for blob in (ours.serialize(), theirs.serialize()):
        assert_same(export.deserialize(blob).call(*args), expected)
        assert_same(jax_export.deserialize(blob).call(*args), expected)


def symbolic_function(library):
    jnp = library.numpy

    def function(x, w):
        y = jnp.tanh(x @ w)
        return (
            *(y.mean(0), jnp.concatenate([x, x]), x.reshape(-1), x[1:], jnp.arange(x.shape[0]), library.nn.softmax(x)),
            *(x[::-1], jnp.pad(x, ((0, x.shape[0]), (1, 2))), jnp.sort(x, 0), x.T @ x, jnp.zeros(x.shape)),
            *(x[:, jnp.array([0, 2])], library.lax.cond(x.sum() > 0, lambda x: x, lambda x: -x, x)),
        )

    return function


def test_a_symbolic_batch_in_both_files():
    def build(library):
        return lambda x: (library.numpy.tanh(x).mean(0), x.reshape(-1))

    (b,), (other_b,) = export.symbolic_shape("b"), jax_export.symbolic_shape("b")
    ours = export.export(sw.jit(build(sw)))(sw.ShapeDtypeStruct((b, 3), np.float32)).serialize()
    theirs = jax_export.export(jax.jit(build(jax)))(jax.ShapeDtypeStruct((other_b, 3), np.float32)).serialize()
    for blob in (ours, theirs):
        for module in (export, jax_export):
            assert_same(module.deserialize(blob).call(normal(5, 3)), build(jax)(normal(5, 3)))


@pytest.mark.slow
def test_symbolic_dims_in_both_files():
    w = normal(3, 4)
    (b,), (other_b,) = export.symbolic_shape("b"), jax_export.symbolic_shape("b")
    ours = export.export(sw.jit(symbolic_function(sw)))(sw.ShapeDtypeStruct((b, 3), np.float32), w)
    theirs = jax_export.export(jax.jit(symbolic_function(jax)))(jax.ShapeDtypeStruct((other_b, 3), np.float32), w)
    assert [str(x.shape) for x in ours.out_avals] == [str(x.shape) for x in theirs.out_avals]
    for blob in (ours.serialize(vjp_order=1), theirs.serialize(vjp_order=1)):
        loaded, in_jax = export.deserialize(blob), jax_export.deserialize(blob)
        for size in (5, 2, 1):
            x = normal(size, 3, seed=size)
            expected = symbolic_function(jax)(x, w)
            assert_same(loaded.call(x, w), expected)
            assert_same(in_jax.call(x, w), expected)
            gradient = jax.grad(lambda x: sum_of_floats(jax, symbolic_function(jax)(x, w)))(x)
            assert_same(sw.grad(lambda x, f=loaded: sum_of_floats(sw, f.call(x, w)))(x), gradient)
            assert_same(jax.grad(lambda x, f=in_jax: sum_of_floats(jax, f.call(x, w)))(x), gradient)


def test_jax_checks_the_constraints_of_a_file():
    (a,) = export.symbolic_shape("a", constraints=["mod(a, 8) == 0"])
    blob = export.export(sw.jit(lambda x: x * 2))(sw.ShapeDtypeStruct((a,), np.float32)).serialize()
    assert jax_export.deserialize(blob).call(np.ones(16, np.float32)).shape == (16,)
    with pytest.raises(ValueError, match="refining shapes"):
        jax_export.deserialize(blob).call(np.ones(7, np.float32))
