"""Context managers that override one setting of `shardwise.config` in the current thread: `with enable_x64(True): …`.

Every one of them also works as a decorator. `config.update` changes a setting for the rest of the process.
"""

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from shardwise.api.arguments import check_function
from shardwise.base._jaxlib import Device
from shardwise.base.config import config
from shardwise.base.docstrings import Family, documented
from shardwise.compiler.ir.dispatch import evaluate_constants
from shardwise.compiler.trace.provenance import named_scope
from shardwise.runtime.thread_guard import guard

ConfigContext = AbstractContextManager[None]
_Function = TypeVar("_Function", bound=Callable[..., Any])

_CONTEXT = Family({}, returns="A context manager, which is also a decorator.")
_SWITCH = _CONTEXT.extended(raises=["TypeError: on entry, if `new_val` is not a bool."])
_TRANSFER_GUARD = _CONTEXT.extended(
    {"new_val": "a level as for `transfer_guard`."}, raises=["ValueError: on entry, if `new_val` is not a level."]
)


@documented(_SWITCH)
def enable_x64(new_val: bool = True) -> ConfigContext:
    """Enable or disable 64-bit dtypes.

    While they are disabled, which is the default, 64-bit values become 32-bit when they are converted to an array.

    Args:
        new_val: whether arrays can have 64-bit dtypes.

    Example:
        >>> with jax.enable_x64(True):
        ...     print(jnp.zeros(1).dtype)
        float64
    """
    return config.override("enable_x64", new_val)


@documented(_CONTEXT)
def disable_x64() -> ConfigContext:
    """Disable 64-bit dtypes: 64-bit values become 32-bit when they are converted to an array.

    Example:
        >>> with jax.experimental.disable_x64():
        ...     print(jnp.arange(3.0).dtype)
        float32
    """
    return config.override("enable_x64", False)


@documented(_CONTEXT, raises=["TypeError: on entry, if `disable` is not a bool."])
def disable_jit(disable: bool = True) -> ConfigContext:
    """Run jitted functions and control flow op by op in Python, so that a debugger can step through them.

    Args:
        disable: whether `jit` does nothing.

    Example:
        >>> with jax.disable_jit():
        ...     print(jax.jit(lambda x: float(x) + 1)(jnp.ones(())))
        2.0
    """
    return config.override("disable_jit", disable)


@documented(_SWITCH)
def debug_nans(new_val: bool = True) -> ConfigContext:
    """Check the results of all programs for NaNs.

    A NaN raises a FloatingPointError that names the first op with a NaN in its result, and its source line.

    Args:
        new_val: whether results are checked.

    Example:
        >>> with jax.debug_nans(True):
        ...     jnp.log(jnp.array(-1.0))
        Traceback (most recent call last):
        ...
        FloatingPointError: nan in the result of `log` at ...
    """
    return config.override("debug_nans", new_val)


@documented(_SWITCH)
def debug_infs(new_val: bool = True) -> ConfigContext:
    """Check the results of all programs for infinities, as `debug_nans` does for NaNs.

    Args:
        new_val: whether results are checked.

    Example:
        >>> with jax.debug_infs(True):
        ...     jnp.log(jnp.array(0.0))
        Traceback (most recent call last):
        ...
        FloatingPointError: inf in the result of `log` at ...
    """
    return config.override("debug_infs", new_val)


@documented(_SWITCH)
def log_compiles(new_val: bool = True) -> ConfigContext:
    """Log every compilation and how long it took, as a warning of the `shardwise` logger.

    Args:
        new_val: whether compilations are logged.

    Example:
        >>> with jax.log_compiles(True):
        ...     print(jax.jit(jnp.sum)(jnp.arange(3)))
        3
    """
    return config.override("log_compiles", new_val)


@documented(_SWITCH)
def explain_cache_misses(new_val: bool = True) -> ConfigContext:
    """Log why a jitted function is compiled again: which argument, static argument or setting differs.

    Args:
        new_val: whether cache misses are logged.

    Example:
        >>> with jax.explain_cache_misses(True):
        ...     print(jax.jit(jnp.sum)(jnp.arange(3)))
        3
    """
    return config.override("explain_cache_misses", new_val)


@documented(_CONTEXT, raises=["ValueError: on entry, if `new_val` is not a known precision."])
def default_matmul_precision(new_val: str | None) -> ConfigContext:
    """Set the precision of matrix products and convolutions that are called with `precision=None`.

    Args:
        new_val: "float32" or "highest" for full float32 precision. "tensorfloat32" or "high", and "bfloat16" or
            "default", permit faster products with fewer bits on devices that have them. None leaves the choice to the
            device.

    Example:
        >>> with jax.default_matmul_precision("float32"):
        ...     print("HIGHEST" in jax.jit(jnp.dot).lower(jnp.ones(2), jnp.ones(2)).as_text())
        True
    """
    return config.override("default_matmul_precision", new_val)


@documented(_CONTEXT)
def numpy_dtype_promotion(new_val: str) -> ConfigContext:
    """Allow or forbid implicit dtype promotion between arrays.

    Python scalars are weakly typed: they take the dtype of the array also in "strict" mode, unless that dtype cannot
    represent them.

    Args:
        new_val: "standard" promotes arrays of different dtypes to a common dtype; "strict" raises an error.

    Raises:
        ValueError: on entry, if `new_val` is neither "standard" nor "strict".

    Example:
        >>> with jax.numpy_dtype_promotion("strict"):
        ...     jnp.ones(2) + jnp.arange(2)
        Traceback (most recent call last):
        ...
        shardwise.errors.TypePromotionError: add: f32[2] and i32[2] have no common dtype by promotion...
    """
    return config.override("numpy_dtype_promotion", new_val)


@documented(_CONTEXT, raises=["NotImplementedError: on entry, if `new_val` is not True."])
def threefry_partitionable(new_val: bool = True) -> ConfigContext:
    """Accept JAX's setting for random bits that do not depend on the sharding, which is always on here.

    Args:
        new_val: True.

    Example:
        >>> with jax.threefry_partitionable(True):
        ...     print(jax.random.bits(jax.random.key(0), (2,)))
        [4070199207 4202968722]
    """
    return config.override("threefry_partitionable", new_val)


@documented(_CONTEXT)
def default_prng_impl(new_val: str) -> ConfigContext:
    """Set the PRNG implementation of new keys, and of raw keys.

    Args:
        new_val: "threefry2x32", "rbg" or "unsafe_rbg".

    Raises:
        ValueError: on entry, if `new_val` is not the name of an implementation.

    Example:
        >>> with jax.default_prng_impl("rbg"):
        ...     print(jax.random.key(0).dtype)
        key<rbg>
    """
    return config.override("default_prng_impl", new_val)


@documented(_CONTEXT, raises=["ValueError: on entry, if `new_val` is not one of these."])
def numpy_rank_promotion(new_val: str) -> ConfigContext:
    """Allow or forbid implicit broadcasting between arrays of different ranks. Scalars always broadcast.

    Args:
        new_val: "allow", "warn" for a warning, or "raise" for an error.

    Example:
        >>> with jax.numpy_rank_promotion("raise"):
        ...     jnp.ones((2, 3)) + jnp.ones(3)
        Traceback (most recent call last):
        ...
        ValueError: add: shapes (2, 3) and (3,) differ in rank...
    """
    return config.override("numpy_rank_promotion", new_val)


@documented(_CONTEXT)
def default_device(new_val: Device | str | None) -> ConfigContext:
    """Set the device for new arrays, and for programs without committed arguments.

    Committed arrays stay on their devices, and programs that use them run there.

    Args:
        new_val: a device, the name of a platform for its first device, or None for the default platform.

    Raises:
        TypeError: on entry, if `new_val` is none of these.
        RuntimeError: at the first use, if there is no such platform.

    Example:
        >>> with jax.default_device(jax.devices("cpu")[2]):
        ...     print(jnp.zeros(1).device.id)
        2
    """
    return config.override("default_device", new_val)


@documented(_CONTEXT, raises=["ValueError: on entry, if `new_val` is not one of these."])
def transfer_guard(new_val: str) -> ConfigContext:
    """Allow, log or forbid transfers between host and devices, and between devices.

    A transfer by `device_put` or `device_get` is explicit. All others, such as that of a numpy operand, are implicit.

    Args:
        new_val: "allow", or "log" or "disallow" for implicit transfers only, or "log_explicit" or "disallow_explicit"
            for explicit transfers as well.

    Example:
        >>> with jax.transfer_guard("disallow"):
        ...     jnp.ones(2) + np.ones(2)
        Traceback (most recent call last):
        ...
        shardwise.errors.TransferError: a transfer from host to device is disallowed here...
    """
    return config.override("transfer_guard", new_val)


@documented(_CONTEXT)
def thread_guard(new_val: bool = True) -> ConfigContext:
    """Forbid programs on several processes in all threads but this one.

    All processes must launch such programs in the same order. Two threads launch theirs in an order that may differ
    from process to process, which then wait for each other for ever. The guard finds this.

    Args:
        new_val: whether only this thread may launch them. False permits all threads, inside a guard too.

    Raises:
        RuntimeError: on entry, if another thread has set the guard; later, where another thread launches a program on
            devices of several processes.

    Example:
        >>> with jax.thread_guard(True):
        ...     jnp.arange(3) + 1  # on this process alone
        Array([1, 2, 3], dtype=int32)
    """
    return guard.set(new_val)


@documented(_CONTEXT)
def no_collectives(new_val: Collection[str]) -> ConfigContext:
    """Forbid collectives along mesh axes, for the ops that are traced or run inside the context.

    The check is made when a program is partitioned, for axes of every type. Outside of the context, the same values may
    be resharded and reduced.

    Args:
        new_val: a set of names of mesh axes.

    Raises:
        TypeError: if `new_val` is not a set of strings.
        ForbiddenCollectiveError: when a program is compiled, if an op communicates along one of the axes.

    Example:
        >>> mesh = jax.make_mesh((4,), ("x",))
        >>> x = jax.device_put(jnp.arange(8.0), jax.NamedSharding(mesh, P("x")))
        >>> with jax.sharding.no_collectives({"x"}):
        ...     y = jnp.sin(x)  # no communication
        ...     jnp.sum(x)
        Traceback (most recent call last):
        ...
        shardwise.errors.ForbiddenCollectiveError: ...: a collective, all_reduce, runs along 'x'...
    """
    if not isinstance(new_val, set | frozenset):
        raise TypeError(f"no_collectives needs a set of names of mesh axes, not {new_val!r}")
    return config.override("no_collectives", frozenset(new_val))


@documented(_TRANSFER_GUARD)
def transfer_guard_host_to_device(new_val: str) -> ConfigContext:
    """Set the `transfer_guard` for numpy arrays and numbers that are copied to a device.

    Example:
        >>> with jax.transfer_guard_host_to_device("disallow"):
        ...     print(jnp.sin(jax.device_put(0.0)))
        0.0
    """
    return config.override("transfer_guard_host_to_device", new_val)


@documented(_TRANSFER_GUARD)
def transfer_guard_device_to_device(new_val: str) -> ConfigContext:
    """Set the `transfer_guard` for arrays that move from some devices to others.

    Example:
        >>> with jax.transfer_guard_device_to_device("disallow"):
        ...     print(jax.device_put(jnp.arange(2), jax.devices()[1]))
        [0 1]
    """
    return config.override("transfer_guard_device_to_device", new_val)


@documented(_TRANSFER_GUARD)
def transfer_guard_device_to_host(new_val: str) -> ConfigContext:
    """Set the `transfer_guard` for arrays that are copied to the host.

    Example:
        >>> with jax.transfer_guard_device_to_host("disallow"):
        ...     x = jax.device_get(jnp.arange(2))
        >>> x
        array([0, 1], dtype=int32)
    """
    return config.override("transfer_guard_device_to_host", new_val)


@documented(_SWITCH)
def check_tracer_leaks(new_val: bool = True) -> ConfigContext:
    """Check at the end of every trace that no tracer outlives it.

    A leaked tracer raises an UnexpectedTracerError that names the objects that refer to it. Tracing takes longer.

    Args:
        new_val: whether traces are checked.

    Example:
        >>> leaked = []
        >>> with jax.check_tracer_leaks():
        ...     jax.jit(lambda x: leaked.append(x))(1)
        Traceback (most recent call last):
        ...
        shardwise.errors.UnexpectedTracerError: Leaked trace: ...
    """
    return config.override("check_tracer_leaks", new_val)


@documented(_CONTEXT)
def checking_leaks() -> ConfigContext:
    """Check at the end of every trace that no tracer outlives it: `check_tracer_leaks(True)`.

    Example:
        >>> with jax.checking_leaks():
        ...     print(jax.jit(lambda x: x + 1)(1))
        2
    """
    return config.override("check_tracer_leaks", True)


@documented(_SWITCH)
def check_static_indices(new_val: bool = True) -> ConfigContext:
    """Raise an IndexError for static integer indices that are out of bounds, where the nearest element is read else.

    Args:
        new_val: whether static indices are checked.

    Example:
        >>> with jax.check_static_indices():
        ...     jnp.arange(3)[5]
        Traceback (most recent call last):
        ...
        IndexError: index: 5 is out of bounds for dim 0 of i32[3]...
    """
    return config.override("check_static_indices", new_val)


@documented(_SWITCH)
def no_tracing(new_val: bool = True) -> ConfigContext:
    """Raise a RuntimeError if a jitted function is traced, for example for arguments of a new shape.

    Args:
        new_val: whether tracing is an error.

    Example:
        >>> with jax.no_tracing():
        ...     jax.jit(lambda x: x + 1)(1)
        Traceback (most recent call last):
        ...
        RuntimeError: no_tracing is set...
    """
    return config.override("no_tracing", new_val)


@documented(_SWITCH)
def no_execution(new_val: bool = True) -> ConfigContext:
    """Raise a RuntimeError if a compiled program runs.

    Args:
        new_val: whether running a program is an error.

    Example:
        >>> with jax.no_execution():
        ...     jax.jit(lambda x: x + 1)(1)
        Traceback (most recent call last):
        ...
        RuntimeError: no_execution is set...
    """
    return config.override("no_execution", new_val)


@documented(_SWITCH)
def enable_custom_prng(new_val: bool = True) -> ConfigContext:
    """Return typed keys from `random.PRNGKey`, as `random.key` does.

    Args:
        new_val: whether `random.PRNGKey` returns a typed key.

    Example:
        >>> with jax.enable_custom_prng():
        ...     print(jax.random.PRNGKey(0).dtype)
        key<fry>
    """
    return config.override("enable_custom_prng", new_val)


@documented(_CONTEXT, raises=["ValueError: on entry, if `new_val` is not one of these."])
def legacy_prng_key(new_val: str) -> ConfigContext:
    """Allow or forbid raw keys, u32[2], in functions of `random`.

    Args:
        new_val: "allow", "warn" for a warning, or "error".

    Example:
        >>> with jax.legacy_prng_key("error"):
        ...     jax.random.normal(jax.random.PRNGKey(0))
        Traceback (most recent call last):
        ...
        ValueError: normal: the key is a raw key, u32[2]...
    """
    return config.override("legacy_prng_key", new_val)


@documented(_SWITCH)
def debug_key_reuse(new_val: bool = True) -> ConfigContext:
    """Raise a KeyReuseError if a typed PRNG key is used twice: to draw numbers, or to split it.

    Args:
        new_val: whether the use of keys is checked.

    Example:
        >>> with jax.debug_key_reuse(True):
        ...     key = jax.random.key(0)
        ...     jax.random.normal(key) + jax.random.normal(key)
        Traceback (most recent call last):
        ...
        shardwise.errors.KeyReuseError: ...
    """
    return config.override("debug_key_reuse", new_val)


@documented(_CONTEXT, raises=["NotImplementedError: on entry, if `new_val` is not a bool."])
def enable_checks(new_val: bool = True) -> ConfigContext:
    """Accept JAX's setting for checks of its internals. Programs are always verified here.

    Args:
        new_val: a bool.

    Example:
        >>> with jax.enable_checks(True):
        ...     print(jnp.ones(1))
        [1.]
    """
    return config.override("enable_checks", new_val)


@documented(_CONTEXT, raises=["NotImplementedError: on entry, if `new_val` is not True."])
def allow_f16_reductions(new_val: bool = True) -> ConfigContext:
    """Accept JAX's setting that allows sums of 16-bit floats, which are always allowed here.

    Args:
        new_val: True.

    Example:
        >>> with jax.allow_f16_reductions(True):
        ...     print(jnp.ones(3, jnp.float16).sum())
        3.0
    """
    return config.override("allow_f16_reductions", new_val)


@documented(_SWITCH)
def remove_size_one_mesh_axis_from_type(new_val: bool = True) -> ConfigContext:
    """Leave mesh axes of size 1 out of types: of the shardings and the varying axes of new arrays and traced values.

    Args:
        new_val: whether types leave them out.

    Example:
        >>> mesh = jax.make_mesh((2, 1), ("x", "y"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
        >>> with jax.set_mesh(mesh), jax.remove_size_one_mesh_axis_from_type(True):
        ...     print(jax.typeof(jax.device_put(jnp.ones((4, 4)), jax.P("x", "y"))))
        f32[4@x,4]
    """
    return config.override("remove_size_one_mesh_axis_from_type", new_val)


@documented(_CONTEXT, raises=["NotImplementedError: on entry, if `new_val` is not True."])
def auto_pcast(new_val: bool = True) -> ConfigContext:
    """Accept JAX's setting for replicated operands in `shard_map`, which are always cast to varying where needed.

    Args:
        new_val: True.

    Example:
        >>> with jax.auto_pcast(True):
        ...     print(jnp.ones(1))
        [1.]
    """
    return config.override("auto_pcast", new_val)


@documented(_CONTEXT, raises=["NotImplementedError: on entry, if `new_val` is not a bool."])
def softmax_custom_jvp(new_val: bool = True) -> ConfigContext:
    """Accept JAX's setting for the derivative of `nn.softmax`, which has a single rule here.

    Args:
        new_val: a bool.

    Example:
        >>> with jax.softmax_custom_jvp(True):
        ...     print(jax.nn.softmax(jnp.zeros(2)))
        [0.5 0.5]
    """
    return config.override("softmax_custom_jvp", new_val)


@documented(_CONTEXT, raises=["NotImplementedError: on entry, if `new_val` is another level."])
def array_garbage_collection_guard(new_val: str | None) -> ConfigContext:
    """Accept JAX's setting for arrays in reference cycles, which are collected like other objects here.

    Args:
        new_val: None or "allow".

    Example:
        >>> with jax.array_garbage_collection_guard("allow"):
        ...     print(jnp.ones(1))
        [1.]
    """
    return config.override("array_garbage_collection_guard", new_val)


@documented(_CONTEXT)
def ensure_compile_time_eval() -> ConfigContext:
    """Evaluate ops on concrete operands eagerly, also inside a function that is being traced.

    Ops on traced operands are recorded, as they are outside.

    Example:
        >>> @jax.jit
        ... def f(x):
        ...     with jax.ensure_compile_time_eval():
        ...         size = int(jnp.arange(4).sum())
        ...     return x * jnp.ones(size)
        >>> f(2.0).shape
        (6,)
    """
    return evaluate_constants()


def named_call(fun: _Function, *, name: str | None = None) -> _Function:
    """Wrap a function so that its ops carry a name in profiles and in the compiled program's text.

    Args:
        fun: the function.
        name: the name; by default that of `fun`.

    Returns:
        A function like `fun` whose ops are in the scope `name`.

    Raises:
        TypeError: if `fun` is not callable, or `name` is not a string.

    Example:
        >>> jax.named_call(jnp.sin, name="wave")(0.0)
        Array(0., dtype=float32...)
    """
    check_function("named_call", fun)
    return named_scope(name or str(getattr(fun, "__name__", "function")))(fun)
