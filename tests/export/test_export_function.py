"""export: modules, plans of loaded functions, and wrong uses."""

import re

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import export
from shardwise.errors import DeviceMismatchError, ShardingError, UnsupportedError
from shardwise.sharding import NamedSharding, PartitionSpec
from tests.export.functions import FUNCTIONS, normal


def reloaded(exported, vjp_order=0):
    return export.deserialize(exported.serialize(vjp_order))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_loaded_functions_compute_the_same(name):
    build, args = FUNCTIONS[name]
    function = sw.jit(build(sw))
    expected = function(*args)
    loaded = reloaded(export.export(function)(*args))
    for call in (loaded.call, sw.jit(loaded.call)):
        results = call(*args)
        assert sw.tree.structure(results) == sw.tree.structure(expected)
        for x, y in zip(sw.tree.leaves(results), sw.tree.leaves(expected), strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_allclose(np.asarray(x, complex), np.asarray(y, complex), rtol=1e-4, atol=1e-5)


def test_the_module_has_no_collectives_and_no_constraints(mesh):
    sharding = NamedSharding(mesh, PartitionSpec("data"))

    def function(x, w):
        return sw.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec())) @ w

    exported = export.export(sw.jit(function, in_shardings=(sharding, None), out_shardings=sharding))(
        normal(8, 4), normal(4, 4)
    )
    text = exported.mlir_module()
    assert "all_gather" not in text
    assert "sharding_constraint" not in text
    assert (
        '%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %arg1: tensor<4x4xf32>)' in text
    )
    assert '-> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})' in text
    assert exported.nr_devices == 8
    assert exported.in_shardings_jax(mesh) == (sharding, None)
    assert exported.out_shardings_jax(mesh) == (sharding,)
    assert exported.in_shardings_hlo == (None, None)
    with pytest.raises(ShardingError, match="was exported for the mesh data=4, model=2, which differs from"):
        exported.in_shardings_jax(sw.make_mesh((8,), ("x",)))


def test_a_loaded_function_is_planned_for_the_mesh_of_its_arguments(mesh):
    x, w = normal(8, 16), normal(16, 8)
    loaded = reloaded(export.export(sw.jit(lambda x, w: x @ w))(x, w))
    columns, rows = NamedSharding(mesh, PartitionSpec(None, "data")), NamedSharding(mesh, PartitionSpec("data"))
    placed = sw.device_put(x, columns), sw.device_put(w, rows)
    texts = [sw.jit(function).lower(*placed).as_text() for function in (loaded.call, lambda x, w: x @ w)]
    collectives = [re.findall(r"stablehlo\.(all_\w+|reduce_scatter|collective_\w+)", text) for text in texts]
    assert collectives[0] == collectives[1] != []
    result = loaded.call(*placed)
    assert len(result.sharding.device_set) == 8
    np.testing.assert_allclose(np.asarray(result), x @ w, rtol=1e-4, atol=1e-5)


def test_explicit_shardings_are_stated(explicit_mesh):
    sharding = NamedSharding(explicit_mesh, PartitionSpec("X"))
    x = sw.device_put(normal(8, 4), sharding)
    exported = export.export(sw.jit(lambda x: sw.sharding.reshard(x * 2, PartitionSpec("Y"))))(x)
    assert [s.spec for s in exported._in_named_shardings] == [PartitionSpec("X")]
    assert exported.nr_devices == 8
    np.testing.assert_allclose(np.asarray(exported.call(x)), 2 * np.asarray(x))


def test_a_partitioned_function_keeps_its_plan(mesh):
    x, w = normal(8, 16), normal(16, 8)
    specs = PartitionSpec(None, "data"), PartitionSpec("data")
    shardings = tuple(NamedSharding(mesh, spec) for spec in specs)
    function = sw.jit(lambda x, w: x @ w, in_shardings=shardings, out_shardings=NamedSharding(mesh, PartitionSpec()))
    exported = export.export(function, partitioned=True)(x, w)
    assert exported.mlir_module().count("stablehlo.all_reduce") == 1
    loaded = reloaded(exported, vjp_order=1)
    placed = [sw.device_put(a, s) for a, s in zip((x, w), loaded.in_shardings_jax(mesh), strict=True)]
    np.testing.assert_allclose(np.asarray(loaded.call(*placed)), x @ w, rtol=1e-4, atol=1e-5)
    assert sw.jit(loaded.call).lower(*placed).as_text().count("stablehlo.all_reduce") == 1
    gradient = sw.grad(lambda x, w: loaded.call(x, w).sum())(*placed)
    np.testing.assert_allclose(np.asarray(gradient), np.tile(w.sum(1), (8, 1)), rtol=1e-4, atol=1e-5)
    with pytest.raises(DeviceMismatchError, match=r"was partitioned for the mesh data=4, model=2 .* on one device"):
        loaded.call(x, w)


def test_shard_map_needs_partitioned(mesh):
    mapped = sw.shard_map(
        lambda x: sw.lax.psum(x, "data"), mesh=mesh, in_specs=PartitionSpec("data"), out_specs=PartitionSpec()
    )
    x = sw.device_put(normal(8, 4), NamedSharding(mesh, PartitionSpec("data")))
    with pytest.raises(UnsupportedError, match=r"shard_map at .* fixes the mesh of .* Pass partitioned=True"):
        export.export(sw.jit(mapped))(x)
    loaded = reloaded(export.export(sw.jit(mapped), partitioned=True)(x))
    np.testing.assert_allclose(np.asarray(loaded.call(x)), np.asarray(x).reshape(4, 2, 4).sum(0), rtol=1e-5)


def test_custom_derivatives_are_those_of_the_vjp():
    @sw.custom_vjp
    def doubled(x):
        return x

    doubled.defvjp(lambda x: (x, None), lambda _, ct: (2 * ct,))
    loaded = reloaded(export.export(sw.jit(lambda x: doubled(x).sum()))(normal(3)), vjp_order=1)
    np.testing.assert_array_equal(np.asarray(sw.grad(loaded.call)(normal(3))), [2, 2, 2])


def test_a_function_without_vjp_is_not_differentiated():
    loaded = reloaded(export.export(sw.jit(jnp.sum))(normal(3)))
    assert not loaded.has_vjp()
    with pytest.raises(ValueError, match=r"`sum` was serialized without its VJP.*serialize\(vjp_order=1\)"):
        sw.grad(loaded.call)(normal(3))
    with pytest.raises(ValueError, match="without its VJP"):
        loaded.serialize(vjp_order=1)


def test_vmap_of_a_loaded_function():
    loaded = reloaded(export.export(sw.jit(lambda x: x @ x))(normal(3)))
    np.testing.assert_allclose(np.asarray(sw.vmap(loaded.call)(normal(4, 3))), (normal(4, 3) ** 2).sum(1), rtol=1e-5)


def test_wrong_arguments():
    exported = export.export(sw.jit(lambda x, *, scale: x * scale))(normal(3), scale=2.0)
    with pytest.raises(ValueError, match=r"was exported for arguments of structure .* but is called with"):
        exported.call(normal(3))
    with pytest.raises(
        ValueError, match=r"was exported for f32\[3\] as argument args\[0\], but is called with f32\[4\]"
    ):
        exported.call(normal(4), scale=2.0)
    with pytest.raises(ValueError, match=r"f32\[\] as argument kwargs\['scale'\], but is called with i32\[\]"):
        exported.call(normal(3), scale=2)


def test_platforms():
    exported = export.export(sw.jit(jnp.sin), platforms=["cuda"])(normal(3))
    assert exported.platforms == ("cuda",)
    with pytest.raises(ValueError, match=r"exported for the platforms \('cuda',\), but is called on 'cpu'"):
        exported.call(normal(3))
    check = export.DisabledSafetyCheck.platform()
    lenient = export.export(sw.jit(jnp.sin), platforms=["cuda"], disabled_checks=[check])(normal(3))
    np.testing.assert_allclose(np.asarray(reloaded(lenient).call(normal(3))), np.sin(normal(3)), rtol=1e-5)
    assert export.default_export_platform() == "cpu"


def test_custom_calls_must_be_stable():
    def function(x):
        return jnp.linalg.eigh(x)[0]

    assert "lapack_ssyevd_ffi" in export.export(sw.jit(function))(np.eye(3, dtype=np.float32)).mlir_module()


def test_wrong_uses():
    with pytest.raises(ValueError, match="the function must be the result of `jit`"):
        export.export(lambda x: x)
    with pytest.raises(ValueError, match="platforms must be a sequence of names"):
        export.export(sw.jit(jnp.sin), platforms="cpu")
    with pytest.raises(ValueError, match="partitioned=True plans for one platform"):
        export.export(sw.jit(jnp.sin), platforms=["cpu", "cuda"], partitioned=True)
    with pytest.raises(ValueError, match="partitioned=True needs a mesh"):
        export.export(sw.jit(jnp.sin), partitioned=True)(normal(3))


def test_host_callbacks_and_refs_are_errors():
    def printing(x):
        sw.debug.print("{}", x)
        return x

    with pytest.raises(UnsupportedError, match="`printing` calls Python functions on the host"):
        export.export(sw.jit(printing))(normal(3))
    counter = sw.new_ref(jnp.zeros(()))

    def counting(x):
        counter[...] += 1
        return x

    with pytest.raises(UnsupportedError, match="`counting` uses Refs"):
        export.export(sw.jit(counting))(normal(3))
