"""The text of programs: printing, parsing, and the errors of the parser."""

import itertools
import re
import textwrap

import numpy as np
import pytest

from shardwise.compiler.control.call import Call
from shardwise.compiler.dtypes import SHORT_NAMES
from shardwise.compiler.ir.format import format_op
from shardwise.compiler.ir.parse import parse_program
from shardwise.compiler.ir.program import Equation, Program, Reason, Source, Value
from shardwise.compiler.ir.types import ArrayType, Scalar
from shardwise.compiler.ops.collective.collectives import AllReduce
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.elementwise.arithmetic import Add, Mul, Neg
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.select import Compare
from shardwise.compiler.ops.elementwise.transcendental import Exp
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.ops.shape.constants import Full
from shardwise.compiler.pipeline import run_stages
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.compiler.trace.build import rewrite
from shardwise.errors import ProgramError

THREE = ArrayType((3,), np.float32)


def lines(text: str) -> str:
    return textwrap.dedent(text).strip()


class TwoLines(Reason):
    def __str__(self):
        return "the sum\nis needed"


def test_a_program_prints_one_equation_per_line_with_source_and_reason():
    x, w, a, b = (Value(ArrayType(shape, np.float32)) for shape in ((30, 16), (16, 32), (30, 32), (30, 32)))
    program = Program(
        (x, w),
        (
            Equation(Dot(((1,), (0,))), [x, w], [a], Source("/home/me/train.py", 12, "f")),
            Equation(AllReduce(("data",), SUM), [a], [b], Source("train.py", 13, "f"), TwoLines()),
        ),
        (b, x),
        "mlp<1>",
    )
    assert str(program) == lines("""
        program mlp_1_(a: f32[30,16], b: f32[16,32]) {
          c: f32[30,32] = dot[contract=((1,), (0,)), batch=((), ())] a b   # train.py:12
          d: f32[30,32] = all_reduce[axes=('data',), reduction=sum] c   # train.py:13: the sum is needed
          return d, a
        }
    """)
    assert parse_program(str(program)) == program


def test_a_program_that_an_op_holds_prints_as_a_nested_block():
    inner = rewrite("inner", [THREE], lambda x: [Neg()(x), x])
    outer = rewrite("outer", [THREE], lambda x: [Call(inner)(x)[0]])
    text = re.sub(r" +# .*", "", str(outer))
    assert text == lines("""
        program outer(a: f32[3]) {
          b: f32[3], c: f32[3] = call[program=program inner(a: f32[3]) {
            b: f32[3] = neg a
            return b, a
          }] a
          return b
        }
    """)
    assert parse_program(text) == outer


@pytest.mark.parametrize(
    ("op", "text"),
    [
        (Add(), "add"),
        (Compare("LT"), "compare[direction='LT']"),
        (Convert(SHORT_NAMES["bf16"], True), "convert[dtype=bf16, weak=True]"),
        (Full((2,), Scalar.from_value(0.5, np.float32)), "full[shape=(2,), value=f32(0.5), weak=False]"),
        (
            Constrain((("data",), ()), AbstractMesh((4, 2), ("data", "model")), (1,)),
            "constrain[dims=(('data',), ()), mesh=mesh(data=4, model=2), open_dims=(1,), axes=None, unreduced=()]",
        ),
    ],
)
def test_an_op_prints_as_its_name_and_fields(op, text):
    assert format_op(op) == text


def test_a_mesh_prints_without_its_devices():
    mesh = Mesh(np.array([object() for _ in range(8)]).reshape(4, 2), ("data", "model"))
    assert format_op(Constrain(((),), mesh)) == format_op(Constrain(((),), mesh.abstract))


def bits(dtype, code: int) -> Scalar:
    return Scalar(dtype, code.to_bytes(dtype.itemsize, "little"))


@pytest.mark.parametrize("name", SHORT_NAMES)
def test_constants_of_every_dtype_parse_to_the_same_bits(name):
    dtype = SHORT_NAMES[name]
    step = max(1, 2 ** (8 * dtype.itemsize) // 257)
    narrow = {"bool": 2, "i2": 4, "u2": 4, "i4": 16, "u4": 16, "f4_e2m1fn": 16}
    codes = range(0, narrow.get(name, 2 ** (8 * dtype.itemsize)), step)
    for code in codes:
        program = rewrite("constant", [], lambda code=code: [Full((), bits(dtype, code))()])
        assert parse_program(str(program)) == program


@pytest.mark.parametrize("axes", [("it's", 'a "b"'), ("two words", "ä"), ("a\\b", "x\ny"), ("#", "1")], ids=repr)
def test_axes_of_any_name_parse(axes):
    op = Constrain((axes,), AbstractMesh((2, 3), axes))
    program = rewrite("named", [THREE], lambda x: [op(x)])
    assert parse_program(str(program)) == program


def test_names_of_values_skip_reserved_words():
    """There are enough values that their names would include `add` and `inf`."""
    count = 26 + 26**2 + 26**3
    value, equations = Value(THREE), []
    first = value
    for _ in range(count):
        after = Value(THREE)
        equations.append(Equation(Neg(), [value], [after]))
        value = after
    program = Program((first,), tuple(equations), (value,))
    text = str(program)
    assert parse_program(text) == program
    names = re.findall(r"^  (\w+):", text, re.MULTILINE)
    assert len(set(names)) == count
    assert {"add_", "inf_", "nan_", "dot_", "neg_"} <= set(names)
    assert not {"add", "inf", "nan", "dot", "neg"} & set(names)


def test_whitespace_and_comments_are_ignored():
    text = "program f ( a : f32[3] , ) { # comment }\n\n\n b: f32[3]=add a\n\ta # b: f32[3]\n return b }"
    assert parse_program(text) == rewrite("f", [THREE], lambda x: [Add()(x, x)])


def test_a_program_may_have_no_inputs_no_equations_and_no_outputs():
    empty = Program((), (), (), "empty")
    assert str(empty) == "program empty() {\n  return \n}"
    assert parse_program(str(empty)) == empty


GOOD = """program f(a: f32[3], b: f32[3]) {
  c: f32[3] = mul a b
  d: f32[3] = full[shape=(3,), value=f32(0.5), weak=False]
  e: f32[3] = constrain[dims=(('x',),), mesh=mesh(x=2), open_dims=()] c
  return e
}"""


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("program f", "function f", "line 1: expected 'program', found 'function'"),
        ("a: f32[3],", "a: f33[3],", "line 1: expected a type, found 'f33[3]'"),
        ("a: f32[3],", "a: f32,", "line 1: expected a type, found 'f32'"),
        ("a: f32[3],", "a f32[3],", "line 1: expected ':', found 'f32[3]'"),
        ("b: f32[3])", "a: f32[3])", "line 1: 'a' is defined twice"),
        ("mul a b", "mul a z", "line 2: 'z' is used before it is defined"),
        ("mul a b", "mul a c2", "line 2: 'c2' is used before it is defined"),
        ("mul a b", "times a b", "line 2: there is no op 'times'"),
        ("mul a b", "(a b)", "line 2: expected an op, found '('"),
        ("mul a b", "mul a", "line 2: mul: needs 2 operands, not 1"),
        ("mul a b", "exp[base=2] a", "line 2: exp has no field 'base'; its fields: "),
        ("c: f32[3] =", "c: f32[4] =", "line 2: results are [f32[4]], the op infers [f32[3]]"),
        ("c: f32[3] =", "c: i32[3] =", "line 2: results are [i32[3]], the op infers [f32[3]]"),
        ("c: f32[3] =", "c: f32[3] ~", "line 2: cannot read '~ mul a b\\n  d: f32[3'"),
        ("d: f32[3] =", "c: f32[3] =", "line 3: 'c' is defined twice"),
        ("shape=(3,),", "", "line 3: full needs a value for shape"),
        ("shape=(3,),", "size=(3,),", "line 3: full has no field 'size'; its fields: shape, value, weak"),
        ("shape=(3,),", "shape=(3,;),", "line 3: cannot read ';), value=f32(0.5), '"),
        ("f32(0.5)", "f32(half)", "line 3: 'half' is no f32"),
        ("f32(0.5)", "f32(0.5, 1.0)", "line 3: '0.5, 1.0' is no f32"),
        ("f32(0.5)", "u8(300)", "line 3: '300' is no u8"),
        ("f32(0.5)", "i32(0.5)", "line 3: '0.5' is no i32"),
        ("f32(0.5)", "bool(1)", "line 3: '1' is no bool"),
        ("f32(0.5)", "c64(0.5)", "line 3: '0.5' is no c64"),
        ("f32(0.5)", "f32(0xffc0)", "line 3: '0xffc0' is no f32"),
        ("f32(0.5)", "f32(0.5", "line 3: expected ')', found '='"),
        ("f32(0.5)", "half", "line 3: cannot read 'half'"),
        ("mesh(x=2)", "mesh(x=two)", "line 4: the size of a mesh axis is an integer, not 'two'"),
        ("mesh(x=2)", "mesh(x=0)", "line 4: mesh axis sizes must be at least 1, not (0,)"),
        ("mesh(x=2)", "mesh(x=2, x=2)", "line 4: mesh axis names must differ: ['x'] repeat in ('x', 'x')"),
        ("mesh(x=2)", "mesh{x=2}", "line 4: expected '(', found '{'"),
        ("(('x',),)", "(('x,),)", "line 4: cannot read "),
        ("return e", "return z", "line 5: 'z' is used before it is defined"),
        ("return e", "", "line 6: expected an op, found '}'"),
        ("return e\n}", "return e\n", "line 6: 'end of text' is used before it is defined"),
        ("return e\n}", "return e\n} }", "line 6: expected 'end of text', found '}'"),
        ("  return e\n}", "", "line 5: expected an op, found 'end of text'"),
        (GOOD, "", "line 1: expected 'program', found 'end of text'"),
        (GOOD, "program", "line 1: the text ends too early"),
    ],
    ids=itertools.count(),
)
def test_invalid_text_raises_with_the_line(before, after, message):
    parse_program(GOOD)
    assert before in GOOD
    with pytest.raises(ProgramError) as caught:
        parse_program(GOOD.replace(before, after, 1))
    assert str(caught.value).startswith(message)


def test_every_prefix_of_a_program_raises_a_program_error():
    program = rewrite("f", [THREE], lambda x: [Mul()(Exp()(x), Full((3,), Scalar.from_value(-0.5, np.float32))())])
    text = re.sub(" *#.*", "", str(program))
    for end in range(len(text)):
        with pytest.raises(ProgramError, match=r"^line \d+: "):
            parse_program(text[:end])


def test_stages_and_their_parts_print_as_text():
    program = rewrite("f", [THREE], lambda x: [Add()(x, x)])
    text = "program f(a: f32[3]) {\n  b: f32[3] = add a a"
    assert str(program).startswith(text)
    assert re.sub(" *#.*", "", str(program.equations[0])) == "b: f32[3] = add a a"
    assert str(program.inputs[0]) == "f32[3]"
    stages = run_stages(program, AbstractMesh((3,), ("x",)), [Pin(Layout((("x",),)))], [None])
    assert str(stages.problem).startswith("sharded f on mesh(x=3)\nin P('x')\nout P('x')\nprogram f(")
    assert str(stages.plan) == "plan {\n  add: P('x') ; P('x') -> P('x')\n  return P('x')\n}"
    assert str(stages.local).startswith(
        "local f on mesh(x=3)\nin f32[3] P('x')\nout f32[3] P('x')\nprogram f(a: f32[1])"
    )
