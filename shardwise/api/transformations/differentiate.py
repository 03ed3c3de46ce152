"""Differentiation: vjp, jvp, linearize, linear_transpose, grad, value_and_grad, jacfwd, jacrev, hessian."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, final

import numpy as np

from shardwise import tree
from shardwise.api.ahead_of_time.shape_dtype_struct import leaf_type
from shardwise.api.arguments import argument_names, check_function, describe_function, function_name
from shardwise.api.differentiated_losses import differentiated_losses
from shardwise.api.flatten import FlatFunction, check_outputs
from shardwise.api.ref import Ref, RefScope
from shardwise.api.transformations.float0 import flatten_hiding_float0, float0
from shardwise.api.transformations.vjp_function import VJP
from shardwise.api.transformations.vmap import vmap
from shardwise.api.wrapping import wraps
from shardwise.base.docstrings import Family, Parameter, documented
from shardwise.compiler.arrays.methods import Array, reshape
from shardwise.compiler.arrays.operands import as_operand, type_of
from shardwise.compiler.dtypes import is_float, is_inexact
from shardwise.compiler.ir.masks import insert_none
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.select import Compare
from shardwise.compiler.ops.placement.reshard import cotangent_type
from shardwise.compiler.ops.placement.retype import match_type, zeros_of
from shardwise.compiler.ops.shape.constants import full, zeros_like
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.trace.build import build
from shardwise.compiler.trace.summed_gradients import note_summed_gradients
from shardwise.compiler.trace.tracer import Tracer
from shardwise.compiler.transforms.linearize import Linearized, jvp_function
from shardwise.compiler.transforms.linearize import linearize as linearize_flat
from shardwise.compiler.transforms.replay import replay
from shardwise.compiler.transforms.transpose import transpose
from shardwise.errors import TangentMismatchError
from shardwise.execute.traceback_filter import filter_traceback
from shardwise.tree_util import Partial
from shardwise.typing import ArrayLike

Function = Callable[..., Any]
_P = ParamSpec("_P")


_TRACED = object()  # the place of a tracer


@final
class _Aux:
    """The auxiliary result of a function with `has_aux`, a pytree of any objects.

    Only its tracers take part in a transformation; all other leaves are returned as they are.
    """

    def __init__(self, aux: object):
        leaves, self._structure = tree.flatten(aux)
        self._leaves = [_TRACED if isinstance(leaf, Tracer) else leaf for leaf in leaves]

    def restore(self, values: Sequence[Any]) -> Any:
        """Return the pytree with `values` in place of its tracers."""
        remaining = iter(values)
        return self._structure.unflatten([next(remaining) if x is _TRACED else x for x in self._leaves])


def _tracers(aux: object) -> list[Tracer]:
    return [leaf for leaf in tree.leaves(aux) if isinstance(leaf, Tracer)]


@final
class _FlatFunctionWithAux(FlatFunction):
    """A flat function of positional arguments; with `has_aux` the function returns a pair (value, aux).

    The flat results are the leaves of the value, the tracers in aux, and the arrays of the outer Refs that the function
    has changed.
    """

    def __init__(self, function: Function, primals: tuple[Any, ...], has_aux: bool):
        super().__init__(function, tree.structure((primals, {})))
        self.primals = tree.structure(primals)
        self.has_aux = has_aux
        self.aux: _Aux
        self.scope = RefScope()

    def __call__(self, *leaves: object) -> list[Any]:
        with self.scope:
            return [*self._call_function(*leaves), *self.scope.written_values]

    def _call_function(self, *leaves: object) -> list[Any]:
        if not self.has_aux:
            return super().__call__(*leaves)
        result = self.function(*self.primals.unflatten(leaves))
        if not (isinstance(result, tuple) and len(result) == 2):
            raise TypeError(
                f"{describe_function(self.function)} must return a pair (value, aux) with has_aux=True, not {result!r}"
            )
        outputs, self.out_tree = flatten_hiding_float0(result[0])
        check_outputs(self.function, outputs)
        self.aux = _Aux(result[1])
        return [*outputs, *_tracers(result[1])]

    def update_refs(self, values: Sequence[Any], active: Sequence[bool]) -> None:
        """Change the Refs that the function has changed; `active` tells which of the flat results have a tangent."""
        count = len(self.scope.written)
        for ref, value, is_active in zip(self.scope.written, values[-count:], active[-count:], strict=False):
            if is_active:
                raise ValueError(
                    f"{describe_function(self.function)} stores a value that is being differentiated in a Ref of type "
                    f"{ref.type} from outside. Store `lax.stop_gradient(value)`, or return the value."
                )
            ref[...] = value

    def outputs(self, values: Sequence[Any]) -> Any:
        """Return the function's value as a pytree; `values` are the flat results."""
        return self.out_tree.unflatten(list(values[: self.out_tree.num_leaves]))

    def with_aux(self, first: tuple[Any, ...], values: Sequence[Any]) -> Any:
        """Return the tuple `first`, with aux appended if there is one; `values` are the flat results."""
        return (*first, self.aux.restore(values[self.out_tree.num_leaves :])) if self.has_aux else first


_DERIVATIVE = Family(
    {
        "fun": "the function to differentiate.",
        "has_aux": "whether `fun` returns a pair (value, aux) of which only the value is differentiated.",
        "argnums": "the position of the argument to differentiate with respect to, or several.",
        "reduce_axes": Parameter("not supported; must be empty.", "NotImplementedError: if {} is not empty."),
        "*primals": "the arguments at which to differentiate, pytrees of arrays.",
    }
)
_GRADIENT = _DERIVATIVE.extended(
    {
        "fun": "the function to differentiate; it returns one scalar.",
        "holomorphic": "whether `fun` is holomorphic; required for complex arguments with a complex value.",
        "allow_int": "whether to permit integer arguments, which have gradients of dtype `float0`.",
    },
    raises=[
        "TypeError: if `fun` is not callable; when called, if the value is not a real scalar (a complex one with\n"
        "`holomorphic`), if an argument is not of a floating or complex dtype and `allow_int` is false, or if\n"
        "there is no positional argument with a number in `argnums`."
    ],
)
_JACOBIAN = _DERIVATIVE.extended(
    returns="A function with the arguments of `fun` that returns the Jacobian; with `has_aux` a pair of it and\n"
    "aux. For every leaf of the value it has a pytree like the argument, whose leaves have the dims of the value\n"
    "followed by those of the argument."
)


@filter_traceback
@documented(_DERIVATIVE)
def vjp(fun: Function, *primals: object, has_aux: bool = False, reduce_axes: Sequence[Any] = ()) -> Any:
    """Compute a function's value and its vector-Jacobian product (reverse mode).

    Returns:
        The value and a function from a cotangent of the value to a tuple of cotangents of the arguments; with `has_aux`
        also aux. The function is a pytree of its residuals, so jitted functions can accept and return it. Its method
        `with_refs(*gradients)` returns a function that adds cotangents to Refs, or leaves them out; see `jax.ad`. Its
        attribute `args_res` has the residuals that are arguments, and `opaque_residuals` the others. An argument may be
        a Ref, which `fun` may change; its cotangent is that of what it held before, and `with_refs` adds it to a Ref.

    Raises:
        TypeError: if `fun` is not callable or returns something other than arrays, or if an argument is not a
            pytree of arrays; from the vjp function, if the cotangent has another structure or type than the value.

    Example:
        >>> value, vjp_fun = jax.vjp(lambda x, y: x * y, 2.0, 5.0)
        >>> vjp_fun(1.0)
        (Array(5., dtype=float32, weak_type=True), Array(2., dtype=float32, weak_type=True))
    """
    check_function("vjp", fun)
    _check_no_reduce_axes("vjp", reduce_axes)
    leaves, structure = tree.flatten(primals)
    refs = {index: leaf for index, leaf in enumerate(leaves) if isinstance(leaf, Ref)}
    if not refs:
        return _vjp(fun, primals, has_aux, ())

    @wraps(fun)
    def of_arrays(*args: object) -> tuple[Any, tuple[Any, list[Any]]]:
        inner = {index: Ref(x) for index, x in enumerate(tree.leaves(args)) if index in refs}
        result = fun(*structure.unflatten([inner.get(index, x) for index, x in enumerate(tree.leaves(args))]))
        value, aux = result if has_aux else (result, None)
        return value, (aux, [ref[...] for ref in inner.values()])

    arrays = structure.unflatten([leaf[...] if index in refs else leaf for index, leaf in enumerate(leaves)])
    value, function, (aux, contents) = _vjp(of_arrays, arrays, True, tuple(refs))
    for ref, content in zip(refs.values(), contents, strict=True):
        ref[...] = content
    return (value, function, aux) if has_aux else (value, function)


def _vjp(fun: Function, primals: tuple[Any, ...], has_aux: bool, refs: tuple[int, ...]) -> Any:
    """Compute `vjp` of a function of arrays; the leaves `refs` of the arguments stand for Refs of the user."""
    flat, linear, operands = _linearized(fun, primals, has_aux)
    types = tuple(type_of(x) for x in linear.outputs[: flat.out_tree.num_leaves])
    note_summed_gradients(describe_function(fun), operands, {axis for type in types for axis in type.varying})
    in_types = tuple(x.type for x in operands)
    pullback = _Pullback(fun, linear.program, linear.nonzero, flat.out_tree, types, flat.primals, in_types, refs)
    function = VJP.from_residuals(pullback, linear.residuals, operands)
    return flat.with_aux((flat.outputs(linear.outputs), function), linear.outputs)


@final
@dataclass(frozen=True)
class _Pullback:
    """The transposed function: from residuals and a cotangent of the value to cotangents of the arguments.

    `program` is the linearized function; `nonzero` tells which of its outputs depend on the arguments.
    """

    function: Function
    program: Program
    nonzero: tuple[bool, ...]
    out_tree: tree.Structure
    out_types: tuple[ArrayType, ...]
    primals: tree.Structure
    in_types: tuple[ArrayType, ...]
    refs: tuple[int, ...]

    @property
    def label(self) -> str:
        return describe_function(self.function)

    def cotangents(self, residuals: Sequence[Any], cotangent: object) -> list[Any]:
        """Return the cotangent of each leaf of the arguments; None for zeros."""
        expected = list(map(cotangent_type, self.out_types))
        out_cotangents = _check_leaves("vjp", "cotangent", cotangent, self.out_tree, expected, self.function)
        aux_cotangents = [None] * (len(self.nonzero) - len(out_cotangents))
        return _transpose_linearized(
            self.program, self.nonzero, residuals, [*out_cotangents, *aux_cotangents], len(self.in_types)
        )

    def dense(self, index: int, cotangent: Any) -> Any:
        """Return the cotangent of one leaf as users see it, with zeros for None."""
        return _instantiate(cotangent_type(self.in_types[index]), cotangent)


@filter_traceback
@documented(_DERIVATIVE, returns="The value and its tangent; with `has_aux` also aux.")
def jvp(fun: Function, primals: object, tangents: object, has_aux: bool = False) -> Any:
    """Compute a function's value and its Jacobian-vector product (forward mode).

    Args:
        primals: the arguments at which to differentiate, a tuple or list of pytrees of arrays.
        tangents: their tangents, of the same structure and types.

    Raises:
        TypeError: if `fun` is not callable, if `primals` or `tangents` is not a tuple or list, or if their
            structures or types differ.

    Example:
        >>> jax.jvp(lambda x: x**2, (jnp.array(3.0),), (jnp.array(1.0),))
        (Array(9., dtype=float32, weak_type=True), Array(6., dtype=float32, weak_type=True))
    """
    check_function("jvp", fun)
    if not isinstance(primals, (tuple, list)) or not isinstance(tangents, (tuple, list)):
        raise TypeError(f"jvp of {describe_function(fun)}: primals and tangents must be tuples or lists of arguments")
    leaves, structure = tree.flatten(tuple(primals))
    operands = [as_operand(x, "jvp") for x in leaves]
    in_tangents = _check_leaves("jvp", "tangent", tuple(tangents), structure, [x.type for x in operands], fun)
    flat = _FlatFunctionWithAux(fun, tuple(primals), has_aux)
    outputs, out_tangents = jvp_function(flat, operands, in_tangents, function_name(fun))
    flat.update_refs(outputs, [t is not None for t in out_tangents])
    dense = [_instantiate(x.type, t) for x, t in zip(outputs, out_tangents, strict=True)]
    return flat.with_aux((flat.outputs(outputs), flat.outputs(dense)), outputs)


@filter_traceback
@documented(_DERIVATIVE)
def linearize(fun: Function, *primals: object, has_aux: bool = False) -> Any:
    """Compute a function's value and its linear approximation, which can be evaluated for many tangents.

    Returns:
        The value and a function from tangents of the arguments to the tangent of the value; with `has_aux` also aux.
        The function is a pytree of its residuals, so jitted functions can accept and return it.

    Raises:
        TypeError: if `fun` is not callable; from the linear function, if the tangents have another structure or
            type than the arguments.

    Example:
        >>> value, jvp_fun = jax.linearize(jnp.square, jnp.array(3.0))
        >>> [float(x) for x in (value, jvp_fun(1.0), jvp_fun(10.0))]
        [9.0, 6.0, 60.0]
    """
    check_function("linearize", fun)
    flat, linear, operands = _linearized(fun, primals, has_aux)

    in_types = tuple(x.type for x in operands)
    out_types = tuple(type_of(x) for x in linear.outputs[: flat.out_tree.num_leaves])
    pushforward = _Pushforward(fun, linear.program, linear.nonzero, flat.out_tree, out_types, flat.primals, in_types)
    return flat.with_aux((flat.outputs(linear.outputs), Partial(pushforward, linear.residuals)), linear.outputs)


@final
@dataclass(frozen=True)
class _Pushforward:
    """The function from residuals and tangents of the arguments to the tangent of the value; fields of `_Pullback`."""

    function: Function
    program: Program
    nonzero: tuple[bool, ...]
    out_tree: tree.Structure
    out_types: tuple[ArrayType, ...]
    primals: tree.Structure
    in_types: tuple[ArrayType, ...]

    def __call__(self, residuals: Sequence[Any], *tangents: object) -> Any:
        leaves = _check_leaves("linearize", "tangent", tangents, self.primals, self.in_types, self.function)
        dense = [zeros_of(type.strong()) if t is None else t for type, t in zip(self.in_types, leaves, strict=True)]
        out_tangents = insert_none(replay(self.program, [*residuals, *dense]), self.nonzero)
        return self.out_tree.unflatten(
            [_instantiate(*pair) for pair in zip(self.out_types, out_tangents, strict=False)]
        )


def linear_transpose(fun: Function, *primals: object, reduce_axes: Sequence[Any] = ()) -> Function:
    """Transpose a linear function.

    Args:
        fun: a function that is linear in its arguments.
        *primals: pytrees of arrays or `ShapeDtypeStruct`s; only their shapes and dtypes are used.
        reduce_axes: not supported; must be empty.

    Returns:
        A function from a cotangent of the value to a tuple of cotangents of the arguments. It is a pytree of the arrays
        that `fun` closes over, so jitted functions can accept and return it.

    Raises:
        TypeError: if `fun` is not callable; from the transposed function, if `fun` is not linear, or if the
            cotangent has another structure or type than the value.
        NotImplementedError: if `reduce_axes` is not empty.

    Example:
        >>> transposed = jax.linear_transpose(jnp.sum, jax.ShapeDtypeStruct((3,), jnp.float32))
        >>> transposed(jnp.array(2.0))
        (Array([2., 2., 2.], dtype=float32),)
    """
    check_function("linear_transpose", fun)
    _check_no_reduce_axes("linear_transpose", reduce_axes)
    leaves, structure = tree.flatten(primals)
    types = [leaf_type(x, "linear_transpose") for x in leaves]
    flat = _FlatFunctionWithAux(fun, primals, has_aux=False)
    flat.scope = RefScope(read_only="linear_transpose does not run the function: return the value instead.")
    program, captured = build(flat, types, function_name(fun))
    kinds = {is_inexact(type.dtype) for type in (*types, *program.out_types)}
    if len(kinds) > 1:
        raise TypeError(
            f"linear_transpose of {describe_function(fun)}: arguments and results must be all of floating or "
            f"complex dtypes, or all of integers, not {', '.join(map(str, types))} and "
            f"{', '.join(map(str, program.out_types))}"
        )
    return Partial(_LinearTranspose(fun, program, flat.out_tree, structure, tuple(types)), captured)


@final
@dataclass(frozen=True)
class _LinearTranspose:
    """The function from the captured values of `program` and a cotangent of its value to cotangents of its inputs."""

    function: Function
    program: Program
    out_tree: tree.Structure
    primals: tree.Structure
    in_types: tuple[ArrayType, ...]

    def __call__(self, captured: Sequence[Any], cotangent: object) -> tuple[Any, ...]:
        expected = list(map(cotangent_type, self.program.out_types))
        out_cotangents = _check_leaves(
            "linear_transpose", "cotangent", cotangent, self.out_tree, expected, self.function
        )
        is_linear = (True,) * len(self.in_types) + (False,) * len(captured)
        in_cotangents = transpose(self.program, is_linear, captured, out_cotangents)
        return self.primals.unflatten(
            [
                zeros_of(cotangent_type(type).strong()) if ct is None else ct
                for type, ct in zip(self.in_types, in_cotangents, strict=True)
            ]
        )


@documented(_GRADIENT)
def value_and_grad(
    fun: Callable[_P, Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
) -> Callable[_P, tuple[Any, Any]]:
    """Create a function that computes the value and the gradient of a scalar-valued function.

    Returns:
        A function with the arguments of `fun` that returns (value, gradient); with `has_aux`
        ((value, aux), gradient). The gradient is a pytree like the argument, or a tuple if `argnums` is a sequence.

    Example:
        >>> jax.value_and_grad(lambda x: (x**2).sum())(jnp.array([1.0, 2.0]))
        (Array(5., dtype=float32), Array([2., 4.], dtype=float32))
    """
    check_function("value_and_grad", fun)
    _check_no_reduce_axes("grad", reduce_axes)

    @wraps(fun)
    @filter_traceback
    def call(*args: object, **keywords: object) -> Any:
        inner, active, positions = select_argnums(fun, argnums, args, keywords)
        _check_inputs("grad", fun, args, positions, tree.leaves(active), holomorphic, allow_int)
        flat = _FlatFunctionWithAux(inner, active, has_aux)
        operands = [as_operand(leaf) for leaf in tree.leaves(active)]

        def check(outputs: Sequence[Any]) -> None:
            _check_scalar(fun, flat, outputs, holomorphic)

        outputs, cotangents = (differentiated_losses.value or _value_and_cotangents)(flat, operands, check)
        value = outputs[0]
        grads = flat.primals.unflatten(
            [_instantiate(cotangent_type(x.type), ct) for x, ct in zip(operands, cotangents, strict=True)]
        )
        gradient = grads[0] if isinstance(argnums, int) else tuple(grads)
        return (flat.with_aux((value,), outputs) if has_aux else value), gradient

    return call


@documented(_GRADIENT)
def grad(
    fun: Callable[_P, Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
) -> Callable[_P, Any]:
    """Create a function that computes the gradient of a scalar-valued function.

    Returns:
        A function with the arguments of `fun` that returns the gradient; with `has_aux` (gradient, aux). The
        gradient is a pytree like the argument, or a tuple if `argnums` is a sequence.

    Example:
        >>> jax.grad(lambda x, y: (x**2 * y).sum())(jnp.array([1.0, 2.0]), 3.0)
        Array([ 6., 12.], dtype=float32)
    """
    check_function("grad", fun)
    both = value_and_grad(fun, argnums, has_aux, holomorphic, allow_int, reduce_axes)

    @wraps(fun)
    @filter_traceback
    def call(*args: _P.args, **keywords: _P.kwargs) -> Any:
        value, gradient = both(*args, **keywords)
        return (gradient, value[1]) if has_aux else gradient

    return call


@documented(_JACOBIAN)
def jacfwd(
    fun: Callable[_P, Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[_P, Any]:
    """Create a function that computes the Jacobian in forward mode: one jvp per element of the argument, in one vmap.

    Forward mode suits functions with few arguments and many results.

    Args:
        holomorphic: whether `fun` is holomorphic; required for complex arguments.

    Raises:
        TypeError: if `fun` is not callable; when called, if an argument is of an integer dtype,
            or if a complex argument is differentiated without `holomorphic`.

    Example:
        >>> jax.jacfwd(lambda x: x**2)(jnp.array([1.0, 3.0]))
        Array([[2., 0.],
               [0., 6.]], dtype=float32)
    """
    check_function("jacfwd", fun)

    @wraps(fun)
    @filter_traceback
    def call(*args: object, **keywords: object) -> Any:
        inner, active, positions = select_argnums(fun, argnums, args, keywords)
        _check_inputs("jacfwd", fun, args, positions, tree.leaves(active), holomorphic, allow_int=False)
        leaves, structure = tree.flatten(active)
        operands = [as_operand(x, "jacfwd") for x in leaves]
        columns: list[list[Any]] = []
        aux: Any = None
        out_tree: tree.Structure = None
        traced_aux = _Aux(None)
        for number, x in enumerate(operands):

            def push(tangent: Array, number: int = number) -> Any:
                nonlocal traced_aux
                tangents = [tangent if i == number else zeros_like(y) for i, y in enumerate(operands)]
                primal = structure.unflatten(operands)
                _, out_tangent, *aux = jvp(inner, primal, structure.unflatten(tangents), has_aux)
                traced_aux = _Aux(aux)
                return out_tangent, _tracers(aux)

            out_tangent, aux_values = vmap(push, out_axes=(-1, None))(_standard_basis(x.type))
            outputs, out_tree = tree.flatten(out_tangent)
            aux = traced_aux.restore(aux_values)
            columns.append([reshape(y, shape=(*y.type.shape[:-1], *x.type.shape)) for y in outputs])
        jacobians = [structure.unflatten(list(row)) for row in zip(*columns, strict=True)]
        jacobian = out_tree.unflatten([j[0] if isinstance(argnums, int) else j for j in jacobians])
        return (jacobian, *aux) if has_aux else jacobian

    return call


@documented(_JACOBIAN)
def jacrev(
    fun: Callable[_P, Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[_P, Any]:
    """Create a function that computes the Jacobian in reverse mode: one vjp per element of the value, in one vmap.

    Reverse mode suits functions with many arguments and few results.

    Args:
        holomorphic: whether `fun` is holomorphic; required for complex results.
        allow_int: whether to permit integer arguments, whose derivatives are zeros of their own dtype.

    Raises:
        TypeError: if `fun` is not callable; when called, if an argument is of an integer dtype and
            `allow_int` is false, if a result is of an integer dtype, or if a complex result is differentiated without
            `holomorphic`.

    Example:
        >>> jax.jacrev(lambda x: x[0] * x)(jnp.array([1.0, 3.0]))
        Array([[2., 0.],
               [3., 1.]], dtype=float32)
    """
    check_function("jacrev", fun)

    @wraps(fun)
    @filter_traceback
    def call(*args: object, **keywords: object) -> Any:
        inner, active, positions = select_argnums(fun, argnums, args, keywords)
        _check_inputs("jacrev", fun, args, positions, tree.leaves(active), holomorphic, allow_int)
        value, pullback, *aux = vjp(inner, *active, has_aux=has_aux)
        outputs, out_tree = tree.flatten(value)
        for y in outputs:
            if y.type.dtype.kind == "c" and not holomorphic:
                raise TypeError(
                    f"jacrev of {describe_function(fun)}: a result is {y.type}. Complex results can be "
                    "differentiated only if the function is holomorphic: pass holomorphic=True if it is."
                )
            if not is_inexact(y.type.dtype):
                raise TypeError(
                    f"jacrev of {describe_function(fun)}: a result is {y.type}. Results must be floats; use vjp for "
                    "functions with integer results."
                )
        rows = []
        for number, y in enumerate(outputs):

            def pull(cotangent: Array, number: int = number) -> Any:
                cotangents = [cotangent if i == number else zeros_like(z) for i, z in enumerate(outputs)]
                return pullback(out_tree.unflatten(cotangents))

            grads = vmap(pull)(_standard_basis(y.type))
            row = tree.map(partial(_unflatten_rows, y.type.shape), grads, tuple(active))
            rows.append(row[0] if isinstance(argnums, int) else row)
        jacobian = out_tree.unflatten(rows)
        return (jacobian, aux[0]) if has_aux else jacobian

    return call


def _unflatten_rows(shape: tuple[int, ...], gradient: Any, argument: ArrayLike) -> Any:
    """Replace the leading dim of a batch of gradients by the dims of a result; integers have the derivative zero."""
    jacobian_shape = (*shape, *gradient.shape[1:])
    if gradient.dtype == float0:
        return zeros_of(as_operand(argument).type.with_shape(jacobian_shape))
    return reshape(gradient, shape=jacobian_shape)


@documented(_DERIVATIVE)
def hessian(
    fun: Callable[_P, Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[_P, Any]:
    """Create a function that computes the Hessian: `jacfwd` of `jacrev`.

    Args:
        holomorphic: whether `fun` is holomorphic; required for complex arguments and results.

    Returns:
        A function with the arguments of `fun` that returns the Hessian; with `has_aux` a pair of it and aux. For
        every leaf of the value it has a pytree like the argument, whose leaves have the dims of the value followed by
        those of the argument twice.

    Raises:
        TypeError: if `fun` is not callable; when called, if an argument is of an integer dtype,
            or if a complex value is differentiated without `holomorphic`.

    Example:
        >>> jax.hessian(lambda x: x[0] ** 2 * x[1])(jnp.array([3.0, 4.0]))
        Array([[8., 6.],
               [6., 0.]], dtype=float32)
    """
    check_function("hessian", fun)
    return jacfwd(jacrev(fun, argnums, has_aux, holomorphic), argnums, has_aux, holomorphic)


def _value_and_cotangents(
    flat: _FlatFunctionWithAux, operands: list[Any], check: Callable[[Sequence[Any]], None]
) -> tuple[list[Any], list[Any]]:
    """Return the flat results of a function, and the cotangents of its operands, None for zeros.

    Args:
        flat: the function.
        operands: the leaves of its arguments.
        check: raises an error if the first of the results is not a scalar.
    """
    linear = linearize_flat(flat, operands, function_name(flat.function))
    flat.update_refs(linear.outputs, linear.nonzero)
    check(linear.outputs)
    type = linear.outputs[0].type
    note_summed_gradients(describe_function(flat.function), operands, type.varying)
    cotangents = [full((), 1.0, type.dtype, type.weak), *[None] * (len(linear.outputs) - 1)]
    return linear.outputs, _transpose_linearized(
        linear.program, linear.nonzero, linear.residuals, cotangents, len(operands)
    )


def _linearized(
    function: Function, primals: tuple[Any, ...], has_aux: bool
) -> tuple[_FlatFunctionWithAux, Linearized, list[Any]]:
    """Linearize a function at `primals`; return it flat, linearized, and the leaves of `primals`."""
    operands = [as_operand(leaf) for leaf in tree.leaves(tuple(primals))]
    flat = _FlatFunctionWithAux(function, tuple(primals), has_aux)
    linear = linearize_flat(flat, operands, function_name(function))
    flat.update_refs(linear.outputs, linear.nonzero)
    return flat, linear, operands


def _transpose_linearized(
    program: Program, nonzero: Sequence[bool], residuals: Sequence[Any], cotangents: Sequence[Any], count: int
) -> list[Any]:
    """Transpose a linearized function: return the cotangents of its `count` inputs, None for zeros.

    `cotangents` are those of all outputs; the program has only the outputs with `nonzero`.
    """
    out_cotangents = [ct for ct, is_nonzero in zip(cotangents, nonzero, strict=True) if is_nonzero]
    is_linear = (False,) * len(residuals) + (True,) * count
    return transpose(program, is_linear, residuals, out_cotangents)


def _instantiate(type: ArrayType, derivative: Array | None) -> Array | np.ndarray[Any, Any]:
    """Return a tangent or cotangent as users see it: an array of zeros for None, float0 for integers."""
    if not is_inexact(type.dtype):
        return np.zeros(type.shape, float0)
    return zeros_of(type) if derivative is None else derivative


def _check_no_reduce_axes(name: str, reduce_axes: Sequence[Any]) -> None:
    if reduce_axes:
        raise NotImplementedError(
            f"{name}: reduce_axes is not supported: reduce inside the function instead, for example with lax.psum"
        )


def select_argnums(
    function: Function, argnums: int | Sequence[int], args: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[Function, tuple[Any, ...], list[int]]:
    """Return a function of the arguments in `argnums` alone, these arguments, and their positions."""
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    for number in numbers:
        if not isinstance(number, int) or not -len(args) <= number < len(args):
            raise TypeError(
                f"grad of {describe_function(function)}: argnums has {number}, but the function was called with "
                f"{len(args)} positional arguments"
            )
    positions = [number % len(args) for number in numbers]

    @wraps(function)
    def inner(*active: object) -> Any:
        all_args = list(args)
        for position, value in zip(positions, active, strict=True):
            all_args[position] = value
        return function(*all_args, **keywords)

    return inner, tuple(args[position] for position in positions), positions


def _check_leaves(
    name: str, role: str, derivatives: object, structure: tree.Structure, types: Sequence[ArrayType], function: Function
) -> list[Any]:
    """Return the leaves of a pytree of tangents or cotangents, which must match these types; None for integers.

    `role` is "tangent" or "cotangent". Only `linear_transpose` has cotangents of integers.
    """
    leaves, leaf_structure = tree.flatten(derivatives)
    if leaf_structure != structure:
        raise TangentMismatchError(
            f"{name} of {describe_function(function)}: the {role} has structure {leaf_structure}, expected {structure}"
        )
    out: list[Any] = []
    for index, (leaf, type) in enumerate(zip(leaves, types, strict=True)):
        if not is_inexact(type.dtype) and name != "linear_transpose":
            if getattr(leaf, "dtype", None) != float0:
                raise TangentMismatchError(
                    f"{name} of {describe_function(function)}: the {role} of a value of type {type} must have dtype "
                    "float0"
                )
            out.append(None)
            continue
        x = as_operand(leaf, name)
        kinds = [(is_inexact(dtype), is_float(dtype)) for dtype in (x.type.dtype, type.dtype)]
        weak = x.type.weak and kinds[0] == kinds[1]  # a Python number matches every dtype of its kind
        if x.type.shape != type.shape or (x.type.dtype != type.dtype and not weak):
            raise TangentMismatchError(
                f"{name} of {describe_function(function)}: {role} {index} is {x.type}, expected {type.strong()}"
            )
        if role == "cotangent":
            _check_varying(f"{name} of {describe_function(function)}: cotangent {index}", x.type, type)
        out.append(match_type(x, type))
    return out


def _check_varying(label: str, cotangent: ArrayType, expected: ArrayType) -> None:
    """Check that a cotangent does not vary over an axis of shard_map over which the value is replicated."""
    unreduced = expected.explicit.unreduced if expected.explicit else ()
    axes = [axis for axis in cotangent.varying if axis not in (*expected.varying, *unreduced)]
    if axes:
        raise TangentMismatchError(
            f"{label} is {cotangent}, which varies over {axes[0]!r}, but the value of the function is replicated: "
            f"expected {expected.strong()}. Cast the argument with `lax.pcast(x, {axes[0]!r}, to='varying')`, so that "
            "each device has its own value; or sum the cotangent with `lax.psum`."
        )


def _standard_basis(type: ArrayType) -> Any:
    """Return the standard basis of the arrays of a type, stacked along a new first dim."""
    rows, columns = (Iota((type.size, type.size), dim, np.dtype(np.int32))() for dim in (0, 1))
    return reshape(Convert(type.dtype)(Compare("EQ")(rows, columns)), shape=(type.size, *type.shape))


def _check_inputs(
    name: str,
    function: Function,
    args: tuple[Any, ...],
    positions: Sequence[int],
    leaves: Sequence[Any],
    holomorphic: bool,
    allow_int: bool,
) -> None:
    """Check the dtypes of the arguments to differentiate with respect to."""
    for index, leaf in enumerate(leaves):
        dtype = type_of(leaf, name).dtype
        if holomorphic and dtype.kind != "c":
            problem = "with holomorphic=True it must have a complex dtype"
        elif not is_inexact(dtype) and not allow_int:
            may_be_int = ", or pass allow_int=True for a derivative of dtype float0" if name != "jacfwd" else ""
            problem = (
                "derivatives need a floating or complex dtype. Convert it with `.astype`, or remove it from argnums"
                f"{may_be_int}"
            )
        elif name == "jacfwd" and dtype.kind == "c" and not holomorphic:
            problem = (
                "forward mode supports complex arguments only if the function is holomorphic: pass holomorphic=True if "
                "it is"
            )
        else:
            continue
        differentiated = [args[position] if position in positions else None for position in range(len(args))]
        argument = argument_names(function, tuple(differentiated), {})[index]
        raise TypeError(
            f"{name} of {describe_function(function)} with respect to {argument}: it is {type_of(leaf)}, but {problem}."
        )


def _check_scalar(function: Function, flat: _FlatFunctionWithAux, outputs: Sequence[Any], holomorphic: bool) -> None:
    if flat.out_tree != tree.structure(0):
        returned = flat.outputs([x.type for x in outputs])
        raise TypeError(
            f"grad needs a function that returns one scalar, but {describe_function(function)} returned {returned!r}.\n"
            "  To return other values with the scalar, return a pair (scalar, aux) and pass has_aux=True."
        )
    type = outputs[0].type
    if type.shape or not (type.dtype.kind == "c" if holomorphic else is_float(type.dtype)):
        raise TypeError(
            f"grad needs a function that returns one {'complex' if holomorphic else 'real'} scalar, but "
            f"{describe_function(function)} returned {type}. Reduce it, for example with `.sum()` or `.mean()`."
        )
