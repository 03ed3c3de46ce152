"""Control flow on trees of arrays: cond, switch, while_loop, fori_loop, scan, map.

Each traces the user's functions into programs, checks that what comes out fits, leaf by leaf, and applies one op.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import numpy as np

from shardwise import tree
from shardwise.api.arguments import array_leaves, describe_function, function_name
from shardwise.api.flatten import check_outputs
from shardwise.api.vmap import vmap
from shardwise.compiler.arrays.methods import where
from shardwise.compiler.arrays.operands import as_operand, type_of
from shardwise.compiler.arrays.promotion import promote_dtypes
from shardwise.compiler.dtypes import integer_range, is_integer
from shardwise.compiler.ir.dispatch import installed
from shardwise.compiler.ir.op import varying
from shardwise.compiler.ir.program import Program, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.named import Named, NamedIndex
from shardwise.compiler.ops.control.cond import Cond
from shardwise.compiler.ops.control.retype import match_type
from shardwise.compiler.ops.control.scan import Scan
from shardwise.compiler.ops.control.while_loop import While
from shardwise.compiler.ops.shape.slicing import Concatenate
from shardwise.compiler.trace.build import build
from shardwise.compiler.trace.tracer import Tracer
from shardwise.compiler.transforms.make_varying import cast_to_varying, make_varying
from shardwise.config import config
from shardwise.errors import ConcretizationTypeError
from shardwise.execute.traceback_filter import filter_traceback

Function = Callable[..., Any]
_ABSENT: Any = object()


@final
@dataclass(frozen=True)
class _TracedBody:
    """A user's function as a program of (captured values, arguments), and the tree that it returned."""

    function: Function
    program: Program
    captured: list[Any]
    returned: Any

    @staticmethod
    def of(
        function: Function, args: tuple[Any, ...], types: Sequence[ArrayType], outs: Sequence[Any] = ()
    ) -> "_TracedBody":
        """`function` of trees like `args`, whose leaves have these types.

        A result for which `outs` gives a type of the same elements gets just that type, weak or not.
        """
        structure = tree.structure(args)
        returned: Any = None

        def flat(*leaves: Any) -> list[Any]:
            nonlocal returned
            result = function(*structure.unflatten(leaves))
            found, results = tree.flatten(result)
            check_outputs(function, found)
            arrays = [as_operand(x) for x in found]
            returned = results.unflatten([x.type for x in arrays])
            wanted = [*outs, *[None] * len(arrays)]
            return [_weakened(x, type) for x, type in zip(arrays, wanted, strict=False)]

        program, captured = build(flat, types, function_name(function))
        count = len(program.inputs) - len(captured)
        inputs = (*program.inputs[count:], *program.inputs[:count])
        return _TracedBody(function, replace(program, inputs=inputs), captured, returned)

    @property
    def structure(self) -> tree.Structure:
        return tree.structure(self.returned)

    @property
    def arguments(self) -> tuple[Value, ...]:
        return self.program.inputs[len(self.captured) :]


def _weakened(x: Any, type: ArrayType | None) -> Any:
    return match_type(x, type) if type is not None and _alike(x.type, type) else x


def _alike(a: ArrayType, b: ArrayType) -> bool:
    """Whether types differ at most in what a loop or a branch evens out: weak ones, and over which axes they vary."""
    return a.strong().with_varying(()) is b.strong().with_varying(())


def cond(pred: Any, true_fun: Function, false_fun: Function, *operands: Any, operand: Any = _ABSENT) -> Any:
    """`true_fun(*operands)` where `pred` is true, else `false_fun(*operands)`: only one of them runs.

    Both must return the same tree of the same types. Under vmap with a mapped `pred`, both run and each element takes
    the results of its own.

    >>> lax.cond(True, lambda x: x + 1, lambda x: x - 1, 5)
    Array(6, dtype=int32)
    """
    _check_callable("cond", true_fun=true_fun, false_fun=false_fun)
    chosen = as_operand(pred, "cond")
    if chosen.type.ndim:
        raise TypeError(f"cond: the predicate should be a scalar, not {chosen.type}")
    given = _operands("cond", operands, operand)
    if config.disable_jit and not isinstance(chosen, Tracer):
        return true_fun(*given) if chosen else false_fun(*given)
    index = (chosen if chosen.type.dtype == np.bool_ else chosen != 0).astype(np.int32)
    return _branch("cond", index, [false_fun, true_fun], given)


def switch(index: Any, branches: Sequence[Function], *operands: Any, operand: Any = _ABSENT) -> Any:
    """`branches[index](*operands)`; an index out of range takes the nearest branch.

    >>> lax.switch(1, [lambda x: x + 1, lambda x: x * 10], 5)
    Array(50, dtype=int32)
    """
    if not isinstance(branches, Sequence):
        raise TypeError(f"switch: branches should be a list of functions, not {branches!r}")
    if not branches:
        raise ValueError("switch: there must be at least one branch")
    if wrong := [branch for branch in branches if not callable(branch)]:
        raise TypeError(f"switch: branches should be functions, not {wrong[0]!r}")
    chosen = as_operand(index, "switch")
    if chosen.type.ndim or not is_integer(chosen.type.dtype):
        raise TypeError(f"switch: the index should be an integer scalar, not {chosen.type}")
    given = _operands("switch", operands, operand)
    last = len(branches) - 1
    if config.disable_jit and not isinstance(chosen, Tracer):
        return branches[min(max(int(chosen), 0), last)](*given)
    if chosen.type.dtype.itemsize < 4:  # the number of the last branch may not fit
        chosen = chosen.astype(np.int32)
    inside = where(chosen < 0, 0, where(chosen > last, last, chosen)).astype(np.int32)
    return _branch("switch", inside, list(branches), given)


def _check_callable(name: str, **functions: Any) -> None:
    for what, function in functions.items():
        if not callable(function):
            raise TypeError(f"{name}: {what} should be a function, not {function!r}")


def _operands(name: str, operands: tuple[Any, ...], operand: Any) -> tuple[Any, ...]:
    """What the branches take: `operand` is the older way to give one, which may be None."""
    if operand is _ABSENT:
        return operands
    if operands:
        raise TypeError(f"{name}: give what the branches take by position, or as `operand`, not both")
    return (operand,)


@filter_traceback
def _branch(name: str, index: Any, branches: list[Function], operands: tuple[Any, ...]) -> Any:
    leaves, _ = array_leaves(branches[0], operands, {})
    arrays = [as_operand(leaf) for leaf in leaves]
    types = [x.type for x in arrays]
    traced = [_TracedBody.of(branch, operands, types) for branch in branches]
    first = traced[-1] if name == "cond" else traced[0]  # true_fun is what users read first
    for other in traced:
        _check_alike(name, first, other)
    # A result is weak only where it is so in every branch.
    outs = [_joined(column) for column in zip(*(tree.leaves(t.returned) for t in traced), strict=True)]
    if any(list(t.program.out_types) != outs for t in traced):
        traced = [_TracedBody.of(branch, operands, types, outs) for branch in branches]
    captured = list({id(x): x for t in traced for x in t.captured}.values())
    programs, given = _parted(index.type, [_taking(t, captured) for t in traced], [*captured, *arrays])
    _check_together(name, index.type, programs)
    found = Cond(tuple(programs))(index, *given)
    return first.structure.unflatten(list(found))


def _check_alike(name: str, first: _TracedBody, other: _TracedBody) -> None:
    """Both branches return one tree of one type."""
    if first.structure != other.structure:
        raise TypeError(
            f"{name}: the branches must return trees of one structure; {describe_function(first.function)} and "
            f"{describe_function(other.function)} differ {_difference(first.returned, other.returned)}"
        )
    leaves = zip(
        tree.leaf_names(first.returned, "result"), tree.leaves(first.returned), tree.leaves(other.returned), strict=True
    )
    wrong = [
        f"\n  {leaf}: {a} in {describe_function(first.function)}, {b} in {describe_function(other.function)}"
        for leaf, a, b in leaves
        if not _alike(a, b)
    ]
    if wrong:
        raise TypeError(f"{name}: the branches must return arrays of the same types:{''.join(wrong)}")


def _difference(first: Any, second: Any) -> Any:
    """The first place where two trees differ; a leaf is a prefix of any tree, so both ways are looked."""
    return tree.first_difference(tree.structure(first), first, second) or tree.first_difference(
        tree.structure(second), second, first
    )


def _joined(types: Sequence[ArrayType]) -> ArrayType:
    return next((type for type in types if not type.weak), types[0]).with_varying(varying(types))


def _parted(
    decides: ArrayType, programs: Sequence[Program], operands: Sequence[Any]
) -> tuple[Sequence[Program], Sequence[Any]]:
    """Programs and what they take, where what decides whether they run may differ between devices of a manual region:
    each device takes what comes in as its own, and what it leaves with is its own."""
    axes = decides.varying
    if not axes:
        return programs, operands
    return [make_varying(program, axes) for program in programs], [cast_to_varying(x, axes) for x in operands]


def _check_together(name: str, decides: ArrayType, programs: Sequence[Program]) -> None:
    """Devices of a manual region that go different ways must not wait for each other there."""
    for program in programs:
        for equation in program.walk():
            waits = isinstance(equation.op, Named) and not isinstance(equation.op, NamedIndex)
            if split := sorted(equation.op.axis_names.intersection(decides.varying) if waits else ()):
                along = ", ".join([repr(axis) for axis in split])
                raise ValueError(
                    f"{name}: devices along {along} may go different ways here, as each decides by a value of its own, "
                    f"but {equation.op.name} at {equation.source} needs them all: those that do not come there would "
                    "be waited for, forever. Decide by what is the same for all, as `lax.psum` or `lax.pmax` of it is; "
                    "or move the collective out."
                )


def _taking(traced: _TracedBody, captured: Sequence[Any]) -> Program:
    """The branch as a program of what all branches capture."""
    own = {id(x): value for x, value in zip(traced.captured, traced.program.inputs, strict=False)}
    inputs = [own[id(x)] if id(x) in own else Value(x.type) for x in captured]
    program = traced.program
    return Program((*inputs, *traced.arguments), program.equations, program.outputs, program.name)


@filter_traceback
def while_loop(cond_fun: Function, body_fun: Function, init_val: Any) -> Any:
    """`init_val`, replaced by `body_fun` of it as long as `cond_fun` of it is true.

    It can be differentiated in forward mode only: use `scan`, or `fori_loop` with Python integers, for reverse mode.

    >>> lax.while_loop(lambda x: x < 100, lambda x: x * 3, 2)
    Array(162, dtype=int32)
    """
    _check_callable("while_loop", cond_fun=cond_fun, body_fun=body_fun)
    return _while("while_loop", cond_fun, body_fun, init_val)


def _while(name: str, cond_fun: Function, body_fun: Function, init_val: Any) -> Any:
    if config.disable_jit:
        value = init_val
        try:
            while cond_fun(value):
                value = body_fun(value)
            return value
        except ConcretizationTypeError:
            pass  # under vmap there is not one answer: the op knows what to do
    arrays, types, body = _carried(name, body_fun, init_val, lambda carry: (carry,), lambda result: result)
    head = _TracedBody.of(cond_fun, (init_val,), types)
    if [type.with_varying(()) for type in head.program.out_types] != [ArrayType((), np.bool_)]:
        found = ", ".join(str(type) for type in head.program.out_types) or "nothing"
        raise TypeError(f"{name}: {describe_function(cond_fun)} should return one boolean scalar, not {found}")
    if head.program.effect:  # XLA knows no effects there: it is asked at the end of each turn
        return _asked_in_the_body(name, cond_fun, body_fun, init_val)
    decides = head.program.out_types[0]
    operands = [*head.captured, *body.captured, *arrays]
    (cond, turn), given = _parted(decides, (head.program, body.program), operands)
    _check_together(name, decides, [cond, turn])
    loop = While(cond, turn, len(head.captured), len(body.captured))
    return tree.structure(init_val).unflatten(list(loop(*given)))


def _asked_in_the_body(name: str, cond_fun: Function, body_fun: Function, init_val: Any) -> Any:
    def turn(carry: Any) -> Any:
        value = body_fun(carry.value)
        return _Beside(cond_fun(value), value)

    name_as(turn, body_fun)
    return _while(name, lambda carry: carry.ours, turn, _Beside(cond_fun(init_val), init_val)).value


@filter_traceback
def fori_loop(lower: Any, upper: Any, body_fun: Function, init_val: Any, *, unroll: int | bool | None = None) -> Any:
    """`init_val`, replaced by `body_fun(i, …)` of it for every i from `lower` to `upper` (which is left out).

    With bounds that are Python integers it is a `scan`, and can be differentiated in reverse mode too.

    >>> lax.fori_loop(0, 5, lambda i, total: total + i, 0)
    Array(10, dtype=int32)
    """
    _check_callable("fori_loop", body_fun=body_fun)
    array_leaves(body_fun, (lower, init_val), {})
    types = [type_of(bound, "fori_loop") for bound in (lower, upper)]
    for what, type in zip(("lower", "upper"), types, strict=True):
        if type.ndim or not is_integer(type.dtype):
            raise TypeError(f"fori_loop: {what} should be an integer scalar, not {type}")
    dtypes = {type.dtype for type in types if not type.weak} or {types[0].dtype}
    if len(dtypes) > 1:
        raise TypeError(f"fori_loop: lower is {types[0]} and upper is {types[1]}: give both one type")
    if not isinstance(lower, Tracer) and not isinstance(upper, Tracer):
        first, last = int(lower), int(upper)

        def step(carry: Any, _: None) -> Any:
            index, value = carry
            return _Beside(index + 1, body_fun(index, value)), None

        name_as(step, body_fun)
        if config.disable_jit and last <= first:
            return init_val
        turns = 1 if unroll is None else unroll
        start = _Beside(as_operand(first), init_val)
        return _scan("fori_loop", step, start, None, max(0, last - first), unroll=turns)[0].value
    if unroll is not None:
        raise ValueError("fori_loop: unroll needs bounds that are Python integers")
    counter = ArrayType((), dtypes.pop(), types[0].weak)  # a Python integer takes the other's type
    least, most = integer_range(counter.dtype)
    for what, bound in (("lower", lower), ("upper", upper)):
        if isinstance(bound, int) and not least <= bound <= most:
            raise OverflowError(f"fori_loop: {what}={bound} does not fit the other bound's {counter.strong()}")
    stop = match_type(as_operand(upper), counter)

    def goes_on(carry: Any) -> Any:
        return carry.ours < stop

    def turn(carry: Any) -> Any:
        index, value = carry
        return _Beside(index + 1, body_fun(index, value))

    name_as(turn, body_fun)
    return _while("fori_loop", goes_on, turn, _Beside(match_type(as_operand(lower), counter), init_val)).value


class _Beside(NamedTuple):
    """The carry of a loop that carries something of ours beside the user's value."""

    ours: Any
    value: Any


@filter_traceback
def scan(
    f: Function,
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[Any, Any]:
    """`carry, y = f(carry, x)` for every slice x of `xs` along dim 0: the last carry, and all ys, stacked.

    `xs` is a tree of arrays that are equally long, or None: then `length` says how often. `reverse` goes from the last
    slice to the first. `unroll` runs so many steps in one turn of the loop that XLA sees; True unrolls it whole.

    >>> lax.scan(lambda total, x: (total + x, total * x), 0, jnp.arange(4))
    (Array(6, dtype=int32), Array([0, 0, 2, 9], dtype=int32))
    """
    _check_callable("scan", f=f)
    array_leaves(f, (init, xs), {})
    return _scan("scan", f, init, xs, length, reverse, unroll)


def _scan(
    name: str,
    f: Function,
    init: Any,
    xs: Any,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[Any, Any]:
    slices = [as_operand(leaf) for leaf in tree.leaves(xs)]
    steps = _length(name, f, slices, tree.leaf_names(xs, "xs"), length)
    turns = (max(1, steps) if unroll else 1) if isinstance(unroll, bool) else _whole(name, "unroll", unroll)
    if turns < 1:
        raise ValueError(f"{name}: unroll should be at least 1, not {unroll}")
    if config.disable_jit:
        return _scan_in_python(
            f, init, [tree.structure(xs).unflatten([x[i] for x in slices]) for i in range(steps)], reverse
        )
    kinds = [x.type.without((0,)) for x in slices]
    rows = tree.structure(xs).unflatten(kinds)

    def pair(result: Any) -> Any:
        if not (isinstance(result, tuple) and len(result) == 2):
            raise TypeError(f"scan: {describe_function(f)} should return a pair (carry, y), not {result!r}")
        return result[0]

    arrays, _, body = _carried(name, f, init, lambda carry: (carry, rows), pair, kinds)
    op = Scan(body.program, steps, len(body.captured), len(arrays), bool(reverse), turns)
    found = op(*body.captured, *arrays, *slices)
    stacked = tree.structure(body.returned[1]).unflatten(list(found[len(arrays) :]))
    return tree.structure(init).unflatten(list(found[: len(arrays)])), stacked


@filter_traceback
def map(f: Function, xs: Any, *, batch_size: int | None = None) -> Any:
    """`f` of every slice of `xs` along dim 0, one after the other, stacked.

    With `batch_size`, so many slices at once, by vmap.

    >>> lax.map(lambda x: x * x, jnp.arange(4))
    Array([0, 1, 4, 9], dtype=int32)
    """
    _check_callable("map", f=f)
    array_leaves(f, (xs,), {})
    if batch_size is not None:
        return _map_in_batches(f, xs, batch_size)

    def step(_: None, x: Any) -> Any:
        return None, f(x)

    name_as(step, f)
    return _scan("map", step, None, xs)[1]


def _scan_in_python(f: Function, init: Any, slices: Sequence[Any], reverse: bool) -> tuple[Any, Any]:
    """The loop as it is written, for a debugger to follow."""
    if not slices:
        raise ValueError(
            f"scan: with jit disabled, {describe_function(f)} must run at least once: what it returns is not known"
        )
    carry, ys = init, []
    for x in reversed(slices) if reverse else slices:
        carry, y = f(carry, x)
        ys.append(y)
    return carry, tree.map(lambda *rows: installed.namespace.stack(rows), *(reversed(ys) if reverse else ys))


def _map_in_batches(f: Function, xs: Any, size: int) -> Any:
    arrays = [as_operand(leaf) for leaf in tree.leaves(xs)]
    length = _length("map", f, arrays, tree.leaf_names(xs, "xs"), None)
    if _whole("map", "batch_size", size) < 1:
        raise ValueError(f"map: batch_size should be at least 1, not {size}")
    whole = length // size * size
    structure = tree.structure(xs)
    batches = structure.unflatten(
        [x[:whole].reshape((whole // size, size, *x.type.shape[1:])) for x in arrays] if whole else arrays
    )
    found = []
    if whole:
        stacked = map(vmap(f), batches)
        found.append(tree.map(lambda y: y.reshape((whole, *y.type.shape[2:])), stacked))
    if whole < length or not length:
        found.append(vmap(f)(structure.unflatten([x[whole:] for x in arrays])))
    return found[0] if len(found) == 1 else tree.map(Concatenate(0), *found)


def _carried(
    name: str,
    function: Function,
    init: Any,
    arguments: Callable[[Any], tuple[Any, ...]],
    carry_of: Callable[[Any], Any],
    others: Sequence[ArrayType] = (),
) -> tuple[list[Any], list[ArrayType], _TracedBody]:
    """The leaves of a loop's carry, their types, and the loop's body, which takes and returns them."""
    leaves, _ = array_leaves(function, (init,), {})
    arrays = [as_operand(leaf) for leaf in leaves]
    types = [x.type for x in arrays]
    args = arguments(init)
    names = tree.leaf_names(init, "carry")
    if isinstance(init, _Beside):
        names = [*tree.leaf_names(init.ours, "ours"), *tree.leaf_names(init.value, "carry")]
    while True:
        traced = _TracedBody.of(function, args, [*types, *others], types)
        after = carry_of(traced.returned)
        if tree.structure(init) != tree.structure(after):
            theirs = (init.value, after.value) if isinstance(init, _Beside) else (init, after)
            raise TypeError(
                f"{name}: {describe_function(function)} must return a carry of the structure that it takes; they "
                "differ "
                f"{_difference(*theirs)}"
            )
        made = tree.leaves(after)
        settled = [_settled(before, now) for before, now in zip(types, made, strict=True)]
        if settled != types:
            types = settled
            continue
        wrong = [
            f"\n  {leaf} enters as {before} and leaves as {now}"
            for leaf, before, now in zip(names, types, made, strict=True)
            if not _alike(before, now)
        ]
        if wrong:
            raise TypeError(
                f"{name}: {describe_function(function)} must return its carry with the types that it "
                f"takes:{''.join(wrong)}\n"
                "  Convert or reshape what it returns, or start with a carry of that type."
            )
        return [match_type(x, type) for x, type in zip(arrays, types, strict=True)], types, traced


def _settled(before: ArrayType, now: ArrayType) -> ArrayType:
    """A number that a loop starts with is weak; once round, it has the type that it has met there. In a manual region,
    what starts as one value for all may be each device's own once round."""
    axes = varying((before, now))
    if not before.weak or before.shape != now.shape:
        return before.with_varying(axes)
    if before.dtype == now.dtype:
        return now.with_varying(axes)
    dtype, _ = promote_dtypes("carry", (before, now))
    return (before if dtype == before.dtype else ArrayType(before.shape, dtype)).with_varying(axes)


def _length(loop: str, f: Function, slices: Sequence[Any], names: Sequence[str], length: int | None) -> int:
    lengths = {}
    for x, name in zip(slices, names, strict=True):
        if not x.type.ndim:
            raise TypeError(f"{loop}: {name} for {describe_function(f)} is {x.type}: a scalar has no slices to take")
        lengths[name] = x.type.shape[0]
    if length is not None:
        lengths["length"] = _whole(loop, "length", length)
    if not lengths:
        way_out = "`length` must say how often it runs" if loop == "scan" else "nothing says how often it runs"
        raise ValueError(f"{loop}: with no xs for {describe_function(f)}, {way_out}")
    if len(set(lengths.values())) > 1:
        lines = "".join(f"\n  {name} has {size}" for name, size in lengths.items())
        raise ValueError(f"{loop}: the slices for {describe_function(f)} must be equally many:{lines}")
    if lengths.get("length", 0) < 0:
        raise ValueError(f"{loop}: length should not be negative: {length}")
    return int(next(iter(lengths.values())))


def _whole(loop: str, what: str, number: Any) -> int:
    try:
        return operator.index(number)
    except TypeError:
        raise TypeError(f"{loop}: {what} should be a Python integer, not {number!r}") from None


def name_as(function: Function, other: Function) -> None:
    """Give a function that we wrote the name of the user's that it wraps, for messages and plans."""
    function.__name__ = function_name(other)
    function.__wrapped__ = other  # type: ignore[attr-defined]
