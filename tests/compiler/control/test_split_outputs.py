"""split_outputs: the halves of a backward pass compute what the whole does, and no product twice."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.control.split_outputs import split_outputs
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.trace.build import build
from shardwise.compiler.transforms.inline import inline

ROWS, WIDTH, LAYERS = 4, 6, 3


def layer(a, b, x):
    return x + jnp.tanh(x @ a) @ b


def unrolled(a, b, x):
    for index in range(LAYERS):
        x = layer(a[index], b[index], x)
    return x


def scanned(a, b, x):
    return lax.scan(lambda x, w: (layer(*w, x), None), x, (a, b))[0]


def shared_by_iterations(a, b, x):
    """`a[0]` is a const of the loop: its cotangent is a carry of the backward loop."""
    return lax.scan(lambda x, w: (layer(a[0], b[0], layer(*w, x)), x.sum()), x, (a, b))[0]


def nested(a, b, x):
    def outer(x, w):
        return lax.scan(lambda x, _: (layer(*w, x), None), x, jnp.arange(2))[0], None

    return lax.scan(outer, x, (a, b))[0]


def products(program):
    """Count the products, each as often as loops run it."""
    return sum(
        isinstance(equation.op, Dot)
        + sum(products(inner) for inner in equation.op.programs) * getattr(equation.op, "length", 1)
        for equation in program.equations
    )


def backward_program(function):
    def backward(a, b, x, cotangent):
        _, pull_back = sw.vjp(function, a, b, x)
        return list(pull_back(cotangent))

    shapes = [(LAYERS, WIDTH, WIDTH), (LAYERS, WIDTH, WIDTH), (ROWS, WIDTH), (ROWS, WIDTH)]
    program, captured = build(backward, [ArrayType(shape, np.dtype(np.float32)) for shape in shapes], "backward")
    assert not captured
    rng = np.random.default_rng(0)
    return program, [rng.normal(size=shape).astype(np.float32) / 2 for shape in shapes]


FUNCTIONS = [unrolled, scanned, shared_by_iterations, nested, sw.checkpoint(unrolled), sw.checkpoint(scanned)]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("selected", [(False, False, True), (True, False, False), (False, True, True)])
def test_halves_compute_the_outputs_and_no_product_twice(function, selected):
    program, arguments = backward_program(function)
    split = split_outputs(program, selected)
    expected = evaluate(program, arguments)
    count = selected.count(True)
    first = evaluate(split.first, arguments)
    second = evaluate(split.second, [*first[count:], *(arguments[index] for index in split.kept)])
    results = {True: iter(first[:count]), False: iter(second)}
    for is_first, value in zip(selected, expected, strict=True):
        np.testing.assert_array_equal(next(results[is_first]), value)
    assert products(split.first) + products(split.second) <= products(inline(program))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_weight_gradients_are_left_to_the_second_half(function):
    program, _ = backward_program(function)
    split = split_outputs(program, (False, False, True))
    layers = {"shared_by_iterations": 2 * LAYERS, "nested": 2 * LAYERS}.get(function.__name__, LAYERS)
    assert products(split.second) == 2 * layers


def test_all_or_no_outputs():
    program, arguments = backward_program(scanned)
    everything = split_outputs(program, (True, True, True))
    assert not everything.second.outputs and not everything.kept
    assert len(everything.first.outputs) == 3
    nothing = split_outputs(program, (False, False, False))
    assert not nothing.first.outputs
    for value, expected in zip(
        evaluate(nothing.second, [arguments[index] for index in nothing.kept]),
        evaluate(program, arguments),
        strict=True,
    ):
        np.testing.assert_array_equal(value, expected)
