"""Jaxprs: programs as JAX's libraries and interpreters read, change and evaluate them.

    program  --closed_jaxpr-->  Jaxpr  --eval_jaxpr-->  results; `program_of` goes back

A Jaxpr is made of plain records that may be changed and put together anew. An equation has the name and the parameters
of JAX's primitive where libraries match on it (`jaxpr_forms`), and those of our op otherwise.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, final

from shardwise.api.jaxprs.primitive import Primitive
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ir.program import NOWHERE, Program, Source
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.trace.build import build
from shardwise.compiler.trace.provenance import provenance
from shardwise.compiler.transforms.replay import restore_source
from shardwise.typing import ArrayLike


class Var:
    """A variable of a jaxpr, with a type. Variables compare by identity.

    `initial_qdd` and `final_qdd` are the quasi-dynamic data that JAX's interpreters keep with a variable; None here.
    """

    def __init__(self, aval: ArrayType, initial_qdd: Any = None, final_qdd: Any = None):
        self.aval, self.initial_qdd, self.final_qdd = aval, initial_qdd, final_qdd

    def __repr__(self) -> str:
        return f"Var({self.aval})"


@final
class DropVar(Var):
    """A result that nothing uses."""

    def __init__(self, aval: ArrayType):
        super().__init__(aval)


@final
class Literal:
    """A scalar constant as an operand of an equation."""

    def __init__(self, val: ArrayLike, aval: ArrayType):
        self.val, self.aval = val, aval

    @property
    def array(self) -> Any:
        """The constant as an array of its type."""
        return full((), self.val, self.aval.dtype, self.aval.weak)

    def __repr__(self) -> str:
        return f"Literal({self.val})"


Atom = Var | Literal


@final
class JaxprEqn:
    """One primitive applied to variables and literals.

    Args:
        invars: the operands.
        outvars: the results.
        primitive: the primitive.
        params: its static parameters.
        effs: its effects, the attribute `effects`.
        source_info: the user's line.
        ctx: the context of JAX's tracing; None here.
    """

    def __init__(
        self,
        invars: Sequence[Atom],
        outvars: Sequence[Var],
        primitive: Primitive,
        params: dict[str, Any],
        effs: frozenset[Any],
        source_info: Source,
        ctx: Any,
    ):
        self.invars, self.outvars = invars, outvars
        self.primitive, self.params, self.effects = primitive, params, effs
        self.source_info, self.ctx = source_info, ctx

    def bind(self, operands: Sequence[Any]) -> list[Any]:
        """Apply the primitive to operands, and return the list of its results."""
        results = self.primitive.bind(*operands, **self.params)
        return list(results) if self.primitive.multiple_results else [results]

    def replace(self, **changes: Any) -> "JaxprEqn":
        """Return a copy in which the given attributes are replaced."""
        parts = {**vars(self), **changes}
        return JaxprEqn(effs=parts.pop("effects"), **parts)


@final
@dataclass(frozen=True, eq=False)
class Jaxpr:
    """Inputs, equations and outputs. `constvars` are the inputs for arrays that the function closes over."""

    constvars: Sequence[Var]
    invars: Sequence[Var]
    outvars: Sequence[Atom]
    eqns: Sequence[JaxprEqn]
    effects: frozenset[Any] = frozenset()
    debug_info: Any = None
    is_high: bool = False

    @property
    def in_avals(self) -> list[ArrayType]:
        return [var.aval for var in self.invars]

    @property
    def out_avals(self) -> list[ArrayType]:
        return [atom.aval for atom in self.outvars]

    def replace(self, **changes: Any) -> "Jaxpr":
        """Return a copy in which the given parts are replaced."""
        return replace(self, **changes)

    def __str__(self) -> str:
        return str(program_of(ClosedJaxpr(self, ())))


@final
@dataclass(frozen=True, eq=False)
class ClosedJaxpr:
    """A jaxpr with the arrays that it closes over.

    Attributes:
        jaxpr: the jaxpr.
        consts: the values of its `constvars`.
    """

    jaxpr: Jaxpr
    consts: Sequence[Any]
    _program: Program | None = field(default=None, repr=False)  # what the jaxpr was made of

    @property
    def program(self) -> Program:
        """The program; its last inputs are the arrays that it closes over."""
        return program_of(self)

    @property
    def in_avals(self) -> list[ArrayType]:
        return self.jaxpr.in_avals

    @property
    def out_avals(self) -> list[ArrayType]:
        return self.jaxpr.out_avals

    @property
    def eqns(self) -> Sequence[JaxprEqn]:
        return self.jaxpr.eqns

    @property
    def effects(self) -> frozenset[Any]:
        return self.jaxpr.effects

    @property
    def literals(self) -> Sequence[Any]:
        return self.consts

    def replace(self, *, jaxpr: Jaxpr | None = None, consts: Sequence[Any] | None = None) -> "ClosedJaxpr":
        """Return a copy in which the given parts are replaced."""
        return ClosedJaxpr(self.jaxpr if jaxpr is None else jaxpr, self.consts if consts is None else consts)

    def map_jaxpr(self, function: Callable[[Jaxpr], Jaxpr]) -> "ClosedJaxpr":
        """Return a copy with another jaxpr."""
        return self.replace(jaxpr=function(self.jaxpr))

    def __str__(self) -> str:
        return str(self.program)

    __repr__ = __str__


def eval_jaxpr(jaxpr: Jaxpr, consts: Sequence[Any], *args: ArrayLike, propagate_source_info: bool = True) -> list[Any]:
    """Evaluate a jaxpr by applying its primitives one by one.

    Args:
        jaxpr: the jaxpr.
        consts: the values of its `constvars`.
        *args: the values of its `invars`, arrays or tracers.
        propagate_source_info: whether equations that are traced here keep the lines of the jaxpr's equations.

    Returns:
        The list of results.

    Raises:
        ValueError: if the numbers of `consts` or `args` do not match.

    Example:
        >>> closed = jax.make_jaxpr(lambda x: x * 2 + 1)(1.0)
        >>> jax.core.eval_jaxpr(closed.jaxpr, closed.consts, 3.0)
        [Array(7., dtype=float32, weak_type=True)]
    """
    if len(consts) != len(jaxpr.constvars) or len(args) != len(jaxpr.invars):
        raise ValueError(
            f"eval_jaxpr: the jaxpr has {len(jaxpr.constvars)} constants and {len(jaxpr.invars)} arguments, but "
            f"{len(consts)} and {len(args)} were passed"
        )
    return interpret_jaxpr(jaxpr, consts, args, JaxprEqn.bind, propagate_source_info)


def interpret_jaxpr(
    jaxpr: Jaxpr,
    consts: Sequence[Any],
    args: Sequence[Any],
    results_of: Callable[[JaxprEqn, list[Any]], Sequence[Any]],
    keep_lines: bool = True,
) -> list[Any]:
    """Return the results of a jaxpr, computing those of each equation by `results_of(equation, operands)`.

    With `keep_lines`, equations that are traced here keep the lines of the jaxpr's equations.
    """
    variables = (*jaxpr.constvars, *jaxpr.invars)
    env = {var: match_weak_type(x, var.aval) for var, x in zip(variables, (*consts, *args), strict=True)}

    def read(atom: Atom) -> Any:
        return atom.array if isinstance(atom, Literal) else env[atom]

    with restore_source():
        for eqn in jaxpr.eqns:
            if keep_lines and eqn.source_info is not NOWHERE:
                provenance.source = eqn.source_info
            env.update(zip(eqn.outvars, results_of(eqn, [read(atom) for atom in eqn.invars]), strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def match_weak_type(x: ArrayLike, aval: ArrayType) -> Array:
    """Return an argument, weakly typed as its variable: nested programs expect the types that were traced."""
    operand = as_operand(x)
    if operand.type.dtype != aval.dtype or operand.type.weak == aval.weak:
        return operand
    return Convert(aval.dtype, aval.weak)(operand)


def jaxpr_as_fun(closed_jaxpr: ClosedJaxpr, *args: ArrayLike) -> Callable[..., list[Any]]:
    """Return the function that evaluates a closed jaxpr, which returns the list of its results.

    Args:
        closed_jaxpr: the jaxpr.
        *args: its first arguments.

    Returns:
        A function of its other arguments.

    Example:
        >>> square = jax.extend.core.jaxpr_as_fun(jax.make_jaxpr(lambda x: x * x)(1.0))
        >>> square(3.0)
        [Array(9., dtype=float32, weak_type=True)]
    """
    return partial(eval_jaxpr, closed_jaxpr.jaxpr, closed_jaxpr.consts, *args)


def program_of(closed: ClosedJaxpr) -> Program:
    """Return the program of a jaxpr; the arrays that it closes over are its last inputs."""
    if closed._program is not None:
        return closed._program
    count = len(closed.jaxpr.invars)

    def evaluate(*inputs: Array) -> list[Array]:
        return [as_operand(x) for x in eval_jaxpr(closed.jaxpr, inputs[count:], *inputs[:count])]

    types = [var.aval for var in (*closed.jaxpr.invars, *closed.jaxpr.constvars)]
    return build(evaluate, types, "jaxpr")[0]
