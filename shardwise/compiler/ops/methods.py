"""What arrays can do: functions composed of ops, and the operators and methods that Array and Tracer share.

The functions take arrays, numpy arrays and Python scalars, promote and broadcast as numpy and JAX do, and apply ops.
Positional arguments are arrays, keywords are static. Outside every frame a whole function runs as one compiled
program (`composed`); inside one its ops are staged one by one.
"""

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from shardwise.compiler.ir.dispatch import installed, open_frames
from shardwise.compiler.ir.types import ArrayType, Typed, carrier, is_float, is_inexact, is_integer
from shardwise.compiler.ops import elementwise
from shardwise.compiler.ops.dot import Dot
from shardwise.compiler.ops.promote import canonical_dtype, default_dtype, meet, scalar_type
from shardwise.compiler.ops.reduce import Sum
from shardwise.compiler.ops.shape import Broadcast, Reshape, full, permuted

PYTHON_SCALARS = (bool, int, float, complex)
_Function = TypeVar("_Function", bound=Callable[..., Any])


def composed(function: _Function) -> _Function:
    """Run `function` as one compiled program where no frame stages its ops."""

    @wraps(function)
    def call(*args: Any, **static: Any) -> Any:
        for frame in open_frames():
            if frame.absorbs or any(frame.owns(arg) for arg in args):
                return function(*args, **static)
        return installed.executor.call(function, args, static)

    return call  # type: ignore[return-value]


def type_of(x: Any, name: str = "array") -> ArrayType:
    """The type that `x` has as an operand. `name` is the function that was given it, for the error."""
    found = getattr(x, "type", None)
    if isinstance(found, ArrayType):
        return found
    if isinstance(x, PYTHON_SCALARS):
        return scalar_type(x)
    if isinstance(x, (np.ndarray, np.generic)):
        return ArrayType(x.shape, canonical_dtype(x.dtype))
    raise TypeError(f"{name}: needs an array or a number, not {x!r} of type {type(x).__name__}")


def as_operand(x: Any, name: str = "array") -> Any:
    """`x` as an array or tracer."""
    kind = type_of(x, name)
    if isinstance(x, (*PYTHON_SCALARS, np.generic)):
        return full((), x, kind.dtype, kind.weak)
    return installed.executor.place(x) if isinstance(x, np.ndarray) else x


def is_array_like(x: Any) -> bool:
    return isinstance(x, (ArrayMethods, np.ndarray, np.generic, *PYTHON_SCALARS))


def astype_weak(x: Any, dtype: Any, weak: bool) -> Any:
    if x.type.dtype == dtype and x.type.weak == weak:
        return x
    return elementwise.Convert(np.dtype(dtype), weak)(x)


def broadcast_shapes(name: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that these broadcast to, by numpy's rule."""
    if len(set(shapes)) == 1:
        return shapes[0]
    ndim = max(map(len, shapes))
    out: list[int] = []
    for sizes in zip(*((1,) * (ndim - len(shape)) + shape for shape in shapes), strict=True):
        wide = {size for size in sizes if size != 1}
        if len(wide) > 1:
            raise TypeError(
                f"{name}: shapes {' and '.join(map(str, shapes))} do not broadcast: "
                f"sizes {' and '.join(map(str, sizes))} meet at dim {len(out) - ndim}, and neither is 1"
            )
        out.append(wide.pop() if wide else 1)
    return tuple(out)


def stretch(x: Any, shape: tuple[int, ...]) -> Any:
    """`x` broadcast to `shape`, with which it is known to be compatible."""
    if x.type.shape == shape:
        return x
    lead = len(shape) - x.type.ndim
    kept = [dim for dim in range(x.type.ndim) if x.type.shape[dim] == shape[lead + dim]]
    squeezed = tuple(x.type.shape[dim] for dim in kept)
    if squeezed != x.type.shape:
        x = Reshape(squeezed)(x)
    return Broadcast(shape, tuple(lead + dim for dim in kept))(x)


def aligned(name: str, operands: Sequence[Any], dtype: Any = None, weak: bool | None = None) -> list[Any]:
    """Operands promoted to one dtype (or to `dtype`) and broadcast to one shape."""
    types = [type_of(x, name) for x in operands]
    if dtype is None:
        dtype, weak = meet(name, types)
    shape = broadcast_shapes(name, *(type.shape for type in types))
    out = []
    for x in operands:
        if isinstance(x, (*PYTHON_SCALARS, np.generic)):
            out.append(full(shape, x, dtype, bool(weak)))
        else:
            out.append(stretch(astype_weak(as_operand(x, name), dtype, bool(weak)), shape))
    return out


@composed
def add(x: Any, y: Any) -> Any:
    """`x + y`, element by element."""
    return elementwise.Add()(*aligned("add", (x, y)))


@composed
def subtract(x: Any, y: Any) -> Any:
    """`x - y`, element by element."""
    return elementwise.Sub()(*aligned("subtract", (x, y)))


@composed
def multiply(x: Any, y: Any) -> Any:
    """`x * y`, element by element."""
    return elementwise.Mul()(*aligned("multiply", (x, y)))


@composed
def divide(x: Any, y: Any) -> Any:
    """`x / y`, element by element; integers become floats."""
    dtype, weak = meet("divide", (type_of(x, "divide"), type_of(y, "divide")))
    if not is_inexact(dtype):
        dtype = default_dtype("float*")
    return elementwise.Div()(*aligned("divide", (x, y), dtype, weak))


@composed
def negative(x: Any) -> Any:
    """`-x`, element by element."""
    return elementwise.Neg()(as_operand(x, "negative"))


@composed
def exp(x: Any) -> Any:
    """e to the power of each element; integers become floats."""
    x = as_operand(x, "exp")
    return elementwise.Exp()(x if is_inexact(x.type.dtype) else astype_weak(x, default_dtype("float*"), x.type.weak))


@composed
def maximum(x: Any, y: Any) -> Any:
    """The larger of two, element by element; NaN where either is."""
    return elementwise.Max()(*aligned("maximum", (x, y)))


@composed
def where(condition: Any, x: Any, y: Any) -> Any:
    """Where `condition` holds `x`, else `y`; all three broadcast."""
    dtype, weak = meet("where", (type_of(x, "where"), type_of(y, "where")))
    shape = broadcast_shapes("where", *(type_of(z, "where").shape for z in (condition, x, y)))
    which = as_operand(condition, "where")
    if which.type.dtype != np.bool_:
        which = elementwise.Compare("NE")(*aligned("where", (which, 0)))
    cases = [stretch(z, shape) for z in aligned("where", (x, y), dtype, weak)]
    return elementwise.Select()(stretch(which, shape), *cases)


@composed
def compare(x: Any, y: Any, *, direction: str) -> Any:
    """`x < y` and its kin; `direction` is EQ NE LT LE GT or GE."""
    return elementwise.Compare(direction)(*aligned(f"comparison {direction}", (x, y)))


@composed
def astype(x: Any, *, dtype: Any) -> Any:
    """`x` with elements of `dtype`."""
    x = as_operand(x, "astype")
    return astype_weak(x, canonical_dtype(dtype), False)


@composed
def reshape(x: Any, *, shape: int | Sequence[int]) -> Any:
    """The same elements in another shape; one size may be -1 and is worked out."""
    x = as_operand(x, "reshape")
    sizes = [int(size) for size in ((shape,) if isinstance(shape, int) else shape)]
    if sizes.count(-1) > 1:
        raise TypeError(f"reshape: only one size can be -1, shape {tuple(sizes)} has {sizes.count(-1)}")
    if -1 in sizes:
        rest = math.prod(size for size in sizes if size != -1)
        if rest == 0 or x.type.size % rest:
            raise TypeError(f"reshape: {x.type} has {x.type.size} elements, which shape {tuple(sizes)} cannot hold")
        sizes[sizes.index(-1)] = x.type.size // rest
    target = tuple(sizes)
    return x if target == x.type.shape else Reshape(target)(x)


@composed
def transpose(x: Any, *, axes: Sequence[int] | None = None) -> Any:
    """Dims in the order `axes`; reversed where none is given."""
    x = as_operand(x, "transpose")
    order = tuple(reversed(range(x.type.ndim))) if axes is None else _dims("transpose", axes, x.type)
    if sorted(order) != list(range(x.type.ndim)):
        raise ValueError(f"transpose: axes {axes} are not a permutation of the dims of {x.type}")
    return permuted(x, order)


@composed
def broadcast_to(x: Any, *, shape: Sequence[int]) -> Any:
    """`x` repeated to `shape`, by numpy's rule."""
    x = as_operand(x, "broadcast_to")
    target = tuple(int(size) for size in shape)
    if broadcast_shapes("broadcast_to", x.type.shape, target) != target:
        raise TypeError(f"broadcast_to: {x.type} does not broadcast to {target}")
    return stretch(x, target)


@composed
def sum(x: Any, *, axis: int | Sequence[int] | None = None, dtype: Any = None, keepdims: bool = False) -> Any:
    """The sum along `axis` (all dims where none is given)."""
    x = as_operand(x, "sum")
    dims = (
        tuple(range(x.type.ndim)) if axis is None else _dims("sum", (axis,) if isinstance(axis, int) else axis, x.type)
    )
    wanted = canonical_dtype(dtype) if dtype is not None else _sum_dtype(x.type)
    narrow = is_float(wanted) and wanted.itemsize < np.dtype(np.float32).itemsize
    x = astype_weak(x, np.float32 if narrow else wanted, False)
    total = astype_weak(Sum(dims)(x), wanted, False)
    if keepdims:
        total = Reshape(tuple(1 if dim in dims else size for dim, size in enumerate(x.type.shape)))(total)
    return total


@composed
def mean(x: Any, *, axis: int | Sequence[int] | None = None, dtype: Any = None, keepdims: bool = False) -> Any:
    """The mean along `axis` (all dims where none is given); integers become floats."""
    x = as_operand(x, "mean")
    wanted = x.type.dtype if is_inexact(x.type.dtype) else default_dtype("float*")
    wanted = wanted if dtype is None else canonical_dtype(dtype)
    total = sum(x, axis=axis, dtype=carrier(wanted), keepdims=keepdims)  # of f16, the sum alone may overflow
    count = x.type.size // max(1, total.type.size) if x.type.size else 0
    return astype_weak(divide(total, count), wanted, False)


@composed
def matmul(x: Any, y: Any) -> Any:
    """The matrix product; leading dims are a batch and broadcast."""
    kinds = [type_of(x, "matmul"), type_of(y, "matmul")]
    if not all(kind.ndim for kind in kinds):
        raise TypeError(f"matmul: needs arrays of rank 1 or more, not {kinds[0]} and {kinds[1]}; use `*` for scalars")
    dtype, weak = meet("matmul", kinds)
    a, b = (astype_weak(as_operand(z, "matmul"), dtype, weak) for z in (x, y))
    row, column = a.type.ndim == 1, b.type.ndim == 1
    inner = (a.type.shape[-1], b.type.shape[0 if column else -2])
    if inner[0] != inner[1]:
        raise TypeError(
            f"matmul: {a.type} @ {b.type}: the last dim of the left, {inner[0]}, must equal "
            f"the {'only' if column else 'second last'} dim of the right, {inner[1]}"
        )
    lead_a, lead_b = a.type.shape[:-2], b.type.shape[:-2]
    if not lead_b:  # one matrix for the whole batch: no need to repeat it
        return Dot(((a.type.ndim - 1,), (0,)))(a, b)
    batch = broadcast_shapes("matmul", lead_a, lead_b)
    dims = tuple(range(len(batch)))
    b = stretch(b, (*batch, *b.type.shape[-2:]))
    if row:
        return Dot(((0,), (len(batch),)))(a, b)
    a = stretch(a, (*batch, *a.type.shape[-2:]))
    return Dot(((len(batch) + 1,), (len(batch),)), (dims, dims))(a, b)


@composed
def dot(x: Any, y: Any) -> Any:
    """numpy's dot: the last dim of `x` with the second last (or only) of `y`; of scalars, the product."""
    kinds = [type_of(x, "dot"), type_of(y, "dot")]
    if not all(kind.ndim for kind in kinds):
        return multiply(x, y)
    dtype, weak = meet("dot", kinds)
    a, b = (astype_weak(as_operand(z, "dot"), dtype, weak) for z in (x, y))
    right = max(b.type.ndim - 2, 0)
    if a.type.shape[-1] != b.type.shape[right]:
        raise TypeError(
            f"dot: {a.type} and {b.type}: the last dim of the left, {a.type.shape[-1]}, must equal "
            f"dim {right} of the right, {b.type.shape[right]}"
        )
    return Dot(((a.type.ndim - 1,), (right,)))(a, b)


def _sum_dtype(type: ArrayType) -> Any:
    """Sums of small integers and booleans are taken in the default width, as numpy does."""
    if type.dtype == np.bool_:
        return default_dtype("int*")
    if is_integer(type.dtype) and type.dtype.itemsize < default_dtype("int*").itemsize:
        return default_dtype("int*") if type.dtype.kind != "u" else canonical_dtype(np.uint64)
    return type.dtype


def _dims(name: str, axes: Sequence[int], type: ArrayType) -> tuple[int, ...]:
    """Axes as dims from 0; one that does not exist or repeats is an error."""
    dims = []
    for axis in axes:
        if not -type.ndim <= axis < type.ndim:
            raise ValueError(f"{name}: axis {axis} does not exist in {type}, which has rank {type.ndim}")
        dims.append(axis % type.ndim)
    if len(set(dims)) != len(dims):
        raise ValueError(f"{name}: an axis repeats in {tuple(axes)}")
    return tuple(dims)


def _operator(function: Callable[[Any, Any], Any], swapped: bool = False) -> Callable[[Any, Any], Any]:
    def operate(self: Any, other: Any) -> Any:
        if not is_array_like(other):
            return NotImplemented
        return function(other, self) if swapped else function(self, other)

    return operate


def _comparison(direction: str) -> Callable[[Any, Any], Any]:
    return _operator(lambda x, y: compare(x, y, direction=direction))


class ArrayMethods(Typed):
    """Operators and methods of arrays; a subclass has `type`."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]
    __array_priority__ = 100  # numpy leaves mixed operators to us

    @property
    def T(self) -> Any:
        """The array with its dims reversed."""
        return transpose(self)

    def __len__(self) -> int:
        if not self.type.ndim:
            raise TypeError("a 0-d array has no length")
        return self.type.shape[0]

    __add__ = _operator(add)
    __radd__ = _operator(add, swapped=True)
    __sub__ = _operator(subtract)
    __rsub__ = _operator(subtract, swapped=True)
    __mul__ = _operator(multiply)
    __rmul__ = _operator(multiply, swapped=True)
    __truediv__ = _operator(divide)
    __rtruediv__ = _operator(divide, swapped=True)
    __matmul__ = _operator(matmul)
    __rmatmul__ = _operator(matmul, swapped=True)
    __lt__ = _comparison("LT")
    __le__ = _comparison("LE")
    __gt__ = _comparison("GT")
    __ge__ = _comparison("GE")
    __eq__ = _comparison("EQ")
    __ne__ = _comparison("NE")

    def __neg__(self) -> Any:
        return negative(self)

    def __pos__(self) -> Any:
        return self

    def astype(self, dtype: Any) -> Any:
        """The array with elements of `dtype`."""
        return astype(self, dtype=dtype)

    def reshape(self, *shape: Any) -> Any:
        """The same elements in another shape: `x.reshape(2, -1)` or `x.reshape((2, -1))`."""
        return reshape(self, shape=static_axes(shape[0]) if len(shape) == 1 else shape)

    def transpose(self, *axes: Any) -> Any:
        """Dims in the order given; reversed where none is."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or None
        return transpose(self, axes=None if order is None else tuple(order))

    def sum(self, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
        """The sum along `axis`."""
        return sum(self, axis=static_axes(axis), dtype=dtype, keepdims=keepdims)

    def mean(self, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
        """The mean along `axis`."""
        return mean(self, axis=static_axes(axis), dtype=dtype, keepdims=keepdims)

    def dot(self, other: Any) -> Any:
        """numpy's dot."""
        return dot(self, other)


def static_axes(axes: Any) -> Any:
    """Axes or sizes as a static keyword can hold them: lists become tuples."""
    return tuple(axes) if isinstance(axes, list) else axes
