"""Ahead-of-time compilation: trace, lower and compile agree with a call, and describe it correctly."""

import json
import logging
import os
import subprocess
import sys

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.errors import DeviceMismatchError
from shardwise.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, SingleDeviceSharding
from shardwise.sharding import PartitionSpec as P
from shardwise.stages import ArgInfo


@sw.jit
def layer(x, w):
    return {"out": jnp.tanh(x @ w["matrix"]) + w["bias"]}


X = np.arange(32, dtype=np.float32).reshape(8, 4) / 10
W = {"matrix": np.ones((4, 6), np.float32), "bias": np.arange(6, dtype=np.float32)}


TAKEN = """
import gc, json
import numpy as np
import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax

def resident(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))

rows = {}

def measure(name, function, *args, devices=1, donate=()):
    compiled = sw.jit(function, donate_argnums=donate).lower(*args).compile()
    said = compiled.memory_analysis()
    if not donate:
        sw.block_until_ready(compiled(*args))
    taken = []
    for _ in range(1 if donate else 3):  # the least of three: idle threads of the process allocate too
        kept = None
        gc.collect()
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # resets the peak
        before = resident("VmRSS:")
        kept = sw.block_until_ready(compiled(*args))
        taken.append([resident(which) - before for which in ("VmHWM:", "VmRSS:")])
    taken = min(taken)
    results = said.output_size_in_bytes - said.alias_size_in_bytes
    rows[name] = [*taken, results * devices, said.temp_size_in_bytes * devices]

N = 4096  # N × N are 64 MiB
a, b = jnp.ones((N, 8)), jnp.ones((8, N))
measure("between", lambda a, b: (a @ b) @ a, a, b)
measure("results", lambda a, b: a @ b, a, b)
# No transposed left operand: for it, matrix products of jaxlib 0.12 allocate a workspace that XLA does not report.
measure("both", lambda a, b: (jnp.sin(a @ b) @ b.T, (a + 1) @ b), a, b)
measure("donated", lambda x: x + 1, jnp.ones((N, N)), donate=(0,))
measure("not donated", lambda x: x + 1, jnp.ones((N, N)))
measure("loop", lambda a, b: lax.scan(lambda c, row: (c + 1, c @ row[:, None]), a @ b, b)[1], a, b)
mesh = sw.make_mesh((2,), ("x",))
rows_cut = sw.device_put(np.ones((N, 8), np.float32), sw.NamedSharding(mesh, sw.P("x")))

def centered(a, b):
    c = (a @ b) @ b.T
    return c - c.sum()  # the devices wait for each other, so both hold their memory at the same time

measure("on two devices", centered, rows_cut, b, devices=2)
print(json.dumps(rows))
"""


class TestStages:
    def test_each_stage_has_its_text(self):
        traced = layer.trace(X, W)
        lowered = traced.lower()
        assert "tanh" in str(traced)
        assert "stablehlo.tanh" in lowered.as_text()
        assert "tanh" in lowered.as_text("program")
        assert "tanh" in lowered.as_text("local")
        assert "HloModule" in lowered.compile().as_text()

    def test_the_jaxpr_of_a_traced_function(self):
        scale = jnp.arange(3.0)
        closed = sw.jit(lambda x: jnp.sin(x) * scale).trace(np.ones(3, np.float32)).jaxpr
        assert [equation.primitive.name for equation in closed.jaxpr.eqns] == ["sin", "mul"]
        (result,) = sw.core.eval_jaxpr(closed.jaxpr, closed.consts, np.ones(3, np.float32))
        np.testing.assert_allclose(result, np.sin(1) * np.arange(3), rtol=1e-6)

    def test_compiled_function_returns_the_same_as_a_call(self):
        compiled = layer.lower(X, W).compile()
        np.testing.assert_array_equal(compiled(X, W)["out"], layer(X, W)["out"])

    def test_types_of_arguments_and_results(self):
        lowered = layer.lower(X, W)
        (x, w), keywords = lowered.args_info
        assert (x.shape, w["bias"].shape, keywords) == ((8, 4), (6,), {})
        assert lowered.out_info["out"].shape == (8, 6)
        assert layer.eval_shape(X, W)["out"].dtype == np.float32
        assert layer.trace(X, W).fun_name == "layer"

    def test_unknown_dialect_raises(self):
        with pytest.raises(ValueError, match=r"dialect must be one of 'program', 'sharded', .*, not 'mhlo'"):
            layer.lower(X, W).as_text("mhlo")

    def test_shape_dtype_structs_replace_arrays(self):
        like = sw.ShapeDtypeStruct((8, 4), np.float32)
        compiled = layer.lower(like, W).compile()
        np.testing.assert_array_equal(compiled(X, W)["out"], layer(X, W)["out"])

    def test_calling_with_a_shape_dtype_struct_raises(self):
        with pytest.raises(TypeError, match=r"argument `x` of `layer` .*ShapeDtypeStruct"):
            layer(sw.ShapeDtypeStruct((8, 4), np.float32), W)

    def test_compiler_options_reach_xla(self):
        def thirds(x):
            return x / 3.0 + x * 0.0

        x, fast = np.ones(5, np.float32), {"xla_cpu_enable_fast_math": True}  # for which the product is 0
        plain, asked = sw.jit(thirds).lower(x), sw.jit(thirds, compiler_options=fast).lower(x)
        slow = {"xla_cpu_enable_fast_math": False}
        texts = [
            lowered.compile(o).as_text() for lowered, o in ((plain, None), (asked, slow), (plain, fast), (asked, {}))
        ]
        assert texts[0] == texts[1] != texts[2] == texts[3]
        np.testing.assert_allclose(sw.jit(thirds, compiler_options=fast)(x), x / 3, rtol=1e-6)

    @pytest.mark.parametrize(
        ("options", "error", "text"),
        [
            ({"xla_fast": True}, ValueError, "compiler_options of `layer`: .*No such compile option: 'xla_fast'"),
            ({"xla_cpu_enable_fast_math": "maybe"}, ValueError, "'maybe' is not a valid bool value"),
            (
                {3: 4},
                TypeError,
                "compile: compiler_options must be a dict from names of XLA's options to strings and numb",
            ),
            ("fast", TypeError, "compile: compiler_options must be a dict from names"),
        ],
        ids=["unknown", "value", "name", "no dict"],
    )
    def test_unknown_compiler_options_raise(self, options, error, text):
        with pytest.raises(error, match=text):
            layer.lower(X, W).compile(options)

    def test_compiler_options_of_an_inner_jit_raise(self):
        f = sw.jit(lambda x: x * 2, compiler_options={"xla_cpu_enable_fast_math": True})
        assert float(f(3.0)) == 6.0
        for outer in (sw.jit(lambda x: f(x) + 1), sw.grad(f)):
            with pytest.raises(ValueError, match="has compiler_options, but is called inside another"):
                outer(3.0)

    def test_compiled_function_cannot_be_traced(self):
        compiled = sw.jit(jnp.sin).lower(1.0).compile()
        for outer, x in ((sw.jit(lambda x: compiled(x) * 2), 1.0), (sw.grad(compiled), 1.0), (sw.vmap(compiled), X[0])):
            with pytest.raises(
                TypeError, match="`sin` is compiled already and cannot be called inside a traced function"
            ):
                outer(x)

    def test_compiled_function_takes_no_static_arguments(self):
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
    def test_wrong_type_raises(self):
        compiled = layer.lower(X, W).compile()
        with pytest.raises(
            TypeError, match=r"argument `x` of `layer` is i32\[8,4\], but the function was compiled for f32\[8,4\]"
        ):
            compiled(X.astype(np.int32), W)

    def test_wrong_structure_raises(self):
        with pytest.raises(TypeError, match="`layer` was compiled for arguments of structure"):
            layer.lower(X, W).compile()(X)

    def test_wrong_sharding_raises(self, mesh):
        placed = sw.device_put(X, NamedSharding(mesh, P("data")))
        double = sw.jit(lambda x: x * 2)
        compiled = double.lower(placed).compile()
        np.testing.assert_array_equal(compiled(X), X * 2)  # uncommitted: it is resharded
        other = sw.device_put(X, NamedSharding(mesh, P(None, "data")))
        with pytest.raises(ValueError, match=r"has .*P\(None, 'data'\).*the function was compiled for .*P\('data'"):
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

    def test_memory_and_cost_are_per_device(self, mesh):
        x = sw.device_put(np.ones((1024, 256), np.float32), NamedSharding(mesh, P("data", "model")))
        compiled = sw.jit(lambda x: (x @ x.T).sum()).lower(x).compile()
        stats = compiled.memory_analysis()
        assert stats.argument_size_in_bytes == x.nbytes // 8
        assert stats.output_size_in_bytes == 4
        assert stats.temp_size_in_bytes >= 256 * 1024 * 4  # its rows of the product
        cost = compiled.cost_analysis()
        assert cost["flops"] >= 2 * 256 * 1024 * 128
        assert cost["wire bytes"] > 0

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "complex64", "int8"])
    def test_argument_and_output_sizes_are_those_of_the_shards(self, mesh, dtype):
        """Uneven dims include their padding, replicated arrays count fully, and unused arguments not at all."""
        whole = np.ones((10, 6), jnp.dtype(dtype))
        specs = (P("data"), P(None, "model"), P(), P(("data", "model")))
        args = [sw.device_put(whole, NamedSharding(mesh, spec)) for spec in specs]
        wanted = tuple(NamedSharding(mesh, spec) for spec in reversed(specs))
        compiled = sw.jit(lambda a, b, c, unused: (a, b, c, a), out_shardings=wanted).lower(*args).compile()
        results = compiled(*args)
        first = [[x.addressable_shards[0]._buffers.on_device_size_in_bytes() for x in xs] for xs in (args[:3], results)]
        stats = compiled.memory_analysis()
        assert stats.argument_size_in_bytes == sum(first[0])
        assert stats.output_size_in_bytes == sum(first[1]) + 8 * len(results)  # and their shardings

    def test_results_alias_donated_arguments(self, mesh):
        for x in (jnp.ones((64, 32)), sw.device_put(np.ones((64, 32), np.float32), NamedSharding(mesh, P("data")))):
            f = sw.jit(lambda x, y: (x + y, (x * y).sum()), donate_argnums=0)
            stats = f.lower(x, x + 1).compile().memory_analysis()
            one = x.addressable_shards[0].data.nbytes
            assert stats.alias_size_in_bytes == one and stats.argument_size_in_bytes == 2 * one
            rest = stats.output_size_in_bytes - one
            assert stats.peak_memory_in_bytes == 2 * one + rest + stats.temp_size_in_bytes
            assert sw.jit(lambda x: x + 1).lower(x).compile().memory_analysis().alias_size_in_bytes == 0

    @pytest.mark.slow
    @pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the kernel does not forget a peak")
    def test_memory_analysis_matches_resident_memory(self):
        """Compare memory_analysis with the process's peak resident memory; large allocations are mapped separately and
        returned to the system when they are freed."""
        environment = {
            **os.environ,
            "MALLOC_MMAP_THRESHOLD_": "262144",
            "MALLOC_TRIM_THRESHOLD_": "0",
            "XLA_FLAGS": "--xla_backend_optimization_level=0",
        }
        call = [sys.executable, "-c", TAKEN]
        run = subprocess.run(call, capture_output=True, text=True, timeout=300, check=False, env=environment)
        assert not run.returncode, run.stderr
        rows = json.loads(run.stdout)
        assert len(rows) == 7
        for name, (at_the_peak, afterwards, results, between) in rows.items():
            assert abs(at_the_peak - results - between) < 3 * 2**20, (name, at_the_peak, results, between)
            assert afterwards < results + 2**20 or between, (name, afterwards, results)
        assert rows["results"][2] == rows["between"][3] == 2**26 and rows["donated"][2] == 0

    def test_counts_before_xla(self):
        plan = layer.lower(X, W).cost_analysis()
        assert plan["flops"] == 2 * 8 * 4 * 6
        assert plan["wire bytes"] == 0


class TestAbstractMesh:
    def test_abstract_mesh_is_planned_and_lowered(self):
        mesh = AbstractMesh((64, 8), ("data", "model"))
        x = sw.ShapeDtypeStruct((1024, 512), np.float32, sharding=NamedSharding(mesh, P("data")))
        w = sw.ShapeDtypeStruct((512, 2048), np.float32, sharding=NamedSharding(mesh, P(None, "model")))
        lowered = sw.jit(lambda x, w: x @ w).lower(x, w)
        assert "tensor<16x512xf32>" in lowered.as_text()
        assert lowered.plan.outputs[0].shard_shape == (16, 256)
        with pytest.raises(ValueError, match="which has no devices, so it cannot be compiled"):
            lowered.compile()

    def test_device_put_on_an_abstract_mesh_raises(self):
        with pytest.raises(ValueError, match="has no devices"):
            sw.device_put(X, NamedSharding(AbstractMesh((4,), ("data",)), P("data")))

    def test_explain(self, capsys):
        mesh = AbstractMesh((512,), ("data",))
        x = sw.ShapeDtypeStruct((1024, 64), np.float32, sharding=NamedSharding(mesh, P("data")))
        plan = sw.explain(lambda x: x.sum(0))(x)
        assert plan.counts() == {"all_reduce": 1}

    def test_plan_does_not_depend_on_the_number_of_devices(self):
        def lowered(mesh):
            x = sw.ShapeDtypeStruct((4096, 64), np.float32, sharding=NamedSharding(mesh, P("data")))
            return sw.jit(lambda x: jnp.tanh(x).sum(0)).lower(x).as_text("plan")

        assert lowered(AbstractMesh((8,), ("data",))) == lowered(AbstractMesh((4096,), ("data",)))


def test_mesh_and_abstract_mesh_have_the_same_plan(mesh):
    assert isinstance(mesh, Mesh)
    texts = []
    for where in (mesh, mesh.abstract_mesh):
        x = sw.ShapeDtypeStruct((64, 64), np.float32, sharding=NamedSharding(where, P("data", "model")))
        texts.append(sw.jit(lambda x: x @ x.T).lower(x).as_text("local"))
    assert texts[0] == texts[1]


class TestArgumentInfo:
    def test_donation_and_types(self):
        lowered = sw.jit(lambda x, y: x + y, donate_argnums=0).lower(X, 1.0)
        (x, y), keywords = lowered.args_info
        assert (x.donated, x.shape, x.dtype, y.donated, keywords) == (True, (8, 4), np.float32, False, {})
        assert str(lowered.in_avals) == "((f32[8,4], f32[]~), {})"
        assert lowered.donate_argnums == (0,)
        assert lowered.args_info == lowered.compile().args_info != sw.jit(lambda x, y: x + y).lower(X, 1.0).args_info
        assert repr(y) == "ArgInfo(f32[]~, donated=False)"
        assert y == ArgInfo(sw.typeof(1.0), donated=False)

    def test_only_a_compiled_function_has_the_shardings_that_the_planner_chooses(self, mesh):
        rows = NamedSharding(mesh, P("data"))
        double = lambda x: x * 2  # noqa: E731
        lowered = sw.jit(double).lower(sw.device_put(X, rows))
        assert lowered.out_info == sw.ShapeDtypeStruct(X.shape, X.dtype)
        assert lowered.compile().out_info == sw.ShapeDtypeStruct(X.shape, X.dtype, sharding=rows)
        assert sw.jit(double, out_shardings=rows).lower(X).out_info.sharding == rows
        assert sw.jit(double).lower(X).out_info.sharding is None

    def test_donation_of_a_part_of_the_arguments(self):
        info = sw.jit(lambda x, *, y: x["a"] + y, donate_argnames="y").trace({"a": X}, y=X).args_info
        assert [leaf.donated for leaf in sw.tree.leaves(info)] == [False, True]

    def test_compiler_ir(self):
        lowered = layer.lower(X, W)
        assert "stablehlo.tanh" in str(lowered.compiler_ir())
        assert str(lowered.compiler_ir("stablehlo")) == str(lowered.compiler_ir())
        assert lowered.compiler_ir("local") == lowered.as_text("local")


class TestDevice:
    def test_arguments_are_transferred(self, mesh):
        device = sw.devices()[3]
        with pytest.warns(DeprecationWarning, match="device and backend are deprecated"):
            f = sw.jit(lambda x, y: (x + y, y), device=device)
        sharded = sw.device_put(X, NamedSharding(mesh, P("data")))
        for x in (X, sharded, sw.device_put(X, sw.devices()[1])):
            for result in f(x, 1.0):
                assert result.committed and result.sharding == SingleDeviceSharding(device)
            np.testing.assert_array_equal(f(x, 1.0)[0], np.asarray(X) + 1)
        compiled = f.lower(X, 1.0).compile()
        for x in (X, sharded):
            assert [result.devices() for result in compiled(x, 1.0)] == [{device}] * 2

    def test_backend(self):
        with pytest.warns(DeprecationWarning):
            f = sw.jit(jnp.sin, backend="cpu")
        assert f(X).devices() == {sw.devices("cpu")[0]}

    def test_errors(self):
        with pytest.raises(ValueError, match="either device or backend"):
            sw.jit(jnp.sin, device=sw.devices()[0], backend="cpu")
        with pytest.raises(ValueError, match="cannot be combined with in_shardings"):
            sw.jit(jnp.sin, backend="cpu", in_shardings=SingleDeviceSharding(sw.devices()[0]))


class TestShapeDtypeStruct:
    def test_like_update_and_len(self, mesh):
        rows = NamedSharding(mesh, P("data"))
        x = sw.ShapeDtypeStruct.like(sw.device_put(X, rows))
        assert (x.shape, x.dtype, x.sharding, len(x)) == ((8, 4), np.float32, rows, 8)
        assert sw.ShapeDtypeStruct.like(jnp.ones(2)).sharding is None
        assert sw.ShapeDtypeStruct.like(1.0).weak_type and sw.ShapeDtypeStruct.like(x) == x
        y = x.update(shape=(4, 4, 2), dtype=np.int32)
        assert y == sw.ShapeDtypeStruct((4, 4, 2), np.int32, sharding=rows)
        assert x.update(sharding=None, weak_type=True) == sw.ShapeDtypeStruct((8, 4), np.float32, weak_type=True)
        with pytest.raises(TypeError, match="no length"):
            len(sw.ShapeDtypeStruct((), np.float32))
        with pytest.raises(TypeError, match="unexpected keyword"):
            x.update(name="x")

    def test_bare_spec_is_on_the_current_mesh(self, mesh):
        x = sw.ShapeDtypeStruct((8, 4), np.float32, sharding=P("data"))
        with pytest.raises(TypeError, match="needs a mesh"):
            x.sharding  # noqa: B018
        with sw.set_mesh(mesh):
            assert x.sharding == NamedSharding(mesh, P("data"))
            lowered = sw.jit(lambda x: x * 2).lower(x)
        assert lowered.compile().out_info.sharding == NamedSharding(mesh, P("data"))
        with pytest.raises(ValueError, match="must be a Sharding or a PartitionSpec"):
            sw.ShapeDtypeStruct((8,), np.float32, sharding="data")


def test_reprs_of_stages_show_types_and_the_mesh(mesh):
    def scale(x, factors):
        return x * factors["a"], x

    x = sw.device_put(jnp.ones((4, 2)), NamedSharding(mesh, P("data")))
    traced = sw.jit(scale).trace(x, {"a": 2.0})
    lowered = traced.lower()
    call = "scale(f32[4,2], f32[]~) -> (f32[4,2], f32[4,2])"
    assert repr(traced) == f"<Traced {call}>"
    assert repr(lowered) == f"<Lowered {call} on {mesh.abstract_mesh}>"
    assert repr(lowered.compile()) == f"<Compiled {call} on {mesh.abstract_mesh}>"
    many = sw.jit(lambda xs: xs).trace([jnp.ones(1)] * 12)
    assert repr(many) == "<Traced <lambda>({0}, ... 4 more) -> ({0}, ... 4 more)>".format(", ".join(["f32[1]"] * 8))
    assert (
        repr(sw.jit(scale).lower(1.0, {"a": 2.0}))
        == "<Lowered scale(f32[]~, f32[]~) -> (f32[]~, f32[]~) on one device>"
    )


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_a_program_for_an_abstract_mesh_is_compiled_for_a_device_assignment(axis_type):
    mesh = sw.make_mesh((4, 2), ("x", "y"), axis_types=(axis_type,) * 2)
    bias = jnp.arange(4.0)
    struct = sw.ShapeDtypeStruct((8, 4), jnp.float32, sharding=NamedSharding(mesh.abstract, P("x")))
    lowered = sw.jit(lambda x: x * 2 + bias).trace(struct).lower(lowering_platforms=("tpu",))
    with pytest.raises(RuntimeError, match=r"has no devices.*device_assignment"):
        lowered.compile()
    x = sw.device_put(X, NamedSharding(mesh, P("x")))
    result = lowered.compile(device_assignment=tuple(mesh.devices.flat))(x)
    assert result.sharding == NamedSharding(mesh, P("x"))
    np.testing.assert_allclose(result, 2 * X + np.arange(4), rtol=1e-6)
    with pytest.raises(DeviceMismatchError, match=r"device_assignment has 1 devices.*which has 8"):
        lowered.compile(device_assignment=sw.devices()[:1])
    concrete = layer.lower(sw.device_put(X, NamedSharding(mesh, P("x"))), W)
    concrete.compile(device_assignment=mesh.devices.flat)
    with pytest.raises(DeviceMismatchError, match=r"the arguments of `layer` are on"):
        concrete.compile(device_assignment=sw.devices()[:1])
    with pytest.raises(ValueError, match="lowering_platforms must be a tuple of one name"):
        layer.trace(X, W).lower(lowering_platforms=("cpu", "tpu"))


def test_functions_are_lowered_for_types():
    lowered = sw.jit(lambda x: x + 1).lower(sw.typeof(jnp.ones((8, 4))))
    assert lowered.compile()(X).tolist() == (X + 1).tolist()


def test_compiled_functions_accept_arrays_with_their_in_shardings():
    rows = NamedSharding(sw.make_mesh((4,), ("x",)), P("x"))
    compiled = sw.jit(lambda x: x + 1, in_shardings=rows).lower(sw.ShapeDtypeStruct((8, 4), jnp.float32)).compile()
    for x in (X, sw.device_put(X, rows)):
        np.testing.assert_array_equal(compiled(x), X + 1)
    with pytest.raises(ValueError, match="was compiled for"):
        compiled(sw.device_put(X, sw.devices()[1]))


def test_lower_for_tracers():
    """Inside another trace, only the types of arguments matter."""
    texts = []

    @sw.jit
    def outer(x):
        texts.append(layer.lower(x, W).as_text())
        assert layer.eval_shape(x, W)["out"].shape == (x.shape[0], 6)
        return layer(x, W)["out"]

    np.testing.assert_array_equal(outer(X), layer(X, W)["out"])
    sw.vmap(lambda x: outer.function(x[None])[0])(X)
    sw.grad(lambda x: outer.function(x).sum())(jnp.array(X))
    assert texts[0] == texts[2] == layer.lower(X, W).as_text()
    assert "tensor<1x4xf32>" in texts[1]


def test_hlo_is_a_computation_of_xla():
    lowered = layer.lower(X, W)
    assert lowered.compiler_ir("hlo").as_hlo_text() == lowered.as_text("hlo")


class TestACallAfterCompile:
    """A call of the jitted function uses the executable of `lower(...).compile()`."""

    @pytest.fixture
    def compilations(self, caplog):
        with sw.log_compiles(True), caplog.at_level(logging.WARNING, "shardwise"):
            yield lambda: sum(record.getMessage().startswith("compiled `f`") for record in caplog.records)

    def test_is_not_compiled_again(self, compilations):
        @sw.jit
        def f(x):
            return x * 3

        shards = NamedSharding(Mesh(np.array(sw.devices()[:2]), ("x",)), P("x"))
        for x in (jnp.ones(4), sw.device_put(X, shards)):
            f.lower(x).compile().memory_analysis()  # the compiled function itself is dropped
            before = compilations()
            np.testing.assert_array_equal(f(x), 3 * np.asarray(x))
            assert compilations() == before
        f.clear_cache()
        f(X)
        assert compilations() == before + 1

    def test_of_structs(self, compilations):
        @sw.jit
        def f(x):
            return x * 3

        f.lower(sw.ShapeDtypeStruct((8, 4), np.float32)).compile()
        assert compilations() == 1
        np.testing.assert_array_equal(f(jnp.asarray(X)), 3 * X)
        assert compilations() == 1

    @pytest.mark.parametrize("change", ["sharding", "options", "captured"])
    def test_is_compiled_for_something_else(self, compilations, change):
        scale = jnp.full((), 3.0)

        @sw.jit
        def f(x):
            return x * scale

        x = sw.device_put(X, sw.devices()[0])
        options = {"xla_cpu_enable_fast_math": True} if change == "options" else None
        f.lower(x).compile(options)
        if change == "sharding":
            x = sw.device_put(X, sw.devices()[1])
        if change == "captured":
            scale = jnp.full((), 5.0)
            f.clear_cache()
        before = compilations()
        np.testing.assert_allclose(f(x), (5 if change == "captured" else 3) * X, rtol=1e-6)
        assert compilations() == before + 1
        assert f(x).sharding.device_set == x.sharding.device_set
