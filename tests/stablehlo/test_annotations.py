"""Shardings of modules: of Shardy and of HLO, and manual computations."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import stablehlo
from shardwise.errors import DeviceMismatchError, ShardingError, UnsupportedError
from shardwise.sharding import PartitionSpec as P

X = np.arange(32, dtype=np.float32).reshape(8, 4)
SHARDY = """
sdy.mesh @mesh = <["data"=4, "model"=2]>
func.func @main(%x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})
    -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model"}]>}) {
  %0 = stablehlo.add %x, %x : tensor<8x4xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{}, {"model"}]> : tensor<8x4xf32>
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %2 = stablehlo.reduce(%1 init: %c) applies stablehlo.add across dimensions = [0]
    : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  return %2 : tensor<4xf32>
}
"""
HLO = """
func.func @main(%x: tensor<8x4xf32> {mhlo.sharding = "{devices=[4,1,2]<=[8] last_tile_dim_replicate}"})
    -> (tensor<4xf32> {mhlo.sharding = "{devices=[2,4]<=[4,2]T(1,0) last_tile_dim_replicate}"}) {
  %0 = stablehlo.add %x, %x : tensor<8x4xf32>
  %1 = stablehlo.custom_call @Sharding(%0) {
    mhlo.sharding = "{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate}"
  } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %2 = stablehlo.reduce(%1 init: %c) applies stablehlo.add across dimensions = [0]
    : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  return %2 : tensor<4xf32>
}
"""


@pytest.mark.parametrize(
    ("text", "names"), [(SHARDY, ("data", "model")), (HLO, ("axis0", "axis1"))], ids=["sdy", "mhlo"]
)
def test_shardings_of_arguments_results_and_constraints(text, names):
    function = stablehlo.load(text)
    first, second = names
    assert (function.mesh.axis_names, function.mesh.axis_sizes) == (names, (4, 2))
    assert [sharding.spec for sharding in function.in_shardings] == [P(first, None)]
    assert [sharding.spec for sharding in function.out_shardings] == [P(second)]
    program = sw.jit(function).trace(X).program
    (pin,) = [equation.op for equation in program.equations if equation.op.name == "constrain"]
    assert (pin.dims, pin.open_dims) == (((), (second,)), ())


@pytest.mark.parametrize("text", [SHARDY, HLO], ids=["sdy", "mhlo"])
def test_a_mesh_of_devices_replaces_the_mesh_of_the_module(text):
    mesh = sw.make_mesh((4, 2), ("rows", "columns"))
    function = stablehlo.load(text, mesh=mesh)
    assert function.mesh == mesh
    result = sw.jit(function, in_shardings=function.in_shardings, out_shardings=function.out_shardings[0])(X)
    np.testing.assert_allclose(result, 2 * X.sum(0))
    assert result.sharding.spec == P("columns")


def test_a_mesh_without_devices_can_be_planned_but_not_run():
    function = stablehlo.load(SHARDY)
    struct = sw.ShapeDtypeStruct(X.shape, X.dtype, sharding=function.in_shardings[0])
    assert sw.explain(function, hardware="h100", advise=False)(struct).counts() == {"all_gather": 1}
    with pytest.raises(DeviceMismatchError, match="which has no devices"):
        function(X)


def test_the_sizes_of_the_meshes_must_be_equal():
    with pytest.raises(ShardingError, match="has other sizes"):
        stablehlo.load(SHARDY, mesh=sw.make_mesh((2, 4), ("data", "model")))


def test_a_module_without_shardings():
    text = "func.func @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> { return %x : tensor<8x4xf32> }"
    function = stablehlo.load(text)
    assert (function.mesh, function.in_shardings, function.out_shardings) == (None, (None,), (None,))


def test_open_dims_may_be_sharded_further():
    function = stablehlo.load(SHARDY.replace('[{}, {"model"}]', '[{?}, {"model", ?}]'))
    program = sw.jit(function).trace(X).program
    (pin,) = [equation.op for equation in program.equations if equation.op.name == "constrain"]
    assert (pin.dims, pin.open_dims) == (((), ("model",)), (0, 1))


def test_the_sharding_of_any_op_is_a_constraint():
    text = SHARDY.replace(
        "stablehlo.add %x, %x :",
        'stablehlo.add %x, %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>} :',
    )
    program = sw.jit(stablehlo.load(text)).trace(X).program
    pins = [equation.op.dims for equation in program.equations if equation.op.name == "constrain"]
    assert pins == [(("data",), ()), ((), ("model",))]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (('[{"data"}, {}]', '[{"data":(1)2}, {}]'), "the sub-axis"),
        (('["data"=4, "model"=2]>', '["data"=4, "model"=2], device_ids=[1, 0, 2, 3, 4, 5, 6, 7]>'), "are not in order"),
        (("sdy.mesh @mesh", 'sdy.mesh @other = <["z"=3]>\nsdy.mesh @mesh'), "several meshes"),
    ],
)
def test_shardings_that_are_not_supported(changed, message):
    with pytest.raises(UnsupportedError, match=message):
        stablehlo.load(SHARDY.replace(*changed))


jax = pytest.importorskip("jax")
jax_lax, JaxSpec = jax.lax, jax.sharding.PartitionSpec


@pytest.mark.jax
@pytest.mark.parametrize(
    ("body", "out_spec"),
    [
        (lambda x: jax_lax.psum(x, "data"), (None, "model")),
        (lambda x: jax_lax.pmax(x, ("data", "model")), ()),
        (lambda x: jax_lax.all_gather(x, "model", axis=1, tiled=True), ("data",)),
        (lambda x: jax_lax.all_gather(x, ("model", "data"), axis=0, tiled=True), ()),
        (lambda x: jax_lax.psum_scatter(x, "model", scatter_dimension=0, tiled=True), (("data", "model"),)),
        (lambda x: jax_lax.all_to_all(x, "model", 0, 1, tiled=True), (("data", "model"),)),
        (lambda x: jax_lax.ppermute(x, "data", [(0, 1), (1, 2), (3, 0)]), ("data", "model")),
        (lambda x: x * jax_lax.axis_index("model") + jax_lax.axis_index("data"), ("data", "model")),
    ],
    ids=["psum", "pmax", "all_gather", "gather_two_axes", "psum_scatter", "all_to_all", "ppermute", "axis_index"],
)
def test_collectives_of_manual_computations(body, out_spec):
    theirs = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    function = jax.jit(
        jax.shard_map(
            body, mesh=theirs, in_specs=JaxSpec("data", "model"), out_specs=JaxSpec(*out_spec), check_vma=False
        )
    )
    loaded = stablehlo.load(function.lower(X).as_text(), mesh=sw.make_mesh((4, 2), ("data", "model")))
    np.testing.assert_allclose(loaded(X), function(X), rtol=1e-6)


def test_collectives_between_replicas_are_not_supported():
    text = """
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = dense<[[0]]> : tensor<1x1xi64>}>
        : (tensor<4xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>
    }"""
    with pytest.raises(UnsupportedError, match=r"stablehlo.all_gather at <stablehlo>:3: collectives between replicas"):
        stablehlo.load(text)(np.ones(4, np.float32))
