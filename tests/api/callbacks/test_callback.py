"""Host callbacks: called once, in order, with unsharded values; their errors reach the caller."""

from contextlib import redirect_stdout

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw
from shardwise import lax
from shardwise import numpy as jnp
from shardwise.experimental import io_callback as io_callback_as_jax_has_it
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

SCALAR = sw.ShapeDtypeStruct((), np.float32)


@pytest.fixture
def mesh():
    return sw.make_mesh((4, 2), ("data", "model"))


@pytest.fixture
def rows(mesh):
    """30 rows sharded unevenly over 4 devices."""
    return sw.device_put(np.arange(30, dtype=np.float32), NamedSharding(mesh, P("data")))


class Log:
    """Records its arguments."""

    def __init__(self):
        self.seen = []

    def __call__(self, *args):
        self.seen.append(args[0].tolist() if len(args) == 1 else tuple(x.tolist() for x in args))


def watched(log, ordered=False):
    def function(x):
        sw.debug.callback(log, x, ordered=ordered)
        return x * x

    return function


class TestHowOften:
    """Each effect happens as often as in the same program run by Python on one device."""

    @pytest.mark.parametrize("ordered", [False, True])
    @pytest.mark.parametrize(
        "transformed",
        [
            lambda f: f,
            sw.jit,
            lambda f: sw.jit(sw.jit(f)),
            sw.grad,
            lambda f: sw.grad(sw.jit(f)),
            lambda f: sw.jit(sw.grad(f)),
            lambda f: sw.grad(sw.grad(f)),
            lambda f: sw.jit(sw.grad(sw.grad(f))),
            lambda f: sw.grad(sw.checkpoint(f)),
            lambda f: sw.jit(sw.grad(sw.checkpoint(f))),
            lambda f: sw.jit(sw.grad(sw.grad(sw.checkpoint(f)))),
            lambda f: sw.jit(lambda x: sw.jvp(f, (x,), (1.0,))[1]),
            lambda f: sw.jit(sw.checkpoint(f, policy=sw.checkpoint_policies.everything_saveable)),
            lambda f: sw.jit(lambda x: lax.cond(x > 0, f, lambda x: x, x)),
            lambda f: sw.jit(sw.grad(lambda x: lax.cond(x > 0, f, lambda x: x, x))),
            lambda f: sw.jit(lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0]),
            lambda f: sw.jit(sw.grad(lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0])),
            lambda f: sw.jit(lambda x: lax.while_loop(lambda c: c < 3.5, f, x)),
        ],
        ids=lambda _: "",
    )
    def test_once(self, transformed, ordered):
        log = Log()
        transformed(watched(log, ordered))(3.0)
        assert log.seen == [3.0]

    def test_callback_in_a_branch_that_is_not_taken_is_not_called(self):
        log = Log()
        sw.jit(lambda x: lax.cond(x > 0, watched(log), lambda x: x, x))(-1.0)
        assert log.seen == []

    def test_unused_io_callback_stays_and_unused_pure_callback_does_not(self):
        log = Log()

        def function(x):
            sw.io_callback(log, None, x)
            sw.pure_callback(lambda x: log(x + 1) or x, SCALAR, x)
            return x

        sw.jit(function)(1.0)
        assert log.seen == [1.0]

    def test_callback_without_result(self):
        log = Log()
        assert sw.jit(lambda x: sw.debug.callback(log, x))(2.0) is None
        assert log.seen == [2.0]

    def test_once_per_element_under_vmap(self):
        log = Log()
        result = sw.jit(sw.vmap(watched(log)))(jnp.arange(4.0))
        assert result.tolist() == [0.0, 1.0, 4.0, 9.0]
        assert log.seen == [0.0, 1.0, 2.0, 3.0]

    def test_only_for_elements_that_take_the_branch(self):
        log = Log()
        function = sw.vmap(lambda x: lax.cond(x > 0, watched(log), lambda x: -x, x))
        assert sw.jit(function)(jnp.array([1.0, -2.0, 3.0])).tolist() == [1.0, 2.0, 9.0]
        assert log.seen == [1.0, 3.0]

    def test_only_for_elements_whose_loop_continues(self):
        log = Log()

        def halved(x):
            sw.debug.callback(log, x)
            return x / 2

        sw.jit(sw.vmap(lambda x: lax.while_loop(lambda c: c > 1, halved, x)))(jnp.array([2.0, 0.5, 4.0]))
        assert log.seen == [2.0, 4.0, 2.0]

    def test_once_per_iteration_of_a_differentiated_loop(self):
        log = Log()

        def loss(x):
            return lax.scan(lambda c, i: (watched(log, ordered=True)(c), None), x, jnp.arange(3))[0]

        sw.jit(sw.grad(sw.checkpoint(loss)))(1.5)
        assert log.seen == [1.5, 1.5**2, 1.5**4]

    def test_a_loop_of_unknown_length_under_jvp_and_linearize(self):
        log = Log()

        def function(x):
            return lax.while_loop(lambda c: c < 100, watched(log), x)

        sw.jvp(function, (3.0,), (1.0,))
        assert log.seen == [3.0, 9.0, 81.0]
        sw.linearize(function, 3.0)[1](1.0)
        assert log.seen == 2 * [3.0, 9.0, 81.0]


class TestOrder:
    def test_ordered_callbacks_follow_program_order(self):
        log = Log()

        def function(x):
            def body(carry, i):
                sw.debug.callback(log, i, ordered=True)
                branch = [lambda c, k=k: (sw.debug.callback(log, c * 0 + 10 * k, ordered=True), c)[1] for k in (1, 2)]
                return lax.cond(i > 1, *branch, carry), None

            sw.debug.callback(log, jnp.float32(-1), ordered=True)
            x = lax.scan(body, x, jnp.arange(4))[0]
            sw.debug.callback(log, jnp.float32(-2), ordered=True)
            return x

        sw.jit(function)(1.0)
        assert log.seen == [-1, 0, 20, 1, 20, 2, 10, 3, 10, -2]

    def test_order_is_kept_across_calls(self):
        counter = iter(range(100))
        tick = sw.jit(lambda: sw.io_callback(lambda: np.float32(next(counter)), SCALAR, ordered=True))
        assert [float(tick()) for _ in range(5)] == [0, 1, 2, 3, 4]

    def test_effects_happen_before_the_call_returns(self):
        log = Log()
        sw.jit(watched(log))(2.0)
        assert log.seen == [2.0]  # without waiting for anything


class TestOnManyDevices:
    @pytest.mark.parametrize("ordered", [False, True])
    def test_called_once_with_unsharded_values(self, rows, ordered):
        log = Log()
        result = sw.jit(watched(log, ordered))(rows)
        assert log.seen == [list(range(30))]
        np.testing.assert_array_equal(np.asarray(result), np.arange(30.0) ** 2)

    def test_results_reach_every_device(self, rows):
        function = sw.jit(lambda x: sw.pure_callback(np.sin, sw.ShapeDtypeStruct(x.shape, x.dtype), x) + x)
        np.testing.assert_allclose(np.asarray(function(rows)), np.sin(np.arange(30)) + np.arange(30), rtol=1e-6)

    @pytest.mark.parametrize("special", [-0.0, np.inf, np.nan])
    def test_results_keep_their_bits(self, rows, special):
        found = sw.jit(lambda x: sw.pure_callback(lambda a: np.float32(special), SCALAR, x))(rows)
        assert np.asarray(found).tobytes() == np.float32(special).tobytes()

    @pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint32, np.float16, ml_dtypes.bfloat16, np.complex64])
    def test_results_of_every_dtype(self, rows, dtype):
        value = np.array([1, 0, 1]).astype(dtype)
        found = sw.jit(lambda x: sw.pure_callback(lambda a: value, sw.ShapeDtypeStruct((3,), dtype), x))(rows)
        np.testing.assert_array_equal(np.asarray(found), value)

    def test_in_a_loop_with_derivative(self, mesh):
        log = Log()
        weights = sw.device_put(np.full((3, 8), 2.0, np.float32), NamedSharding(mesh, P(None, "data")))

        def loss(weights):
            def body(carry, w):
                sw.debug.callback(log, w.sum(), ordered=True)
                return carry * w, None

            return lax.scan(body, jnp.ones(8), weights)[0].sum()

        grads = sw.jit(sw.grad(loss))(weights)
        assert log.seen == [16.0, 16.0, 16.0]
        np.testing.assert_array_equal(np.asarray(grads), np.full((3, 8), 4.0))


class TestErrors:
    @pytest.mark.parametrize("kind", ["pure", "io", "ordered", "debug"])
    @pytest.mark.parametrize("many", [False, True])
    def test_exception_of_the_callback_is_raised_unchanged(self, rows, kind, many):
        class Mine(Exception):
            pass

        def fails(x):
            raise Mine("from the user's callback")

        def function(x):
            like = sw.ShapeDtypeStruct(x.shape, x.dtype)
            match kind:
                case "pure":
                    return sw.pure_callback(fails, like, x)
                case "debug":
                    sw.debug.callback(fails, x)
                    return x
                case _:
                    return sw.io_callback(fails, like, x, ordered=kind == "ordered")

        x = rows if many else jnp.arange(3.0)
        with pytest.raises(Mine, match="from the user's callback"):
            sw.jit(function)(x)
        np.testing.assert_array_equal(
            np.asarray(sw.jit(lambda x: x + 1)(x)), np.asarray(x) + 1
        )  # later programs still run

    def test_no_callback_is_called_after_a_failure(self, rows):
        log = Log()

        def fails(x):
            raise ValueError("first")

        def function(x):
            sw.io_callback(fails, None, x, ordered=True)
            sw.io_callback(log, None, x, ordered=True)
            return x

        with pytest.raises(ValueError, match="first"):
            sw.jit(function)(rows)
        assert log.seen == []

    def test_errors_as_jax_raises_them(self, rows):
        """Libraries written for JAX catch its error, and look for the exception in its message."""

        def fails(x):
            raise ValueError("from the user's callback")

        with sw.config.override("callback_errors", "jax"):
            for x in (jnp.float32(1), rows):
                for call in (sw.pure_callback, sw.experimental.io_callback):
                    for outer in (sw.jit, lambda f: f):
                        error = pytest.raises(sw.errors.JaxRuntimeError, match="ValueError: from the user's callback")
                        with error as caught:
                            outer(lambda x, call=call: call(fails, x, x))(x)
                        assert isinstance(caught.value.__cause__, ValueError)
            with pytest.raises(ValueError, match="from the user's callback"):  # as in JAX
                sw.debug.callback(fails, 1.0)

    def test_result_of_another_type_raises(self):
        with pytest.raises(TypeError, match=r"returned float64\[3\], but result_shape_dtypes has f32\[\]"):
            sw.jit(lambda x: sw.pure_callback(lambda a: np.zeros(3), SCALAR, x))(1.0)
        with pytest.raises(TypeError, match="has a different pytree structure than result_shape_dtypes"):
            sw.jit(lambda x: sw.pure_callback(lambda a: (a, a), SCALAR, x))(1.0)
        with pytest.raises(TypeError, match="must be a pytree of objects with a shape and a dtype"):
            sw.pure_callback(lambda a: a, 3.0, 1.0)

    def test_differentiating_a_pure_callback_raises(self):
        with pytest.raises(ValueError, match=r"cannot differentiate `sine`.*custom_jvp"):

            def sine(x):
                return np.sin(x)

            sw.grad(lambda x: sw.pure_callback(sine, SCALAR, x))(1.0)

    def test_custom_rule_makes_it_differentiable(self):
        @sw.custom_jvp
        def sine(x):
            return sw.pure_callback(np.sin, sw.ShapeDtypeStruct(x.shape, x.dtype), x)

        sine.defjvp(lambda primals, tangents: (sine(*primals), tangents[0] * jnp.exp(primals[0])))
        assert float(sw.jit(sw.grad(sine))(1.0)) == pytest.approx(np.e)

    def test_formats_are_checked_at_trace_time(self):
        with pytest.raises(ValueError, match="has a field without an argument"):
            sw.debug.print("{} {}", 1.0)
        with pytest.raises(ValueError, match="the format has no field for argument 1"):
            sw.debug.print("{}", 1.0, 2.0)
        with pytest.raises(TypeError, match="a callback must be a function, not 3"):
            sw.debug.callback(3, 1.0)
        with pytest.raises(ValueError, match="vmap_method must be None or one of"):
            sw.pure_callback(lambda a: a, SCALAR, 1.0, vmap_method="parallel")


class TestPrint:
    def test_formats_values(self, capsys):
        def function(x):
            sw.debug.print("x={} y={y:.2f} {{z}}", x, y=x.sum())
            return x

        sw.jit(function)(jnp.arange(3.0))
        assert capsys.readouterr().out == "x=[0. 1. 2.] y=3.00 {z}\n"

    def test_outside_jit(self, capsys):
        sw.debug.print("now {}", jnp.float32(2))
        assert capsys.readouterr().out == "now 2.0\n"


class TestVectorized:
    @pytest.mark.parametrize(
        ("method", "shapes"),
        [
            ("sequential", [((), ())] * 3),
            ("sequential_unrolled", [((), ())] * 3),
            ("expand_dims", [((3,), (1,))]),
            ("broadcast_all", [((3,), (3,))]),
        ],
    )
    def test_vmap_methods(self, method, shapes):
        seen = []

        def add(a, b):
            seen.append((a.shape, b.shape))
            return a + b

        def function(x, y):
            return sw.pure_callback(add, SCALAR, x, y, vmap_method=method)

        found = sw.vmap(function, in_axes=(0, None))(jnp.arange(3.0), 10.0)
        assert found.tolist() == [10.0, 11.0, 12.0]
        assert seen == shapes

    def test_vmap_needs_a_method(self):
        def double(a):
            return 2 * a

        function = sw.vmap(lambda x: sw.pure_callback(double, SCALAR, x))
        with pytest.raises(NotImplementedError, match="vmap of `double` needs a vmap_method: 'sequential'"):
            function(jnp.arange(3.0))


def test_callback_as_loop_condition():
    def goes_on(count):
        return np.bool_(count < 3)

    def function(x):
        asked = lambda c: sw.io_callback(goes_on, sw.ShapeDtypeStruct((), np.bool_), c, ordered=True)  # noqa: E731
        return lax.while_loop(asked, lambda c: c + 1, x)

    assert int(sw.jit(function)(0)) == 3


def test_nan_checks_do_not_repeat_effects():
    log = Log()

    def function(x):
        sw.debug.callback(log, x)
        return (x - x) / (x - x)

    sw.config.update("debug_nans", True)
    try:
        with pytest.raises(FloatingPointError, match="nan in the result of `div`"):
            sw.jit(function)(1.0)
    finally:
        sw.config.update("debug_nans", False)
    assert log.seen == [1.0]


def test_lines_are_printed_atomically(mesh):
    class Written(list):
        def write(self, text):
            self.append(text)

    written = Written()
    show = sw.shard_map(lambda x: sw.debug.print("{}", x[0]), mesh=mesh, in_specs=P("data"), out_specs=P())
    with redirect_stdout(written):
        sw.jit(show)(np.arange(4, dtype=np.int32))
        sw.effects_barrier()
    assert set(written) - {""} == {"0\n", "1\n", "2\n", "3\n"}
    with pytest.raises(
        TypeError, match=r"debug\.print: the first argument must be a format string, such as 'x is \{x\}', not 3"
    ):
        sw.debug.print(3)


def test_io_callback_is_where_jax_has_it():
    assert io_callback_as_jax_has_it is sw.io_callback


def test_callbacks_beside_ops_that_stablehlo_lacks():
    """`top_k` and `erf` are ops of CHLO."""

    def function(x):
        return lax.top_k(sw.pure_callback(lambda x: -x, x, x), 2)[0], lax.erf(x)

    largest, error = sw.jit(function)(jnp.array([0.0, -3.0, 2.0]))
    np.testing.assert_array_equal(largest, [3, 0])
    np.testing.assert_allclose(error, [0, -0.99998, 0.99532], atol=1e-5)
