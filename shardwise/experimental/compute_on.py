"""jax.experimental.compute_on: where XLA runs a part of a program.

The type of compute is an attribute of ops, as `set_xla_metadata` attaches them. XLA's GPU backend moves such ops to the
host or to a stream; its CPU backend, whose devices are the host, ignores the attribute.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

from shardwise.api.arguments import check_function
from shardwise.api.meshes.placement import device_put
from shardwise.base.lazy import publish
from shardwise.errors import UnsupportedError
from shardwise.experimental.xla_metadata import set_xla_metadata

_ATTRIBUTES: dict[str, dict[str, str]] = {
    "device": {},
    "device_host": {"_xla_compute_type": "host"},
    "tpu_sparsecore": {"_xla_compute_type": "sparse"},
}
_STREAM = "gpu_stream:"


@contextmanager
def compute_on(compute_type: str) -> Iterator[None]:
    """Run the ops that are traced inside a `with` block on another part of the hardware.

    Args:
        compute_type: "device_host" for the host of each device, "gpu_stream:N" for a stream of GPUs, "tpu_sparsecore",
            or "device", the default.

    Returns:
        A context, which is also a decorator of functions.

    Raises:
        TypeError: if `compute_type` is not a string.
        ValueError: if it is none of these.

    Example:
        >>> @jax.jit
        ... def on_host(x):
        ...     with jax.experimental.compute_on.compute_on("device_host"):
        ...         return x * 2
        >>> '"_xla_compute_type" = "host"' in on_host.lower(1.0).as_text()
        True
    """
    with set_xla_metadata(**_attributes(compute_type)):
        yield


def compute_on2(
    f: Callable[..., Any] | None = None,
    *,
    compute_type: str,
    out_memory_spaces: Any,
    compiler_options: Mapping[str, object] | None = None,
) -> Callable[..., Any]:
    """Run a function on another part of the hardware, with its results in given memories.

    Args:
        f: the function; None to use `compute_on2` as a decorator.
        compute_type: as in `compute_on`.
        out_memory_spaces: a `memory.Space`, or a tree prefix of the results of them.
        compiler_options: compiler options of XLA for this part, which are not supported; must be None.

    Returns:
        The function, or a decorator.

    Raises:
        TypeError: if `f` is not callable, or `compute_type` is not a string.
        ValueError: if `compute_type` is unknown.
        UnsupportedError: if `compiler_options` is not None.

    Example:
        >>> space = jax.memory.Space.Device
        >>> jax.experimental.compute_on.compute_on2(jnp.sin, compute_type="device_host", out_memory_spaces=space)(0.0)
        Array(0., dtype=float32, weak_type=True)
    """
    _attributes(compute_type)
    if compiler_options is not None:
        raise UnsupportedError("compute_on2: compiler_options of a part are not supported; pass them to `jit`")

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        check_function("compute_on2", function)

        @wraps(function)
        def call(*args: Any) -> Any:
            with compute_on(compute_type):
                results = function(*args)
            return device_put(results, out_memory_spaces)

        return call

    return decorate if f is None else decorate(f)


def _attributes(compute_type: str) -> dict[str, str]:
    """Return the attributes of ops for a type of compute."""
    if not isinstance(compute_type, str):
        raise TypeError(f"compute_on: compute_type must be a string, not {compute_type!r}")
    if compute_type.startswith(_STREAM):
        return {"_xla_stream_annotation": compute_type.removeprefix(_STREAM)}
    if compute_type not in _ATTRIBUTES:
        raise ValueError(
            f"compute_on: compute_type must be one of {', '.join(map(repr, _ATTRIBUTES))} or 'gpu_stream:N', not "
            f"{compute_type!r}"
        )
    return _ATTRIBUTES[compute_type]


publish(__name__)
