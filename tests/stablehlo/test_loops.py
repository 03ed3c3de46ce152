"""While loops: which become scans, and that their results are the same."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import stablehlo
from tests.stablehlo.xla import run_module

X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
HEAD = """
func.func @main(%x: tensor<6x3xf32>) -> (tensor<3xf32>, tensor<6x3xf32>, tensor<i32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %start = stablehlo.constant dense<START> : tensor<i32>
  %carry = stablehlo.constant dense<1.0> : tensor<3xf32>
  %rows = stablehlo.constant dense<0.0> : tensor<6x3xf32>
  %r:4 = stablehlo.while(%i = %start, %a = %x, %c = %carry, %y = %rows)
    : tensor<i32>, tensor<6x3xf32>, tensor<3xf32>, tensor<6x3xf32>
  cond {
    %limit = stablehlo.constant dense<LIMIT> : tensor<i32>
    %go = stablehlo.compare LT, %i, %limit, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %one = stablehlo.constant dense<STEP> : tensor<i32>
    %last = stablehlo.constant dense<5> : tensor<i32>
    %down = stablehlo.subtract %last, %i : tensor<i32>
    %row = stablehlo.dynamic_slice %a, READ, %zero, sizes = [1, 3]
      : (tensor<6x3xf32>, tensor<i32>, tensor<i32>) -> tensor<1x3xf32>
    %t = stablehlo.reshape %row : (tensor<1x3xf32>) -> tensor<3xf32>
    %d = stablehlo.multiply %c, %t : tensor<3xf32>
    %e = stablehlo.add %d, %t : tensor<3xf32>
    %u = stablehlo.reshape %d : (tensor<3xf32>) -> tensor<1x3xf32>
    %z = stablehlo.dynamic_update_slice %y, %u, WRITE, %zero
      : (tensor<6x3xf32>, tensor<1x3xf32>, tensor<i32>, tensor<i32>) -> tensor<6x3xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, A, %e, %z : tensor<i32>, tensor<6x3xf32>, tensor<3xf32>, tensor<6x3xf32>
  }
  return %r#2, %r#3, %r#0 : tensor<3xf32>, tensor<6x3xf32>, tensor<i32>
}
"""


def module(start=0, limit=6, step=1, read="%i", write="%i", returned="%a"):
    replaced = {"START": start, "LIMIT": limit, "STEP": step, "READ": read, "WRITE": write, " A,": f" {returned},"}
    text = HEAD
    for name, value in replaced.items():
        text = text.replace(name, str(value))
    return text


def loop(text):
    """Return the loop of a module, after checking its results."""
    function = stablehlo.load(text)
    for ours, theirs in zip(function(X), run_module(text, [X], function.out_types), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    program = sw.jit(function).trace(X).program
    return next((equation for equation in program.equations if equation.op.name in ("scan", "while")), None)


@pytest.mark.parametrize(("index", "reverse"), [("%i", False), ("%down", True)])
def test_slices_and_stacks_in_either_direction(index, reverse):
    scan = loop(module(read=index, write=index))
    assert (scan.op.name, scan.op.length, scan.op.carried, scan.op.consts) == ("scan", 6, 1, 0)
    assert scan.op.reverse == reverse
    assert not {"dynamic_slice", "dynamic_update_slice"} & {equation.op.name for equation in scan.op.program.equations}


@pytest.mark.parametrize(
    ("changes", "carried"),
    [
        (
            {"read": "%i", "write": "%down"},
            2,
        ),  # the slices are in the other direction than the stack: the counter is used
        ({"limit": 4}, 3),  # not all rows
        ({"start": 1}, 3),
        ({"step": 2}, 3),
        ({"read": "%zero"}, 1),
    ],
)
def test_other_counting_loops_are_scans_with_a_counter(changes, carried):
    scan = loop(module(**changes))
    assert (scan.op.name, scan.op.carried) == ("scan", carried)


@pytest.mark.parametrize("changes", [{"limit": 0}, {"start": 7}])
def test_loops_without_trips(changes):
    assert loop(module(**changes)) is None


def test_an_array_that_the_loop_changes_is_carried():
    scan = loop(module(returned="%z"))
    assert (scan.op.name, scan.op.carried) == ("scan", 4)


def test_a_limit_that_is_not_constant_stays_a_while_loop():
    text = module().replace(
        "dense<6> : tensor<i32>\n    %go",
        "dense<6> : tensor<i32>\n    %n = stablehlo.add %limit, %zero : tensor<i32>\n    %go",
    )
    assert loop(text.replace("LT, %i, %limit", "LT, %i, %n")).op.name == "while"
