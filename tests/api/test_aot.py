"""Ahead of time: trace, lower and compile give what a call gives, and what they say of it is true."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import AbstractMesh, Mesh, NamedSharding
from shardwise.sharding import PartitionSpec as P


@sw.jit
def layer(x, w):
    return {"out": jnp.tanh(x @ w["matrix"]) + w["bias"]}


X = np.arange(32, dtype=np.float32).reshape(8, 4) / 10
W = {"matrix": np.ones((4, 6), np.float32), "bias": np.arange(6, dtype=np.float32)}


class TestStages:
    def test_each_stage_has_its_text(self):
        traced = layer.trace(X, W)
        lowered = traced.lower()
        assert "tanh" in str(traced)
        assert "stablehlo.tanh" in lowered.as_text()
        assert "tanh" in lowered.as_text("program")
        assert "tanh" in lowered.as_text("local")
        assert "HloModule" in lowered.compile().as_text()

    def test_what_is_compiled_is_what_a_call_gives(self):
        compiled = layer.lower(X, W).compile()
        np.testing.assert_array_equal(compiled(X, W)["out"], layer(X, W)["out"])

    def test_types_of_arguments_and_results(self):
        lowered = layer.lower(X, W)
        (x, w), keywords = lowered.args_info
        assert (x.shape, w["bias"].shape, keywords) == ((8, 4), (6,), {})
        assert lowered.out_info["out"].shape == (8, 6)
        assert layer.eval_shape(X, W)["out"].dtype == np.float32
        assert layer.trace(X, W).fun_name == "layer"

    def test_an_unknown_stage(self):
        with pytest.raises(ValueError, match=r"no stage 'hlo': there are 'program', 'sharded'"):
            layer.lower(X, W).as_text("hlo")

    def test_structs_stand_for_arrays(self):
        like = sw.ShapeDtypeStruct((8, 4), np.float32)
        compiled = layer.lower(like, W).compile()
        np.testing.assert_array_equal(compiled(X, W)["out"], layer(X, W)["out"])

    def test_a_struct_is_no_argument_of_a_call(self):
        with pytest.raises(TypeError, match=r"argument `x` of `layer` .*ShapeDtypeStruct"):
            layer(sw.ShapeDtypeStruct((8, 4), np.float32), W)

    def test_static_arguments_are_not_given_again(self):
        scaled = sw.jit(lambda x, times: x * times, static_argnums=1)
        compiled = scaled.lower(X, 3).compile()
        np.testing.assert_array_equal(compiled(X), X * 3)

    def test_donation(self):
        step = sw.jit(lambda x: x + 1, donate_argnums=0)
        lowered = step.lower(X)
        assert lowered.donate_argnums == (0,)
        x = jnp.asarray(X)
        lowered.compile()(x)
        assert x.is_deleted()

    def test_captured_arrays(self):
        scale = jnp.full((4,), 2.0)
        compiled = sw.jit(lambda x: x * scale).lower(X).compile()
        np.testing.assert_array_equal(compiled(X), X * 2)


class TestWrongCalls:
    def test_another_type(self):
        compiled = layer.lower(X, W).compile()
        with pytest.raises(TypeError, match=r"argument `x` of `layer` is i32\[8,4\]; it was compiled for f32\[8,4\]"):
            compiled(X.astype(np.int32), W)

    def test_another_structure(self):
        with pytest.raises(TypeError, match="`layer` was compiled for arguments"):
            layer.lower(X, W).compile()(X)

    def test_another_layout(self, mesh):
        placed = sw.device_put(X, NamedSharding(mesh, P("data")))
        double = sw.jit(lambda x: x * 2)
        compiled = double.lower(placed).compile()
        np.testing.assert_array_equal(compiled(X), X * 2)  # nobody has placed it: it moves
        other = sw.device_put(X, NamedSharding(mesh, P(None, "data")))
        with pytest.raises(ValueError, match=r"lies as .*P\(None, 'data'\).*it was compiled for .*P\('data'"):
            compiled(other)


class TestOnAMesh:
    def test_shardings_in_and_out(self, mesh):
        rows, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
        like = sw.ShapeDtypeStruct((8, 4), np.float32, sharding=rows)
        weights = {name: sw.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole) for name, x in W.items()}
        compiled = layer.lower(like, weights).compile()
        (x, w), _ = compiled.input_shardings
        assert (x, w["matrix"]) == (rows, whole)
        assert compiled.output_shardings["out"].is_equivalent_to(rows, 2)
        placed = sw.device_put(X, rows)
        given = {name: sw.device_put(x, whole) for name, x in W.items()}
        found = compiled(placed, given)["out"]
        assert found.sharding == compiled.output_shardings["out"]
        np.testing.assert_allclose(found, layer(X, W)["out"], rtol=1e-6)

    def test_memory_and_cost_are_those_of_one_device(self, mesh):
        x = sw.device_put(np.ones((1024, 256), np.float32), NamedSharding(mesh, P("data", "model")))
        compiled = sw.jit(lambda x: (x @ x.T).sum()).lower(x).compile()
        stats = compiled.memory_analysis()
        assert stats.argument_size_in_bytes == x.nbytes // 8
        assert stats.output_size_in_bytes == 4
        assert stats.temp_size_in_bytes >= 256 * 1024 * 4  # its rows of the product
        cost = compiled.cost_analysis()
        assert cost["flops"] >= 2 * 256 * 1024 * 128
        assert cost["wire bytes"] > 0

    def test_counts_before_xla(self):
        plan = layer.lower(X, W).cost_analysis()
        assert plan["flops"] == 2 * 8 * 4 * 6
        assert plan["wire bytes"] == 0


class TestAbstractMesh:
    def test_a_mesh_without_devices_is_planned_and_lowered(self):
        mesh = AbstractMesh((64, 8), ("data", "model"))
        x = sw.ShapeDtypeStruct((1024, 512), np.float32, sharding=NamedSharding(mesh, P("data")))
        w = sw.ShapeDtypeStruct((512, 2048), np.float32, sharding=NamedSharding(mesh, P(None, "model")))
        lowered = sw.jit(lambda x, w: x @ w).lower(x, w)
        assert "tensor<16x512xf32>" in lowered.as_text()
        assert lowered.out_info.sharding.spec == P("data", "model")
        with pytest.raises(ValueError, match="which has no devices: it can be looked at, and not compiled"):
            lowered.compile()

    def test_arrays_cannot_be_put_there(self):
        with pytest.raises(ValueError, match="has no devices"):
            sw.device_put(X, NamedSharding(AbstractMesh((4,), ("data",)), P("data")))

    def test_explain(self, capsys):
        mesh = AbstractMesh((512,), ("data",))
        x = sw.ShapeDtypeStruct((1024, 64), np.float32, sharding=NamedSharding(mesh, P("data")))
        plan = sw.explain(lambda x: x.sum(0))(x)
        assert plan.counts() == {"all_reduce": 1}

    def test_the_plan_for_many_devices_is_that_for_few(self):
        def lowered(mesh):
            x = sw.ShapeDtypeStruct((4096, 64), np.float32, sharding=NamedSharding(mesh, P("data")))
            return sw.jit(lambda x: jnp.tanh(x).sum(0)).lower(x).as_text("plan")

        assert lowered(AbstractMesh((8,), ("data",))) == lowered(AbstractMesh((4096,), ("data",)))


def test_a_mesh_and_its_abstract_one_are_planned_alike(mesh):
    assert isinstance(mesh, Mesh)
    texts = []
    for where in (mesh, mesh.abstract_mesh):
        x = sw.ShapeDtypeStruct((64, 64), np.float32, sharding=NamedSharding(where, P("data", "model")))
        texts.append(sw.jit(lambda x: x @ x.T).lower(x).as_text("local"))
    assert texts[0] == texts[1]
