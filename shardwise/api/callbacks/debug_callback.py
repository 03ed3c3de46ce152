"""debug.callback and debug.print: call a host function with values of a running program, for debugging."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from string import Formatter
from typing import Any, final

import numpy as np

from shardwise import tree
from shardwise.api.arguments import function_name
from shardwise.api.callbacks.callback import NO_RESULT, call_host
from shardwise.compiler.arrays.methods import is_array_like
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.dtypes import is_key
from shardwise.compiler.ir.program import Source
from shardwise.compiler.ops.random.key_data import KeyData
from shardwise.compiler.trace.provenance import user_source
from shardwise.execute.traceback_filter import filter_traceback
from shardwise.runtime.array import array_from_words
from shardwise.runtime.client import process_count, process_index

Function = Callable[..., Any]
_log = logging.getLogger("shardwise")


def debug_callback(
    callback: Function | None = None, *args: object, ordered: bool = False, partitioned: bool = False, **kwargs: object
) -> Any:
    """Call a host function with values of a program, for debugging.

    Differentiation ignores it. `debug.callback(ordered=True)(callback, *args)` separates the options from the
    keyword arguments of the callback.

    Args:
        callback: the function; its result is ignored. Without it, the result is a function with these options.
        *args: pytrees. `callback` receives their arrays as numpy arrays, PRNG keys as arrays of keys, and all other
            objects unchanged.
        ordered: whether ordered callbacks are called in program order.
        partitioned: whether every device calls the function with its own shards. Otherwise it is called once, with
            unsharded arrays, which are gathered for it.
        **kwargs: keyword arguments of `callback`.

    Returns:
        None; without `callback`, a function of a callback and its arguments.

    Raises:
        TypeError: if `callback` is not callable, or if arguments are passed without one.

    Example:
        >>> seen = []
        >>> result = jax.jit(lambda x: jax.debug.callback(seen.append, x))(jnp.array(3))
        >>> jax.effects_barrier()
        >>> seen
        [array(3, dtype=int32)]
    """
    kind = "ordered_watch" if ordered else "watch"
    if callback is None:
        _check_no_arguments("debug.callback", args, kwargs)
        return lambda callback, *args, **kwargs: _call(callback, args, kwargs, kind, partitioned)
    return _call(callback, args, kwargs, kind, partitioned)


@filter_traceback
def _call(callback: Function, args: tuple[Any, ...], kwargs: dict[str, Any], kind: str, partitioned: bool) -> None:
    """Record a callback of this kind. Only the arrays among its arguments are operands."""
    if not callable(callback):
        raise TypeError(f"a callback must be a function, not {callback!r}")
    leaves, structure = tree.flatten((args, kwargs))
    operands = [as_operand(x) for x in leaves if is_array_like(x)]
    words = [KeyData()(x) if is_key(x.type.dtype) else x for x in operands]
    static = {index: x for index, x in enumerate(leaves) if not is_array_like(x)}
    key_types = {index: x.type for index, x in enumerate(operands) if is_key(x.type.dtype)}
    host_function = _StructuredCallback(callback, structure, static, key_types)
    call_host(host_function, NO_RESULT, tuple(words), {}, kind, partitioned=partitioned)


@final
class _StructuredCallback:
    """A function of the arrays among the leaves of `structure`; adds the static leaves, and wraps words of keys."""

    def __init__(
        self, callback: Function, structure: tree.Structure, static: dict[int, Any], key_types: dict[int, Any]
    ):
        self.callback, self.structure, self.static, self.key_types = callback, structure, static, key_types
        self.__name__ = function_name(callback)
        self.__wrapped__ = callback

    def __call__(self, *arrays: np.ndarray[Any, Any]) -> None:
        values = iter(
            array_from_words(x, self.key_types[index]) if index in self.key_types else x
            for index, x in enumerate(arrays)
        )
        leaves = [
            self.static[index] if index in self.static else next(values) for index in range(self.structure.num_leaves)
        ]
        args, keywords = self.structure.unflatten(leaves)
        self.callback(*args, **keywords)


def debug_print(
    fmt: str | None = None,
    *args: object,
    ordered: bool = False,
    partitioned: bool = False,
    skip_format_check: bool = False,
    _use_logging: bool = False,
    **kwargs: object,
) -> Any:
    """Print values of a program when it runs, as `print(fmt.format(*args, **kwargs))`.

    If there are several processes, the process that prints comes first, as `[process 0] `.
    Numpy's print options are those of the time when the program is traced. `debug.print(ordered=True)(fmt, *args)`
    separates the options from the named fields.

    Args:
        fmt: the format string: `{}` and `{name}` are replaced by arguments, and doubled braces print as braces.
            Without it, the result is a function with these options.
        *args: arrays and other objects for the positional fields.
        ordered: whether ordered prints happen in program order.
        partitioned: whether every device prints its own shards. Otherwise unsharded arrays are printed once.
        skip_format_check: whether to skip the check that fields and arguments match. If the format has no fields, the
            arguments are printed after it.
        _use_logging: whether to log the line with level INFO by the `shardwise` logger, as `debug.log` does.
        **kwargs: arrays and other objects for the named fields.

    Returns:
        None; without `fmt`, a function of a format string and its arguments.

    Raises:
        TypeError: if `fmt` is not a string, or if arguments are passed without one.
        ValueError: if a field of `fmt` has no argument, or an argument has no field.

    Example:
        >>> result = jax.jit(lambda x: jax.debug.print("x is {x}", x=x))(jnp.arange(3))
        x is [0 1 2]
    """
    kind = "ordered_watch" if ordered else "watch"
    if fmt is None:
        _check_no_arguments("debug.print", args, kwargs)
        return lambda fmt, *args, **kwargs: _print(
            fmt, args, kwargs, kind, partitioned, skip_format_check, _use_logging
        )
    return _print(fmt, args, kwargs, kind, partitioned, skip_format_check, _use_logging)


debug_log = partial(debug_print, _use_logging=True)


def _print(
    fmt: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    kind: str,
    partitioned: bool,
    skip_format_check: bool,
    use_logging: bool,
) -> None:
    if not isinstance(fmt, str):
        raise TypeError(f"debug.print: the first argument must be a format string, such as 'x is {{x}}', not {fmt!r}")
    if not skip_format_check:
        try:
            _FormatChecker().vformat(fmt, args, kwargs)  # here, so that the error is at the user's line
        except (IndexError, KeyError) as error:
            raise FormatFieldError(
                f"debug.print: the format {fmt!r} has a field without an argument: {error}"
            ) from None
    _call(_Printer(fmt, user_source() if use_logging else None), args, kwargs, kind, partitioned)


class FormatFieldError(ValueError, KeyError, IndexError):
    """A field of a format has no argument. `str.format` raises a KeyError or an IndexError for it."""

    __str__ = BaseException.__str__


def _check_no_arguments(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if args or kwargs:
        raise TypeError(f"{name}: without a first argument it accepts options only, not {args} and {kwargs}")


@final
class _FormatChecker(Formatter):
    """Check that fields and arguments match, without formatting the values, which are not known yet."""

    def format_field(self, value: object, format_spec: str) -> str:
        return ""

    def convert_field(self, value: object, conversion: str | None) -> Any:
        return ""

    def check_unused_args(
        self, used_args: Collection[int | str], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        unused = [repr(key) for key in (*range(len(args)), *kwargs) if key not in used_args]
        if unused:
            raise ValueError(f"debug.print: the format has no field for argument {', '.join(unused)}")


@final
class _PrintableArray(np.ndarray[Any, Any]):
    """A numpy array whose repr is that of an Array: nested in a pytree, it prints as `Array(2, dtype=int32)`."""

    def __repr__(self) -> str:
        return np.ndarray.__repr__(self.view(np.ndarray)).replace("array(", "Array(", 1)


def printable(x: object) -> Any:
    """Return a numpy array with the repr of an Array; any other object itself."""
    return x.view(_PrintableArray) if isinstance(x, np.ndarray) else x


@final
class _Printer:
    """Prints its arguments by a format, with numpy's print options of the time when it was created.

    With a source line, it logs the text as from that line.
    """

    def __init__(self, fmt: str, log_source: Source | None):
        self.fmt, self.log_source = fmt, log_source
        self.has_fields = any(field is not None for _, field, _, _ in Formatter().parse(fmt))
        self.options = np.get_printoptions()
        self.__name__ = "print"

    def __call__(self, *args: object, **kwargs: object) -> None:
        args, kwargs = tree.map(printable, (args, kwargs))
        with np.printoptions(**self.options):
            if self.has_fields or not args:
                text = self.fmt.format(*args, **kwargs)
            else:
                text = " ".join((self.fmt, *map(str, args)))
        prefix = f"[process {process_index()}] " if process_count() > 1 else ""
        if self.log_source is not None:
            source = self.log_source
            _log.handle(_log.makeRecord(_log.name, logging.INFO, source.file, source.line, f"{prefix}{text}", (), None))
            return
        # One write for the line and its newline: several devices may print at the same time.
        print(f"{prefix}{text}\n", end="")
