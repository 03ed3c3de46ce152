"""Functions that apply a Python function over arrays: vectorize, ufunc, frompyfunc, apply_along_axis, piecewise."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import Any, final

from shardwise import numpy
from shardwise.api.control import scan
from shardwise.api.transformations.vmap import vmap
from shardwise.base.docstrings import documented
from shardwise.compiler.arrays import methods
from shardwise.compiler.arrays.indexing import canonical_axis
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, broadcast_to_shape, compiled_function, type_of
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.lax.shape import broadcast_shapes, expand_dims, squeeze
from shardwise.numpy.creation import array, asarray, full
from shardwise.numpy.families import ARRAYS, ONE_AXIS
from shardwise.numpy.indexing import take
from shardwise.numpy.joining import concatenate
from shardwise.numpy.shapes import moveaxis
from shardwise.typing import ArrayLike, Arrays, DTypeLike, Index

_METHOD = ARRAYS.extended(
    {
        "axis": "the axis.",
        "dtype": "the dtype to compute in. By default, that of `a`.",
        "inplace": "must be False, because arrays are immutable.",
    }
)

Function = Callable[..., Any]
DimNames = tuple[str, ...]

_CORE_DIMS = r"\(\s*(?:\w+(?:\s*,\s*\w+)*)?\s*\)"
_SIGNATURE = rf"\s*{_CORE_DIMS}(?:\s*,\s*{_CORE_DIMS})*\s*->\s*{_CORE_DIMS}(?:\s*,\s*{_CORE_DIMS})*\s*"


def vectorize(pyfunc: Function, *, excluded: Collection[Any] = frozenset(), signature: str | None = None) -> Function:
    """Turn a function of scalars, or of arrays of fixed rank, into one of arrays that broadcast.

    Args:
        pyfunc: the function. It is mapped with `vmap` over the leading dims of its operands.
        excluded: the positions and names of arguments that are passed unchanged. Arguments that are None are too.
        signature: the core dims of operands and results, such as "(n,m),(m)->(n)". By default all are scalars.

    Returns:
        The vectorized function. It raises ValueError if core dims do not match the signature, and TypeError if the
        number of operands or results does not.

    Raises:
        TypeError: if `excluded` contains anything but integers and strings.
        ValueError: if a position in `excluded` is negative, or the signature is invalid.

    Example:
        >>> jnp.vectorize(jnp.dot, signature="(n),(n)->()")(jnp.ones((2, 3)), jnp.arange(3.0))
        Array([3., 3.], dtype=float32)
    """
    if any(not isinstance(argument, (int, str)) for argument in excluded):
        raise TypeError(f"vectorize: `excluded` must contain positions and names of arguments, not {excluded!r}")
    if any(isinstance(argument, int) and argument < 0 for argument in excluded):
        raise ValueError(f"vectorize: positions in `excluded` cannot be negative: {excluded!r}")
    core_dims = None if signature is None else _parse_signature(signature)

    @wraps(pyfunc)
    def call(*args: Any, **keywords: Any) -> Any:
        mapped_keywords = {
            name: value for name, value in keywords.items() if name not in excluded and value is not None
        }
        fixed_keywords = {name: value for name, value in keywords.items() if name not in mapped_keywords}
        mapped = [number for number, x in enumerate(args) if number not in excluded and x is not None]

        def on_operands(*operands: Array) -> Any:
            positional = list(args)
            for number, x in zip(mapped, operands, strict=False):
                positional[number] = x
            named = dict(zip(mapped_keywords, operands[len(mapped) :], strict=True))
            return pyfunc(*positional, **fixed_keywords, **named)

        return _map_leading_dims(
            on_operands, [*(args[number] for number in mapped), *mapped_keywords.values()], core_dims
        )

    return call


def _parse_signature(signature: str) -> tuple[list[DimNames], list[DimNames]]:
    """Return the names of the core dims of each operand and of each result."""
    if not re.fullmatch(_SIGNATURE, signature):
        raise ValueError(f"vectorize: invalid signature {signature!r}; expected one like '(n,m),(m)->(n)'")
    operands, results = (
        [tuple(re.findall(r"\w+", dims)) for dims in re.findall(_CORE_DIMS, side)] for side in signature.split("->")
    )
    return operands, results


def _map_leading_dims(
    function: Function, args: Sequence[Any], core_dims: tuple[list[DimNames], list[DimNames]] | None
) -> Any:
    """Map `function` over the dims in front of the core dims, which broadcast."""
    operands, results = core_dims if core_dims is not None else ([()] * len(args), None)
    if len(operands) != len(args):
        raise TypeError(f"vectorize: the signature has {len(operands)} operands, but the call has {len(args)}")
    arrays = [asarray(x) for x in args]
    sizes: dict[str, int] = {}
    leading_shapes: list[tuple[int, ...]] = []
    for x, names in zip(arrays, operands, strict=True):
        leading_rank = x.type.ndim - len(names)
        if leading_rank < 0:
            raise ValueError(f"vectorize: {x.type} lacks the core dims ({','.join(names)}) of the signature")
        leading_shapes.append(x.type.shape[:leading_rank])
        for name, size in zip(names, x.type.shape[leading_rank:], strict=True):
            if sizes.setdefault(name, size) != size:
                raise ValueError(f"vectorize: core dim {name!r} has size {sizes[name]}, but size {size} in {x.type}")
    common_shape = broadcast_shapes(*leading_shapes) if leading_shapes else ()
    mapped = function if results is None else _check_results(function, results, sizes)
    operands_without_ones = [_squeeze_leading(x, len(shape)) for x, shape in zip(arrays, leading_shapes, strict=True)]
    for back in range(1, len(common_shape) + 1):  # from the last leading dim to the first
        in_axes = tuple(0 if len(shape) >= back and shape[-back] != 1 else None for shape in leading_shapes)
        mapped = vmap(mapped, in_axes=in_axes, axis_size=common_shape[-back])
    return mapped(*operands_without_ones)


def _squeeze_leading(x: Array, leading_rank: int) -> Any:
    """Remove the leading dims of size 1, which broadcast instead of being mapped over."""
    return squeeze(x, [dim for dim in range(leading_rank) if x.type.shape[dim] == 1])


def _check_results(function: Function, core_dims: list[DimNames], sizes: dict[str, int]) -> Function:
    """Wrap `function` to check the number and the core dims of its results against the signature."""

    def call(*args: Any) -> Any:
        returned = function(*args)
        results = returned if isinstance(returned, tuple) else (returned,)
        if len(results) != len(core_dims) or (isinstance(returned, tuple) and len(core_dims) == 1):
            raise TypeError(
                f"vectorize: the signature has {len(core_dims)} results, but the function returned {len(results)}"
            )
        known_sizes = dict(sizes)
        for x, names in zip(results, core_dims, strict=True):
            shape = type_of(x, "vectorize").shape
            has_rank = len(shape) == len(names)
            if not has_rank or any(
                known_sizes.setdefault(name, size) != size for name, size in zip(names, shape, strict=True)
            ):
                raise ValueError(
                    f"vectorize: a result of shape {shape} does not match the core dims ({','.join(names)}) "
                    f"with sizes {known_sizes}"
                )
        return returned

    return call


@documented(ONE_AXIS, returns="The results. The dims of a result of `func1d` replace `axis`.")
def apply_along_axis(func1d: Function, axis: int, arr: ArrayLike, *args: Any, **kwargs: Any) -> Any:
    """Apply a function to each 1-d slice of an array along an axis.

    Args:
        func1d: the function of a 1-d array.
        axis: the axis of the slices.
        *args: further positional arguments of `func1d`.
        **kwargs: keyword arguments of `func1d`.

    Example:
        >>> jnp.apply_along_axis(jnp.sum, 1, jnp.array([[1, 2], [3, 4]]))
        Array([3, 7], dtype=int32)
    """
    x = as_operand(arr, "apply_along_axis")
    dim = canonical_axis("apply_along_axis", axis, x.type.ndim)

    def on_slice(row: Array) -> Any:
        return func1d(row, *args, **kwargs)

    mapped: Function = on_slice
    for _ in range(x.type.ndim - dim - 1):
        mapped = vmap(mapped, in_axes=-1, out_axes=-1)
    for _ in range(dim):
        mapped = vmap(mapped, in_axes=0, out_axes=0)
    return mapped(x)


@documented(ARRAYS, returns="The result, with the rank of `a`: a dim that `func` removes stays, with size 1.")
def apply_over_axes(func: Callable[[Any, int], Any], a: ArrayLike, axes: Sequence[int]) -> Array:
    """Apply a reduction over several axes, one after the other.

    Args:
        func: a function of an array and an axis that keeps the rank or removes the axis.
        axes: the axes.

    Raises:
        ValueError: if an axis does not exist, or `func` returns an array of another rank.

    Example:
        >>> jnp.apply_over_axes(jnp.sum, jnp.array([[1, 2], [3, 4]]), [0, 1])
        Array([[10]], dtype=int32)
    """
    x = as_operand(a, "apply_over_axes")
    rank = x.type.ndim
    for axis in axes:
        dim = canonical_axis("apply_over_axes", axis, rank)
        result = as_operand(func(x, dim), "apply_over_axes")
        x = expand_dims(result, (dim,)) if result.type.ndim == rank - 1 else result
        if x.type.ndim != rank:
            raise ValueError(
                f"apply_over_axes: the function returned {result.type} for axis {axis}; "
                f"expected rank {rank} or {rank - 1}"
            )
    return x


@documented(ARRAYS, returns="An array with the shape and dtype of `x`.")
def piecewise(x: ArrayLike, condlist: Arrays, funclist: Sequence[Any], *args: Any, **kw: Any) -> Array:
    """Evaluate a function that is defined by cases.

    Where several conditions hold, the last one applies.

    Args:
        condlist: the conditions, boolean arrays that broadcast with `x`.
        funclist: a function or a number for each condition. One more applies where no condition holds; by default it is
            0. Functions are called with `x`, `args` and `kw`, and results are cast to the dtype of `x`.
        *args: further positional arguments of the functions.
        **kw: keyword arguments of the functions.

    Raises:
        TypeError: if `x` cannot be converted to an array, or a condition is not an array or a number.
        ValueError: if the number of functions does not match the number of conditions.

    Example:
        >>> jnp.piecewise(
        ...     jnp.array([-1.0, 0.0, 2.0]), [jnp.array([True, False, False])], [lambda x: -x, lambda x: 2 * x]
        ... )
        Array([1., 0., 4.], dtype=float32)
    """
    operand = asarray(x)
    if isinstance(condlist, (list, tuple)):
        conditions = list(condlist)
    else:
        condition_type = type_of(condlist, "piecewise")
        conditions = list(condlist) if condition_type.ndim > operand.type.ndim else [condlist]
    functions = list(funclist)
    if len(functions) == len(conditions):
        functions.append(0)
    count = len(conditions)
    if len(functions) != count + 1:
        raise ValueError(f"piecewise: {count} conditions need {count} or {count + 1} functions, not {len(functions)}")
    *cases, result = (_evaluate_case(function, operand, args, kw) for function in functions)
    for condition, case in zip(conditions, cases, strict=True):
        result = methods.where(condition, case, result)
    return result


def _evaluate_case(function: Function | ArrayLike, x: Array, args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    value = function(x, *args, **keywords) if callable(function) else function
    return _broadcast(methods.astype(value, dtype=x.type.dtype), shape=x.type.shape)


@compiled_function
def _broadcast(x: ArrayLike, *, shape: tuple[int, ...]) -> Any:
    return broadcast_to_shape(as_operand(x), shape)


def frompyfunc(func: Function, /, nin: int, nout: int, *, identity: ArrayLike | None = None) -> "ufunc":
    """Create a ufunc from a function of scalars.

    Args:
        func: the function.
        nin: the number of operands.
        nout: the number of results.
        identity: the initial value of reductions.

    Returns:
        The ufunc. Its methods `reduce` and `accumulate` apply `func` sequentially.

    Raises:
        TypeError: if `func` is not callable.

    Example:
        >>> jnp.frompyfunc(lambda x, y: x + 2 * y, 2, 1).reduce(jnp.array([1, 2, 3]))
        Array(11, dtype=int32)
    """
    return ufunc(func, nin, nout, identity=identity)


def _load_ufunc(name: str) -> "ufunc":
    return getattr(numpy, name)


@final
class ufunc:
    """An elementwise function of arrays that broadcast, with methods that apply it along a dim.

    Args:
        func: the function of scalars.
        nin: the number of operands.
        nout: the number of results.
        name: the name for errors and pickling. By default, that of `func`.
        nargs: the number of arguments. By default `nin`.
        identity: the initial value of reductions.
        call: the implementation of a call. By default, `vectorize(func)`.
        reduce, accumulate, at, reduceat: the implementations of these methods. By default, they apply `func`
            sequentially with `lax.scan`.

    Raises:
        TypeError: if `func` is not callable.

    Example:
        >>> jnp.ufunc(lambda x, y: 2 * x + y, 2, 1).accumulate(jnp.array([1, 2, 3]))
        Array([ 1,  4, 11], dtype=int32)
    """

    def __init__(
        self,
        func: Function,
        /,
        nin: int,
        nout: int,
        *,
        name: str | None = None,
        nargs: int | None = None,
        identity: ArrayLike | None = None,
        call: Function | None = None,
        reduce: Function | None = None,
        accumulate: Function | None = None,
        at: Function | None = None,
        reduceat: Function | None = None,
    ) -> None:
        if not callable(func):
            raise TypeError(f"ufunc: needs a function, not {func!r}")
        self._func = func
        self._call = vectorize(func) if call is None else call
        self._overrides = {"reduce": reduce, "accumulate": accumulate, "at": at, "reduceat": reduceat}
        self._nin, self._nout, self._identity = nin, nout, identity
        self._nargs = nin if nargs is None else nargs
        self.__name__ = str(name or getattr(func, "__name__", "ufunc"))
        self.__doc__ = func.__doc__

    @property
    def nin(self) -> int:
        return self._nin

    @property
    def nout(self) -> int:
        return self._nout

    @property
    def nargs(self) -> int:
        return self._nargs

    @property
    def identity(self) -> ArrayLike | None:
        return self._identity

    @property
    def _key(self) -> tuple[Any, ...]:
        return self._func, self.__name__, self._nin, self._nout, self._identity, tuple(self._overrides.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ufunc) and self._key == other._key

    def __hash__(self) -> int:
        return hash((self._func, self.__name__, self._nin, self._nout))

    def __reduce__(self) -> Any:
        """Pickle a public ufunc by name."""
        is_public = getattr(numpy, self.__name__, None) is self
        return (_load_ufunc, (self.__name__,)) if is_public else super().__reduce__()

    def __repr__(self) -> str:
        return f"<shardwise.numpy.ufunc {self.__name__!r}>"

    def __call__(self, *args: ArrayLike, out: None = None, where: None = None) -> Array:
        if out is not None or where is not None:
            self._reject("out", out)
            self._reject("where", where)
        return self._call(*args)

    def _reject(self, argument: str, value: ArrayLike | None) -> None:
        if value is not None:
            raise NotImplementedError(
                f"{self.__name__}: `{argument}` is not supported; use the result, and `numpy.where` for a mask"
            )

    def _require_binary(self, method: str) -> None:
        if (self.nin, self.nout) != (2, 1):
            raise ValueError(
                f"{self.__name__}.{method}: needs a ufunc of 2 operands and 1 result, "
                f"not of nin={self.nin} and nout={self.nout}"
            )

    @documented(_METHOD, returns="The reduced array.")
    def reduce(
        self,
        a: ArrayLike,
        axis: int | None = 0,
        dtype: DTypeLike | None = None,
        out: None = None,
        keepdims: bool = False,
        initial: ArrayLike | None = None,
        where: ArrayLike | None = None,
    ) -> Any:
        """Reduce an array along an axis by applying the function to its elements in order.

        Args:
            axis: the axis to reduce. With None, the flattened array is reduced.
            initial: the initial value. By default, the identity of the function, or the first element if it has none.
            where: a mask of the elements to include.

        Raises:
            ValueError: if the function is not binary, `axis` does not exist, or an initial value is required: the array
                is empty or `where` is given, and the function has no identity.
            NotImplementedError: if `out` or several axes are given.
        """
        self._require_binary("reduce")
        self._reject("out", out)
        if (override := self._overrides["reduce"]) is not None:
            return override(a, axis=axis, dtype=dtype, keepdims=keepdims, initial=initial, where=where)
        x = asarray(a, dtype)
        first = self.identity if initial is None else initial
        if where is not None and first is None:
            raise ValueError(f"{self.__name__}.reduce: the function has no identity, so `where` needs `initial`")
        mask = None if where is None else methods.broadcast_to(where, shape=x.type.shape)
        shape = x.type.shape
        if axis is None:
            x, mask, dim = x.reshape(-1), None if mask is None else mask.reshape(-1), 0
            kept_shape: tuple[int, ...] = (1,) * len(shape)
        elif isinstance(axis, Sequence):
            raise NotImplementedError(f"{self.__name__}.reduce: axis must be one axis, or None for all, not {axis}")
        else:
            dim = canonical_axis(f"{self.__name__}.reduce", axis, len(shape))
            kept_shape = (*shape[:dim], 1, *shape[dim + 1 :])
        if not x.type.shape[dim] and first is None:
            raise ValueError(
                f"{self.__name__}.reduce: {x.type} is empty along dim {dim}, and the function has no identity; "
                "pass `initial`"
            )
        rows = moveaxis(x, dim, 0)
        start = rows[0] if first is None else full(rows.type.shape[1:], first, x.type.dtype)
        rest = rows[1:] if first is None else rows
        masks = None if mask is None else moveaxis(mask, dim, 0)

        def step(total: Array, row: Array) -> Any:
            element, include = row
            result = methods.astype(self._call(total, element), dtype=x.type.dtype)
            return (result if include is None else methods.where(include, result, total)), None

        total, _ = scan(step, start, (rest, masks))
        return total.reshape(kept_shape) if keepdims else total

    @documented(_METHOD, returns="An array with the shape of `a`.")
    def accumulate(self, a: ArrayLike, axis: int = 0, dtype: DTypeLike | None = None, out: None = None) -> Any:
        """Compute the running results of applying the function to the elements along an axis.

        Raises:
            ValueError: if the function is not binary, or `axis` does not exist.
        """
        self._require_binary("accumulate")
        self._reject("out", out)
        if (override := self._overrides["accumulate"]) is not None:
            return override(a, axis=axis, dtype=dtype)
        x = asarray(a, dtype)
        dim = canonical_axis(f"{self.__name__}.accumulate", axis, x.type.ndim)
        rows = moveaxis(x, dim, 0)
        if not rows.type.shape[0]:
            return x

        def step(total: Array, row: Array) -> Any:
            result = methods.astype(self._call(total, row), dtype=x.type.dtype)
            return result, result

        _, rest = scan(step, rows[0], rows[1:])
        return moveaxis(concatenate([rows[:1], rest]), 0, dim)

    @documented(_METHOD, returns="The updated array.")
    def at(self, a: ArrayLike, indices: Index, b: ArrayLike | None = None, /, *, inplace: bool = True) -> Any:
        """Apply the function to the elements of an array at indices; repeated indices apply it repeatedly.

        Args:
            indices: an index array, or a tuple of one per dim.
            b: the second operand of a binary function.

        Raises:
            ValueError: if the number of operands does not match the function.
            NotImplementedError: if `inplace` is true.
        """
        if inplace:
            raise NotImplementedError(
                f"{self.__name__}.at: arrays are immutable; pass `inplace=False` and use the result"
            )
        if (override := self._overrides["at"]) is not None:
            return override(a, indices) if b is None else override(a, indices, b)
        if self.nin != (1 if b is None else 2) or self.nout != 1:
            raise ValueError(
                f"{self.__name__}.at: a function of {self.nin} operands needs {self.nin - 1} after `indices`"
            )
        x = asarray(a)
        index: tuple[Any, ...] = indices if isinstance(indices, tuple) else (indices,)
        shape = broadcast_shapes(*(type_of(part, "at").shape for part in index))
        index_columns = [methods.broadcast_to(part, shape=shape).reshape(-1) for part in index]
        slice_shape = x.type.shape[len(index) :]
        operands = (
            None if b is None else methods.broadcast_to(b, shape=(*shape, *slice_shape)).reshape(-1, *slice_shape)
        )

        def step(result: Array, row: Array) -> Any:
            position, operand = row
            old = result[position]
            new = self._call(old) if operand is None else self._call(old, operand)
            return result.at[position].set(methods.astype(new, dtype=x.type.dtype)), None

        return scan(step, x, (tuple(index_columns), operands))[0]

    @documented(_METHOD, returns="An array with one reduced slice per index along `axis`.")
    def reduceat(
        self, a: ArrayLike, indices: ArrayLike, axis: int = 0, dtype: DTypeLike | None = None, out: None = None
    ) -> Any:
        """Reduce slices of an array along an axis.

        Slice `i` goes from `indices[i]` to `indices[i + 1]`, the last one to the end. If the next index is not larger,
        the slice is the single element at `indices[i]`.

        Args:
            indices: the start of each slice, a 1-d array of integers.

        Raises:
            ValueError: if the function is not binary, `indices` does not have 1 dim, or `axis` does not exist.
        """
        self._require_binary("reduceat")
        self._reject("out", out)
        if (override := self._overrides["reduceat"]) is not None:
            return override(a, indices, axis=axis, dtype=dtype)
        x = asarray(a, dtype)
        if type_of(indices, "reduceat").ndim != 1:
            raise ValueError(f"{self.__name__}.reduceat: indices must have 1 dim, not {type_of(indices)}")
        dim = canonical_axis(f"{self.__name__}.reduceat", axis, x.type.ndim)
        rows = moveaxis(x, dim, 0)
        starts = array(indices)
        size, mask_shape = rows.type.shape[0], (starts.type.size, *(1,) * (rows.type.ndim - 1))
        ends = concatenate([starts[1:], full((1,), size, starts.type.dtype)])
        first = take(rows, starts, 0, mode="clip")

        def step(total: Array, row: Array) -> Any:
            element, position = row
            inside = ((position > starts) & (position < ends)).reshape(mask_shape)
            result = methods.astype(self._call(total, element[None]), dtype=x.type.dtype)
            return methods.where(inside, result, total), None

        total, _ = scan(step, first, (rows, Iota((size,), 0, starts.type.dtype)()))
        return moveaxis(total, 0, dim)

    def outer(self, A: ArrayLike, B: ArrayLike, /) -> Any:
        """Apply the function to all pairs of elements of two arrays.

        Args:
            A, B: the arrays.

        Returns:
            An array with the dims of `A` followed by those of `B`.

        Raises:
            ValueError: if the function does not have 2 operands.
        """
        if self.nin != 2:
            raise ValueError(f"{self.__name__}.outer: needs a function of 2 operands, not of {self.nin}")
        left, right = asarray(A), asarray(B)
        return self._call(left.reshape(*left.type.shape, *(1,) * right.type.ndim), right)
