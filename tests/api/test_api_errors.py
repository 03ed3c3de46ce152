"""The texts of errors: what is wrong, where, why, and how to fix it."""

import re

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.compiler.ir.types import explain_marks
from shardwise.errors import (
    BroadcastError,
    DeviceMismatchError,
    NoMeshError,
    PlatformError,
    ShardingError,
    TracerArrayConversionError,
    TracerBoolConversionError,
    TracerIntegerConversionError,
    UnexpectedTracerError,
)
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


def train_step(params, batch):
    return params["w"] + batch["tokens"].sum()


def message_of(error_type, function, *args):
    with pytest.raises(error_type) as caught:
        function(*args)
    assert type(caught.value) is error_type
    return str(caught.value).removesuffix(explain_marks(str(caught.value)))


@pytest.mark.parametrize("wrap", [lambda f: f, sw.jit], ids=["eager", "jit"])
def test_incompatible_shapes_raise(wrap):
    x, y = jnp.ones((4, 3)), jnp.ones((4, 5))
    assert message_of(BroadcastError, wrap(lambda a, b: a + b), x, y) == (
        "add: shapes (4, 3) and (4, 5) do not broadcast: sizes 3 and 5 meet at dim -1, and neither is 1"
    )
    assert message_of(TypeError, wrap(lambda a, b: a @ b), x, y) == (
        "matmul: f32[4,3] @ f32[4,5]: the last dim of the left, 3, must equal the second last dim of the right, 4"
    )
    assert message_of(TypeError, wrap(lambda a: a.reshape(5, -1)), x) == (
        "reshape: f32[4,3] has 12 elements, which shape (5, -1) cannot hold"
    )
    assert message_of(ValueError, wrap(lambda a: a.sum(axis=3)), x) == (
        "sum: axis 3 does not exist in f32[4,3], which has rank 2"
    )


def test_unknown_axis_suggests_the_nearest(mesh):
    assert message_of(ShardingError, NamedSharding, mesh, P("date", None)) == (
        "P('date', None): the mesh data=4, model=2 has no axis 'date'. Did you mean 'data'?"
    )
    assert message_of(ShardingError, NamedSharding, mesh, P("q")) == (
        "P('q'): the mesh data=4, model=2 has no axis 'q'. Its axes are 'data', 'model'."
    )


def test_axis_used_twice_raises(mesh):
    assert message_of(ShardingError, NamedSharding, mesh, P("data", "data")) == (
        "P('data', 'data') uses axis 'data' for dim 0 and for dim 1: an axis can shard one dim only."
    )


def test_spec_longer_than_the_rank_names_the_argument(mesh):
    where = NamedSharding(mesh, P("data", None, "model"))
    too_long = (
        "P('data', None, 'model') has 3 entries, but the array has rank 2 (shape (4, 5)). "
        "Remove 1: a spec has at most one entry per dim."
    )
    y = jnp.ones((4, 5))
    assert message_of(ShardingError, sw.device_put, y, where) == f"device_put: cannot shard f32[4,5].\n  {too_long}"
    step = sw.jit(train_step, in_shardings=(None, {"tokens": where}))
    line = train_step.__code__.co_firstlineno
    assert message_of(ShardingError, step, {"w": y}, {"tokens": y}) == (
        f"cannot shard `batch['tokens']` of `train_step` (test_api_errors.py:{line}).\n  f32[4,5] with {too_long}"
    )


def test_trailing_nones_beyond_the_rank_are_ignored(mesh):
    x = sw.device_put(np.arange(4.0), NamedSharding(mesh, P("data", None, None)))
    assert x.addressable_shards[0].data.shape == (1,)


def test_shardings_must_be_a_tree_prefix_of_the_arguments(mesh):
    step = sw.jit(train_step, in_shardings=(None,))
    line = train_step.__code__.co_firstlineno
    assert message_of(ShardingError, step, {"w": 1.0}, {"tokens": jnp.ones(2)}) == (
        f"jit of `train_step` (test_api_errors.py:{line}): in_shardings must be a tree prefix of the arguments.\n"
        "  in_shardings: tuple of length 1 against tuple of length 2 in the arguments\n"
        "  Write a tuple with one entry per positional argument, or a single entry for all of them."
    )
    step = sw.jit(train_step, in_shardings=(None, {"token": NamedSharding(mesh, P())}))
    assert message_of(ShardingError, step, {"w": 1.0}, {"tokens": jnp.ones(2)}) == (
        f"jit of `train_step` (test_api_errors.py:{line}): in_shardings must be a tree prefix of the arguments.\n"
        "  in_shardings[1]: dict with keys {'token'} against dict with keys {'tokens'} in the arguments"
        ": missing 'tokens', unexpected 'token'"
    )
    step = sw.jit(train_step, out_shardings=[None, None])
    assert message_of(ShardingError, step, {"w": 1.0}, {"tokens": jnp.ones(2)}).endswith(
        "out_shardings must be a tree prefix of the results.\n  out_shardings: list of length 2 against "
        "one array in the results"
    )


def test_devices_must_be_a_tree_prefix(mesh):
    everywhere = NamedSharding(mesh, P())
    x = {"w": [jnp.ones(2), jnp.ones(2)]}
    assert message_of(ShardingError, sw.device_put, x, {"w": [everywhere]}) == (
        "device_put: device must be a tree prefix of x.\n"
        "  device['w']: list of length 1 against list of length 2 in x['w']"
    )
    assert message_of(ShardingError, sw.lax.with_sharding_constraint, x, (everywhere,)) == (
        "with_sharding_constraint: shardings must be a tree prefix of x.\n"
        "  shardings: tuple of length 1 against dict with keys {'w'} in x"
    )


def test_bare_spec_needs_a_mesh():
    step = sw.jit(train_step, in_shardings=P("data"))
    assert message_of(NoMeshError, step, {"w": 1.0}, {"tokens": jnp.ones(2)}) == (
        "in_shardings: a bare P('data') needs a mesh: write NamedSharding(mesh, P('data')), or set the current mesh "
        "with `with mesh:` or `set_mesh(mesh)`"
    )


def test_python_if_on_a_traced_value():
    def keep_positive(a):
        total = a.sum()
        return a if total > 0 else -a

    line = keep_positive.__code__.co_firstlineno + 2
    text = message_of(TracerBoolConversionError, sw.jit(keep_positive), jnp.ones(3))
    assert text == (
        "Python needs True or False here (`if`, `while`, `and`, `or`, `not`), but the value of this bool[] is not "
        f"known while `keep_positive` is traced.\n  It was created at test_api_errors.py:{line} by compare.\n"
        "  It depends on the argument `a`.\n"
        "  Traced values are known only when the compiled function runs: choose between arrays with `jnp.where`,\n"
        "  between functions with `lax.cond`, loop with `lax.while_loop`, or make the argument static "
        "(`static_argnums` or `static_argnames` of jit)."
    )


def test_python_integer_and_numpy_on_a_traced_value():
    text = message_of(TracerIntegerConversionError, sw.jit(lambda n: sum(range(n))), 3)
    assert text.startswith(
        "Python needs an integer here, but the value of this i32[]~ is not known while `<lambda>` is traced."
    )
    assert "as an argument of `<lambda>`" in text
    text = message_of(TracerArrayConversionError, sw.jit(np.sin), jnp.ones(3))
    assert text.startswith("numpy needs the elements of an array, but the value of this f32[3] is not known")
    assert "write `jnp.sin` instead of\n  `np.sin`" in text


def test_numpy_function_without_source_text():
    namespace = {"np": np}
    exec("def f(x): return np.sin(x) + 1", namespace)
    text = message_of(TracerArrayConversionError, sw.jit(namespace["f"]), jnp.ones(3))
    assert "for\n  example `jnp.sin(x)` instead of `np.sin(x)`, or make the argument static (`static_argnums`" in text


def test_range_of_a_traced_value_names_fori_loop():
    def count(n):
        total = 0
        for i in range(n):
            total += i
        return total

    text = message_of(TracerIntegerConversionError, sw.jit(count), 3)
    assert "loop with\n  `lax.fori_loop(0, n, body, init)` instead of `for i in range(n)`" in text
    assert "`static_argnums` or `static_argnames` of jit" in text
    text = message_of(TracerIntegerConversionError, sw.jit(lambda n: jnp.zeros((n, 2))), 3)
    assert "a shape or an index of a list must be static: make the argument static (`static_argnums`" in text


@pytest.mark.parametrize(
    ("function", "said", "instead"),
    [
        (lambda x: np.sin(x) + 1, "np.sin", "jnp.sin"),
        (lambda x: 2 * np.median(x, axis=0) + 1, "np.median", "jnp.median"),
        (lambda x: np.linalg.norm(x) + 1, "np.linalg.norm", "jnp.linalg.norm"),
        (lambda x: [np.asarray(x)], "np.asarray", "jnp.asarray"),
        (lambda x: np.concatenate([x, np.ones(3)]), "np.concatenate", "jnp.concatenate"),
    ],
    ids=["sin", "median", "norm", "asarray", "concatenate"],
)
def test_numpy_function_of_a_traced_value_names_its_counterpart(function, said, instead):
    text = message_of(TracerArrayConversionError, sw.jit(function), jnp.ones(3))
    assert f"write `{instead}` instead of\n  `{said}`" in text


class Unregistered:
    def __init__(self, scale):
        self.scale = scale

    @sw.jit
    def apply(self, x):
        return self.scale * x

    def __repr__(self):
        return "<model>"


def test_jitted_method_of_an_unregistered_class():
    text = message_of(TypeError, Unregistered(2.0).apply, jnp.ones(3))
    line = Unregistered.apply.function.__code__.co_firstlineno
    assert text == (
        f"argument `self` of `apply` (test_api_errors.py:{line}) is <model> of type Unregistered: the arguments of a "
        "traced function must be pytrees of arrays and numbers.\n"
        "  Register Unregistered as a pytree, with `tree_util.register_dataclass` or "
        "`tree_util.register_pytree_node_class`, which is how a jitted method gets the arrays of its Unregistered;\n"
        "  or make the argument static with static_argnames='self' of jit, or bind it with `functools.partial`."
    )
    text = message_of(TypeError, sw.jit(lambda x, mode: x), 1.0, "train")
    assert text.endswith(
        "If it is a setting, make the argument static with static_argnames='mode' of jit, or bind it with "
        "`functools.partial`."
    )


def test_unknown_platform_lists_those_of_this_machine():
    text = message_of(PlatformError, sw.devices, "abacus")
    assert text.startswith(
        "the platform 'abacus' is not supported: no PJRT plugin of this name is installed. Platforms"
    )
    assert "of this machine: cpu" in text


@pytest.mark.parametrize("transform", [sw.grad, sw.value_and_grad])
def test_gradient_of_a_tuple_names_has_aux(transform):
    def loss(x):
        return x.sum(), {"x": x}

    line = loss.__code__.co_firstlineno
    assert message_of(TypeError, transform(loss), jnp.ones(3)) == (
        f"grad needs a function that returns one scalar, but `loss` (test_api_errors.py:{line}) returned "
        "(f32[], {'x': f32[3]}).\n"
        "  To return other values with the scalar, return a pair (scalar, aux) and pass has_aux=True."
    )


def test_marks_of_types_are_explained(mesh):
    def text_of(error_type, function, *args):
        with pytest.raises(error_type) as caught:
            function(*args)
        return str(caught.value)

    weak = "`~` marks a weak type, that of a Python number: in promotion, the dtype of an array wins."
    text = text_of(TracerIntegerConversionError, sw.jit(lambda n: [1, 2][n]), 1)
    assert "this i32[]~ is" in text and text.endswith(f"\n  {weak}")
    text = text_of(TypeError, lambda: sw.lax.scan(lambda c, x: (c * jnp.ones(3), x), 1.0, jnp.ones(3)))
    assert "carry is f32[]~ before" in text and text.endswith(f"\n  {weak}")
    text = text_of(ValueError, lambda: jnp.matmul(jnp.ones(3), 2.0))
    assert "f32[]~" in text and text.endswith(f"\n  {weak}")

    def body(x):
        return jnp.dot(x, jnp.ones(3))

    text = text_of(TypeError, sw.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data")), jnp.ones(8))
    assert "f32[2]{V:data}" in text
    assert text.endswith(
        "\n  `V:data` marks a value that varies over the mesh axis 'data': it differs between devices."
    )
    assert "marks" not in text_of(TypeError, sw.jit(lambda x: x + jnp.ones(4)), jnp.ones(3))


@pytest.mark.parametrize("transform", [sw.jit, sw.grad, sw.vmap], ids=["jit", "grad", "vmap"])
@pytest.mark.parametrize("use", [lambda x: x + 1, sw.jit(lambda x: x + 1), lambda x: sw.jit(lambda y: x * y)(2.0)])
def test_leaked_tracer_says_where_it_was_made(transform, use):
    kept = []

    def leaky(a):
        kept.append(a * 2)
        return a.sum()

    transform(leaky)(jnp.ones(3) if transform is not sw.grad else 1.0)
    line = leaky.__code__.co_firstlineno + 1
    text = message_of(UnexpectedTracerError, use, kept[0])
    assert re.fullmatch(
        rf"a traced f32\[3?\]~? of `leaky` is used after `leaky` returned\.\n"
        rf"  It was created at test_api_errors\.py:{line} by mul and is valid only in that trace\.\n"
        r"  Return it from the function instead of storing it in an outer variable\.",
        text,
    )


def test_arrays_on_different_devices_are_listed(mesh):
    a, b = (sw.device_put(np.ones((4, 3), np.float32), device) for device in sw.devices()[1:3])
    assert "operand 0: f32[4,3]: SingleDeviceSharding(cpu:1)\n  operand 1: f32[4,3]: SingleDeviceSharding(cpu:2)" in (
        message_of(DeviceMismatchError, lambda: a + b)
    )
    m = sw.device_put(np.ones((8, 4), np.float32), NamedSharding(mesh, P("data")))
    text = message_of(DeviceMismatchError, sw.jit(train_step), {"w": a}, {"tokens": m})
    assert re.fullmatch(
        r"`train_step`, called at test_api_errors\.py:\d+, cannot run on different devices at once\.\n"
        r"  `params\['w'\]`: f32\[4,3\]: SingleDeviceSharding\(cpu:1\)\n"
        r"  `batch\['tokens'\]`: f32\[8,4\]: NamedSharding\(mesh\(data=4, model=2\), P\('data'\)\), on devices 0 to 7\n"
        r"  Move arrays to one mesh or one device with `device_put` first\.",
        text,
    )


def test_constraints_of_one_line_are_listed_separately():
    devices = np.array(sw.devices())
    here, there = sw.sharding.Mesh(devices[:2], ("x",)), sw.sharding.Mesh(devices[[2, 5]], ("x",))

    def both(x):
        return [sw.lax.with_sharding_constraint(x, NamedSharding(mesh, P("x"))) for mesh in (here, there)]

    text = message_of(DeviceMismatchError, sw.jit(both), np.ones(4))
    assert [line.rpartition(": ")[2] for line in text.splitlines()[1:3]] == [
        "Mesh(x=2), on devices 0, 1",
        "Mesh(x=2), on devices 2, 5",
    ]


def test_wrong_arguments_and_results_are_named():
    assert message_of(TypeError, sw.jit(train_step), {"w": "abc"}, {"tokens": 1.0}).startswith(
        "argument `params['w']` of `train_step` (test_api_errors.py:"
    )
    assert "returned 'text' of type str as result 0" in message_of(TypeError, sw.jit(lambda: "text"))
    assert message_of(TypeError, sw.jit, 3) == "jit needs a function, not 3"
    for name in ("grad", "value_and_grad", "jacfwd", "jacrev", "hessian", "vjp", "linearize", "eval_shape"):
        assert message_of(TypeError, getattr(sw, name), 3) == f"{name} needs a function, not 3"
    assert message_of(TypeError, sw.jvp, 3, (1.0,), (1.0,)) == "jvp needs a function, not 3"
    assert message_of(TypeError, sw.linear_transpose, 3, 1.0) == "linear_transpose needs a function, not 3"
    assert message_of(TypeError, sw.make_jaxpr, 3) == "make_jaxpr needs a function, not 3"
    assert message_of(TypeError, jnp.exp, "a") == "exp: needs an array or a number, not 'a' of type str"


def test_grad_needs_a_real_scalar_and_float_inputs():
    assert "returned f32[3]. Reduce it, for example with `.sum()` or `.mean()`." in (
        message_of(TypeError, sw.grad(lambda v: v * 2), jnp.ones(3))
    )
    assert message_of(TypeError, sw.grad(train_step), {"w": 3}, {"tokens": jnp.ones(2)}).endswith(
        "with respect to `params['w']`: it is i32[]~, but derivatives need a floating or complex dtype. "
        "Convert it with `.astype`, or remove it from argnums, or pass allow_int=True for a derivative of dtype float0."
    )
    assert "argnums has 2, but the function was called with 1 positional arguments" in (
        message_of(TypeError, sw.grad(lambda v: v, argnums=2), 1.0)
    )


def test_mismatched_vmap_axes_raise():
    text = message_of(ValueError, sw.vmap(lambda a, b: a + b), jnp.ones((4, 3)), jnp.ones((3, 3)))
    assert text.endswith("all mapped axes must have the same size:\n  `a` has 4\n  `b` has 3")
    text = message_of(ValueError, sw.vmap(lambda a, b: a + b, in_axes=(0, 3)), jnp.ones((4, 3)), jnp.ones((4, 5)))
    assert text.endswith("in_axes maps axis 3 of `b`, which is f32[4,5] and has rank 2")
    text = message_of(ValueError, sw.vmap(lambda a, b: a + b, in_axes=(0,)), jnp.ones(3), jnp.ones(3))
    assert text.endswith(
        "in_axes must be a tree prefix of the arguments.\n  in_axes: tuple of length 1 against tuple of "
        "length 2 in the arguments\n"
        "  Write a tuple with one entry per positional argument, or a single entry for all of them."
    )
    text = message_of(ValueError, sw.vmap(lambda a: a["x"], in_axes=({"x": 0, "z": 0},)), {"x": jnp.ones(3), "y": 1.0})
    assert text.endswith(
        "in_axes must be a tree prefix of the arguments.\n"
        "  in_axes[0]: dict with keys {'x', 'z'} against dict with keys {'x', 'y'} in the arguments"
        ": missing 'y', unexpected 'z'"
    )
    text = message_of(ValueError, sw.vmap(lambda a: (a, a), out_axes=[0, 0]), jnp.ones(3))
    assert text.endswith(
        "out_axes must be a tree prefix of the results.\n  out_axes: list of length 2 against tuple of "
        "length 2 in the results"
    )
    assert "in_axes maps no argument" in message_of(ValueError, sw.vmap(lambda a: a, in_axes=None), jnp.ones(3))
    assert "out_axes is None for result 0" in message_of(
        ValueError, sw.vmap(lambda a: a, out_axes=None), jnp.ones((2, 3))
    )


def test_mesh_with_too_many_devices_raises():
    text = message_of(ShardingError, lambda: sw.make_mesh((4, 4), ("a", "b")))
    assert text.startswith("make_mesh((4, 4), ('a', 'b')) needs 16 devices, but there are only 8.")
    assert "config.update('num_cpu_devices'" in text


def test_config_errors():
    assert message_of(AttributeError, sw.config.update, "jax_enable_x46", True) == (
        "config has no setting 'jax_enable_x46'. Did you mean 'enable_x64'?"
    )
    assert "must be an int from 1 to 2048, not '4'" in message_of(TypeError, sw.config.update, "num_cpu_devices", "4")
    sw.devices()
    assert "cannot change from 8 to 4 after the first use of a device" in (
        message_of(RuntimeError, sw.config.update, "num_cpu_devices", 4)
    )


def test_array_of_strings_raises():
    with pytest.raises(TypeError, match="arrays of <U21 are not supported; element types: bool"):
        jnp.asarray([1, "a"])
