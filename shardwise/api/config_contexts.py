"""Settings for a part of a program: `with enable_x64(True): …` holds in this thread until the block is left.

Each sets one row of the table in `config.py`; `config.update` sets it for good. They also decorate functions.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from shardwise.compiler.ir.dispatch import use_frames
from shardwise.compiler.trace.provenance import named_scope
from shardwise.config import config

Switch = AbstractContextManager[None]
_Function = TypeVar("_Function", bound=Callable[..., Any])


def enable_x64(new_val: bool = True) -> Switch:
    """While open, 64-bit types keep their width.

    >>> with jax.enable_x64(True):
    ...     print(jnp.zeros(1).dtype)
    float64
    """
    return config.override("enable_x64", new_val)


def disable_x64() -> Switch:
    """While open, 64-bit types become 32-bit when they enter an array.

    >>> with jax.experimental.disable_x64():
    ...     print(jnp.arange(3.0).dtype)
    float32
    """
    return config.override("enable_x64", False)


def disable_jit(disable: bool = True) -> Switch:
    """While open, jitted functions run as they are written, op by op, so that a debugger can follow them.

    >>> with jax.disable_jit():
    ...     print(jax.jit(lambda x: float(x) + 1)(jnp.ones(())))
    2.0
    """
    return config.override("disable_jit", disable)


def debug_nans(new_val: bool) -> Switch:
    """While open, a NaN in a result is a FloatingPointError that names the op and the line that made the first.

    >>> with jax.debug_nans(True):
    ...     jnp.log(jnp.array(-1.0))
    Traceback (most recent call last):
    ...
    FloatingPointError: nan in the result of `log` at ...
    """
    return config.override("debug_nans", new_val)


def debug_infs(new_val: bool) -> Switch:
    """While open, an infinity in a result is an error, as a NaN is with `debug_nans`.

    >>> with jax.debug_infs(True):
    ...     jnp.log(jnp.array(0.0))
    Traceback (most recent call last):
    ...
    FloatingPointError: inf in the result of `log` at ...
    """
    return config.override("debug_infs", new_val)


def log_compiles(new_val: bool) -> Switch:
    """While open, every compilation is logged, with the time that it took.

    >>> with jax.log_compiles(True):
    ...     print(jax.jit(jnp.sum)(jnp.arange(3)))
    3
    """
    return config.override("log_compiles", new_val)


def explain_cache_misses(new_val: bool) -> Switch:
    """While open, it is logged why a jitted function is compiled again.

    >>> with jax.explain_cache_misses(True):
    ...     print(jax.jit(jnp.sum)(jnp.arange(3)))
    3
    """
    return config.override("explain_cache_misses", new_val)


def default_matmul_precision(new_val: str | None) -> Switch:
    """While open, products and convolutions whose `precision` is None are made so exactly.

    "float32" and "highest" are exact to the last bits of f32; "tensorfloat32" and "high", and "bfloat16" and "default",
    are faster where devices have ways with fewer bits.

    >>> with jax.default_matmul_precision("float32"):
    ...     print("HIGHEST" in jax.jit(jnp.dot).lower(jnp.ones(2), jnp.ones(2)).as_text())
    True
    """
    return config.override("default_matmul_precision", new_val)


def numpy_dtype_promotion(new_val: str) -> Switch:
    """While open, arrays of different dtypes meet in a common one ("standard"), or are an error ("strict").

    Python numbers have no dtype of their own and take an array's also where it is strict, unless it cannot hold them.

    >>> with jax.numpy_dtype_promotion("strict"):
    ...     jnp.ones(2) + jnp.arange(2)
    Traceback (most recent call last):
    ...
    shardwise.errors.TypePromotionError: add: f32[2] and i32[2] have no common dtype by promotion...
    """
    return config.override("numpy_dtype_promotion", new_val)


def numpy_rank_promotion(new_val: str) -> Switch:
    """While open, arrays of different ranks broadcast ("allow"), with a warning ("warn"), or are an error ("raise").

    Scalars always broadcast.

    >>> with jax.numpy_rank_promotion("raise"):
    ...     jnp.ones((2, 3)) + jnp.ones(3)
    Traceback (most recent call last):
    ...
    ValueError: add: shapes (2, 3) and (3,) differ in rank...
    """
    return config.override("numpy_rank_promotion", new_val)


def default_device(new_val: Any) -> Switch:
    """While open, arrays go and programs run on this device (or on the first of a platform) unless placed otherwise.

    Arrays that the user has placed stay where they are, and take the programs that use them there.

    >>> with jax.default_device(jax.devices("cpu")[2]):
    ...     print(jnp.zeros(1).device.id)
    2
    """
    return config.override("default_device", new_val)


def transfer_guard(new_val: str) -> Switch:
    """While open, arrays that move between host and devices, or between devices, without being told to, are let
    ("allow"), logged ("log") or an error ("disallow").

    `device_put` and `device_get` tell them to; "log_explicit" and "disallow_explicit" are for these too.

    >>> with jax.transfer_guard("disallow"):
    ...     jnp.ones(2) + np.ones(2)
    Traceback (most recent call last):
    ...
    shardwise.errors.TransferError: a transfer from host to device is disallowed here...
    """
    return config.override("transfer_guard", new_val)


def transfer_guard_host_to_device(new_val: str) -> Switch:
    """`transfer_guard` for numpy arrays and numbers that become arrays on a device.

    >>> with jax.transfer_guard_host_to_device("disallow"):
    ...     print(jnp.sin(jax.device_put(0.0)))
    0.0
    """
    return config.override("transfer_guard_host_to_device", new_val)


def transfer_guard_device_to_device(new_val: str) -> Switch:
    """`transfer_guard` for arrays that move from some devices to others.

    >>> with jax.transfer_guard_device_to_device("disallow"):
    ...     print(jax.device_put(jnp.arange(2), jax.devices()[1]))
    [0 1]
    """
    return config.override("transfer_guard_device_to_device", new_val)


def transfer_guard_device_to_host(new_val: str) -> Switch:
    """`transfer_guard` for arrays that are read on the host.

    >>> with jax.transfer_guard_device_to_host("disallow"):
    ...     found = jax.device_get(jnp.arange(2))
    >>> found
    array([0, 1], dtype=int32)
    """
    return config.override("transfer_guard_device_to_host", new_val)


@contextmanager
def ensure_compile_time_eval() -> Iterator[None]:
    """While open, ops run at once also inside a function that is being traced. A traced value is an error here.

    >>> @jax.jit
    ... def f(x):
    ...     with jax.ensure_compile_time_eval():
    ...         size = int(jnp.arange(4).sum())
    ...     return x * jnp.ones(size)
    >>> f(2.0).shape
    (6,)
    """
    with use_frames([]):
        yield


def named_call(fun: _Function, *, name: str | None = None) -> _Function:
    """`fun`, whose ops carry its name, or `name`, in profiles and in the compiled program's text.

    >>> jax.named_call(jnp.sin, name="wave")(0.0)
    Array(0., dtype=float32...)
    """
    return named_scope(name or str(getattr(fun, "__name__", "function")))(fun)
