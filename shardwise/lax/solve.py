"""Solutions of equations, found by functions of the user, whose derivatives follow from the equation alone."""

from collections.abc import Callable, Sequence
from typing import Any, final

from shardwise import tree
from shardwise.api.differentiate import linear_transpose
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ir.dispatch import installed
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.control.call import Call, drop_none, insert_none, present_mask
from shardwise.compiler.ops.control.custom_derivatives import CustomJvp
from shardwise.compiler.ops.control.retype import match_type
from shardwise.compiler.ops.elementwise.arithmetic import Neg
from shardwise.compiler.ops.linalg.linear_solve import LinearSolve
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.trace.build import build

Function = Callable[..., Any]


@final
class _Form:
    """A tree of arrays: what a function on it takes and gives, as programs have it."""

    def __init__(self, name: str, given: Any) -> None:
        leaves, self.structure = tree.flatten(given)
        self.name = name
        self.leaves = [as_operand(leaf, name) for leaf in leaves]
        self.types = [leaf.type for leaf in self.leaves]

    def program(self, what: str, function: Function, has_aux: bool = False) -> tuple[Program, list[Any], Any]:
        """A function of one such tree to another as a program, the values that it closes over, and the structure of
        what else it gives."""
        rest: Any = None

        def flat(*operands: Any) -> list[Any]:
            nonlocal rest
            found = function(self.structure.unflatten(list(operands)))
            if has_aux and not (isinstance(found, tuple) and len(found) == 2):
                raise TypeError(f"{self.name}: with has_aux, {what} must return a result and something else")
            found, aux = found if has_aux else (found, ())
            more, rest = tree.flatten(aux)
            return [*self.fitted(what, found), *(as_operand(leaf, self.name) for leaf in more)]

        program, captured = build(flat, self.types, what)
        return program, captured, rest

    def fitted(self, what: str, found: Any) -> list[Any]:
        """The leaves of such a tree, if it is one."""
        leaves, structure = tree.flatten(found)
        if structure != self.structure:
            raise TypeError(f"{self.name}: {what} must return the structure {self.structure}, not {structure}")
        arrays = [as_operand(leaf, self.name) for leaf in leaves]
        for x, type in zip(arrays, self.types, strict=True):
            if (x.type.shape, x.type.dtype) != (type.shape, type.dtype):
                raise TypeError(f"{self.name}: {what} must return {type} where it gets that, not {x.type}")
        return [match_type(x, type) for x, type in zip(arrays, self.types, strict=True)]

    def results(self, found: Sequence[Any], has_aux: bool, rest: Any) -> Any:
        count = len(self.types)
        solution = self.structure.unflatten(list(found[:count]))
        return (solution, rest.unflatten(list(found[count:]))) if has_aux else solution


def custom_linear_solve(
    matvec: Function,
    b: Any,
    solve: Callable[[Function, Any], Any],
    transpose_solve: Callable[[Function, Any], Any] | None = None,
    symmetric: bool = False,
    has_aux: bool = False,
) -> Any:
    """The x for which the linear function `matvec` of x is `b`, as `solve(matvec, b)` finds it.

    Derivatives follow from the equation: `solve` itself is never differentiated. For reverse mode,
    `transpose_solve(vecmat, b)` solves the transposed system; where that is the same, `symmetric`, `solve` does. With
    `has_aux` both return a pair, of which the second comes along and has no derivative.

    >>> lax.custom_linear_solve(lambda x: 4.0 * x, jnp.array([2.0, 8.0]), lambda matvec, b: b / 4.0, symmetric=True)
    Array([0.5, 2. ], dtype=float32)
    """
    form = _Form("custom_linear_solve", b)
    count = len(form.types)
    forward, values, _ = form.program("matvec", matvec)
    solver, solver_values, rest = form.program("solve", lambda right: solve(matvec, right), has_aux)
    if transpose_solve is None and symmetric:
        transpose_solve = solve
    if transpose_solve is None:
        found = LinearSolve(count, forward, solver)(*form.leaves, *values, *solver_values)
        return form.results(found, has_aux, rest)
    back = matvec if symmetric else _transposed(matvec, b)
    finder = transpose_solve
    backward, back_values, _ = form.program("vecmat", back)
    back_solver, back_solver_values, _ = form.program("transpose_solve", lambda right: finder(back, right), has_aux)
    op = LinearSolve(count, forward, solver, backward, back_solver)
    found = op(*form.leaves, *values, *solver_values, *back_values, *back_solver_values)
    return form.results(found, has_aux, rest)


def _transposed(matvec: Function, b: Any) -> Function:
    def vecmat(x: Any) -> Any:
        (found,) = linear_transpose(matvec, b)(x)
        return found

    return vecmat


def custom_root(
    f: Function,
    initial_guess: Any,
    solve: Callable[[Function, Any], Any],
    tangent_solve: Callable[[Function, Any], Any],
    has_aux: bool = False,
) -> Any:
    """The x for which `f` of x is zero, as `solve(f, initial_guess)` finds it.

    Derivatives, by the values that `f` closes over, follow from the equation: `tangent_solve(g, y)` solves `g(x) = y`
    for the linear `g` that `f` is close to x. With `has_aux`, `solve` returns a pair, of which the second has no
    derivative.

    >>> def root(a):
    ...     return lax.custom_root(lambda x: x**2 - a, 1.0, lambda f, x: lax.sqrt(a), lambda g, y: y / g(1.0))
    >>> jax.grad(root)(4.0)
    Array(0.25, dtype=float32)
    """
    form = _Form("custom_root", initial_guess)
    function, values, _ = form.program("f", f)
    solver, solver_values, rest = form.program("solve", lambda guess: solve(f, guess), has_aux)
    rule = _RootRule(form, function, solver, len(solver_values), tangent_solve)
    found = rule.op(values)(*form.leaves, *solver_values, *values)
    return form.results(found, has_aux, rest)


@final
class _RootRule:
    """The derivative of a root: of f(x, a) = 0 it is dx with (df/dx) dx = -(df/da) da."""

    def __init__(self, form: _Form, function: Program, solver: Program, captured: int, tangent_solve: Function) -> None:
        self.form, self.function, self.solver = form, function, solver
        self.captured, self.tangent_solve = captured, tangent_solve

    @property
    def name(self) -> str:
        return "custom_root"

    def op(self, values: Sequence[Any]) -> CustomJvp:
        """Operands: the guess, what the solver closes over, and what the function does."""
        count = len(self.form.types)
        types = [*self.solver.in_types, *(x.type for x in values)]
        used = count + self.captured
        program = installed.transforms.rewrite("solve", types, lambda *xs: Call(self.solver)(*xs[:used]))
        return CustomJvp(program, 0, self)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        count = len(self.form.types)
        used = count + self.captured
        values, moving = list(primals[used:]), list(tangents[used:])
        results = list(self.op(values)(*primals))
        solution = results[:count]
        none = [None] * len(results)
        pushed = self._pushed(solution, values, (None,) * count, moving)
        if all(moved is None for moved in pushed):
            return results, none

        def slope(x: Any) -> Any:
            found = self._pushed(
                solution, values, self.form.fitted("tangent_solve's argument", x), [None] * len(values)
            )
            return self._tree(found)

        solved = self.tangent_solve(slope, self._tree(pushed))
        moved = [Neg()(x) for x in self.form.fitted("tangent_solve", solved)]
        return results, [*moved, *none[count:]]

    def _pushed(self, x: Sequence[Any], values: Sequence[Any], dx: Sequence[Any], moving: Sequence[Any]) -> list[Any]:
        """The tangents of the function's results, given some of its arguments and of what it closes over."""
        tangents = [*dx, *moving]
        if not drop_none(tangents):
            return [None] * len(self.form.types)
        forward, linear, reached = installed.transforms.linearize(self.function, present_mask(tangents))
        residuals = Call(forward)(*x, *values)[len(self.form.types) :]
        return insert_none(Call(linear)(*residuals, *drop_none(tangents)), reached)

    def _tree(self, tangents: Sequence[Any]) -> Any:
        return self.form.structure.unflatten(
            [_present(tangent, type) for tangent, type in zip(tangents, self.form.types, strict=True)]
        )


def _present(tangent: Any, type: ArrayType) -> Any:
    return full(type.shape, 0, type.dtype, type.weak) if tangent is None else tangent
