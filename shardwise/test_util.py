"""jax.test_util: checks of derivatives against finite differences.

A check compares one random direction, so its cost does not grow with the number of elements. A forward check compares
the JVP with the central difference (f(x + h t) - f(x - h t)) / 2h. A reverse check compares the pairing of the VJP with
the tangents and that of the cotangents with the central difference. Arguments keep their shardings.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, final

import numpy as np

from shardwise import tree
from shardwise.api.transformations.differentiate import jvp, vjp
from shardwise.api.transformations.float0 import float0, is_float0
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.operands import PYTHON_SCALARS, type_of
from shardwise.compiler.dtypes import is_inexact
from shardwise.numpy.dtypes import finfo
from shardwise.typing import ArrayLike

_T = TypeVar("_T")

_STEP = 1e-4
# Default tolerances by the number of explicit bits of the mantissa: rounding errors of a difference, divided by 2h.
_TOLERANCE_BY_MANTISSA = {52: 1e-5, 23: 2e-3, 10: 0.01, 7: 0.1}
_SMALL_FLOAT_TOLERANCE = 0.2

Function = Callable[..., Any]
Tolerance = float | dict[Any, float] | None


def check_jvp(
    f: Function,
    f_jvp: Function,
    args: Sequence[Any],
    atol: Tolerance = None,
    rtol: Tolerance = None,
    eps: float = _STEP,
    err_msg: str = "",
) -> None:
    """Compare a JVP with central differences in one random direction.

    Args:
        f: the function.
        f_jvp: its JVP, `f_jvp(args, tangents)`, which returns the result and its tangents.
        args: the arguments where the derivative is compared: pytrees of arrays and numbers. Integers are not perturbed.
        atol: the absolute tolerance per element, or a dict from dtypes to tolerances. The default depends on the dtype.
        rtol: the relative tolerance, likewise.
        eps: the step of the difference.
        err_msg: the start of the message of an error.

    Raises:
        AssertionError: if values, dtypes or derivatives differ.
        TypeError: if an argument is neither an array nor a number.

    Example:
        >>> from functools import partial
        >>> jax.test_util.check_jvp(jnp.sin, partial(jax.jvp, jnp.sin), (0.5,))
    """
    tolerance = _Tolerance(atol, rtol, err_msg)
    args = tuple(args)
    tangents = _Directions(0).like(args)
    result, result_tangents = f_jvp(args, tangents)
    tolerance.assert_equal_values(result, f(*args))
    tolerance.assert_close("tangent", result_tangents, _central_difference(f, args, tangents, eps))


def check_vjp(
    f: Function,
    f_vjp: Function,
    args: Sequence[Any],
    atol: Tolerance = None,
    rtol: Tolerance = None,
    eps: float = _STEP,
    err_msg: str = "",
) -> None:
    """Compare a VJP with central differences in one random direction.

    Args:
        f: the function.
        f_vjp: its VJP, `f_vjp(*args)`, which returns the result and a function from cotangents to the cotangents of the
            arguments.
        args: the arguments where the derivative is compared: pytrees of arrays and numbers. Integers are not perturbed.
        atol: the absolute tolerance, or a dict from dtypes to tolerances. The default depends on the dtype.
        rtol: the relative tolerance, likewise.
        eps: the step of the difference.
        err_msg: the start of the message of an error.

    Raises:
        AssertionError: if values, dtypes or derivatives differ.
        TypeError: if an argument is neither an array nor a number.

    Example:
        >>> from functools import partial
        >>> jax.test_util.check_vjp(jnp.sin, partial(jax.vjp, jnp.sin), (0.5,))
    """
    tolerance = _Tolerance(atol, rtol, err_msg)
    args = tuple(args)
    result, pullback = f_vjp(*args)
    tolerance.assert_equal_values(result, f(*args))
    tangents, cotangents = _Directions(0).like((args, result))
    expected = _pairing(cotangents, _central_difference(f, args, tangents, eps))
    dtypes_used = [type_of(leaf).dtype for leaf in tree.leaves((args, result))]
    tolerance.assert_close_numbers(
        "pairing of cotangents", _pairing(pullback(cotangents), tangents), expected, dtypes_used
    )


def check_grads(
    f: Function,
    args: Sequence[Any],
    order: int,
    modes: Sequence[str] = ("fwd", "rev"),
    atol: Tolerance = None,
    rtol: Tolerance = None,
    eps: float | None = None,
) -> None:
    """Compare the derivatives of a function with central differences in one random direction.

    Args:
        f: the function.
        args: the arguments where derivatives are compared: pytrees of arrays and numbers. Integers are not perturbed.
        order: the highest order of derivatives. Derivatives of order 2 are those of the JVP and of the VJP, and so on.
        modes: which derivatives: "fwd" (JVP), "rev" (VJP), or both.
        atol: the absolute tolerance per element, or a dict from dtypes to tolerances. The default depends on the dtype.
        rtol: the relative tolerance, likewise.
        eps: the step of the differences; None means 1e-4.

    Raises:
        AssertionError: if derivatives differ; the message says of which mode and order.
        ValueError: if `order` is less than 1, or `modes` has other entries.
        TypeError: if an argument is neither an array nor a number.

    Example:
        >>> jax.test_util.check_grads(lambda x: x**3, (2.0,), order=2, eps=1e-2)
    """
    if order < 1:
        raise ValueError(f"check_grads: order must be at least 1, not {order}")
    if unknown := [mode for mode in modes if mode not in ("fwd", "rev")]:
        raise ValueError(f"check_grads: modes are 'fwd' and 'rev', not {unknown[0]!r}")
    step = _STEP if eps is None else eps
    _check_derivatives(f, tuple(args), order, tuple(modes), partial(_check_mode, atol=atol, rtol=rtol, eps=step), ())


def _check_derivatives(
    f: Function, args: tuple[Any, ...], order: int, modes: tuple[str, ...], check: Function, applied: tuple[str, ...]
) -> None:
    """Check the derivatives of `f` up to `order`. `applied` are the modes whose derivative `f` is, innermost first."""
    for mode in modes:
        history = (*applied, mode)
        check(mode, f, args, err_msg=" of ".join({"fwd": "JVP", "rev": "VJP"}[name] for name in reversed(history)))
        if order > 1:
            _check_derivatives(_derivative(mode, f), args, order - 1, modes, check, history)


def _check_mode(mode: str, f: Function, args: tuple[Any, ...], **options: Any) -> None:
    if mode == "fwd":
        check_jvp(f, partial(jvp, f), args, **options)
    else:
        check_vjp(f, partial(vjp, f), args, **options)


def _derivative(mode: str, f: Function) -> Function:
    """Return the function from arguments to the derivatives of `f` there, in one random direction."""

    def forward(*args: object) -> list[Any]:
        _, tangents = jvp(f, args, _Directions(1).like(args))
        return _without_float0(tangents)

    def reverse(*args: object) -> list[Any]:
        result, pullback = vjp(f, *args)
        return _without_float0(pullback(_Directions(2).like(result)))

    return forward if mode == "fwd" else reverse


@final
class _Directions:
    """Random tangents, the same for the same seed."""

    def __init__(self, seed: int):
        self._random = np.random.default_rng(seed)

    def like(self, values: _T) -> _T:
        """Return tangents of the types of `values`; those of integers are `float0`."""
        tangents: _T = tree.map(self._leaf, values)
        return tangents

    def _leaf(self, x: ArrayLike) -> np.ndarray[Any, Any] | bool | int | float | complex:
        type = type_of(x, "test_util")
        if not is_inexact(type.dtype):
            return np.zeros(type.shape, float0)
        sample = self._random.normal(size=type.shape)
        if type.dtype.kind == "c":
            sample = sample + 1j * self._random.normal(size=type.shape)
        return sample.item() if isinstance(x, PYTHON_SCALARS) else np.asarray(sample, type.dtype)


@final
class _Tolerance:
    """The tolerances of a check, and the start of its error message."""

    def __init__(self, atol: Tolerance, rtol: Tolerance, message: str) -> None:
        self._atol, self._rtol, self._message = atol, rtol, f"{message}: " if message else ""

    def assert_equal_values(self, result: object, expected: object) -> None:
        """Check the result that a derivative function returns with its derivative: its types and values."""
        types = [tree.map(lambda x: type_of(x).dtype, values) for values in (result, expected)]
        if types[0] != types[1]:
            raise AssertionError(f"{self._message}the value is of {types[0]}, and the function returns {types[1]}")
        self.assert_close("value", result, expected)

    def assert_close(self, kind: str, actual: object, expected: object) -> None:
        """Check a pytree of values or tangents. Errors of elements add up, so tolerances grow with the size."""
        structures = tree.structure(actual), tree.structure(expected)
        if structures[0] != structures[1]:
            raise AssertionError(
                f"{self._message}the {kind} has the structure {structures[0]}, and the function returns {structures[1]}"
            )
        for (path, x), y in zip(tree.leaves_with_path(actual), tree.leaves(expected), strict=True):
            if is_float0(x) or is_float0(y):
                continue
            self.assert_close_numbers(f"{kind} {tree.keystr(path)}".strip(), x, y, [type_of(x).dtype])

    def assert_close_numbers(
        self, kind: str, actual: ArrayLike, expected: ArrayLike, dtypes: Sequence[np.dtype[Any]]
    ) -> None:
        """Check an array with the tolerance of the least precise of `dtypes`."""
        if np.shape(actual) != np.shape(expected):
            raise AssertionError(f"{self._message}the {kind} has shape {np.shape(actual)}, not {np.shape(expected)}")
        size = max(1, np.size(expected))
        atol, rtol = (max(_tolerance(given, dtype) for dtype in dtypes) for given in (self._atol, self._rtol))
        np.testing.assert_allclose(
            _wide(actual), _wide(expected), rtol * size, atol * size, err_msg=f"{self._message}the {kind} differs"
        )


def _tolerance(tolerance: Tolerance, dtype: np.dtype[Any]) -> float:
    """Return the tolerance of a dtype: the user's, or the default of its precision."""
    if isinstance(tolerance, dict):
        tolerance = {np.dtype(key): value for key, value in tolerance.items()}.get(dtype)
    if tolerance is not None:
        return tolerance
    if not is_inexact(dtype):
        return 0.0
    return _TOLERANCE_BY_MANTISSA.get(finfo(dtype).nmant, _SMALL_FLOAT_TOLERANCE)


def _central_difference(f: Function, args: tuple[Any, ...], tangents: object, step: float) -> Any:
    """Return (f(x + h t) - f(x - h t)) / 2h in double precision. The difference of integers is `float0`."""

    def shift(x: Any, tangent: Any, step: float) -> Any:
        if is_float0(tangent):
            return x
        if isinstance(x, PYTHON_SCALARS):
            return x + step * tangent
        return x + (step * _wide(tangent)).astype(tangent.dtype)

    def divide(before: ArrayLike, after: ArrayLike) -> np.ndarray[Any, Any]:
        if not is_inexact(type_of(before).dtype):
            return np.zeros(np.shape(before), float0)
        low, high = _wide(before), _wide(after)
        with np.errstate(invalid="ignore"):  # equal infinities have the difference 0
            return np.where(low == high, 0, (high - low) / (2 * step))

    before, after = (f(*tree.map(partial(shift, step=sign * step), args, tangents)) for sign in (-1, 1))
    return tree.map(divide, before, after)


def _pairing(cotangents: object, tangents: object) -> float:
    """Return the real part of the sum of all products of a cotangent and a tangent, which a VJP preserves."""
    pairs = zip(tree.leaves(cotangents), tree.leaves(tangents), strict=True)
    return math.fsum(np.sum(_wide(x) * _wide(y)).real for x, y in pairs if not (is_float0(x) or is_float0(y)))


def _wide(x: ArrayLike) -> np.ndarray[Any, Any]:
    """Return a numpy array; floats and complex numbers in double precision."""
    array = np.asarray(x)
    if not is_inexact(array.dtype):
        return array
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _without_float0(values: object) -> list[Any]:
    return [leaf for leaf in tree.leaves(values) if not is_float0(leaf)]


publish(__name__)
