"""Context managers for settings: their effects, and that they are part of the cache keys."""

import logging
import threading
import warnings

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.errors import TransferError, TypePromotionError
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


def text_of(function, *args):
    return sw.jit(function).lower(*args).as_text()


def test_enable_x64():
    f = sw.jit(lambda x: x + jnp.arange(2.0))
    for expected in (np.float32, np.float64, np.float32):
        with sw.enable_x64(expected is np.float64):
            assert f(1.0).dtype == jnp.zeros(1).dtype == (jnp.ones(2) * 2.0).dtype == expected
    with sw.experimental.enable_x64():
        assert jnp.zeros(1).dtype == np.float64
        with sw.experimental.disable_x64():
            assert jnp.zeros(1).dtype == np.float32


def test_contexts_decorate_functions():
    @sw.enable_x64(True)
    def zeros():
        return jnp.zeros(1).dtype

    assert (zeros(), zeros(), jnp.zeros(1).dtype) == (np.float64, np.float64, np.float32)


def test_settings_are_thread_local():
    found = []
    with sw.enable_x64(True), sw.disable_jit():
        thread = threading.Thread(target=lambda: found.append((jnp.zeros(1).dtype, sw.config.disable_jit)))
        thread.start()
        thread.join()
    assert found == [(np.float32, False)]


X = np.ones((2, 2), np.float32)
PRODUCTS = {
    "matmul": lambda x: x @ x,
    "dot": lambda x: jnp.dot(x, x),
    "einsum": lambda x: jnp.einsum("ij,jk", x, x),
    "dot_general": lambda x: lax.dot_general(x, x, (((1,), (0,)), ((), ()))),
    "conv": lambda x: lax.conv(x[None, None], x[None, None], (1, 1), "SAME"),
    "gradient": sw.grad(lambda x: (x @ x).sum()),
    "batched": sw.vmap(lambda x: jnp.vdot(x, x)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_default_matmul_precision(name):
    function = PRODUCTS[name]
    assert "HIGH" not in text_of(function, X)
    with sw.default_matmul_precision("float32"):
        text = text_of(function, X)
        assert "HIGHEST" in text and "DEFAULT" not in text
    with sw.default_matmul_precision("tensorfloat32"):
        assert "HIGHEST" not in text_of(function, X) and "HIGH" in text_of(function, X)
    assert "HIGH" not in text_of(function, X)


def test_explicit_precision_is_kept():
    with sw.default_matmul_precision("highest"):
        assert "HIGH" not in text_of(lambda x: jnp.dot(x, x, precision="default"), X)
        assert "HIGH" not in text_of(lambda x: jnp.dot(x, x, precision=lax.Precision.DEFAULT), X)


def test_derivatives_use_the_current_settings():
    """The program of the derivative is cached, but its products depend on the setting."""

    def pulled(x):
        return sw.grad(lambda y: jnp.linalg.inv(y).sum())(x)

    x = np.eye(3, dtype=np.float32) + 1
    assert "HIGH" not in text_of(pulled, x)
    with sw.default_matmul_precision("highest"):
        assert "HIGHEST" in text_of(pulled, x)
    assert "HIGH" not in text_of(pulled, x)


PAIRS = {
    "float and integer": (np.float32(1), np.int32(1), False),
    "wide and narrow float": (np.float32(1), np.float16(1), False),
    "boolean and integer": (np.bool_(True), np.int32(1), False),
    "equal": (np.float32(1), np.float32(1), True),
    "float and int": (np.float32(1), 1, True),
    "narrow float and float": (np.float16(1), 1.5, True),
    "integer and int": (np.int32(1), 1, True),
    "integer and float": (np.int32(1), 1.5, False),
    "complex and float": (np.complex64(1), 1.5, True),
    "boolean and int": (np.bool_(True), 1, False),
}


@pytest.mark.jax
@pytest.mark.parametrize("name", PAIRS)
def test_strict_promotion_matches_jax(name):
    jax = pytest.importorskip("jax")
    left, right, fits = PAIRS[name]

    def dtype(namespace, error):
        args = [namespace.asarray(x) if isinstance(x, np.generic) else x for x in (left, right)]
        try:
            return namespace.add(*args).dtype
        except error:
            return None

    with sw.numpy_dtype_promotion("strict"), jax.numpy_dtype_promotion("strict"):
        ours, theirs = dtype(jnp, TypePromotionError), dtype(jax.numpy, jax.dtypes.TypePromotionError)
    assert (ours is not None) == fits
    assert ours == theirs
    assert dtype(jnp, ()) is not None


def test_strict_promotion_error_text():
    with sw.numpy_dtype_promotion("strict"), pytest.raises(TypePromotionError) as caught:
        jnp.ones(2) + jnp.arange(2)
    assert str(caught.value).startswith(
        "add: f32[2] and i32[2] have no common dtype by promotion (numpy_dtype_promotion is strict); convert one"
    )
    assert (jnp.ones(2) + jnp.arange(2)).dtype == np.float32


def test_library_functions_work_with_strict_promotion():
    x = jnp.linspace(0.0, 1.0, 6).reshape(2, 3)
    with sw.numpy_dtype_promotion("strict"), sw.numpy_rank_promotion("raise"):
        found = [
            x.mean(0),
            jnp.var(x),
            sw.nn.softmax(x),
            jnp.sort(x),
            jnp.cumsum(x, 1),
            jnp.where(x > 0.5, x, 0.0),
            sw.grad(lambda y: (y**2).sum())(x),
            jnp.concatenate([x, x]),
            x[:, 1],
            jnp.clip(x, 0, 0.5),
            sw.nn.gelu(x),
        ]
    assert [y.dtype for y in found] == [np.float32] * len(found)


def test_rank_promotion():
    a, b = jnp.ones((2, 3)), jnp.ones(3)
    with sw.numpy_rank_promotion("raise"):
        with pytest.raises(ValueError) as caught:
            a + b
        assert str(caught.value).startswith(
            "add: shapes (2, 3) and (3,) differ in rank, and numpy_rank_promotion is 'raise': add dims of size 1"
        )
        assert (a + b[None] + 1.0).shape == (a * jnp.ones(())).shape == (2, 3)
    with sw.numpy_rank_promotion("warn"), pytest.warns(UserWarning, match="differ in rank"):
        a * b
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        a - b


def test_default_device(mesh):
    one, other = sw.devices()[:2]
    made, moved = sw.jit(lambda: jnp.arange(3)), sw.jit(lambda x: x + 1)
    there = sw.device_put(np.ones(2, np.float32), sw.devices()[2])
    spread = sw.device_put(np.ones(8, np.float32), NamedSharding(mesh, P("data")))
    free = jnp.ones(2)
    for device in (one, other, one):
        with sw.default_device(device):
            found = [jnp.zeros(2), jnp.asarray(X), made(), moved(1.0), moved(free), free * 2, jnp.array([1.0])]
            assert [x.device for x in found] == [device] * len(found)
            assert not any(x.committed for x in found)
            assert moved(there).device == sw.devices()[2]  # committed: it stays
            assert moved(spread).sharding.device_set == set(mesh.devices.flat)
    with sw.default_device("cpu"):
        assert jnp.zeros(2).device == sw.devices("cpu")[0]
    np.testing.assert_array_equal(free, [1, 1])


@pytest.mark.parametrize(("name", "bad"), [("debug_nans", np.nan), ("debug_infs", np.inf)])
def test_debug_nans_and_infs(name, bad):
    f = sw.jit(lambda x: x / jnp.zeros(2) * (0.0 if np.isnan(bad) else 1.0))
    x = jnp.ones(2)
    f(x)
    with getattr(sw, name)(True), pytest.raises(FloatingPointError, match=r"test_config_contexts\.py"):
        f(x)
    f(x)


def test_compilations_are_logged(caplog):
    x = jnp.ones(5)
    with caplog.at_level(logging.WARNING, "shardwise"):
        sw.jit(lambda x: x + 3)(x)
        assert not caplog.records
        with sw.log_compiles(True):
            sw.jit(lambda x: x + 4)(x)
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "compiled `<lambda>` for f32[5] in SingleDeviceSharding(cpu:0) on 1 devices: XLA took 0."
    )


def transfers(mesh):
    x, f = jnp.ones(2), sw.jit(lambda x: x + 1)
    spread = sw.jit(lambda x: x * 2, out_shardings=NamedSharding(mesh, P("data")))
    whole = jnp.ones(8)
    other = sw.devices()[2]
    return {
        "numpy argument": ("host_to_device", False, lambda: f(X)),
        "number": ("host_to_device", False, lambda: x + 1),
        "asarray": ("host_to_device", False, lambda: jnp.asarray(X)),
        "device_put": ("host_to_device", True, lambda: sw.device_put(X)),
        "device_put on a device": ("host_to_device", True, lambda: sw.device_put(X, other)),
        "to a mesh": ("device_to_device", False, lambda: spread(whole)),
        "device_put of an array": ("device_to_device", True, lambda: sw.device_put(x, other)),
        "numpy": ("device_to_host", False, lambda: np.asarray(x)),
        "float": ("device_to_host", False, lambda: float(x.sum())),
        "tolist": ("device_to_host", False, x.tolist),
        "device_get": ("device_to_host", True, lambda: sw.device_get(x)),
    }


NAMES = [
    "numpy argument",
    "number",
    "asarray",
    "device_put",
    "device_put on a device",
    "to a mesh",
    "device_put of an array",
    "numpy",
    "float",
    "tolist",
    "device_get",
]


@pytest.mark.parametrize("name", NAMES)
def test_transfers_are_guarded(name, mesh, caplog):
    direction, explicit, run = transfers(mesh)[name]
    run()
    guard = getattr(sw, f"transfer_guard_{direction}")
    with guard("allow"):
        run()
    for level, is_refused in (("disallow", not explicit), ("disallow_explicit", True)):
        with guard(level):
            if is_refused:
                with pytest.raises(TransferError, match=f"from {direction.replace('_', ' ')} is disallowed here"):
                    run()
            else:
                run()
    with guard("log"), caplog.at_level(logging.WARNING, "shardwise"):
        run()
    assert bool(caplog.records) == (not explicit)
    with sw.transfer_guard("disallow_explicit"), pytest.raises(TransferError):
        run()
    for other in {"host_to_device", "device_to_device", "device_to_host"} - {direction}:
        with getattr(sw, f"transfer_guard_{other}")("disallow_explicit"):
            run()


def test_arrays_that_do_not_move_pass_every_guard(mesh):
    x = sw.device_put(np.ones(8, np.float32), NamedSharding(mesh, P("data")))
    f, made = sw.jit(lambda x: (x @ x, sw.grad(lambda y: (y**3).sum())(x))), sw.jit(lambda: jnp.arange(4))
    f(x), made()
    with sw.transfer_guard("disallow_explicit"):
        for _ in range(2):
            f(x), made(), x + x, jnp.zeros(3), sw.device_put(x, x.sharding)


def test_ensure_compile_time_eval():
    @sw.jit
    def f(x):
        with sw.ensure_compile_time_eval():
            size = int(jnp.arange(4).sum())
        return x * jnp.ones(size)

    assert f(2.0).tolist() == [2.0] * 6


def test_ensure_compile_time_eval_records_ops_on_tracers():
    seen = []

    @sw.jit
    def f(x):
        with sw.ensure_compile_time_eval():
            table = jnp.arange(3.0) + 1
            seen.append(table)
            y = jnp.sin(x) * table + sw.jit(jnp.sum)(table)
        return y

    expected = np.sin(np.float32(2.0)) * np.array([1.0, 2.0, 3.0]) + 6
    np.testing.assert_allclose(f(2.0), expected, rtol=1e-6)
    assert isinstance(seen[0], sw.Array) and seen[0].tolist() == [1.0, 2.0, 3.0]
    np.testing.assert_allclose(sw.grad(lambda x: f(x).sum())(2.0), 6 * np.cos(np.float32(2.0)), rtol=1e-6)
    np.testing.assert_allclose(sw.vmap(f)(jnp.array([2.0, 2.0])), [expected, expected], rtol=1e-6)


def test_ensure_compile_time_eval_is_a_decorator():
    @sw.ensure_compile_time_eval()
    def total(n):
        return int(jnp.arange(n).sum())

    assert sw.jit(lambda x: x * total(4))(2.0) == 12.0
    assert total(3) == 3


def test_named_call_is_a_scope():
    text = text_of(sw.named_call(jnp.sin, name="wave"), X)
    assert 'loc("wave/test_config_contexts.py:' in text

    def ripple(x):
        return jnp.cos(x)

    assert 'loc("ripple/test_config_contexts.py:' in text_of(sw.named_call(ripple), X)


def test_no_tracing():
    f = sw.jit(lambda x: x + 1)
    assert f(jnp.ones(3)).shape == (3,)
    with sw.no_tracing():
        assert f(jnp.zeros(3)).shape == (3,)
        with pytest.raises(RuntimeError, match=r"no_tracing is set, so `<lambda>` .* of types f32\[4\]"):
            f(jnp.ones(4))
    assert f(jnp.ones(4)).shape == (4,)


def test_no_execution():
    f = sw.jit(lambda: jnp.ones(3))
    f()
    with sw.no_execution(), pytest.raises(RuntimeError, match="no_execution is set, so `<lambda>` cannot run here"):
        f()
    assert f().shape == (3,)


def test_check_static_indices():
    x = jnp.arange(12).reshape(3, 4)
    assert int(x[5, 0]) == 8  # the nearest element
    with sw.check_static_indices():
        assert int(x[-3, 3]) == 3
        for index in (3, -4, (0, 4), (slice(None), -5)):
            with pytest.raises(IndexError, match=r"is out of bounds for dim \d of i32\[3,4\]"):
                x[index]
            with pytest.raises(IndexError):
                sw.jit(lambda x, index=index: x[index])(x)
        assert int(x.at[5, 0].get(mode="clip")) == 8
        assert int(x[jnp.array(5), 0]) == 8  # not static
    assert int(sw.jit(lambda x: x[5, 0])(x)) == 8


def test_random_bits_are_always_partitionable():
    expected = sw.random.bits(sw.random.key(0))
    with sw.threefry_partitionable(True):
        assert sw.random.bits(sw.random.key(0)) == expected
    with pytest.raises(NotImplementedError, match="random bits never depend on the sharding"):
        sw.threefry_partitionable(False).__enter__()


@pytest.mark.parametrize(
    "name", ["log_compiles", "debug_nans", "debug_infs", "explain_cache_misses", "debug_key_reuse", "enable_x64"]
)
def test_a_context_of_a_switch_turns_it_on(name):
    with getattr(sw, name)():
        assert sw.config.read(name) if name != "enable_x64" else sw.numpy.ones(2).dtype == "float64"
