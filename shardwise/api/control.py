"""Control flow on pytrees of arrays: cond, switch, while_loop, fori_loop, scan, map.

Each traces the user's functions into programs, checks the types of their results, and applies one control op.
"""

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, SupportsIndex, TypeAlias, final

import numpy as np

from shardwise import tree
from shardwise.api.arguments import array_leaves, describe_function, function_name
from shardwise.api.flatten import check_outputs
from shardwise.api.layer_scans import layer_scans
from shardwise.api.ref import Ref, RefScope, current_values, hide_refs, set_refs
from shardwise.api.trace_cache import trace_context, trace_once
from shardwise.api.transformations.float0 import flatten_hiding_float0, hide_float0
from shardwise.api.transformations.remat import checkpoint_policies
from shardwise.api.transformations.vmap import vmap
from shardwise.base.config import config
from shardwise.compiler.arrays.methods import Array, where
from shardwise.compiler.arrays.operands import as_operand, type_of
from shardwise.compiler.arrays.promotion import promote_dtypes
from shardwise.compiler.control.cond import Cond
from shardwise.compiler.control.make_varying import cast_to_varying, make_varying
from shardwise.compiler.control.remat import Remat
from shardwise.compiler.control.scan import Scan
from shardwise.compiler.control.while_loop import While
from shardwise.compiler.dtypes import integer_range, is_integer
from shardwise.compiler.ir.op import varying
from shardwise.compiler.ir.program import Program, Value
from shardwise.compiler.ir.types import ArrayType, spec_text
from shardwise.compiler.ops.collective.named import Named, NamedIndex
from shardwise.compiler.ops.placement.retype import match_type
from shardwise.compiler.ops.shape.slicing import Concatenate
from shardwise.compiler.shardings.explicit import ExplicitSharding
from shardwise.compiler.trace.build import build, rewrite
from shardwise.compiler.trace.tracer import Tracer
from shardwise.errors import ConcretizationTypeError, ShardingError, ShardingTypeError
from shardwise.execute.traceback_filter import filter_traceback
from shardwise.numpy.joining import stack
from shardwise.tree_util import Difference
from shardwise.typing import ArrayLike

Function = Callable[..., Any]
_Integer: TypeAlias = int | np.integer[Any] | np.ndarray[Any, Any] | Array  # an integer scalar
_ABSENT: Any = object()


@final
@dataclass(frozen=True)
class _TracedBody:
    """A branch, condition or loop body as a program of (captured values, arguments).

    `captured` may have Refs, whose arrays are the inputs. `returned` is the pytree of the types of the results. The
    last outputs of the program are what the Refs in `written` hold at the end.
    """

    function: Function
    program: Program
    captured: list[Any]
    returned: Any
    written: list[Ref]

    @staticmethod
    def from_function(
        function: Function, args: tuple[Any, ...], types: Sequence[ArrayType], outs: Sequence[Any] = ()
    ) -> "_TracedBody":
        """Trace `function` for pytrees like `args`, whose leaves have these types, or find it traced in a cache.

        A result is converted to its type in `outs`, if the two differ at most in weak type and varying axes.
        """
        structure = tree.structure(args)
        returned: Any = None
        scope = RefScope(as_inputs=True)

        def flat(*leaves: Array) -> list[Array]:
            nonlocal returned
            with scope:
                result = function(*structure.unflatten(leaves))
            outputs, out_tree = flatten_hiding_float0(result)
            check_outputs(function, outputs)
            arrays = [as_operand(x) for x in outputs]
            returned = hide_float0(out_tree.unflatten([x.type for x in arrays]))
            targets = [*outs, *[None] * len(arrays)]
            results = [_retype_if_compatible(x, type) for x, type in zip(arrays, targets, strict=False)]
            return [*results, *scope.written_values]

        def trace() -> tuple[Program, list[Any], Any, list[Ref]]:
            program, captured = build(flat, types, function_name(function))
            count = len(program.inputs) - len(captured)
            inputs = (*program.inputs[count:], *program.inputs[:count])
            return replace(program, inputs=inputs), captured, returned, scope.written

        key = (structure, tuple(types), tuple(outs), trace_context())
        return _TracedBody(function, *trace_once(function, key, trace))

    @property
    def structure(self) -> tree.Structure:
        return tree.structure(self.returned)

    @property
    def arguments(self) -> tuple[Value, ...]:
        return self.program.inputs[len(self.captured) :]

    @property
    def results(self) -> tuple[Value, ...]:
        return self.program.outputs[: len(self.program.outputs) - len(self.written)]

    @property
    def result_types(self) -> tuple[ArrayType, ...]:
        return tuple(value.type for value in self.results)

    def with_captured(self, captured: Sequence[Any], written: Sequence[Ref], leads: bool = False) -> Program:
        """Return a program whose first inputs are these values, for all branches of a cond or both parts of a loop.

        Its last outputs, or first ones with `leads`, are what the Refs in `written` hold at the end.
        """
        own = {id(x): value for x, value in zip(self.captured, self.program.inputs, strict=False)}
        inputs = {id(x): own[id(x)] if id(x) in own else Value(x.type) for x in captured}
        changed = zip(self.written, self.program.outputs[len(self.results) :], strict=True)
        last = {**{ref: inputs[id(ref)] for ref in written}, **dict(changed)}
        values = [last[ref] for ref in written]
        outputs = (*values, *self.results) if leads else (*self.results, *values)
        return replace(self.program, inputs=(*inputs.values(), *self.arguments), outputs=outputs)


def _retype_if_compatible(x: Array, type: ArrayType | None) -> Array:
    return match_type(x, type) if type is not None and _compatible(x.type, type) else x


def _compatible(a: ArrayType, b: ArrayType) -> bool:
    """Return whether types differ at most in weak type and varying axes, which loops and branches convert.

    A replicated value may also be created in a part of a program with its own mesh, and have no sharding on it yet.
    """
    first, second = _in_scope_of(a, b), _in_scope_of(b, a)
    return first.strong().with_varying(()) is second.strong().with_varying(())


def _in_scope_of(type: ArrayType, other: ArrayType) -> ArrayType:
    """Return the type of a replicated value on the mesh of another type, if that belongs to a part of the program."""
    sharding = other.explicit
    if type.explicit is not None or sharding is None or not sharding.scoped:
        return type
    return type.with_explicit(ExplicitSharding.from_dims(sharding.mesh, ((),) * type.ndim, scoped=True))


def cond(pred: ArrayLike, true_fun: Function, false_fun: Function, *operands: object, operand: object = _ABSENT) -> Any:
    """Call one of two functions, depending on a predicate.

    Only one of them runs, except under `vmap` with a mapped `pred`: then both run, and the results are selected
    elementwise. Both must return the same pytree structure and types.

    The older form `cond(pred, true_operand, true_fun, false_operand, false_fun)` passes each function its own operand.

    Args:
        pred: a boolean or numeric scalar.
        true_fun: the function to call if `pred` is true (nonzero).
        false_fun: the function to call otherwise.
        *operands: pytrees of arrays, the arguments of both functions.
        operand: a single argument in place of `operands`, which may be None.

    Returns:
        The result of the function that was called.

    Raises:
        TypeError: if `pred` is not a scalar, if a function is not callable, if the functions return different
            structures or types, or if both `operands` and `operand` are given.
        ValueError: if `pred` varies over devices of a `shard_map` and a function contains a collective over them.

    Example:
        >>> lax.cond(True, lambda x: x + 1, lambda x: x - 1, 5)
        Array(6, dtype=int32, weak_type=True)
    """
    if not callable(true_fun) and callable(false_fun) and len(operands) == 2 and callable(operands[1]):
        return _cond_with_own_operands(pred, true_fun, false_fun, *operands)
    _check_callable("cond", true_fun=true_fun, false_fun=false_fun)
    predicate = as_operand(pred, "cond")
    if predicate.type.ndim:
        raise TypeError(f"cond: pred must be a scalar, not {predicate.type}")
    args = _branch_arguments("cond", operands, operand)
    if config.disable_jit and not isinstance(predicate, Tracer):
        return true_fun(*args) if predicate else false_fun(*args)
    index = (predicate if predicate.type.dtype == np.bool_ else predicate != 0).astype(np.int32)
    return _branch("cond", index, [false_fun, true_fun], args)


def _cond_with_own_operands(
    pred: ArrayLike, true_operand: object, true_fun: Function, false_operand: object, false_fun: Function
) -> Any:
    def on_true(true_operand: object, _: object) -> Any:
        return true_fun(true_operand)

    def on_false(_: object, false_operand: object) -> Any:
        return false_fun(false_operand)

    copy_name(on_true, true_fun)
    copy_name(on_false, false_fun)
    return cond(pred, on_true, on_false, true_operand, false_operand)


def switch(index: ArrayLike, branches: Sequence[Function], *operands: object, operand: object = _ABSENT) -> Any:
    """Call one of several functions, selected by an index.

    Only one of them runs, except under `vmap` with a mapped `index`: then all run, and the results are selected
    elementwise. All must return the same pytree structure and types.

    Args:
        index: an integer scalar, which is clamped to the range of `branches`.
        branches: the functions.
        *operands: pytrees of arrays, the arguments of all functions.
        operand: a single argument in place of `operands`, which may be None.

    Returns:
        The result of the function that was called.

    Raises:
        TypeError: if `index` is not an integer scalar, if `branches` is not a sequence of functions, if these return
            different structures or types, or if both `operands` and `operand` are given.
        ValueError: if `branches` is empty, or if `index` varies over devices of a `shard_map` and a function contains
            a collective over them.

    Example:
        >>> lax.switch(1, [lambda x: x + 1, lambda x: x * 10], 5)
        Array(50, dtype=int32, weak_type=True)
    """
    if not isinstance(branches, Sequence):
        raise TypeError(f"switch: branches must be a sequence of functions, not {branches!r}")
    if not branches:
        raise ValueError("switch: branches must have at least one function")
    if wrong := [branch for branch in branches if not callable(branch)]:
        raise TypeError(f"switch: branches must be functions, not {wrong[0]!r}")
    selected = as_operand(index, "switch")
    if selected.type.ndim or not is_integer(selected.type.dtype):
        raise TypeError(f"switch: index must be an integer scalar, not {selected.type}")
    args = _branch_arguments("switch", operands, operand)
    last = len(branches) - 1
    if config.disable_jit and not isinstance(selected, Tracer):
        return branches[min(max(int(selected), 0), last)](*args)
    if selected.type.dtype.itemsize < 4:  # the dtype may not hold the number of the last branch
        selected = selected.astype(np.int32)
    clamped = where(selected < 0, 0, where(selected > last, last, selected)).astype(np.int32)
    return _branch("switch", clamped, list(branches), args)


def _check_callable(name: str, **functions: object) -> None:
    for parameter, function in functions.items():
        if not callable(function):
            raise TypeError(f"{name}: {parameter} must be a function, not {function!r}")


def _branch_arguments(name: str, operands: tuple[Any, ...], operand: object) -> tuple[Any, ...]:
    """Return the arguments of the branches; `operand` is the older way to pass a single one, which may be None."""
    if operand is _ABSENT:
        return operands
    if operands:
        raise TypeError(f"{name}: pass the arguments of the branches by position or as `operand`, not both")
    return (operand,)


@filter_traceback
def _branch(name: str, index: Array, branches: list[Function], operands: tuple[Any, ...]) -> Any:
    operands = hide_refs(hide_float0(operands))
    leaves, _ = array_leaves(branches[0], operands, {})
    arrays = [as_operand(leaf) for leaf in leaves]
    types = [x.type for x in arrays]
    traced = [_TracedBody.from_function(branch, operands, types) for branch in branches]
    roles = ["false_fun", "true_fun"] if name == "cond" else [f"branches[{number}]" for number in range(len(traced))]
    labelled = list(zip(roles, traced, strict=True))
    if name == "cond":
        labelled.reverse()  # true_fun comes first in the user's code
    for other in labelled[1:]:
        _check_same_results(name, labelled[0], other)
    first = labelled[0][1]
    outs = [_join_types(column) for column in zip(*(tree.leaves(t.returned) for t in traced), strict=True)]
    if any(list(t.result_types) != outs for t in traced):
        traced = [_TracedBody.from_function(branch, operands, types, outs) for branch in branches]
    captured = _union(t.captured for t in traced)
    written = _union(t.written for t in traced)
    branch_programs = [t.with_captured(captured, written) for t in traced]
    operands_now = [*current_values(captured), *arrays]
    programs, inputs = _vary_with_condition(index.type, branch_programs, operands_now)
    _check_no_divergent_collective(name, index.type, programs)
    outputs = Cond(tuple(programs))(index, *inputs)
    set_refs(written, outputs[len(outs) :])
    return first.structure.unflatten(list(outputs[: len(outs)]))


def _without(values: Sequence[Any], refs: Sequence[Ref]) -> list[Any]:
    """Return captured values without these Refs."""
    return [x for x in values if not any(x is ref for ref in refs)]


def _union(lists: Iterable[Sequence[Any]]) -> list[Any]:
    """Return the objects of several lists, each once."""
    return list({id(x): x for items in lists for x in items}.values())


def _check_same_results(name: str, first_branch: tuple[str, _TracedBody], branch: tuple[str, _TracedBody]) -> None:
    """Check that two branches, each with its parameter, return the same pytree structure and types."""
    (_, first), (_, other) = first_branch, branch
    if first.structure != other.structure:
        lines = "".join(
            f"\n  {role}, {describe_function(traced.function)}, returns {_shortened(repr(traced.returned))}"
            for role, traced in (first_branch, branch)
        )
        raise TypeError(
            f"{name}: all branches must return the same pytree structure:{lines}\n"
            f"  They differ {_difference(first.returned, other.returned)}."
        )
    leaves = zip(
        tree.leaf_names(first.returned, "result"), tree.leaves(first.returned), tree.leaves(other.returned), strict=True
    )
    wrong = [
        f"\n  {leaf}: {a} in {describe_function(first.function)}, {b} in {describe_function(other.function)}"
        for leaf, a, b in leaves
        if not _compatible(a, b)
    ]
    if wrong:
        text = f"{name}: all branches must return the same types:{''.join(wrong)}"
        pairs = zip(tree.leaves(first.returned), tree.leaves(other.returned), strict=True)
        mismatch = next((a, b) for a, b in pairs if not _compatible(a, b))
        if _differ_in_sharding(*mismatch):
            raise ShardingTypeError(
                f"{text}\n  Reshard one of the results, `reshard(result, {spec_text(mismatch[0])})` in "
                f"{describe_function(other.function)}."
            )
        raise TypeError(text)


def _differ_in_sharding(a: ArrayType, b: ArrayType) -> bool:
    """Return whether two types differ along Explicit mesh axes alone."""
    return a is not b and _compatible(a, b.with_explicit(a.explicit))


def _shortened(text: str, length: int = 300) -> str:
    return text if len(text) <= length else f"{text[:length]}…"


def _difference(first: object, second: object) -> Difference:
    """Return the first difference of two pytrees; a leaf is a prefix of any tree, so both directions are compared."""
    difference = tree.first_difference(tree.structure(first), first, second)
    if difference is not None:
        return replace(difference, second="one array") if difference.second_is_leaf else difference
    swapped = tree.first_difference(tree.structure(second), second, first)
    assert swapped is not None  # the structures differ
    return replace(
        swapped,
        first="one array" if swapped.second_is_leaf else swapped.second,
        second=swapped.first,
        only_first=swapped.only_second,
        only_second=swapped.only_first,
    )


def _join_types(types: Sequence[ArrayType]) -> ArrayType:
    """Return the type of a result that has these types in the branches.

    It is weak if it is weak in the first branch, for `cond` in `false_fun`, as in JAX. It varies over the axes of all.
    """
    joined = types[0].with_varying(varying(types))
    for other in types:
        joined = _in_scope_of(joined, other)
    return joined


def _vary_with_condition(
    decides: ArrayType, programs: Sequence[Program], operands: Sequence[Any]
) -> tuple[Sequence[Program], Sequence[Any]]:
    """Make operands and results of control flow vary over the axes over which its condition varies.

    `decides` is the type of the predicate, index or loop condition. In a manual region devices along its varying axes
    may execute different branches, so all results differ between them.
    """
    axes = decides.varying
    if not axes:
        return programs, operands
    return [make_varying(program, axes) for program in programs], [cast_to_varying(x, axes) for x in operands]


def _check_no_divergent_collective(name: str, decides: ArrayType, programs: Sequence[Program]) -> None:
    """Check that no collective is over an axis along which the condition varies: its devices would deadlock."""
    for program in programs:
        for equation in program.walk():
            is_collective = isinstance(equation.op, Named) and not isinstance(equation.op, NamedIndex)
            axes = equation.op.axis_names.intersection(decides.varying) if is_collective else ()
            if axes:
                names = ", ".join([repr(axis) for axis in sorted(axes)])
                raise ValueError(
                    f"{name}: the condition varies along {names}, so devices may take "
                    f"different branches, but {equation.op.name} at {equation.source} needs all of them: the devices "
                    "that execute it would wait for the others forever. Make the condition the same on all devices, "
                    "for example with `lax.pmax`, or move the collective out of the branch or loop."
                )


@filter_traceback
def while_loop(cond_fun: Function, body_fun: Function, init_val: object) -> Any:
    """Call a function repeatedly while a condition holds.

    It can be differentiated in forward mode only. For reverse mode use `scan`, or `fori_loop` with Python integers.

    Args:
        cond_fun: a function of the carry that returns a boolean scalar.
        body_fun: a function from the carry to the next carry, of the same pytree structure and types.
        init_val: the first carry, a pytree of arrays.

    Returns:
        The first carry for which `cond_fun` is false.

    Raises:
        TypeError: if a function is not callable, if `cond_fun` does not return a boolean scalar, or if `body_fun`
            returns another structure or other types than it accepts.
        ValueError: if the condition varies over devices of a `shard_map` and a function contains a collective over
            them.

    Example:
        >>> lax.while_loop(lambda x: x < 100, lambda x: x * 3, 2)
        Array(162, dtype=int32, weak_type=True)
    """
    _check_callable("while_loop", cond_fun=cond_fun, body_fun=body_fun)
    return _while("while_loop", cond_fun, body_fun, hide_float0(init_val))


def _while(name: str, cond_fun: Function, body_fun: Function, init_val: object) -> Any:
    if config.disable_jit:
        value = init_val
        try:
            while cond_fun(value):
                value = body_fun(value)
            return value
        except ConcretizationTypeError:
            pass  # the condition is batched or traced: use the op
    arrays, types, body = _trace_body(name, body_fun, init_val, lambda carry: (carry,), lambda result: result)
    head = _TracedBody.from_function(cond_fun, (init_val,), types)
    if [type.plain.strong() for type in head.result_types] != [ArrayType((), np.bool_)]:
        returned = ", ".join(str(type) for type in head.result_types) or "nothing"
        raise TypeError(f"{name}: {describe_function(cond_fun)} must return one boolean scalar, not {returned}")
    if head.program.effect or head.written:  # XLA does not support side effects in the condition of a while loop
        return _while_with_condition_in_body(name, cond_fun, body_fun, init_val)
    decides = head.result_types[0]
    written = body.written  # these Refs are carried
    consts = [_without(part.captured, written) for part in (head, body)]
    programs = (
        head.with_captured([*consts[0], *written], ()),
        body.with_captured([*consts[1], *written], written, True),
    )
    operands = [*current_values([*consts[0], *consts[1], *written]), *arrays]
    (cond, step), inputs = _vary_with_condition(decides, programs, operands)
    _check_no_divergent_collective(name, decides, [cond, step])
    outputs = While(cond, step, len(consts[0]), len(consts[1]))(*inputs)
    set_refs(written, outputs[: len(written)])
    return tree.structure(init_val).unflatten(list(outputs[len(written) :]))


def _while_with_condition_in_body(name: str, cond_fun: Function, body_fun: Function, init_val: object) -> Any:
    """Run a while loop whose condition is evaluated at the end of the body and carried to the next iteration."""

    def step(carry: _ExtendedCarry) -> _ExtendedCarry:
        value = body_fun(carry.value)
        return _ExtendedCarry(cond_fun(value), value)

    copy_name(step, body_fun)
    return _while(name, lambda carry: carry.extra, step, _ExtendedCarry(cond_fun(init_val), init_val)).value


@filter_traceback
def fori_loop(
    lower: _Integer, upper: _Integer, body_fun: Function, init_val: object, *, unroll: int | bool | None = None
) -> Any:
    """Call a function repeatedly for a range of indices.

    With concrete bounds it is a `scan` and can be differentiated in reverse mode; with traced bounds it is a
    `while_loop`.

    Args:
        lower: the first index, an integer scalar.
        upper: the end of the range, which is excluded.
        body_fun: a function from the index and the carry to the next carry, of the same pytree structure and types.
        init_val: the first carry, a pytree of arrays.
        unroll: the number of iterations per iteration of the compiled loop; True or 0 for all, False for one. Only with
            concrete bounds.

    Returns:
        The last carry.

    Raises:
        TypeError: if `body_fun` is not callable or returns another structure or other types than it accepts, or if
            the bounds are not integer scalars of one dtype.
        ValueError: if `unroll` is given with traced bounds.
        OverflowError: if a bound does not fit the dtype of the other.

    Example:
        >>> lax.fori_loop(0, 5, lambda i, total: total + i, 0)
        Array(10, dtype=int32, weak_type=True)
    """
    _check_callable("fori_loop", body_fun=body_fun)
    array_leaves(body_fun, (lower, init_val), {})
    types = [type_of(bound, "fori_loop") for bound in (lower, upper)]
    for parameter, type in zip(("lower", "upper"), types, strict=True):
        if type.ndim or not is_integer(type.dtype):
            raise TypeError(f"fori_loop: {parameter} must be an integer scalar, not {type}")
    dtypes = {type.dtype for type in types if not type.weak} or {types[0].dtype}
    if len(dtypes) > 1:
        raise TypeError(f"fori_loop: lower is {types[0]} and upper is {types[1]}, but both must have the same dtype")
    if not isinstance(lower, Tracer) and not isinstance(upper, Tracer):
        first, last = int(lower), int(upper)

        def step(carry: _ExtendedCarry, _: None) -> tuple[_ExtendedCarry, None]:
            index, value = carry
            return _ExtendedCarry(index + 1, body_fun(index, value)), None

        copy_name(step, body_fun)
        if config.disable_jit and last <= first:
            return init_val
        scan_unroll = 1 if unroll is None else unroll
        start = _ExtendedCarry(as_operand(first), init_val)
        return _scan("fori_loop", step, start, None, max(0, last - first), unroll=scan_unroll)[0].value
    if unroll is not None:
        raise ValueError("fori_loop: unroll needs concrete bounds, such as Python integers, but a bound is traced")
    counter = ArrayType((), dtypes.pop(), types[0].weak)  # a Python integer takes the other bound's dtype
    least, most = integer_range(counter.dtype)
    for parameter, bound in (("lower", lower), ("upper", upper)):
        if isinstance(bound, int) and not least <= bound <= most:
            raise OverflowError(
                f"fori_loop: {parameter}={bound} does not fit the dtype of the other bound, {counter.strong()}"
            )
    stop = match_type(as_operand(upper), counter)

    def is_below_stop(carry: _ExtendedCarry) -> Array:
        return carry.extra < stop

    def while_step(carry: _ExtendedCarry) -> _ExtendedCarry:
        index, value = carry
        return _ExtendedCarry(index + 1, body_fun(index, value))

    copy_name(while_step, body_fun)
    start = _ExtendedCarry(match_type(as_operand(lower), counter), init_val)
    return _while("fori_loop", is_below_stop, while_step, start).value


class _ExtendedCarry(NamedTuple):
    """The user's carry with a value that the implementation carries: the loop index, or the condition."""

    extra: Any
    value: Any


@filter_traceback
def scan(
    f: Function,
    init: object,
    xs: object = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
) -> tuple[Any, Any]:
    """Call a function for every slice of arrays along axis 0, with a carry from call to call.

    Args:
        f: a function `carry, y = f(carry, x)`. The new carry must have the pytree structure and types of the old.
        init: the first carry, a pytree of arrays.
        xs: a pytree of arrays with the same size along axis 0, or None.
        length: the number of iterations; required if `xs` is None.
        reverse: whether to iterate from the last slice to the first.
        unroll: the number of iterations per iteration of the compiled loop; True or 0 for all, False for one.
        _split_transpose: accepted for compatibility and ignored; Flax passes it.

    Returns:
        The last carry, and the `y`s stacked along a new axis 0.

    Raises:
        TypeError: if `f` is not callable, if it does not return a pair, if its carry changes structure or types, if an
            array in `xs` is a scalar, or if `length` or `unroll` is not an integer.
        ValueError: if the sizes along axis 0 and `length` differ, if neither `xs` nor `length` determines the number of
            iterations, if `length` is negative, or if `unroll` is negative.

    Example:
        >>> lax.scan(lambda total, x: (total + x, total * x), 0, jnp.arange(4))
        (Array(6, dtype=int32), Array([0, 0, 2, 9], dtype=int32))
    """
    _check_callable("scan", f=f)
    init = hide_float0(init)
    if any(isinstance(x, Ref) for x in tree.leaves(xs)):
        return _scan_over_refs(f, init, xs, length, reverse, unroll)
    array_leaves(f, (init, xs), {})
    return _scan("scan", f, init, xs, length, reverse, unroll)


def _scan_over_refs(f: Function, init: object, xs: object, *options: Any) -> tuple[Any, Any]:
    """Scan over arrays and Refs: the function receives Refs of slices, and may change them."""
    leaves, structure = tree.flatten(xs)
    refs = {number: x for number, x in enumerate(leaves) if isinstance(x, Ref)}

    def step(carry: object, slices: list[Any]) -> Any:
        of_slices = {number: Ref(slices[number]) for number in refs}
        result = f(carry, structure.unflatten([of_slices.get(number, x) for number, x in enumerate(slices)]))
        if not (isinstance(result, tuple) and len(result) == 2):
            return result  # an error follows
        return result[0], (result[1], [ref[...] for ref in of_slices.values()])

    copy_name(step, f)
    array_leaves(f, (init,), {})
    carry, (ys, arrays) = _scan("scan", step, init, current_values(leaves), *options)
    set_refs(refs.values(), arrays)
    return carry, ys


def _scan(
    name: str,
    f: Function,
    init: object,
    xs: object,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[Any, Any]:
    arrays = [as_operand(leaf) for leaf in tree.leaves(xs)]
    steps = _length(name, f, arrays, tree.leaf_names(xs, "xs"), length)
    unrolled = _as_integer(name, "unroll", unroll)
    if unrolled < 0:
        raise ValueError(f"{name}: unroll must be a bool or an integer of at least 0, not {unroll}")
    if unroll is False:
        unrolled = 1
    elif unroll is True or unrolled == 0:
        unrolled = max(1, steps)
    if config.disable_jit:
        return _scan_in_python(
            f, init, [tree.structure(xs).unflatten([x[i] for x in arrays]) for i in range(steps)], reverse
        )
    for x, leaf in zip(arrays, tree.leaf_names(xs, "xs"), strict=True):
        if x.type.explicit is not None and x.type.explicit.dims[0]:
            replicated = x.type.with_explicit(x.type.explicit.replicating(0))
            raise ShardingError(
                f"{name}: dim 0 of {leaf}, {x.type}, is sharded, and every device needs every slice along it. Reshard "
                f"it first: `reshard({leaf}, {spec_text(replicated)})`."
            )
    slice_types = [x.type.without((0,)) for x in arrays]
    slices = tree.structure(xs).unflatten(slice_types)

    def carry_of(result: object) -> Any:
        if not (isinstance(result, tuple) and len(result) == 2):
            raise TypeError(f"scan: {describe_function(f)} must return a pair (carry, y), not {result!r}")
        slice_results.append(tree.leaves(result[1]))
        return result[0]

    slice_results: list[list[ArrayType]] = []  # the types of y in each trace of the body
    carry, _, body = _trace_body(name, f, init, lambda carry: (carry, slices), carry_of, slice_types)
    consts, written = _without(body.captured, body.written), body.written  # changed Refs are carried
    program = body.with_captured([*consts, *written], written, leads=True)
    if config.checkpoint_scans != "none" and not any(isinstance(equation.op, Remat) for equation in program.equations):
        policy = checkpoint_policies.dots_with_no_batch_dims_saveable if config.checkpoint_scans == "products" else None
        program = rewrite(program.name, program.in_types, Remat(program, policy))
    op = Scan(program, steps, len(consts), len(written) + len(carry), bool(reverse), unrolled)
    if layer_scans.value is not None and not written:
        first, slices = tree.structure(init).unflatten(carry), tree.structure(xs).unflatten(arrays)
        if (last := layer_scans.value(f, op, current_values(consts), first, slices)) is not None:
            return last, None
    outputs = op(*current_values([*consts, *written]), *carry, *arrays)
    set_refs(written, outputs[: len(written)])
    outputs = outputs[len(written) :]
    ys = list(outputs[len(carry) :])
    # As in JAX, y is weak if it is weak for a weak carry, although the carry is not weak after the first iteration.
    strong = [type.strong() for type in slice_results[-1]]
    first = next(types for types in slice_results if [type.strong() for type in types] == strong)
    ys = [match_type(y, y.type.update_weak_type(type.weak)) for y, type in zip(ys, first, strict=True)]
    stacked = tree.structure(body.returned[1]).unflatten(ys)
    return tree.structure(init).unflatten(list(outputs[: len(carry)])), stacked


@filter_traceback
def map(f: Function, xs: object, *, batch_size: int | None = None) -> Any:
    """Call a function for every slice of arrays along axis 0, one after the other, and stack the results.

    Args:
        f: the function of one slice.
        xs: a pytree of arrays with the same size along axis 0.
        batch_size: the number of slices to compute at once, with `vmap`; by default one.

    Returns:
        The results, stacked along a new axis 0.

    Raises:
        TypeError: if `f` is not callable, if an array in `xs` is a scalar, or if `batch_size` is not an integer.
        ValueError: if sizes along axis 0 differ, if `xs` has no array, or if `batch_size` is less than 1.

    Example:
        >>> lax.map(lambda x: x * x, jnp.arange(4))
        Array([0, 1, 4, 9], dtype=int32)
    """
    _check_callable("map", f=f)
    array_leaves(f, (xs,), {})
    if batch_size is not None:
        return _map_in_batches(f, xs, batch_size)

    def step(_: None, x: object) -> tuple[None, Any]:
        return None, f(x)

    copy_name(step, f)
    return _scan("map", step, None, xs)[1]


def _scan_in_python(f: Function, init: object, slices: Sequence[Any], reverse: bool) -> tuple[Any, Any]:
    """Run a scan as a Python loop, for `disable_jit`."""
    if not slices:
        raise ValueError(
            f"scan: with disable_jit, the length must not be 0: the results of {describe_function(f)} are unknown"
        )
    carry, ys = init, []
    for x in reversed(slices) if reverse else slices:
        carry, y = f(carry, x)
        ys.append(y)
    return carry, tree.map(lambda *leaves: stack(leaves), *(reversed(ys) if reverse else ys))


def _map_in_batches(f: Function, xs: object, size: int) -> Any:
    arrays = [as_operand(leaf) for leaf in tree.leaves(xs)]
    length = _length("map", f, arrays, tree.leaf_names(xs, "xs"), None)
    if _as_integer("map", "batch_size", size) < 1:
        raise ValueError(f"map: batch_size must be at least 1, not {size}")
    batched = length // size * size  # the number of slices in full batches
    structure = tree.structure(xs)
    batches = structure.unflatten(
        [x[:batched].reshape((batched // size, size, *x.type.shape[1:])) for x in arrays] if batched else arrays
    )
    parts = []
    if batched:
        stacked = map(vmap(f), batches)
        parts.append(tree.map(lambda y: y.reshape((batched, *y.type.shape[2:])), stacked))
    if batched < length or not length:
        parts.append(vmap(f)(structure.unflatten([x[batched:] for x in arrays])))
    return parts[0] if len(parts) == 1 else tree.map(Concatenate(0), *parts)


def _trace_body(
    name: str,
    function: Function,
    init: object,
    arguments: Callable[[Any], tuple[Any, ...]],
    carry_of: Callable[[Any], Any],
    others: Sequence[ArrayType] = (),
) -> tuple[list[Any], list[ArrayType], _TracedBody]:
    """Trace a loop body until the types of the carry are a fixed point.

    `arguments` and `carry_of` build the body's arguments from the carry, and extract the carry from its result;
    `others` are the types of its further arguments. Returns the leaves of the first carry, their types, and the body.
    """
    leaves, _ = array_leaves(function, (init,), {})
    arrays = [as_operand(leaf) for leaf in leaves]
    types = [x.type for x in arrays]
    args = arguments(init)
    names = tree.leaf_names(init, "carry")
    if isinstance(init, _ExtendedCarry):
        names = [*tree.leaf_names(init.extra, "extra"), *tree.leaf_names(init.value, "carry")]
    while True:
        traced = _TracedBody.from_function(function, args, [*types, *others], types)
        next_carry = carry_of(traced.returned)
        if tree.structure(init) != tree.structure(next_carry):
            carries = (init.value, next_carry.value) if isinstance(init, _ExtendedCarry) else (init, next_carry)
            raise TypeError(
                f"{name}: {describe_function(function)} must return a carry of the pytree structure that it accepts; "
                f"they differ {_difference(*carries)}"
            )
        next_types = tree.leaves(next_carry)
        widened = [_widen_carry_type(before, now) for before, now in zip(types, next_types, strict=True)]
        if widened != types:
            types = widened
            continue
        wrong = [
            f"\n  {leaf} is {before} before and {now} after an iteration"
            for leaf, before, now in zip(names, types, next_types, strict=True)
            if not _compatible(before, now)
        ]
        if wrong:
            text = f"{name}: {describe_function(function)} must return a carry of the types that it accepts:"
            pairs = zip(types, next_types, strict=True)
            mismatch = next((before, now) for before, now in pairs if not _compatible(before, now))
            if _differ_in_sharding(*mismatch):
                returned, started = (spec_text(type) for type in mismatch)
                raise ShardingTypeError(
                    f"{text}{''.join(wrong)}\n  Reshard the returned carry, `reshard(carry, {returned})`, or start "
                    f"with `reshard(init, {started})`."
                )
            raise TypeError(
                f"{text}{''.join(wrong)}\n  Convert or reshape the returned carry, or start with a carry of that type."
            )
        return [match_type(x, type) for x, type in zip(arrays, types, strict=True)], types, traced


def _widen_carry_type(before: ArrayType, now: ArrayType) -> ArrayType:
    """Return the type of a carry leaf that is `before` at the start of an iteration and `now` at its end.

    A weak type, such as that of a Python scalar, is promoted with the type after an iteration. In a manual region a
    replicated value becomes varying if it is varying after an iteration, and one that has no sharding yet gets the mesh
    of the part of the program that it is in.
    """
    axes, before = varying((before, now)), _in_scope_of(before, now)
    if not before.weak or before.shape != now.shape:
        return before.with_varying(axes)
    if before.dtype == now.dtype:
        return now.with_varying(axes)
    dtype, _ = promote_dtypes("carry", (before, now))
    return (before if dtype == before.dtype else ArrayType(before.shape, dtype)).with_varying(axes)


def _length(loop: str, f: Function, arrays: Sequence[Any], names: Sequence[str], length: int | None) -> int:
    """Return the number of iterations of a scan or map."""
    lengths = {}
    for x, name in zip(arrays, names, strict=True):
        if not x.type.ndim:
            raise TypeError(
                f"{loop}: {name} for {describe_function(f)} is {x.type}: a scalar has no axis 0 to iterate over"
            )
        lengths[name] = x.type.shape[0]
    if length is not None:
        lengths["length"] = _as_integer(loop, "length", length)
    if not lengths:
        fix = "pass `length`" if loop == "scan" else "the number of iterations is unknown"
        raise ValueError(f"{loop}: xs for {describe_function(f)} has no arrays: {fix}")
    if len(set(lengths.values())) > 1:
        lines = "".join(f"\n  {name} has {size}" for name, size in lengths.items())
        raise ValueError(
            f"{loop}: all arrays of xs for {describe_function(f)} must have the same size along axis 0:{lines}"
        )
    if lengths.get("length", 0) < 0:
        raise ValueError(f"{loop}: length must not be negative: {length}")
    return int(next(iter(lengths.values())))


def _as_integer(loop: str, parameter: str, number: SupportsIndex) -> int:
    try:
        return operator.index(number)
    except TypeError:
        raise TypeError(f"{loop}: {parameter} must be a Python integer, not {number!r}") from None


def copy_name(function: Function, other: Function) -> None:
    """Give a wrapper the name of the user's function, for messages and reports."""
    function.__name__ = function_name(other)
    function.__wrapped__ = other  # type: ignore[attr-defined]
