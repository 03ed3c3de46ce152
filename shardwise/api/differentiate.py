"""Derivatives: vjp, jvp, linearize, linear_transpose; on top of them grad, value_and_grad, jacfwd, jacrev, hessian."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, final

import numpy as np

from shardwise import tree
from shardwise.api.arguments import argument_names, check_function, describe_function, function_name
from shardwise.api.flatten import FlatFunction, check_outputs
from shardwise.api.vmap import vmap
from shardwise.compiler.arrays.methods import reshape
from shardwise.compiler.arrays.operands import as_operand, type_of
from shardwise.compiler.dtypes import is_float, is_inexact
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.control.call import insert_none
from shardwise.compiler.ops.control.retype import match_type
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.select import Compare
from shardwise.compiler.ops.shape.constants import full, zeros_like
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.trace.build import build
from shardwise.compiler.transforms.linearize import Linearized, jvp_function
from shardwise.compiler.transforms.linearize import linearize as linearize_flat
from shardwise.compiler.transforms.replay import replay
from shardwise.compiler.transforms.transpose import transpose
from shardwise.execute.traceback_filter import filter_traceback
from shardwise.tree_util import Partial

Function = Callable[..., Any]
float0 = np.dtype([("float0", np.void, 0)])  # the type of derivatives with respect to integers: it has no values


@final
class _Flat(FlatFunction):
    """A function of positional arguments; with `has_aux` it returns (value, anything)."""

    def __init__(self, function: Function, primals: tuple[Any, ...], has_aux: bool):
        super().__init__(function, tree.structure((primals, {})))
        self.primals = tree.structure(primals)
        self.has_aux = has_aux
        self.extras: tree.Structure = None

    def __call__(self, *leaves: Any) -> list[Any]:
        if not self.has_aux:
            return super().__call__(*leaves)
        result = self.function(*self.primals.unflatten(leaves))
        if not (isinstance(result, tuple) and len(result) == 2):
            raise TypeError(
                f"{describe_function(self.function)} must return (value, auxiliary) under has_aux, not {result!r}"
            )
        outputs, self.out_tree = tree.flatten(result[0])
        more, self.extras = tree.flatten(result[1])
        check_outputs(self.function, [*outputs, *more])
        return [*outputs, *more]

    def outputs(self, values: Sequence[Any]) -> Any:
        """The tree of the function's proper results."""
        return self.out_tree.unflatten(list(values[: self.out_tree.num_leaves]))

    def with_aux(self, first: Any, values: Sequence[Any]) -> Any:
        """`first`, followed by the auxiliary results where there are any."""
        if not self.has_aux:
            return first
        return (*first, self.extras.unflatten(list(values[self.out_tree.num_leaves :])))


@filter_traceback
def vjp(function: Function, *primals: Any, has_aux: bool = False, reduce_axes: Sequence[Any] = ()) -> Any:
    """The function's value, and a function from a cotangent of that value to cotangents of the arguments.

    With `has_aux`, `function` returns (value, anything), and a third result is that anything. The second result is a
    tree, whose leaves are the values that it keeps: compiled functions can return and take it.

    >>> value, pull = jax.vjp(lambda x, y: x * y, 2.0, 5.0)
    >>> pull(1.0)
    (Array(5., dtype=float32), Array(2., dtype=float32))
    """
    check_function("vjp", function)
    _check_no_reduce_axes("vjp", reduce_axes)
    flat, linear, operands = _linearized(function, primals, has_aux)
    types = tuple(type_of(x) for x in linear.outputs[: flat.out_tree.num_leaves])
    moving = linear.nonzero
    pullback = _Pullback(
        function, linear.program, moving, flat.out_tree, types, flat.primals, tuple(x.type for x in operands)
    )
    return flat.with_aux((flat.outputs(linear.outputs), Partial(pullback, linear.residuals)), linear.outputs)


@final
@dataclass(frozen=True)
class _Pullback:
    """From a cotangent of a function's value back to its arguments, given the residuals."""

    function: Function
    program: Program
    moving: tuple[bool, ...]
    results: tree.Structure
    out_types: tuple[ArrayType, ...]
    primals: tree.Structure
    in_types: tuple[ArrayType, ...]

    def __call__(self, residuals: Sequence[Any], cotangent: Any) -> tuple[Any, ...]:
        given = _matching("vjp", "cotangent", cotangent, self.results, self.out_types, self.function)
        more = [None] * (len(self.moving) - len(given))
        found = _pulled(self.program, self.moving, residuals, [*given, *more], len(self.in_types))
        return self.primals.unflatten(  # type: ignore[no-any-return]
            [_cotangent(type, ct) for type, ct in zip(self.in_types, found, strict=True)]
        )


@filter_traceback
def jvp(function: Function, primals: Any, tangents: Any, has_aux: bool = False) -> Any:
    """The function's value at `primals`, and how it changes along `tangents` (both sequences of arguments).

    With `has_aux`, `function` returns (value, anything), and a third result is that anything.

    >>> jax.jvp(lambda x: x**2, (jnp.array(3.0),), (jnp.array(1.0),))
    (Array(9., dtype=float32), Array(6., dtype=float32))
    """
    check_function("jvp", function)
    if not isinstance(primals, (tuple, list)) or not isinstance(tangents, (tuple, list)):
        raise TypeError(
            f"jvp of {describe_function(function)}: primals and tangents must be tuples or lists of arguments"
        )
    leaves, structure = tree.flatten(tuple(primals))
    operands = [as_operand(x, "jvp") for x in leaves]
    given = _matching("jvp", "tangent", tuple(tangents), structure, [x.type for x in operands], function)
    flat = _Flat(function, tuple(primals), has_aux)
    outputs, moved = jvp_function(flat, operands, given, function_name(function))
    directions = [_cotangent(x.type, t) for x, t in zip(outputs, moved, strict=True)]
    return flat.with_aux((flat.outputs(outputs), flat.outputs(directions)), outputs)


@filter_traceback
def linearize(function: Function, *primals: Any, has_aux: bool = False) -> Any:
    """The function's value, and its derivative there as a function of tangents, which can be called many times.

    >>> value, along = jax.linearize(jnp.square, jnp.array(3.0))
    >>> value, along(1.0), along(10.0)
    (Array(9., dtype=float32), Array(6., dtype=float32), Array(60., dtype=float32))
    """
    check_function("linearize", function)
    flat, linear, operands = _linearized(function, primals, has_aux)

    def pushforward(*tangents: Any) -> Any:
        given = _matching("linearize", "tangent", tangents, flat.primals, [x.type for x in operands], function)
        dense = [zeros_like(x) if t is None else t for x, t in zip(operands, given, strict=True)]
        directions = insert_none(replay(linear.program, [*linear.residuals, *dense]), linear.nonzero)
        return flat.outputs([_cotangent(x.type, t) for x, t in zip(linear.outputs, directions, strict=True)])

    return flat.with_aux((flat.outputs(linear.outputs), pushforward), linear.outputs)


def linear_transpose(function: Function, *primals: Any, reduce_axes: Sequence[Any] = ()) -> Function:
    """The transpose of a linear function: from a cotangent of its value to a tuple of cotangents of its arguments.

    Of `primals` only shapes and dtypes are read.

    >>> spread = jax.linear_transpose(jnp.sum, jax.ShapeDtypeStruct((3,), jnp.float32))
    >>> spread(jnp.array(2.0))
    (Array([2., 2., 2.], dtype=float32),)
    """
    check_function("linear_transpose", function)
    _check_no_reduce_axes("linear_transpose", reduce_axes)
    leaves, structure = tree.flatten(primals)
    types = [type_of(x, "linear_transpose") for x in leaves]
    flat = _Flat(function, primals, has_aux=False)
    program, captured = build(flat, types, function_name(function))
    linear = (True,) * len(types) + (False,) * len(captured)

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        given = _matching("linear_transpose", "cotangent", cotangent, flat.out_tree, program.out_types, function)
        found = transpose(program, linear, captured, given)
        return structure.unflatten(  # type: ignore[no-any-return]
            [full(t.shape, 0, t.dtype) if ct is None else ct for t, ct in zip(types, found, strict=True)]
        )

    return pullback


def value_and_grad(
    function: Function,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
) -> Function:
    """A function that returns `function`'s value and its gradient with respect to the arguments `argnums`.

    With `has_aux`, `function` returns (value, anything), and the result is ((value, anything), gradient). A function of
    complex numbers needs `holomorphic`; integer arguments need `allow_int` and have gradients of type `float0`.

    >>> jax.value_and_grad(lambda x: (x**2).sum())(jnp.array([1.0, 2.0]))
    (Array(5., dtype=float32), Array([2., 4.], dtype=float32))
    """
    check_function("value_and_grad", function)
    _check_no_reduce_axes("grad", reduce_axes)

    @wraps(function)
    @filter_traceback
    def call(*args: Any, **keywords: Any) -> Any:
        inner, active, places = _at(function, argnums, args, keywords)
        _check_inputs("grad", function, args, places, tree.leaves(active), holomorphic, allow_int)
        flat, linear, operands = _linearized(inner, active, has_aux)
        _check_scalar(function, flat, linear.outputs, holomorphic)
        value = linear.outputs[0]
        seed = full((), 1.0, value.type.dtype, value.type.weak)
        cotangents = [seed, *[None] * (len(linear.outputs) - 1)]
        found = _pulled(linear.program, linear.nonzero, linear.residuals, cotangents, len(operands))
        grads = flat.primals.unflatten([_cotangent(x.type, ct) for x, ct in zip(operands, found, strict=True)])
        gradient = grads[0] if isinstance(argnums, int) else tuple(grads)
        return (flat.with_aux((value,), linear.outputs) if has_aux else value), gradient

    return call


def grad(
    function: Function,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
) -> Function:
    """A function that returns the gradient of `function` with respect to the arguments `argnums`.

    With `has_aux`, `function` returns (value, anything), and the result is (gradient, anything).

    >>> jax.grad(lambda x, y: (x**2 * y).sum())(jnp.array([1.0, 2.0]), 3.0)
    Array([ 6., 12.], dtype=float32)
    """
    check_function("grad", function)
    both = value_and_grad(function, argnums, has_aux, holomorphic, allow_int, reduce_axes)

    @wraps(function)
    @filter_traceback
    def call(*args: Any, **keywords: Any) -> Any:
        value, gradient = both(*args, **keywords)
        return (gradient, value[1]) if has_aux else gradient

    return call


def jacfwd(
    function: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False
) -> Function:
    """The Jacobian, by forward mode: one pass for each element of the arguments, all at once by vmap.

    >>> jax.jacfwd(lambda x: x**2)(jnp.array([1.0, 3.0]))
    Array([[2., 0.],
           [0., 6.]], dtype=float32)
    """
    check_function("jacfwd", function)

    @wraps(function)
    @filter_traceback
    def call(*args: Any, **keywords: Any) -> Any:
        inner, active, places = _at(function, argnums, args, keywords)
        _check_inputs("jacfwd", function, args, places, tree.leaves(active), holomorphic, allow_int=False)
        leaves, structure = tree.flatten(active)
        operands = [as_operand(x, "jacfwd") for x in leaves]
        columns: list[list[Any]] = []
        aux: Any = None
        results: tree.Structure = None
        for number, x in enumerate(operands):

            def push(direction: Any, number: int = number) -> Any:
                tangents = [direction if i == number else zeros_like(y) for i, y in enumerate(operands)]
                primal = structure.unflatten(operands)
                return jvp(inner, primal, structure.unflatten(tangents), has_aux)[1:]

            moved = vmap(push, out_axes=(-1, None) if has_aux else (-1,))(_basis(x.type))
            outputs, results = tree.flatten(moved[0])
            aux = moved[1] if has_aux else None
            columns.append([reshape(y, shape=(*y.type.shape[:-1], *x.type.shape)) for y in outputs])
        jacobians = [structure.unflatten(list(row)) for row in zip(*columns, strict=True)]
        found = results.unflatten([j[0] if isinstance(argnums, int) else j for j in jacobians])
        return (found, aux) if has_aux else found

    return call


def jacrev(
    function: Function,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Function:
    """The Jacobian, by reverse mode: one pass back for each element of the results, all at once by vmap.

    >>> jax.jacrev(lambda x: x[0] * x)(jnp.array([1.0, 3.0]))
    Array([[2., 0.],
           [3., 1.]], dtype=float32)
    """
    check_function("jacrev", function)

    @wraps(function)
    @filter_traceback
    def call(*args: Any, **keywords: Any) -> Any:
        inner, active, places = _at(function, argnums, args, keywords)
        _check_inputs("jacrev", function, args, places, tree.leaves(active), holomorphic, allow_int)
        value, pullback, *aux = vjp(inner, *active, has_aux=has_aux)
        outputs, results = tree.flatten(value)
        for y in outputs:
            if y.type.dtype.kind == "c" and not holomorphic:
                raise TypeError(
                    f"jacrev of {describe_function(function)}: a result is {y.type}, and the derivative of a complex "
                    "result is "
                    "defined where the function is holomorphic: say so."
                )
        rows = []
        for number, y in enumerate(outputs):

            def pull(direction: Any, number: int = number) -> Any:
                given = [direction if i == number else zeros_like(z) for i, z in enumerate(outputs)]
                return pullback(results.unflatten(given))

            grads = vmap(pull)(_basis(y.type))
            shape = y.type.shape
            row = tree.map(lambda g, shape=shape: reshape(g, shape=(*shape, *g.type.shape[1:])), grads)
            rows.append(row[0] if isinstance(argnums, int) else row)
        found = results.unflatten(rows)
        return (found, aux[0]) if has_aux else found

    return call


def hessian(
    function: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False
) -> Function:
    """The second derivatives: forward over reverse.

    >>> jax.hessian(lambda x: x[0] ** 2 * x[1])(jnp.array([3.0, 4.0]))
    Array([[8., 6.],
           [6., 0.]], dtype=float32)
    """
    check_function("hessian", function)
    return jacfwd(jacrev(function, argnums, has_aux, holomorphic), argnums, has_aux, holomorphic)


def _linearized(function: Function, primals: tuple[Any, ...], has_aux: bool) -> tuple[_Flat, Linearized, list[Any]]:
    operands = [as_operand(leaf) for leaf in tree.leaves(tuple(primals))]
    flat = _Flat(function, tuple(primals), has_aux)
    return flat, linearize_flat(flat, operands, function_name(function)), operands


def _pulled(
    program: Program, moving: Sequence[bool], residuals: Sequence[Any], cotangents: Sequence[Any], count: int
) -> list[Any]:
    """Cotangents of all outputs back to the `count` inputs, by the transpose of a linearised function."""
    arriving = [ct for ct, moves in zip(cotangents, moving, strict=True) if moves]
    flags = (False,) * len(residuals) + (True,) * count
    return transpose(program, flags, residuals, arriving)


def _cotangent(type: ArrayType, found: Any) -> Any:
    """A derivative with respect to an array as users see it: zeros where there is none, `float0` for integers."""
    if not is_inexact(type.dtype):
        return np.zeros(type.shape, float0)
    return full(type.shape, 0, type.dtype) if found is None else found


def _check_no_reduce_axes(name: str, reduce_axes: Sequence[Any]) -> None:
    if reduce_axes:
        raise NotImplementedError(f"{name}: reduce_axes is not supported: reduce inside the function, as with lax.psum")


def _at(
    function: Function, argnums: int | Sequence[int], args: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[Function, tuple[Any, ...], list[int]]:
    """The function of the arguments `argnums` alone, those arguments, and their places."""
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    for number in numbers:
        if not isinstance(number, int) or not -len(args) <= number < len(args):
            raise ValueError(
                f"grad of {describe_function(function)} with respect to argument {number}, but it was called with "
                f"{len(args)} "
                "positional arguments"
            )
    places = [number % len(args) for number in numbers]

    @wraps(function)
    def inner(*active: Any) -> Any:
        given = list(args)
        for place, value in zip(places, active, strict=True):
            given[place] = value
        return function(*given, **keywords)

    return inner, tuple(args[place] for place in places), places


def _matching(
    name: str, what: str, given: Any, structure: tree.Structure, types: Sequence[ArrayType], function: Function
) -> list[Any]:
    """The leaves of a tree of tangents or cotangents, if they fit these types; None for those of integers."""
    leaves, found = tree.flatten(given)
    if found != structure:
        raise TypeError(
            f"{name} of {describe_function(function)}: the {what} has structure {found}, expected {structure}"
        )
    out: list[Any] = []
    for number, (leaf, type) in enumerate(zip(leaves, types, strict=True)):
        if not is_inexact(type.dtype):
            if getattr(leaf, "dtype", None) != float0:
                raise TypeError(
                    f"{name} of {describe_function(function)}: the {what} of a value of type {type} must be of type "
                    "float0"
                )
            out.append(None)
            continue
        x = as_operand(leaf, name)
        weak = x.type.weak and is_inexact(x.type.dtype)  # a Python float fits every float
        if x.type.shape != type.shape or (x.type.dtype != type.dtype and not weak):
            raise TypeError(
                f"{name} of {describe_function(function)}: {what} {number} is {x.type}, expected {type.strong()}"
            )
        out.append(match_type(x, type))
    return out


def _basis(type: ArrayType) -> Any:
    """The unit directions of an array of this type, along a new first dim."""
    rows, columns = (Iota((type.size, type.size), dim, np.dtype(np.int32))() for dim in (0, 1))
    return reshape(Convert(type.dtype)(Compare("EQ")(rows, columns)), shape=(type.size, *type.shape))


def _check_inputs(
    name: str,
    function: Function,
    args: tuple[Any, ...],
    places: Sequence[int],
    leaves: Sequence[Any],
    holomorphic: bool,
    allow_int: bool,
) -> None:
    for number, leaf in enumerate(leaves):
        dtype = type_of(leaf, name).dtype
        if holomorphic and dtype.kind != "c":
            problem = "a holomorphic function has complex arguments"
        elif not is_inexact(dtype) and not allow_int:
            problem = "derivatives need floats. Convert it with `.astype`, or leave it out of argnums"
        elif name == "jacfwd" and dtype.kind == "c" and not holomorphic:
            problem = "forward mode follows complex arguments only where the function is holomorphic: say so"
        else:
            continue
        given = [args[place] if place in places else None for place in range(len(args))]
        which = argument_names(function, tuple(given), {})[number]
        raise TypeError(
            f"{name} of {describe_function(function)} with respect to {which}: it is {type_of(leaf)}, and {problem}."
        )


def _check_scalar(function: Function, flat: _Flat, outputs: Sequence[Any], holomorphic: bool) -> None:
    if flat.out_tree != tree.structure(0):
        raise TypeError(
            f"grad needs a function that returns one scalar; {describe_function(function)} returned {flat.out_tree}"
        )
    kind = outputs[0].type
    if kind.shape or not (kind.dtype.kind == "c" if holomorphic else is_float(kind.dtype)):
        raise TypeError(
            f"grad needs a function that returns one {'complex' if holomorphic else 'real'} scalar; "
            f"{describe_function(function)} returned {kind}. Reduce it, for example with `.sum()` or `.mean()`."
        )
