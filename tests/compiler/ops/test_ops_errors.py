"""Errors of ops for wrong operands and missing rules."""

import numpy as np
import pytest

from shardwise.compiler.control.call import Call
from shardwise.compiler.ir.op import BatchAxis, Op, result_types
from shardwise.compiler.ir.types import ArrayType, Scalar, parse_type
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.elementwise.arithmetic import Add, Div, Mul, Neg, Rem
from shardwise.compiler.ops.elementwise.bitwise import And, BitcastConvert, ShiftLeft
from shardwise.compiler.ops.elementwise.complex_parts import Abs, Complex, Real
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.powers import IntegerPow, Pow
from shardwise.compiler.ops.elementwise.rounding import ReducePrecision, Round
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.elementwise.transcendental import Exp
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.ops.reduce.argminmax import Argmax, Argmin
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.reductions import ReduceAnd, ReduceMax, ReduceProd
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.constants import Full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape, Transpose
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.special.gamma_erf import Erf, Polygamma
from shardwise.compiler.trace.build import rewrite
from shardwise.errors import MissingRuleError

F32, INDEX = np.dtype(np.float32), np.dtype(np.int32)


@pytest.mark.parametrize(
    ("op", "types", "message"),
    [
        (Add(), "f32[3] f32[4]", "add: operands must have one shape and one dtype, not f32[3], f32[4]"),
        (Mul(), "f32[3] i32[3]", "mul: operands must have one shape and one dtype, not f32[3], i32[3]"),
        (Add(), "f32[3]", "add: needs 2 operands, not 1"),
        (Neg(), "f32[3] f32[3]", "neg: needs 1 operand, not 2"),
        (Select(), "bool[3] f32[3]", "select: needs 3 operands, not 2"),
        (Convert(F32), "f32[3] f32[3]", "convert: needs 1 operand, not 2"),
        (Div(), "bool[3] bool[3]", "div: needs numbers, not bool[3]"),
        (Div(), "f32[3] i32[3]", "div: operands must have one shape and one dtype, not f32[3], i32[3]"),
        (Exp(), "i32[3]", "exp: needs floats or complex numbers, not i32[3]"),
        (Neg(), "bool[3]", "neg: a boolean has no negative; use logical not"),
        (Rem(), "c64[3] c64[3]", "rem: needs integers or floats, not c64[3]"),
        (Abs(), "u8[3]", "abs: needs signed numbers, not u8[3]"),
        (Real(), "f32[3]", "real: needs complex numbers, not f32[3]"),
        (Complex(), "bf16[3] bf16[3]", "complex: needs f32 or f64, not bf16[3]"),
        (Erf(), "c64[3]", "erf: needs floats, not c64[3]"),
        (Polygamma(), "f32[3]", "polygamma: needs 2 operands, not 1"),
        (Pow(), "i32[3] i32[3]", "pow: needs floats or complex numbers, not i32[3]"),
        (
            IntegerPow(-2),
            "i32[3]",
            "integer_pow: integers cannot have the negative power -2: i32[3]; convert to floats",
        ),
        (Round("up"), "f32[3]", "round: half 'up' is not one of even, away"),
        (
            ReducePrecision(0, 3),
            "f32[3]",
            "reduce_precision: exponent_bits must be at least 1 and mantissa_bits at least 0, not 0 and 3",
        ),
        (And(), "f32[3] f32[3]", "and: needs integers or booleans, not f32[3]"),
        (ShiftLeft(), "bool[3] bool[3]", "shift_left: needs integers, not bool[3]"),
        (
            BitcastConvert(np.dtype(np.int32)),
            "c64[3]",
            "bitcast_convert: needs real numbers, not c64[3]",
        ),
        (
            BitcastConvert(np.dtype(np.bool_)),
            "u8[3]",
            "bitcast_convert: the dtype must be of real numbers, not bool",
        ),
        (BitcastConvert(F32), "u8[3]", "bitcast_convert: the last dim of u8[3] must be 4, the elements in one f32"),
        (ReduceMax((0, 2)), "f32[3,4]", "reduce_max: dims [2] do not exist in f32[3,4]"),
        (ReduceProd((1, 1)), "f32[3,4]", "reduce_prod: a dim repeats in (1, 1)"),
        (ReduceAnd((0,)), "f32[3]", "reduce_and: needs integers or booleans, not f32[3]"),
        (Argmax((1,), INDEX), "f32[3]", "argmax: dims [1] do not exist in f32[3]"),
        (Argmax((0,), F32), "f32[3]", "argmax: the dtype of indices must be an integer dtype, not f32"),
        (Argmin((0,), INDEX), "c64[3]", "argmin: complex numbers have no order: c64[3]"),
        (Argmin((0,), INDEX), "f32[0,3]", "argmin: dim 0 of f32[0,3] is empty"),
        (Select(), "i32[3] f32[3] f32[3]", "select: the condition must be booleans of shape (3,), not i32[3]"),
        (Select(), "bool[4] f32[3] f32[3]", "select: the condition must be booleans of shape (3,), not bool[4]"),
        (Select(), "bool[3] f32[3] i32[3]", "select: operands must have one shape and one dtype, not f32[3], i32[3]"),
        (Compare("IS"), "f32[3] f32[3]", "compare: direction 'IS' is not one of EQ, NE, LT, LE, GT, GE"),
        (Compare("LT"), "f32[3] f32[4]", "compare: operands must have one shape and one dtype, not f32[3], f32[4]"),
        (Full((-1,), Scalar.from_value(0, F32)), "", "a size cannot be negative: shape (-1,)"),
        (Iota((3, 4), 2, F32), "", "iota: dim 2 does not exist in shape (3, 4)"),
        (Iota((3, 4), -1, F32), "", "iota: dim -1 does not exist in shape (3, 4)"),
        (
            Iota((3,), 0, np.dtype(np.bool_)),
            "",
            "iota: the dtype must be numeric, not bool; compare an iota of integers",
        ),
        (
            Broadcast((3, 4), (1, 0)),
            "f32[4,3]",
            "broadcast: dims (1, 0) must name one result dim for each dim of f32[4,3], in ascending order",
        ),
        (
            Broadcast((3, 4), (1,)),
            "f32[3,4]",
            "broadcast: dims (1,) must name one result dim for each dim of f32[3,4], in ascending order",
        ),
        (Broadcast((3, 4), (2,)), "f32[4]", "broadcast: dims (2,) do not exist in shape (3, 4)"),
        (Broadcast((3, 4), (-1,)), "f32[4]", "broadcast: dims (-1,) do not exist in shape (3, 4)"),
        (Broadcast((3, 4), (1,)), "f32[1]", "broadcast: f32[1] does not fit dims (1,) of shape (3, 4)"),
        (Reshape((4, 2)), "f32[3,2]", "reshape: f32[3,2] has 6 elements, shape (4, 2) has 8"),
        (Reshape((-2, -3)), "f32[6]", "a size cannot be negative: shape (-2, -3)"),
        (Transpose((0, 0)), "f32[3,4]", "transpose: (0, 0) is not a permutation of the dims of f32[3,4]"),
        (Transpose((1, 0, 2)), "f32[3,4]", "transpose: (1, 0, 2) is not a permutation of the dims of f32[3,4]"),
        (Sum((0, 2)), "f32[3,4]", "sum: dims [2] do not exist in f32[3,4]"),
        (Sum((-1,)), "f32[3,4]", "sum: dims [-1] do not exist in f32[3,4]"),
        (Sum((1, 1)), "f32[3,4]", "sum: a dim repeats in (1, 1)"),
        (
            Dot(((1,), (0,))),
            "f32[3,4] f32[5,6]",
            "dot: contracting dims must agree, but dim 1 of f32[3,4] has size 4 and dim 0 of f32[5,6] has size 5",
        ),
        (
            Dot(((), ()), ((0,), (0,))),
            "f32[3,4] f32[5,6]",
            "dot: batch dims must agree, but dim 0 of f32[3,4] has size 3 and dim 0 of f32[5,6] has size 5",
        ),
        (Dot(((0, 1), (0,))), "f32[3,4] f32[3,6]", "dot: contracting dims must come in pairs, not (0, 1) and (0,)"),
        (
            Dot(((2,), (0,))),
            "f32[3,4] f32[3,6]",
            "dot: contracting dims 2 and 0 do not exist in f32[3,4] and f32[3,6]",
        ),
        (
            Dot(((0, 0), (0, 1))),
            "f32[3,4] f32[3,3]",
            "dot: a dim repeats in contract=((0, 0), (0, 1)), batch=((), ())",
        ),
        (
            Dot(((0,), (0,)), ((1,), (0,))),
            "f32[3,3] f32[3,3]",
            "dot: a dim repeats in contract=((0,), (0,)), batch=((1,), (0,))",
        ),
        (
            Dot(((1,), (0,))),
            "f32[3,4] bf16[4,3]",
            "dot: operands must have one dtype, not f32[3,4] and bf16[4,3]",
        ),
        (
            Constrain((("a",),), AbstractMesh((2,), ("a",))),
            "f32[3,4]",
            "constrain: the layout has 1 dims, but f32[3,4] has 2",
        ),
        (
            Call(rewrite("square", [ArrayType((3,), F32)], lambda x: [Mul()(x, x)])),
            "f32[4]",
            "call: square takes (f32[3],), not (f32[4],)",
        ),
    ],
    ids=str,
)
def test_ops_reject_wrong_operands(op, types, message):
    with pytest.raises(TypeError) as caught:
        result_types(op, tuple(parse_type(text) for text in types.split()))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("rule", "call"),
    [
        ("out_type", lambda op: op.out_type()),
        ("factors", lambda op: op.factors()),
        ("jvp", lambda op: op.jvp([], [])),
        ("linearize", lambda op: op.linearize([], [])),
        ("transpose", lambda op: op.transpose(None)),
        ("vmap", lambda op: op.vmap(BatchAxis(2), [], [])),
        ("lower", lambda op: op.lower(None)),
        ("reference", lambda op: op.reference()),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_the_error_for_a_missing_rule_names_the_method_to_write(rule, call):
    class Unfinished(Op):
        pass

    op = Unfinished()
    op.name = "unfinished"
    wanted = "jvp" if rule == "linearize" else rule  # by default, linearize calls jvp
    with pytest.raises(MissingRuleError) as caught:
        call(op)
    assert f"op 'unfinished' has no rule {wanted!r}: write " in str(caught.value)
    assert str(caught.value).endswith(f"Unfinished.{wanted} in {__name__}")


def test_two_ops_cannot_share_a_name():
    with pytest.raises(TypeError, match="two ops are named 'add'"):
        type("Plus", (Op,), {"name": "add"})


@pytest.mark.parametrize(
    ("before", "after", "flows"),
    [
        ("bf16", "f32", True),
        ("f32", "f64", True),
        ("f32", "f32", True),
        ("f32", "bf16", False),
        ("f16", "bf16", False),
        ("i32", "f32", False),
        ("f32", "i32", False),
        ("i8", "i32", False),
        ("bool", "i32", False),
    ],
)
def test_partial_sums_may_be_widened_but_not_rounded(before, after, flows):
    convert = Convert(parse_type(f"{after}[]").dtype)
    assert convert.linear_in(parse_type(f"{before}[3]")) == (((0,),) if flows else ())
