"""inside_jax.jit: real JAX traces and runs, Shardwise plans."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from shardwise.errors import DeviceMismatchError, ShardingError, UnsupportedError

jax = pytest.importorskip("jax")
jnp = jax.numpy

from shardwise import inside_jax  # noqa: E402
from tests.inside_jax.steps import SPECS, arguments, assert_equal, auto_mesh, loss, step  # noqa: E402

NamedSharding, P = jax.sharding.NamedSharding, jax.sharding.PartitionSpec

from tests.process_faults.groups import free_port  # noqa: E402

pytestmark = pytest.mark.jax

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def mesh():
    return auto_mesh()


@pytest.fixture(scope="module")
def arrays():
    return arguments()


def test_a_training_step(arrays):
    ours = inside_jax.jit(step)
    assert_equal(ours(*arrays), jax.jit(step)(*arrays))
    assert [x.sharding.spec for x in ours(*arrays)] == [*SPECS[:2], P()]


def test_requested_shardings_of_results(arrays, mesh):
    replicated = NamedSharding(mesh, P())
    results = inside_jax.jit(step, out_shardings=replicated)(*arrays)
    assert all(x.sharding.spec == P() for x in results)
    assert_equal(results, jax.jit(step)(*arrays))


def test_static_keyword_and_donated_arguments(arrays):
    def scale(x, factor, *, power=1, shift):
        return {"y": x**power * factor + shift["a"]}

    ours = inside_jax.jit(scale, static_argnums=1, static_argnames="power", donate_argnums=0)
    x = arrays[2] + 0
    expected = scale(x, 3, power=2, shift={"a": 1.0})
    assert_equal(ours(x, 3, power=2, shift={"a": 1.0}), expected)
    assert x.is_deleted()


def test_arguments_that_nobody_placed(arrays):
    x = arrays[2]
    assert_equal(
        inside_jax.jit(lambda x, w, s: x @ w * s)(x, np.ones((12, 3), np.float32), 2.0),
        x @ jnp.ones((12, 3)) * 2.0,
    )


def test_one_device():
    assert_equal(inside_jax.jit(jnp.sin)(jnp.arange(3.0)), jnp.sin(jnp.arange(3.0)))


def test_keys_cross_the_boundary(mesh):
    keys = jax.device_put(jax.random.split(jax.random.key(3), 8), NamedSharding(mesh, P("data")))

    def draw(keys):
        return jax.vmap(lambda key: jax.random.normal(key, (3,)))(keys), jax.random.split(keys[0])

    normal, split = inside_jax.jit(draw)(keys)
    expected_normal, expected_split = draw(keys)
    np.testing.assert_allclose(normal, expected_normal, rtol=1e-6)
    assert split.dtype == expected_split.dtype
    np.testing.assert_array_equal(jax.random.key_data(split), jax.random.key_data(expected_split))


def test_gradients(arrays):
    theirs = jax.grad(loss, argnums=(0, 1))(*arrays)
    assert_equal(jax.grad(inside_jax.jit(loss), argnums=(0, 1))(*arrays), theirs)
    assert_equal(jax.grad(jax.checkpoint(inside_jax.jit(loss)), argnums=(0, 1))(*arrays), theirs)


def test_second_derivatives():
    def function(x):
        return jnp.sum(jnp.sin(x) ** 3)

    assert_equal(jax.hessian(inside_jax.jit(function))(jnp.arange(3.0)), jax.hessian(function)(jnp.arange(3.0)))


def test_forward_mode(arrays):
    tangents = [x * 0.1 for x in arrays]
    assert_equal(jax.jvp(inside_jax.jit(loss), arrays, tangents), jax.jvp(loss, arrays, tangents))


def test_batching(arrays):
    batched = [*arrays[:2], arrays[2][:, None], arrays[3][:, None]]
    axes = (None, None, 0, 0)
    assert_equal(jax.vmap(inside_jax.jit(loss), axes)(*batched), jax.vmap(loss, axes)(*batched))


def test_batching_with_an_axis_name(arrays):
    x = arrays[-1]
    centred = inside_jax.jit(lambda row: row - jax.lax.pmean(row, "batch") + jax.lax.axis_index("batch"))
    expected = np.asarray(x) - np.mean(x, 0) + np.arange(len(x)).reshape(-1, *[1] * (x.ndim - 1))
    assert_equal(jax.vmap(centred, axis_name="batch")(x), expected)


def test_batching_along_a_mesh_axis(mesh):
    x = jax.device_put(np.arange(32, dtype=np.float32).reshape(8, 4), NamedSharding(mesh, P("data", "model")))
    total = inside_jax.jit(lambda row: jnp.sin(row).sum(), in_shardings=NamedSharding(mesh, P("model")))
    mapped = jax.jit(jax.vmap(total, spmd_axis_name="data"))
    result = mapped(x)
    assert result.sharding.spec == P("data")
    assert "all-gather" not in mapped.lower(x).compile().as_text()
    np.testing.assert_allclose(result, np.sin(x).sum(1), rtol=1e-5)


def test_a_transformation_is_lowered_and_explained_as_itself(arrays):
    """JAX copies the attributes of a function to its transformations."""
    gradient = jax.grad(inside_jax.jit(loss, in_shardings=[x.sharding for x in arrays]))
    shape = arrays[0].shape
    assert jax.jit(gradient).lower(*arrays).out_info.shape == shape
    assert jax.jit(gradient).trace(*arrays).out_info.shape == shape
    explanation = inside_jax.explain(gradient, advise=False)(*arrays)
    assert [type.shape for type in explanation.stages.out_types] == [shape]


def test_methods():
    class Model:
        @inside_jax.jit
        def scaled(self, x):
            return self.scale * x

        scale = 3.0

    jax.tree_util.register_pytree_node(Model, lambda _: ((), None), lambda *_: Model())
    assert_equal(Model().scaled(jnp.arange(3.0)), 3 * jnp.arange(3.0))


def test_lower_trace_and_eval_shape(arrays):
    ours = inside_jax.jit(loss)
    assert_equal(ours.lower(*arrays).compile()(*arrays), loss(*arrays))
    assert ours.trace(*arrays).jaxpr.out_avals[0].shape == ours.eval_shape(*arrays).shape == ()
    ours(*arrays)
    ours.clear_cache()
    assert_equal(ours(*arrays), loss(*arrays))


@pytest.mark.parametrize("mixed", ["argument", "out_shardings", "constraint", "set_mesh"])
def test_committed_arrays_on_other_devices_are_an_error(mesh, mixed):
    x = jax.device_put(np.ones((8, 4), np.float32), jax.devices()[3])
    rows = NamedSharding(mesh, P("data"))
    calls = {
        "argument": lambda jit: jit(lambda x, y: x + y)(x, jax.device_put(np.ones((8, 4), np.float32), rows)),
        "out_shardings": lambda jit: jit(jnp.sin, out_shardings=rows)(x),
        "constraint": lambda jit: jit(lambda x: jax.lax.with_sharding_constraint(x, rows))(x),
        "set_mesh": lambda jit: jit(jnp.sin)(x),
    }
    with jax.set_mesh(mesh) if mixed == "set_mesh" else nullcontext():
        with pytest.raises(ValueError, match="incompatible devices"):
            calls[mixed](jax.jit)
        with pytest.raises(DeviceMismatchError, match=r"x is committed to SingleDeviceSharding.*`jax.device_put`"):
            calls[mixed](inside_jax.jit)


def test_the_memory_of_results(mesh):
    host = NamedSharding(mesh, P("data"), memory_kind="pinned_host")
    x = jax.device_put(np.ones((8, 4), np.float32), NamedSharding(mesh, P("data")))
    result = inside_jax.jit(lambda x: x + 1, out_shardings=host)(x)
    assert result.sharding == host
    np.testing.assert_array_equal(result, np.asarray(x) + 1)


def test_inside_jax_jit(arrays, mesh):
    shardings = [NamedSharding(mesh, spec) for spec in SPECS]
    ours = inside_jax.jit(loss, in_shardings=shardings)
    outer = jax.jit(jax.value_and_grad(ours, argnums=(0, 1)))
    assert_equal(outer(*arrays), jax.value_and_grad(loss, argnums=(0, 1))(*arrays))


@pytest.mark.table(default=1)
@pytest.mark.parametrize("check_vma", [False, True])
def test_inside_shard_map_a_function_of_shards_needs_no_plan(mesh, check_vma):
    def function(x):
        return jnp.sin(x) - jax.lax.psum(x, "data")

    def mapped(function):
        rows = P("data", "model")
        return jax.shard_map(function, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=check_vma)

    x = jax.device_put(np.arange(32, dtype=np.float32).reshape(8, 4), NamedSharding(mesh, P("data", "model")))
    ours = mapped(lambda x: inside_jax.jit(function)(x) + 1)
    theirs = mapped(lambda x: function(x) + 1)
    assert_equal(jax.jit(ours)(x), jax.jit(theirs)(x))
    assert_equal(inside_jax.jit(ours)(x), jax.jit(theirs)(x))
    assert_equal(jax.grad(lambda x: ours(x).sum())(x), jax.grad(lambda x: theirs(x).sum())(x))


def test_inside_jax_jit_without_shardings_is_an_error(arrays):
    ours = inside_jax.jit(loss)
    with pytest.raises(ShardingError, match="nothing states the sharding of w1"):
        jax.jit(ours)(*arrays)


@pytest.mark.parametrize("place", [np.asarray, jnp.asarray], ids=["numpy", "uncommitted"])
def test_inside_jax_jit_arguments_are_placed_on_the_mesh(arrays, mesh, place):
    """JAX derives the devices of the outer program from the shardings of the call."""
    host = [place(np.asarray(x)) for x in arrays]
    ours = inside_jax.jit(loss, in_shardings=[NamedSharding(mesh, spec) for spec in SPECS])
    assert_equal(jax.jit(lambda *args: ours(*args) + 1)(*host), loss(*host) + 1)
    assert_equal(jax.jit(jax.grad(ours))(*host), jax.grad(loss)(*host))


def test_inside_jax_jit_arguments_on_other_devices_are_an_error(arrays, mesh):
    ours = inside_jax.jit(loss, in_shardings=[NamedSharding(mesh, spec) for spec in SPECS])
    elsewhere = [jax.device_put(np.asarray(x), jax.devices()[1]) for x in arrays]
    with pytest.raises(ValueError, match="Received incompatible devices for jitted computation"):
        jax.jit(lambda *args: ours(*args) + 1)(*elsewhere)


@pytest.mark.parametrize("requested", [False, True], ids=["constraint", "out_shardings"])
def test_inside_jax_jit_a_call_without_arguments(mesh, requested):
    rows = NamedSharding(mesh, P("data"))

    def function():
        x = jnp.arange(8.0)
        return x if requested else jax.lax.with_sharding_constraint(x, rows)

    ours = inside_jax.jit(function, **({"out_shardings": rows} if requested else {}))
    result = jax.jit(lambda: ours() + 1)()
    assert result.sharding.spec == P("data")
    np.testing.assert_array_equal(result, np.arange(8) + 1)


def test_explicit_types(arrays, mesh):
    explicit = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    with jax.set_mesh(explicit):
        args = [
            jax.device_put(np.asarray(x), spec)
            for x, spec in zip(arrays[:3:2], (P(None, "model"), P("data")), strict=True)
        ]
        ours = inside_jax.jit(lambda w, x: jnp.tanh(x @ w))
        theirs = jax.jit(lambda w, x: jnp.tanh(x @ w))(*args)
        assert_equal(ours(*args), theirs)
        assert ours(*args).sharding.spec == theirs.sharding.spec
        assert_equal(jax.jit(lambda *args: ours(*args) + 1)(*args), theirs + 1)


def test_a_mesh_that_only_the_function_names(mesh):
    def function(x):
        return jax.lax.with_sharding_constraint(jnp.sin(x), NamedSharding(mesh, P("data"))) + 1

    x = np.ones((8, 4), np.float32)
    result = inside_jax.jit(function)(x)
    assert result.sharding.spec == P("data")
    np.testing.assert_allclose(result, np.sin(x) + 1, rtol=1e-6)


def sharded_along_both():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    return jax.device_put(
        np.arange(16 * 8 * 6, dtype=np.float32).reshape(16, 8, 6), NamedSharding(mesh, P("data", "model"))
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jax.sharding.reshard(x, P()) * 2,
        lambda x: jax.sharding.reshard(x, P(None, "data")) + 1,
        lambda x: x.sum(0),
        lambda x: x.transpose(1, 0, 2),
        lambda x: jnp.zeros((16, 8)) + x.sum(),
        lambda x: jax.sharding.reshard(
            jnp.einsum("abc,abd->cd", x, x, out_sharding=P(unreduced={"data", "model"})), P()
        ),
    ],
    ids=["replicated", "moved", "sum", "transpose", "zeros", "unreduced"],
)
def test_results_have_the_types_of_jax(function):
    x = sharded_along_both()
    with jax.set_mesh(x.sharding.mesh):
        ours, theirs = inside_jax.jit(function)(x), jax.jit(function)(x)
    assert jax.typeof(ours) == jax.typeof(theirs)
    assert ours.sharding.is_equivalent_to(theirs.sharding, ours.ndim)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_an_unreduced_result_is_an_error():
    x = sharded_along_both()
    with (
        jax.set_mesh(x.sharding.mesh),
        pytest.raises(UnsupportedError, match=r"result 0 is .*, a sum that is not reduced yet"),
    ):
        inside_jax.jit(lambda x: jnp.einsum("abc,abd->cd", x, x, out_sharding=P(unreduced={"data", "model"})))(x)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_processes_agree(count):
    port = str(free_port())
    unset = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.inside_jax.process_worker", str(rank), str(count), port],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**unset, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
        )
        for rank in range(count)
    ]
    outputs = [worker.communicate(timeout=300) for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * count, outputs
    said = [json.loads(out[out.index('{"module"') :].splitlines()[0]) for out, _ in outputs]
    assert all(each == said[0] for each in said)
    expected = jax.jit(step)(*arguments())
    np.testing.assert_allclose(said[0]["loss"], expected[2], rtol=2e-5)
    np.testing.assert_allclose(said[0]["sums"], [abs(x).sum() for x in expected], rtol=2e-5)
