"""eval_shape, make_jaxpr, typeof, disable_jit, device_get, block_until_ready."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.compiler.ir.parse import parse_program
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


@pytest.mark.parametrize("shape", [(8, "4"), (8, 4.5), 8, None], ids=str)
def test_the_shape_of_a_struct_consists_of_integers(shape):
    with pytest.raises(TypeError, match="ShapeDtypeStruct: the shape must be a sequence of integers, not"):
        sw.ShapeDtypeStruct(shape, jnp.float32)
    assert sw.ShapeDtypeStruct([np.int64(8), 4], jnp.float32).shape == (8, 4)


def test_eval_shape_computes_nothing():
    huge = sw.ShapeDtypeStruct((10**6, 10**6), jnp.float32)
    out = sw.eval_shape(lambda t, s: {"y": t["x"] @ t["x"], "n": (t["x"] > s).sum(axis=0)}, {"x": huge}, 2.0)
    assert out["y"] == huge
    assert (out["n"].shape, out["n"].dtype) == ((10**6,), np.int32)
    with pytest.raises(TypeError, match="do not broadcast"):
        sw.eval_shape(lambda x, y: x + y, np.ones(3), np.ones(4))


def test_shape_dtype_struct():
    s = sw.ShapeDtypeStruct((2, 3), np.float64)
    assert (s.shape, s.dtype, s.ndim, s.size, s.weak_type) == ((2, 3), np.float32, 2, 6, False)
    assert s == sw.ShapeDtypeStruct([2, 3], "float32")
    assert hash(s) == hash(sw.ShapeDtypeStruct((2, 3), "float32"))
    assert repr(s) == "ShapeDtypeStruct(shape=(2, 3), dtype=float32)"
    with pytest.raises(ValueError, match="needs a dtype"):
        sw.ShapeDtypeStruct((2,), None)


def test_make_jaxpr_prints_the_program():
    captured = jnp.ones(3)
    made, shape = sw.make_jaxpr(lambda x, n: jnp.exp(x) * n + captured, static_argnums=1, return_shape=True)(
        np.ones(3, np.float32), 2
    )
    assert "exp a" in str(made)
    assert parse_program(str(made)) == made.program
    assert len(made.consts) == 1 and made.consts[0] is captured
    assert shape.shape == (3,)


def test_typeof():
    assert str(sw.typeof(jnp.ones((2, 3)))) == "f32[2,3]"
    assert str(sw.typeof(2)) == "i32[]~"
    sw.jit(lambda x: (sw.typeof(x) is sw.typeof(jnp.ones(3)) or pytest.fail("types are interned"), x)[1])(jnp.ones(3))


def test_disable_jit_runs_python():
    seen = []

    @sw.jit
    def f(x):
        seen.append(float(x) if sw.tree.leaves(x) and not repr(x).startswith("Traced") else "traced")
        return x * 2

    with sw.disable_jit():
        assert float(f(3.0)) == 6.0
    f(3.0)
    assert seen == [3.0, "traced"]


def test_device_get_and_block_until_ready(mesh):
    x = sw.device_put(np.arange(8.0, dtype=np.float32), NamedSharding(mesh, P("data")))
    got = sw.device_get({"x": x, "s": "text"})
    assert isinstance(got["x"], np.ndarray) and got["s"] == "text"
    np.testing.assert_array_equal(got["x"], np.arange(8))
    tree = [x, x + 1, 3]
    assert sw.block_until_ready(tree) is tree


def test_a_jitted_function_accepts_a_struct_while_another_function_is_traced():
    add_one = sw.jit(lambda x: x + 1)
    x = sw.ShapeDtypeStruct((3,), np.float32)
    assert sw.eval_shape(lambda: add_one(x)) == x
    assert str(sw.make_jaxpr(lambda: add_one(x))().out_avals) == "[f32[3]]"
    for function in (lambda: add_one(x), lambda: jnp.sin(x)):
        for run in (lambda jitted: jitted(), lambda jitted: jitted.lower()):
            with pytest.raises(
                TypeError, match=r"uses ShapeDtypeStruct\(.*\) as an array: it has a type, but no elements"
            ):
                run(sw.jit(function))
    with pytest.raises(TypeError, match="argument `x` of `<lambda>`"):
        add_one(x)
