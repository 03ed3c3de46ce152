"""Functions of elements, rows or blocks, made functions of arrays: vectorize, ufunc, apply_along_axis, piecewise."""

import re
from collections.abc import Callable, Collection, Sequence
from functools import wraps
from typing import Any, final

from shardwise.api.control import scan
from shardwise.api.vectorize import vmap
from shardwise.compiler.ir.dispatch import installed
from shardwise.compiler.ops import methods
from shardwise.compiler.ops.indexing import dim_of
from shardwise.compiler.ops.operands import as_operand, composed, stretch, type_of
from shardwise.compiler.ops.shape import Iota
from shardwise.lax.shape import broadcast_shapes, expand_dims, squeeze
from shardwise.numpy.creation import array, asarray, full
from shardwise.numpy.indexing import take
from shardwise.numpy.joining import concatenate
from shardwise.numpy.shapes import moveaxis

Function = Callable[..., Any]
Names = tuple[str, ...]

_CORE = r"\(\s*(?:\w+(?:\s*,\s*\w+)*)?\s*\)"
_SIGNATURE = rf"\s*{_CORE}(?:\s*,\s*{_CORE})*\s*->\s*{_CORE}(?:\s*,\s*{_CORE})*\s*"


def vectorize(pyfunc: Function, *, excluded: Collection[Any] = frozenset(), signature: str | None = None) -> Function:
    """`pyfunc`, a function of single elements, as one of arrays that broadcast.

    `signature` names the dims that it takes and gives itself, such as "(n,m),(m)->(n)"; the others, in front, are
    mapped over. `excluded`: the positions and names of arguments that are handed on as they are; so is None.

    >>> jnp.vectorize(jnp.dot, signature="(n),(n)->()")(jnp.ones((2, 3)), jnp.arange(3.0))
    Array([3., 3.], dtype=float32)
    """
    if any(not isinstance(one, (int, str)) for one in excluded):
        raise TypeError(f"vectorize: `excluded` has positions and names of arguments, not {excluded!r}")
    if any(isinstance(one, int) and one < 0 for one in excluded):
        raise ValueError(f"vectorize: positions in `excluded` count from 0: {excluded!r}")
    cores = None if signature is None else _parsed(signature)

    @wraps(pyfunc)
    def call(*args: Any, **keywords: Any) -> Any:
        named = {name: value for name, value in keywords.items() if name not in excluded and value is not None}
        fixed = {name: value for name, value in keywords.items() if name not in named}
        given = [number for number, x in enumerate(args) if number not in excluded and x is not None]

        def on_arrays(*arrays: Any) -> Any:
            places = list(args)
            for number, x in zip(given, arrays, strict=False):
                places[number] = x
            return pyfunc(*places, **fixed, **dict(zip(named, arrays[len(given) :], strict=True)))

        return _mapped(on_arrays, [*(args[number] for number in given), *named.values()], cores)

    return call


def _parsed(signature: str) -> tuple[list[Names], list[Names]]:
    """The names of the dims of each operand and of each result."""
    if not re.fullmatch(_SIGNATURE, signature):
        raise ValueError(f"vectorize: a signature looks like '(n,m),(m)->(n)', not like {signature!r}")
    operands, results = (
        [tuple(re.findall(r"\w+", core)) for core in re.findall(_CORE, side)] for side in signature.split("->")
    )
    return operands, results


def _mapped(function: Function, args: Sequence[Any], cores: tuple[list[Names], list[Names]] | None) -> Any:
    """`function` over the dims in front of those that are its own."""
    operands, results = cores if cores is not None else ([()] * len(args), None)
    if len(operands) != len(args):
        raise TypeError(f"vectorize: the signature is for {len(operands)} arrays, not for {len(args)}")
    arrays = [asarray(x) for x in args]
    sizes: dict[str, int] = {}
    fronts: list[tuple[int, ...]] = []
    for x, names in zip(arrays, operands, strict=True):
        own = x.type.ndim - len(names)
        if own < 0:
            raise ValueError(f"vectorize: {x.type} has not the dims ({','.join(names)}) of its signature")
        fronts.append(x.type.shape[:own])
        for name, size in zip(names, x.type.shape[own:], strict=True):
            if sizes.setdefault(name, size) != size:
                raise ValueError(f"vectorize: dim {name!r} has size {sizes[name]}, and size {size} in {x.type}")
    whole = broadcast_shapes(*fronts) if fronts else ()
    checked = function if results is None else _checked(function, results, sizes)
    steps = []
    for back in range(1, len(whole) + 1):  # from the last of the dims in front to the first
        dims = tuple(0 if len(front) >= back and front[-back] != 1 else None for front in fronts)
        steps.append((dims, whole[-back]))
    flat = [_without_ones(x, len(front)) for x, front in zip(arrays, fronts, strict=True)]
    for dims, size in steps:
        checked = vmap(checked, in_axes=dims, axis_size=size)
    return checked(*flat)


def _without_ones(x: Any, front: int) -> Any:
    """`x` without the dims of size 1 in front: they are not mapped over."""
    return squeeze(x, [dim for dim in range(front) if x.type.shape[dim] == 1])


def _checked(function: Function, cores: list[Names], sizes: dict[str, int]) -> Function:
    """`function`, whose results must have the dims of the signature."""

    def call(*args: Any) -> Any:
        found = function(*args)
        results = found if isinstance(found, tuple) else (found,)
        if len(results) != len(cores) or (isinstance(found, tuple) and len(cores) == 1):
            raise TypeError(f"vectorize: the signature is for {len(cores)} results, not for {len(results)}")
        known = dict(sizes)
        for x, names in zip(results, cores, strict=True):
            shape = type_of(x, "vectorize").shape
            fits = len(shape) == len(names)
            if not fits or any(known.setdefault(n, size) != size for n, size in zip(names, shape, strict=True)):
                raise ValueError(f"vectorize: a result of shape {shape} does not fit ({','.join(names)}) in {known}")
        return found

    return call


def apply_along_axis(func1d: Function, axis: int, arr: Any, *args: Any, **kwargs: Any) -> Any:
    """`func1d` of every row along `axis`, whose place the dims of its result take.

    >>> jnp.apply_along_axis(jnp.sum, 1, jnp.array([[1, 2], [3, 4]]))
    Array([3, 7], dtype=int32)
    """
    x = as_operand(arr, "apply_along_axis")
    dim = dim_of("apply_along_axis", axis, x.type.ndim)

    def on_row(row: Any) -> Any:
        return func1d(row, *args, **kwargs)

    found: Function = on_row
    for _ in range(x.type.ndim - dim - 1):
        found = vmap(found, in_axes=-1, out_axes=-1)
    for _ in range(dim):
        found = vmap(found, in_axes=0, out_axes=0)
    return found(x)


def apply_over_axes(func: Callable[[Any, int], Any], a: Any, axes: Sequence[int]) -> Any:
    """`func(array, axis)` for one axis after the other; a dim that it leaves out stays, of size 1.

    >>> jnp.apply_over_axes(jnp.sum, jnp.array([[1, 2], [3, 4]]), [0, 1])
    Array([[10]], dtype=int32)
    """
    x = as_operand(a, "apply_over_axes")
    rank = x.type.ndim
    for axis in axes:
        dim = dim_of("apply_over_axes", axis, rank)
        found = as_operand(func(x, dim), "apply_over_axes")
        x = expand_dims(found, (dim,)) if found.type.ndim == rank - 1 else found
        if x.type.ndim != rank:
            raise ValueError(f"apply_over_axes: the function made {found.type} of an array of rank {rank} along {axis}")
    return x


def piecewise(x: Any, condlist: Any, funclist: Sequence[Any], *args: Any, **kw: Any) -> Any:
    """For each element what a function, or a number, gives for it where the condition of that holds.

    Of several conditions that hold, the last counts. One function more than conditions is for where none does; else it
    is 0 there. The functions take `x`, and further arguments, and give the dtype of `x`.

    >>> jnp.piecewise(jnp.array([-1.0, 0.0, 2.0]), [jnp.array([True, False, False])], [lambda x: -x, lambda x: 2 * x])
    Array([1., 0., 4.], dtype=float32)
    """
    operand = asarray(x)
    if isinstance(condlist, (list, tuple)):
        conditions = list(condlist)
    else:
        kind = type_of(condlist, "piecewise")
        conditions = list(condlist) if kind.ndim > operand.type.ndim else [condlist]
    functions = list(funclist)
    if len(functions) == len(conditions):
        functions.append(0)
    if len(functions) != len(conditions) + 1:
        raise ValueError(
            f"piecewise: {len(conditions)} conditions need as many functions, or one more, not {len(functions)}"
        )
    *cases, found = (_of(function, operand, args, kw) for function in functions)
    for condition, case in zip(conditions, cases, strict=True):
        found = methods.where(condition, case, found)
    return found


def _of(function: Any, x: Any, args: Any, keywords: Any) -> Any:
    value = function(x, *args, **keywords) if callable(function) else function
    made = methods.astype(value, dtype=x.type.dtype)
    return _stretched(made, shape=x.type.shape)


@composed
def _stretched(x: Any, *, shape: tuple[int, ...]) -> Any:
    return stretch(as_operand(x), shape)


def frompyfunc(func: Function, /, nin: int, nout: int, *, identity: Any = None) -> "ufunc":
    """A function of single elements, with `nin` operands and `nout` results, as a `ufunc` of arrays.

    >>> jnp.frompyfunc(lambda x, y: x + 2 * y, 2, 1).reduce(jnp.array([1, 2, 3]))
    Array(11, dtype=int32)
    """
    return ufunc(func, nin, nout, identity=identity)


def _known(name: str) -> "ufunc":
    return getattr(installed.namespace, name)  # type: ignore[no-any-return]


@final
class ufunc:
    """A function of single elements, as one of arrays that broadcast, which can also be run along a dim.

    A function that is given for `call`, `reduce`, `accumulate`, `at` or `reduceat` takes the place of that method.
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
        identity: Any = None,
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
        self._own = {"reduce": reduce, "accumulate": accumulate, "at": at, "reduceat": reduceat}
        self.nin, self.nout, self.identity = nin, nout, identity
        self.nargs = nin if nargs is None else nargs
        self.__name__ = str(name or getattr(func, "__name__", "ufunc"))
        self.__doc__ = func.__doc__

    def __reduce__(self) -> Any:
        """One that numpy's namespace has is found there again under its name."""
        known = getattr(installed.namespace, self.__name__, None) is self
        return (_known, (self.__name__,)) if known else super().__reduce__()

    def __repr__(self) -> str:
        return f"<shardwise.numpy.ufunc {self.__name__!r}>"

    def __call__(self, *args: Any, out: None = None, where: None = None) -> Any:
        if out is not None or where is not None:
            self._no("out", out)
            self._no("where", where)
        return self._call(*args)

    def _no(self, argument: str, value: Any) -> None:
        if value is not None:
            raise NotImplementedError(f"{self.__name__}: there is no `{argument}`: use the result, and `numpy.where`")

    def _binary(self, method: str) -> None:
        if (self.nin, self.nout) != (2, 1):
            raise ValueError(
                f"{self.__name__}.{method}: only a function of two operands with one result can be run along a dim, "
                f"not one of {self.nin} with {self.nout}"
            )

    def reduce(
        self,
        a: Any,
        axis: int | None = 0,
        dtype: Any = None,
        out: None = None,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = None,
    ) -> Any:
        """The function of the elements along `axis` (of all in a row, for None), one after the other.

        They begin with `initial`, or the function's identity. Those at which `where` does not hold are left out.
        """
        self._binary("reduce")
        self._no("out", out)
        if (own := self._own["reduce"]) is not None:
            return own(a, axis=axis, dtype=dtype, keepdims=keepdims, initial=initial, where=where)
        x = asarray(a, dtype)
        first = self.identity if initial is None else initial
        if where is not None and first is None:
            raise ValueError(f"{self.__name__}.reduce: without an identity, `where` needs `initial`")
        kept = None if where is None else methods.broadcast_to(where, shape=x.type.shape)
        shape = x.type.shape
        if axis is None:
            x, kept, dim = x.reshape(-1), None if kept is None else kept.reshape(-1), 0
            ones: tuple[int, ...] = (1,) * len(shape)
        elif isinstance(axis, Sequence):
            raise NotImplementedError(f"{self.__name__}.reduce: one axis, or None for all: not {axis}")
        else:
            dim = dim_of(f"{self.__name__}.reduce", axis, len(shape))
            ones = (*shape[:dim], 1, *shape[dim + 1 :])
        if not x.type.shape[dim] and first is None:
            raise ValueError(f"{self.__name__}.reduce: {x.type} has no elements, and there is no identity")
        rows = moveaxis(x, dim, 0)
        start = rows[0] if first is None else full(rows.type.shape[1:], first, x.type.dtype)
        rest = rows[1:] if first is None else rows
        masks = None if kept is None else moveaxis(kept, dim, 0)

        def step(total: Any, row: Any) -> Any:
            element, keep = row
            found = methods.astype(self._call(total, element), dtype=x.type.dtype)
            return (found if keep is None else methods.where(keep, found, total)), None

        total, _ = scan(step, start, (rest, masks))
        return total.reshape(ones) if keepdims else total

    def accumulate(self, a: Any, axis: int = 0, dtype: Any = None, out: None = None) -> Any:
        """The function of the elements up to each along `axis`, one after the other."""
        self._binary("accumulate")
        self._no("out", out)
        if (own := self._own["accumulate"]) is not None:
            return own(a, axis=axis, dtype=dtype)
        x = asarray(a, dtype)
        dim = dim_of(f"{self.__name__}.accumulate", axis, x.type.ndim)
        rows = moveaxis(x, dim, 0)
        if not rows.type.shape[0]:
            return x

        def step(total: Any, row: Any) -> Any:
            found = methods.astype(self._call(total, row), dtype=x.type.dtype)
            return found, found

        _, rest = scan(step, rows[0], rows[1:])
        return moveaxis(concatenate([rows[:1], rest]), 0, dim)

    def at(self, a: Any, indices: Any, b: Any = None, /, *, inplace: bool = True) -> Any:
        """`a` with the function applied at these places, with the elements of `b`; as often as a place is given."""
        if inplace:
            raise NotImplementedError(
                f"{self.__name__}.at: arrays are not written to: use the result, with `inplace=False`"
            )
        if (own := self._own["at"]) is not None:
            return own(a, indices) if b is None else own(a, indices, b)
        if self.nin != (1 if b is None else 2) or self.nout != 1:
            raise ValueError(f"{self.__name__}.at: a function of {self.nin} operands takes {self.nin - 1} beside `a`")
        x = asarray(a)
        index = indices if isinstance(indices, tuple) else (indices,)
        shape = broadcast_shapes(*(type_of(part, "at").shape for part in index))
        rows = [methods.broadcast_to(part, shape=shape).reshape(-1) for part in index]
        rest = x.type.shape[len(index) :]
        others = None if b is None else methods.broadcast_to(b, shape=(*shape, *rest)).reshape(-1, *rest)

        def step(found: Any, row: Any) -> Any:
            place, other = row
            before = found[place]
            new = self._call(before) if other is None else self._call(before, other)
            return found.at[place].set(methods.astype(new, dtype=x.type.dtype)), None

        return scan(step, x, (tuple(rows), others))[0]

    def reduceat(self, a: Any, indices: Any, axis: int = 0, dtype: Any = None, out: None = None) -> Any:
        """For each of `indices` the function of the elements along `axis` from there up to the next of them; of the
        one there alone, where the next is not further on."""
        self._binary("reduceat")
        self._no("out", out)
        if (own := self._own["reduceat"]) is not None:
            return own(a, indices, axis=axis, dtype=dtype)
        x = asarray(a, dtype)
        if type_of(indices, "reduceat").ndim != 1:
            raise ValueError(f"{self.__name__}.reduceat: places are a row of integers, not {type_of(indices)}")
        dim = dim_of(f"{self.__name__}.reduceat", axis, x.type.ndim)
        rows = moveaxis(x, dim, 0)
        places = array(indices)
        size, lead = rows.type.shape[0], (places.type.size, *(1,) * (rows.type.ndim - 1))
        ends = concatenate([places[1:], full((1,), size, places.type.dtype)])
        start = take(rows, places, 0, mode="clip")

        def step(total: Any, row: Any) -> Any:
            element, number = row
            inside = ((number > places) & (number < ends)).reshape(lead)
            found = methods.astype(self._call(total, element[None]), dtype=x.type.dtype)
            return methods.where(inside, found, total), None

        total, _ = scan(step, start, (rows, Iota((size,), 0, places.type.dtype)()))
        return moveaxis(total, 0, dim)

    def outer(self, A: Any, B: Any, /) -> Any:
        """The function of every element of `A` with every element of `B`."""
        if self.nin != 2:
            raise ValueError(f"{self.__name__}.outer: needs a function of two operands, not one of {self.nin}")
        left, right = asarray(A), asarray(B)
        return self._call(left.reshape(*left.type.shape, *(1,) * right.type.ndim), right)
