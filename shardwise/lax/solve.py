"""Linear solvers and root finders with implicit derivatives: the user's solver is never differentiated."""

from collections.abc import Callable, Sequence
from typing import Any, final

from shardwise import tree
from shardwise.api.transformations.differentiate import linear_transpose
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.control.call import Call
from shardwise.compiler.control.custom_derivatives import CustomJvp
from shardwise.compiler.control.linear_solve import LinearSolve
from shardwise.compiler.ir.masks import drop_none, insert_none, present_mask
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Neg
from shardwise.compiler.ops.placement.retype import match_type
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.trace.build import build, rewrite
from shardwise.compiler.transforms.linearize import linearize_program

Function = Callable[..., Any]


@final
class _Unknown:
    """The pytree structure and leaf types of the unknown of an equation, shared by the functions of it."""

    def __init__(self, name: str, values: Any) -> None:
        leaves, self.structure = tree.flatten(values)
        self.name = name
        self.leaves = [as_operand(leaf, name) for leaf in leaves]
        self.types = [leaf.type for leaf in self.leaves]

    def program(self, argument: str, function: Function, has_aux: bool = False) -> tuple[Program, list[Any], Any]:
        """Trace a function from one such pytree to another.

        Return the program, the values that it closes over, and the structure of the auxiliary output.
        """
        aux_structure: Any = None

        def flat(*operands: Any) -> list[Any]:
            nonlocal aux_structure
            result = function(self.structure.unflatten(list(operands)))
            if has_aux and not (isinstance(result, tuple) and len(result) == 2):
                raise TypeError(f"{self.name}: with has_aux, {argument} must return a pair of the result and aux")
            result, aux = result if has_aux else (result, ())
            aux_leaves, aux_structure = tree.flatten(aux)
            unknown_leaves = self.checked_leaves(f"{argument} must return", result)
            return [*unknown_leaves, *(as_operand(leaf, self.name) for leaf in aux_leaves)]

        program, captured = build(flat, self.types, argument)
        return program, captured, aux_structure

    def checked_leaves(self, requirement: str, values: Any) -> list[Any]:
        """Return the leaves of a pytree, after a check that it has the structure and types of the unknown.

        `requirement` is the start of the error message, such as "matvec must return".
        """
        leaves, structure = tree.flatten(values)
        if structure != self.structure:
            raise TypeError(f"{self.name}: {requirement} the structure {self.structure}, not {structure}")
        arrays = [as_operand(leaf, self.name) for leaf in leaves]
        for x, type in zip(arrays, self.types, strict=True):
            if (x.type.shape, x.type.dtype) != (type.shape, type.dtype):
                raise TypeError(f"{self.name}: {requirement} {type}, the type of the unknown, not {x.type}")
        return [match_type(x, type) for x, type in zip(arrays, self.types, strict=True)]

    def unflatten(self, leaves: Sequence[Any], has_aux: bool, aux_structure: Any) -> Any:
        count = len(self.types)
        solution = self.structure.unflatten(list(leaves[:count]))
        return (solution, aux_structure.unflatten(list(leaves[count:]))) if has_aux else solution


def custom_linear_solve(
    matvec: Function,
    b: Any,
    solve: Callable[[Function, Any], Any],
    transpose_solve: Callable[[Function, Any], Any] | None = None,
    symmetric: bool = False,
    has_aux: bool = False,
) -> Any:
    """Solve the linear system `matvec(x) = b` with the user's solver, and with implicit derivatives.

    `solve` is not differentiated: derivatives follow from the equation.

    Args:
        matvec: a linear function from a pytree like `b` to another.
        b: the right-hand side, a pytree of arrays.
        solve: a function `solve(matvec, b)` that returns x, a pytree like `b`.
        transpose_solve: a function `transpose_solve(vecmat, b)` that solves the transposed system. Reverse mode needs
            it, unless `symmetric` is true.
        symmetric: whether `matvec` is symmetric, so that `solve` solves the transposed system too.
        has_aux: whether the solvers return a pair of x and auxiliary outputs, which have no derivative.

    Returns:
        The solution x, or a pair of x and the auxiliary outputs.

    Raises:
        TypeError: if a function returns other structures or types than those of `b`, or the result is differentiated in
            reverse mode without a transposed solver.

    Example:
        >>> lax.custom_linear_solve(lambda x: 4.0 * x, jnp.array([2.0, 8.0]), lambda matvec, b: b / 4.0, symmetric=True)
        Array([0.5, 2. ], dtype=float32)
    """
    unknown = _Unknown("custom_linear_solve", b)
    count = len(unknown.types)
    matvec_program, matvec_values, _ = unknown.program("matvec", matvec)
    solve_program, solve_values, aux_structure = unknown.program("solve", lambda b: solve(matvec, b), has_aux)
    if transpose_solve is None and symmetric:
        transpose_solve = solve
    if transpose_solve is None:
        op = LinearSolve(count, matvec_program, solve_program)
        results = op(*unknown.leaves, *matvec_values, *solve_values)
        return unknown.unflatten(results, has_aux, aux_structure)
    vecmat = matvec if symmetric else _transpose(matvec, b)
    solve_transpose = transpose_solve
    vecmat_program, vecmat_values, _ = unknown.program("vecmat", vecmat)
    transpose_program, transpose_values, _ = unknown.program(
        "transpose_solve", lambda b: solve_transpose(vecmat, b), has_aux
    )
    op = LinearSolve(count, matvec_program, solve_program, vecmat_program, transpose_program)
    results = op(*unknown.leaves, *matvec_values, *solve_values, *vecmat_values, *transpose_values)
    return unknown.unflatten(results, has_aux, aux_structure)


def _transpose(matvec: Function, b: Any) -> Function:
    """Return the transpose of the linear function `matvec`."""

    def vecmat(x: Any) -> Any:
        (transposed,) = linear_transpose(matvec, b)(x)
        return transposed

    return vecmat


def custom_root(
    f: Function,
    initial_guess: Any,
    solve: Callable[[Function, Any], Any],
    tangent_solve: Callable[[Function, Any], Any],
    has_aux: bool = False,
) -> Any:
    """Find a root of `f(x) = 0` with the user's solver, and with implicit derivatives.

    `solve` is not differentiated: derivatives with respect to the values that `f` closes over follow from the equation.

    Args:
        f: a function from a pytree of arrays to another of the same structure and types.
        initial_guess: the pytree where the search starts.
        solve: a function `solve(f, initial_guess)` that returns the root.
        tangent_solve: a function `tangent_solve(g, y)` that solves `g(x) = y` for the linear function g, the
            linearization of `f` at the root.
        has_aux: whether `solve` returns a pair of the root and auxiliary outputs, which have no derivative.

    Returns:
        The root, or a pair of the root and the auxiliary outputs.

    Raises:
        TypeError: if a function returns other structures or types than those of `initial_guess`.

    Example:
        >>> def root(a):
        ...     return lax.custom_root(lambda x: x**2 - a, 1.0, lambda f, x: lax.sqrt(a), lambda g, y: y / g(1.0))
        >>> jax.grad(root)(4.0)
        Array(0.25, dtype=float32, weak_type=True)
    """
    unknown = _Unknown("custom_root", initial_guess)
    function, values, _ = unknown.program("f", f)
    solver, solver_values, aux_structure = unknown.program("solve", lambda guess: solve(f, guess), has_aux)
    rule = _RootRule(unknown, function, solver, len(solver_values), tangent_solve)
    results = rule.op(values)(*unknown.leaves, *solver_values, *values)
    return unknown.unflatten(results, has_aux, aux_structure)


@final
class _RootRule:
    """The derivative of a root by the implicit function theorem: f(x, a) = 0 implies (df/dx) dx = -(df/da) da."""

    def __init__(
        self, unknown: _Unknown, function: Program, solver: Program, captured_count: int, tangent_solve: Function
    ) -> None:
        self.unknown, self.function, self.solver = unknown, function, solver
        self.captured_count, self.tangent_solve = captured_count, tangent_solve

    @property
    def name(self) -> str:
        return "custom_root"

    def op(self, values: Sequence[Any]) -> CustomJvp:
        """Return the op. Its operands are the guess, the values that the solver closes over, and those that `f` closes
        over.
        """
        types = [*self.solver.in_types, *(x.type for x in values)]
        solver_operands = len(self.unknown.types) + self.captured_count
        program = rewrite("solve", types, lambda *xs: Call(self.solver)(*xs[:solver_operands]))
        return CustomJvp(program, 0, self)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        count = len(self.unknown.types)
        solver_operands = count + self.captured_count
        values, value_tangents = list(primals[solver_operands:]), list(tangents[solver_operands:])
        results = list(self.op(values)(*primals))
        root = results[:count]
        no_tangents = [None] * len(results)
        f_tangents = self._push_forward(root, values, (None,) * count, value_tangents)
        if all(tangent is None for tangent in f_tangents):
            return results, no_tangents

        def linearized(x: Any) -> Any:
            dx = self.unknown.checked_leaves("the argument of tangent_solve's function must have", x)
            return self._unflatten(self._push_forward(root, values, dx, [None] * len(values)))

        solved = self.tangent_solve(linearized, self._unflatten(f_tangents))
        root_tangents = [Neg()(x) for x in self.unknown.checked_leaves("tangent_solve must return", solved)]
        return results, [*root_tangents, *no_tangents[count:]]

    def _push_forward(
        self, x: Sequence[Any], values: Sequence[Any], dx: Sequence[Any], value_tangents: Sequence[Any]
    ) -> list[Any]:
        """Return the tangents of the results of `f`, given those of x and of the captured values. None means zero."""
        tangents = [*dx, *value_tangents]
        if not drop_none(tangents):
            return [None] * len(self.unknown.types)
        forward, linear, has_tangent = linearize_program(self.function, present_mask(tangents))
        residuals = Call(forward)(*x, *values)[len(self.unknown.types) :]
        return insert_none(Call(linear)(*residuals, *drop_none(tangents)), has_tangent)

    def _unflatten(self, tangents: Sequence[Any]) -> Any:
        return self.unknown.structure.unflatten(
            [_instantiate(tangent, type) for tangent, type in zip(tangents, self.unknown.types, strict=True)]
        )


def _instantiate(tangent: Any, type: ArrayType) -> Any:
    return full(type.shape, 0, type.dtype, type.weak) if tangent is None else tangent
