"""inline: calls are replaced by the equations of their programs."""

from shardwise.compiler.control.call import Call
from shardwise.compiler.ir.program import Equation, Program, Reason, Source, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ir.verify import verify
from shardwise.compiler.ops.elementwise.arithmetic import Neg
from shardwise.compiler.transforms.inline import inline
from tests.compiler.transforms.programs import SQUARE, ops_of, program
from tests.compiler.transforms.test_transforms import F64, TWICE


class TestInline:
    def test_a_program_without_calls_is_returned(self):
        assert inline(SQUARE) is SQUARE

    def test_nested_calls_are_inlined(self):
        body = program("outer", "f64[3]", lambda x: [Call(TWICE)(Call(TWICE)(x)[0])[0]])
        assert ops_of(inline(body)) == ["mul"] * 4
        assert [equation.op.name for equation in inline(body).equations] == ["mul"] * 4

    def test_outputs_that_pass_through_a_call(self):
        identity = program("identity", "f64[3] f64[3]", lambda x, y: [y, x, y])
        body = program("outer", "f64[3] f64[3]", lambda x, y: [*Call(identity)(x, y), x])
        flat = inline(body)
        assert flat.equations == ()
        a, b = flat.inputs
        assert flat.outputs == (b, a, b, a)

    def test_inlined_equations_keep_their_source_lines(self):
        x, y = Value(ArrayType((3,), F64)), Value(ArrayType((3,), F64))
        line, why = Source("model.py", 7, "f"), Reason()
        inner = Program((x,), (Equation(Neg(), [x], [y], line, why),), (y,), "inner")
        a, b = Value(ArrayType((3,), F64)), Value(ArrayType((3,), F64))
        body = Program((a,), (Equation(Call(inner), [a], [b], Source("model.py", 9, "g")),), (b,))
        (equation,) = inline(body).equations
        assert (equation.source, equation.reason) == (line, why)

    def test_two_calls_of_one_program_share_no_value(self):
        body = program("outer", "f64[3] f64[3]", lambda x, y: [Call(SQUARE)(x)[0], Call(SQUARE)(y)[0]])
        values = list(verify(inline(body)).values())
        assert len(set(values)) == len(values) == 4
