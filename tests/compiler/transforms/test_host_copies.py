"""Copies between host memory and device memory: where they stand, and that they change no result."""

import numpy as np

from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.verify import verify
from shardwise.compiler.ops.elementwise.arithmetic import Add, Mul, Neg
from shardwise.compiler.ops.placement.memory_space import InMemory
from shardwise.compiler.transforms.host_copies import HostArrays, insert_host_copies
from tests.compiler.transforms.programs import program

X, Y = np.arange(3.0), np.ones(3)


def names_after(before, inputs, outputs):
    """Return the ops of a program with copies, after checking its results."""
    after = verify(insert_host_copies(before, HostArrays(frozenset(inputs), frozenset(outputs))))
    for got, wanted in zip(evaluate(after, [X, Y]), evaluate(before, [X, Y]), strict=True):
        np.testing.assert_array_equal(got, wanted)
    return [equation.op.name for equation in after.equations]


def test_an_argument_is_copied_where_it_is_first_used_and_a_result_where_it_is_computed():
    def body(x, y):
        z = Mul()(Neg()(y), x)
        return [z, Add()(z, x)]

    two = program("two", "f64[3] f64[3]", body)
    assert names_after(two, {0}, {0}) == ["neg", "copy_to_device", "mul", "copy_to_host", "add"]
    assert names_after(two, {0, 1}, {1}) == ["copy_to_device", "neg", "copy_to_device", "mul", "add", "copy_to_host"]


def test_arguments_that_are_results():
    both = program("both", "f64[3] f64[3]", lambda x, y: [x, y])
    assert names_after(both, {0}, {0}) == ["copy_to_device", "copy_to_host"]
    assert names_after(both, {0}, {1}) == ["copy_to_host", "copy_to_device"]
    assert names_after(both, {0, 1}, {}) == ["copy_to_device"] * 2


def test_an_unused_argument_is_not_copied():
    one = program("one", "f64[3] f64[3]", lambda x, y: [Neg()(y)])
    assert names_after(one, {0, 1}, {}) == ["copy_to_device", "neg"]


def test_a_result_of_in_memory_is_copied_once():
    def body(x, y):
        kept = InMemory("pinned_host")(Mul()(x, y))
        return [kept, kept]

    twice = program("twice", "f64[3] f64[3]", body)
    assert names_after(twice, {}, {0, 1}) == ["mul", "copy_to_host", "in_memory"]
