"""How the ops of a program look in a jaxpr: the names and parameters of JAX's primitives.

Libraries match on JAX's names (`eqn.primitive is lax.exp_p`, `eqn.params["jaxpr"]`), and apply primitives with JAX's
parameters. `FORMS` lists the ops whose name or parameters differ in JAX. Every other op keeps its name and its fields.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, final

import numpy as np

from shardwise.api.jaxprs.effects import DebugEffect, OrderedDebugEffect
from shardwise.api.jaxprs.jaxpr import (
    Atom,
    ClosedJaxpr,
    DropVar,
    Jaxpr,
    JaxprEqn,
    Literal,
    Var,
    jaxpr_as_fun,
    match_weak_type,
    program_of,
)
from shardwise.api.jaxprs.primitive import Primitive, thaw
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, broadcast_to_shape
from shardwise.compiler.control.call import Call
from shardwise.compiler.control.callback import Callback
from shardwise.compiler.control.cond import Cond
from shardwise.compiler.control.custom_batching import CustomVmap
from shardwise.compiler.control.custom_derivatives import CustomJvp, CustomVjp
from shardwise.compiler.control.primitive_call import PrimitiveCall
from shardwise.compiler.control.program_order import ProgramOrder
from shardwise.compiler.control.remat import Remat
from shardwise.compiler.control.scan import Scan
from shardwise.compiler.control.while_loop import While
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Program, Source, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.contract.dot import Dot, default_precision
from shardwise.compiler.ops.elementwise import (
    arithmetic,
    bitwise,
    complex_parts,
    min_max,
    powers,
    rounding,
    transcendental,
)
from shardwise.compiler.ops.elementwise.base import Elementwise
from shardwise.compiler.ops.elementwise.bitwise import BitcastConvert
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.indexing.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from shardwise.compiler.ops.linalg.hessenberg_schur import Hessenberg
from shardwise.compiler.ops.linalg.householder import HouseholderProduct, Ormqr
from shardwise.compiler.ops.linalg.triangular import Cholesky, TriangularSolve
from shardwise.compiler.ops.reduce.argminmax import Argmax, Argmin
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.cumulative import Cumulative
from shardwise.compiler.ops.reduce.reductions import ReduceAnd, ReduceMax, ReduceMin, ReduceOr, ReduceProd, ReduceXor
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.constants import Full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape, Transpose
from shardwise.compiler.ops.shape.slicing import Concatenate, Pad, Reverse, Slice
from shardwise.compiler.reduction import LOGSUMEXP, MAX, MIN, PROD, SUM, Reduction
from shardwise.compiler.special import approximations, gamma_erf, hypergeometric, incomplete
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.transforms.replay import replay
from shardwise.typing import ArrayLike

Params = dict[str, Any]


@final
@dataclass(frozen=True)
class Form:
    """JAX's form of the equations of an op.

    Attributes:
        name: the name of JAX's primitive.
        params: its parameters, for an op.
        op: the op, for parameters.
        order: the position of each of the op's operands among those of the primitive; None if the order is the same.
    """

    name: str
    params: Callable[[Any], Params]
    op: Callable[[Params], Op]
    order: tuple[int, ...] | None = None


def _reduction(op_class: Callable[[tuple[int, ...]], Op], name: str) -> Form:
    return Form(name, lambda op: {"axes": op.dims, "out_sharding": None}, lambda p: op_class(tuple(p["axes"])))


def _comparison(direction: str) -> Form:
    return Form(direction.lower(), lambda op: {}, lambda p: Compare(direction))


def _position(op_class: type[Argmax | Argmin], name: str) -> Form:
    return Form(
        name,
        lambda op: {"axes": op.dims, "index_dtype": op.dtype},
        lambda p: op_class(tuple(p["axes"]), np.dtype(p["index_dtype"])),
    )


def _cumulative(name: str, reduction: Reduction) -> Form:
    return Form(
        name,
        lambda op: {"axis": op.dim, "reverse": op.reverse},
        lambda p: Cumulative(p["axis"], reduction, p["reverse"]),
    )


def _precision(op: Dot) -> Any:
    return None if op.precision == ("DEFAULT", "DEFAULT") else op.precision


FORMS: dict[type[Op], Form] = {
    Argmax: _position(Argmax, "argmax"),
    Argmin: _position(Argmin, "argmin"),
    BitcastConvert: Form(
        "bitcast_convert_type",
        lambda op: {"new_dtype": op.dtype},
        lambda p: BitcastConvert(np.dtype(p["new_dtype"])),
    ),
    Broadcast: Form(
        "broadcast_in_dim",
        lambda op: {"shape": op.shape, "broadcast_dimensions": op.dims, "sharding": None},
        lambda p: Broadcast(tuple(p["shape"]), tuple(p["broadcast_dimensions"])),
    ),
    Call: Form(
        "jit",
        lambda op: {"jaxpr": closed_jaxpr(op.program), "name": op.program.name, "inline": False},
        lambda p: Call(program_of(p["jaxpr"])),
    ),
    Cholesky: Form("cholesky", lambda op: {}, lambda p: Cholesky()),
    Concatenate: Form("concatenate", lambda op: {"dimension": op.dim}, lambda p: Concatenate(p["dimension"])),
    Cond: Form(
        "cond",
        lambda op: {"branches": tuple(map(closed_jaxpr, op.branches))},
        lambda p: Cond(tuple(map(program_of, p["branches"]))),
    ),
    Convert: Form(
        "convert_element_type",
        lambda op: {"new_dtype": op.dtype, "weak_type": op.weak, "sharding": None},
        lambda p: Convert(np.dtype(p["new_dtype"]), p["weak_type"]),
    ),
    CustomJvp: Form(
        "custom_jvp_call",
        lambda op: {"call_jaxpr": closed_jaxpr(op.program), "jvp_jaxpr_fun": op.rule, "num_consts": op.captured},
        lambda p: CustomJvp(program_of(p["call_jaxpr"]), p["num_consts"], p["jvp_jaxpr_fun"]),
    ),
    CustomVjp: Form(
        "custom_vjp_call",
        lambda op: {"call_jaxpr": closed_jaxpr(op.program), "fwd_bwd": op.rule, "num_consts": op.captured},
        lambda p: CustomVjp(program_of(p["call_jaxpr"]), p["num_consts"], p["fwd_bwd"]),
    ),
    CustomVmap: Form(
        "custom_vmap_call",
        lambda op: {"call": closed_jaxpr(op.program), "rule": op.rule},
        lambda p: CustomVmap(program_of(p["call"]), p["rule"]),
    ),
    Dot: Form(
        "dot_general",
        lambda op: {
            "dimension_numbers": (op.contract, op.batch),
            "precision": _precision(op),
            "preferred_element_type": op.dtype,
            "out_sharding": None,
        },
        lambda p: Dot(
            p["dimension_numbers"][0],
            p["dimension_numbers"][1],
            p["preferred_element_type"],
            default_precision() if p["precision"] is None else p["precision"],
        ),
    ),
    DynamicSlice: Form(
        "dynamic_slice", lambda op: {"slice_sizes": op.sizes}, lambda p: DynamicSlice(tuple(p["slice_sizes"]))
    ),
    DynamicUpdateSlice: Form("dynamic_update_slice", lambda op: {}, lambda p: DynamicUpdateSlice()),
    Hessenberg: Form("hessenberg", lambda op: {}, lambda p: Hessenberg()),
    HouseholderProduct: Form("householder_product", lambda op: {}, lambda p: HouseholderProduct()),
    Iota: Form(
        "iota",
        lambda op: {"dtype": op.dtype, "shape": op.shape, "dimension": op.dim, "sharding": None},
        lambda p: Iota(tuple(p["shape"]), p["dimension"], np.dtype(p["dtype"])),
    ),
    Ormqr: Form(
        "ormqr", lambda op: {"left": op.left, "transpose": op.adjoint}, lambda p: Ormqr(p["left"], p["transpose"])
    ),
    Pad: Form(
        "pad",
        lambda op: {"padding_config": tuple(zip(op.low, op.high, op.interior, strict=True))},
        lambda p: Pad(*(tuple(dim[part] for dim in p["padding_config"]) for part in range(3))),
    ),
    ProgramOrder: Form(
        "program_order",
        lambda op: {
            "call_jaxpr": closed_jaxpr(op.program),
            "enforce": op.enforce,
            "strict_in": op.strict_in,
            "strict_out": op.strict_out,
            "exclude_mask": op.prefetched,
        },
        lambda p: ProgramOrder(
            program_of(p["call_jaxpr"]), p["enforce"], p["strict_in"], p["strict_out"], tuple(p["exclude_mask"])
        ),
    ),
    ReduceAnd: _reduction(ReduceAnd, "reduce_and"),
    ReduceMax: _reduction(ReduceMax, "reduce_max"),
    ReduceMin: _reduction(ReduceMin, "reduce_min"),
    ReduceOr: _reduction(ReduceOr, "reduce_or"),
    ReduceProd: _reduction(ReduceProd, "reduce_prod"),
    ReduceXor: _reduction(ReduceXor, "reduce_xor"),
    Remat: Form(
        "checkpoint",
        lambda op: {"jaxpr": closed_jaxpr(op.program).jaxpr, "policy": op.policy, "prevent_cse": op.prevent_cse},
        lambda p: Remat(program_of(ClosedJaxpr(p["jaxpr"], ())), p["policy"], p["prevent_cse"]),
    ),
    Reshape: Form(
        "reshape",
        lambda op: {"new_sizes": op.shape, "dimensions": None, "sharding": None},
        lambda p: Reshape(tuple(p["new_sizes"])),
    ),
    Reverse: Form("rev", lambda op: {"dimensions": op.dims}, lambda p: Reverse(tuple(p["dimensions"]))),
    Scan: Form(
        "scan",
        lambda op: {
            "jaxpr": closed_jaxpr(op.program),
            "length": op.length,
            "num_consts": op.consts,
            "num_carry": op.carried,
            "reverse": op.reverse,
            "unroll": op.unroll,
        },
        lambda p: Scan(
            _with_carry(program_of(p["jaxpr"]), p["num_consts"], p["num_carry"]),
            p["length"],
            p["num_consts"],
            p["num_carry"],
            p["reverse"],
            p["unroll"],
        ),
    ),
    Select: Form("select_n", lambda op: {}, lambda p: Select(), (0, 2, 1)),
    Slice: Form(
        "slice",
        lambda op: {"start_indices": op.start, "limit_indices": op.limit, "strides": op.stride},
        lambda p: Slice(
            tuple(p["start_indices"]), tuple(p["limit_indices"]), tuple(p["strides"] or (1,) * len(p["start_indices"]))
        ),
    ),
    Sum: _reduction(Sum, "reduce_sum"),
    Transpose: Form(
        "transpose", lambda op: {"permutation": op.permutation}, lambda p: Transpose(tuple(p["permutation"]))
    ),
    TriangularSolve: Form(
        "triangular_solve",
        lambda op: {
            "left_side": op.left_side,
            "lower": op.is_lower,
            "transpose_a": op.transpose_a,
            "conjugate_a": op.conjugate_a,
            "unit_diagonal": op.unit_diagonal,
        },
        lambda p: TriangularSolve(p["left_side"], p["lower"], p["transpose_a"], p["conjugate_a"], p["unit_diagonal"]),
    ),
    While: Form(
        "while",
        lambda op: {
            "cond_jaxpr": closed_jaxpr(op.cond),
            "cond_nconsts": op.cond_consts,
            "body_jaxpr": closed_jaxpr(op.body),
            "body_nconsts": op.body_consts,
        },
        lambda p: While(
            program_of(p["cond_jaxpr"]),
            _with_carry(body := program_of(p["body_jaxpr"]), p["body_nconsts"], len(body.outputs)),
            p["cond_nconsts"],
            p["body_nconsts"],
        ),
    ),
}
_ELEMENTWISE_MODULES = {
    module.__name__
    for module in (
        *(arithmetic, bitwise, complex_parts, min_max, powers, rounding, transcendental),
        *(approximations, gamma_erf, hypergeometric, incomplete),
    )
}
_ELEMENTWISE = {name for name, op_class in Op.registry.items() if op_class.__module__ in _ELEMENTWISE_MODULES}
_COMPARISONS = {direction: _comparison(direction) for direction in ("EQ", "NE", "LT", "LE", "GT", "GE")}
_CUMULATIVES = {
    reduction: _cumulative(name, reduction)
    for name, reduction in (
        ("cumsum", SUM),
        ("cumprod", PROD),
        ("cummax", MAX),
        ("cummin", MIN),
        ("cumlogsumexp", LOGSUMEXP),
    )
}
_BY_NAME: dict[str, tuple[type[Op], Form]] = {
    **{form.name: (op_class, form) for op_class, form in FORMS.items()},
    **{form.name: (Compare, form) for form in _COMPARISONS.values()},
    **{form.name: (Cumulative, form) for form in _CUMULATIVES.values()},
}


def _program_types(op: Op) -> Sequence[ArrayType]:
    """Return the types with which the operands of an op enter its programs; () if it has no programs.

    Interpreters may apply primitives to operands that are weakly typed where those of the jaxpr were not.
    """
    match op:
        case While():
            return (*op.cond.in_types[: op.cond_consts], *op.body.in_types)
        case Scan():
            return op.program.in_types
        case Cond():
            return (ArrayType((), np.int32), *op.branches[0].in_types)
        case _:
            return op.programs[0].in_types if op.is_call else ()


def _with_carry(program: Program, consts: int, count: int) -> Program:
    """Return the program of a loop's body whose carried results are weakly typed as the carried inputs."""
    types = (*program.in_types[consts : consts + count], *program.out_types[count:])
    if types == program.out_types:
        return program

    def body(*inputs: Array) -> list[Array]:
        return list(map(match_weak_type, replay(program, inputs), types))

    return rewrite(program.name, program.in_types, body)


@final
class _JaxprFunction:
    """A jaxpr as a function, in the form in which interpreters call it."""

    def __init__(self, jaxpr: ClosedJaxpr):
        self.call_wrapped = jaxpr_as_fun(jaxpr)


@final
class OpPrimitive(Primitive):
    """The primitive of one of Shardwise's ops. Its rules are the op's; `bind` applies the op.

    `form` is None if its parameters are the op's fields.
    """

    def __init__(self, name: str, op_class: type[Op], form: Form | None):
        super().__init__(name)
        self.form = form
        self.op_class = op_class
        self.multiple_results = not op_class.single

    def get_bind_params(self, params: Params) -> Params:
        """Return the keyword arguments of `bind`; those of `custom_jvp_call` include the function, as `subfuns`."""
        if self.op_class is not CustomJvp:
            return dict(params)
        return {**params, "subfuns": (_JaxprFunction(params["call_jaxpr"]),)}

    def bind(self, *args: ArrayLike, **params: Any) -> Any:
        operands: list[Any] = [as_operand(x, self.name) for x in args]
        if _accepts_scalars(self.op_class):  # and operands with dims of size 1
            shape = np.broadcast_shapes(*(x.type.shape for x in operands))
            operands = [x if x.type.shape == shape else broadcast_to_shape(x, shape) for x in operands]
        if self.form is None:
            op = self.op_class(**params)
        else:
            op = self.form.op(params)
            if self.form.order is not None:
                operands = [operands[number] for number in self.form.order]
        types = _program_types(op)
        if types:
            operands = list(map(match_weak_type, operands, types))
        return op(*operands)


def _accepts_scalars(op_class: type[Op]) -> bool:
    """Return whether operands of the primitive may be scalars beside arrays, as in JAX."""
    return issubclass(op_class, Elementwise) and op_class is not Select


_primitives: dict[str, OpPrimitive] = {}


def primitive_named(name: str) -> OpPrimitive:
    """Return the primitive with a name of JAX, such as `exp` or `reduce_sum`.

    Raises:
        KeyError: if no op has this name.
    """
    if name not in _primitives:
        op_class, form = _BY_NAME[name] if name in _BY_NAME else (Op.registry[name], None)
        _primitives[name] = OpPrimitive(name, op_class, form)
    return _primitives[name]


def find_primitive(name: str) -> OpPrimitive | None:
    """Return the primitive that has this name in JAX too; None if there is none.

    Besides those of `FORMS`, these are the elementwise ops, whose names and parameters are JAX's.
    """
    is_jax_name = name in _BY_NAME or name in _ELEMENTWISE
    return primitive_named(name) if is_jax_name else None


def closed_jaxpr(program: Program, consts: Sequence[Any] = ()) -> ClosedJaxpr:
    """Return the jaxpr of a program, whose last inputs are the arrays `consts` that it closes over.

    A constant is a literal of the elementwise equations that use it, and is broadcast for others.
    """
    atoms: dict[Value, Atom] = {}
    constants: dict[Value, tuple[Full, Source]] = {}
    used = program.used

    def define(value: Value) -> Var:
        var = Var(value.type) if value in used else DropVar(value.type)
        atoms[value] = var
        return var

    def append(op: Op, operands: Sequence[Atom], outputs: Sequence[Value], source: Source) -> None:
        primitive, params, order = equation_form(op)
        if order is not None:
            operands = [operands[number] for number in order]
        results = [define(value) for value in outputs]
        eqns.append(JaxprEqn(operands, results, primitive, params, _effects(op), source, None))

    def literal(op: Full) -> Literal:
        return Literal(op.value.array, op.out_type().with_shape(()))

    def atom(value: Value) -> Atom:
        """Return the variable or literal of a value; broadcast a constant at its first use."""
        if value not in atoms:
            full, source = constants[value]
            append(Broadcast(full.shape, ()), [literal(full)], [value], source)
        return atoms[value]

    inputs = [define(value) for value in program.inputs]
    eqns: list[JaxprEqn] = []
    for equation in program.equations:
        op, operands = equation.op, equation.inputs
        if isinstance(op, Full):
            if op.shape == ():
                atoms[equation.outputs[0]] = literal(op)
            else:
                constants[equation.outputs[0]] = op, equation.source
            continue
        some_vary = any(value not in constants for value in operands)
        if some_vary and _accepts_scalars(type(op)):
            scalars = [literal(constants[value][0]) if value in constants else atom(value) for value in operands]
            append(op, scalars, equation.outputs, equation.source)
        else:
            append(op, [atom(value) for value in operands], equation.outputs, equation.source)
    count = len(inputs) - len(consts)
    outvars = [atom(value) for value in program.outputs]
    jaxpr = Jaxpr(inputs[count:], inputs[:count], outvars, eqns, frozenset().union(*(eqn.effects for eqn in eqns)))
    return ClosedJaxpr(jaxpr, list(consts), program)


def _effects(op: Op) -> frozenset[Any]:
    """Return the effects of an op, and of the ops in its programs."""
    if isinstance(op, Callback) and op.is_debugging:
        return frozenset({OrderedDebugEffect() if op.effect == "ordered" else DebugEffect()})
    if op.programs:
        return frozenset().union(*(_effects(eqn.op) for program in op.programs for eqn in program.equations))
    return frozenset({op.effect} - {""})


def _form(op: Op) -> Form | None:
    """Return JAX's form of an op; None if its name and its parameters are JAX's."""
    match op:
        case Compare():
            return _COMPARISONS[op.direction]
        case Cumulative():
            return _CUMULATIVES[op.reduction]
        case _:
            return FORMS.get(type(op))


def equation_form(op: Op) -> tuple[Primitive, Params, tuple[int, ...] | None]:
    """Return the primitive of an op, its parameters, and the order of its operands."""
    if isinstance(op, PrimitiveCall):
        return op.rules.primitive, thaw(op.params), None  # type: ignore[attr-defined]
    form = _form(op)
    if form is None:
        return primitive_named(op.name), {field.name: getattr(op, field.name) for field in fields(op)}, None  # type: ignore[arg-type]
    return primitive_named(form.name), form.params(op), form.order
