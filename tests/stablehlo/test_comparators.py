"""Comparators of sorts, against XLA."""

import numpy as np
import pytest

from shardwise import stablehlo
from shardwise.errors import UnsupportedError
from tests.stablehlo.xla import run_module

F = np.array([[1.0, -0.0, 0.0, np.inf, -2.0, -0.0, 3.0, -np.inf]], np.float32)
N = np.array([[1.0, np.nan, 0.0, -np.inf, -2.0, np.nan, 3.0, -0.0]], np.float32)
KEYS = np.array([[3, 1, 2, 1, 3, 2, 1, 0]], np.int32)
POSITIONS = np.arange(8, dtype=np.int32).reshape(1, 8)


def module(dtypes, body):
    names = [f"%x{index}" for index in range(len(dtypes))]
    types = [f"tensor<1x8x{dtype}>" for dtype in dtypes]
    arguments = ", ".join(f"{name}: {type}" for name, type in zip(names, types, strict=True))
    scalars = ", ".join(f"%{side}{index}: tensor<{dtype}>" for index, dtype in enumerate(dtypes) for side in "ab")
    results = ", ".join(f"%r#{index}" for index in range(len(dtypes)))
    return (
        f"func.func @main({arguments}) -> ({', '.join(types)}) {{\n"
        f'%r:{len(dtypes)} = "stablehlo.sort"({", ".join(names)}) <{{dimension = 1 : i64, is_stable = true}}> ({{\n'
        f"^bb0({scalars}):\n{body}\nstablehlo.return %p : tensor<i1> }}) : "
        f"({', '.join(types)}) -> ({', '.join(types)})\nreturn {results} : {', '.join(types)} }}"
    )


def compare(result, direction, x, y, dtype="f32", kind="FLOAT"):
    types = f"(tensor<{dtype}>, tensor<{dtype}>) -> tensor<i1>"
    return f"%{result} = stablehlo.compare {direction}, {x}, {y}, {kind} : {types}\n"


BOTH = "%t = stablehlo.and %e, %l : tensor<i1>\n%p = stablehlo.or %f, %t : tensor<i1>"
CASES = {
    "ascending": (["f32", "i32"], compare("p", "LT", "%a0", "%b0"), (F, POSITIONS)),
    "descending": (["f32", "i32"], compare("p", "GT", "%a0", "%b0"), (F, POSITIONS)),
    "swapped": (["f32", "i32"], compare("p", "LT", "%b0", "%a0"), (F, POSITIONS)),
    "total order": (["f32", "i32"], compare("p", "LT", "%a0", "%b0", kind="TOTALORDER"), (N, POSITIONS)),
    "descending total order": (["f32", "i32"], compare("p", "GT", "%a0", "%b0", kind="TOTALORDER"), (N, POSITIONS)),
    "the second operand": (["f32", "i32"], compare("p", "LT", "%a1", "%b1", "i32", "SIGNED"), (F, KEYS)),
    "two keys": (
        ["i32", "f32", "i32"],
        compare("f", "LT", "%a0", "%b0", "i32", "SIGNED")
        + compare("e", "EQ", "%a0", "%b0", "i32", "SIGNED")
        + compare("l", "LT", "%a1", "%b1")
        + BOTH,
        (KEYS, F, POSITIONS),
    ),
    "numbers before NaN": (
        ["f32", "i32"],
        compare("f", "LT", "%a0", "%b0") + compare("e", "EQ", "%a0", "%a0") + compare("l", "NE", "%b0", "%b0") + BOTH,
        (N, POSITIONS),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_keys(name):
    dtypes, body, arguments = CASES[name]
    text = module(dtypes, body)
    function = stablehlo.load(text)
    for ours, theirs in zip(function(*arguments), run_module(text, arguments, function.out_types), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "body",
    [
        compare("p", "LE", "%a0", "%b0"),
        compare("p", "LT", "%a0", "%a0"),
        compare("p", "LT", "%a0", "%b1"),
        compare("f", "LT", "%a0", "%b0") + compare("e", "EQ", "%a1", "%b1") + compare("l", "LT", "%a1", "%b1") + BOTH,
        compare("f", "LT", "%a0", "%b0") + compare("e", "EQ", "%a0", "%b0") + compare("l", "GT", "%a1", "%b1") + BOTH,
        "%p = stablehlo.constant dense<true> : tensor<i1>",
    ],
)
def test_other_comparators_are_not_supported(body):
    with pytest.raises(UnsupportedError, match=r"stablehlo\.sort at <stablehlo>:2: the comparator"):
        stablehlo.load(module(["f32", "f32"], body))(F, F)
