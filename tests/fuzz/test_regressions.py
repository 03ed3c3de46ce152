"""Bugs that the fuzzer or a review of the partitioner found, each as a minimal test."""

import numpy as np
import pytest

import shardwise
from shardwise import lax
from shardwise import numpy as jnp
from shardwise.compiler.candidates.candidate import PARTIAL_SUM
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import AllToAll, PadOrTrim
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.elementwise.arithmetic import Add
from shardwise.compiler.ops.reduce.cumulative import Recurrence
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Transpose
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.partition.local_program import LocalProgram, Placement, verify_local
from shardwise.compiler.partition.spmd import partition
from shardwise.compiler.pipeline import run_stages
from shardwise.compiler.plan.plan_from_picks import plan_from_picks
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.spec import PartitionSpec as P
from shardwise.compiler.shardings.spec import pin_of
from shardwise.compiler.trace.build import build
from tests.fuzz.check import run_local

MESH = AbstractMesh((2, 2), ("x", "a"))
MESH_OF_2 = AbstractMesh((2,), ("x",))


def stages_of(function, types, specs, mesh=MESH, out_specs=None):
    program, captured = build(function, types, "regression")
    assert not captured
    pins = [pin_of(spec, type.shape, mesh) for spec, type in zip(specs, types, strict=True)]
    outs = out_specs or [None] * len(program.outputs)
    out_pins = [
        None if spec is None else pin_of(spec, t.shape, mesh) for spec, t in zip(outs, program.out_types, strict=True)
    ]
    return program, run_stages(program, mesh, pins, out_pins)


def f32(*shape):
    return ArrayType(shape, np.float32)


def assert_simulates(program, local, args):
    for actual, expected in zip(evaluate_shards(local, args), evaluate(program, args), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5)


@pytest.mark.parametrize("shape", [(), (6,), (6, 1), (2, 3)])
def test_reshaped_constant_without_its_dims_of_size_one(shape):
    """`(1, 6)` → `(6,)`: a dim of size one has no factor, but rematerializing the constant looked it up."""

    def function(x):
        before = (1, *shape) if shape else (1,)
        return [full(before, 2.0, np.float32).reshape(shape), Iota(before, 0, np.dtype(np.int32))().reshape(shape)]

    program, stages = stages_of(function, [f32(4)], [P("x")])
    assert_simulates(program, stages.local, [np.ones(4)])


def test_chain_of_constants_is_rematerialized_in_linear_size():
    """Each use of a constant rematerialized all its operands separately: 2⁴⁰ ops here."""

    def function(x):
        constant = full((4,), 1.0, np.float32)
        for _ in range(40):
            constant = Add()(constant, constant)
        return [x * constant]

    program, stages = stages_of(function, [f32(4)], [P("x")])
    assert sum(equation.op.name == "add" for equation in stages.local.program.equations) == 40
    assert_simulates(program, stages.local, [np.ones(4)])


def sharded_along(problem, factors):
    """Return picks that shard every equation along the factor of each axis, and replicate those without it."""
    return {
        axis: {
            equation: next((c for c in options if c.factor == factors[axis]), options[0])
            for equation, options in rows.items()
        }
        for axis, rows in problem.candidates.items()
    }


def partial_through(problem):
    """Return picks with partial operands where possible, and sharded ones elsewhere."""
    return {
        axis: {
            equation: next((c for c in options if PARTIAL_SUM in c.operands), options[-1])
            for equation, options in rows.items()
        }
        for axis, rows in problem.candidates.items()
    }


def test_corners_of_padding_in_two_dims():
    """The padding of both dims at once holds what the last mask wrote, which may differ from the fill of either dim.

    1 - exp(x) is 0 in the row padding and 1 - exp(y) is 0 in the column padding, so their product was assumed to be 0
    in both; but in the corner both factors are 1.
    """

    def function(x, y):
        rows = x.sum(0)  # masks the row padding of x
        a = jnp.exp(x)
        columns = a.sum(1)  # masks the column padding of exp(x)
        more = y.sum(1)
        b = jnp.exp(y)
        return [rows, columns, more, b.sum(0), ((1 - a) * (1 - b)).sum()]

    program, stages = stages_of(function, [f32(5, 5)] * 2, [P("x", "a")] * 2)
    local = partition(stages.problem, plan_from_picks(stages.problem, sharded_along(stages.problem, {"x": 0, "a": 1})))
    rng = np.random.default_rng(0)
    assert_simulates(program, local, [rng.normal(size=(5, 5)) for _ in range(2)])


def test_partial_sums_are_not_multiplied_by_data():
    """x · w = 2 − 1, one term per device; times inf it is inf, but the terms times inf add up to NaN."""

    def function(x, w, factor):
        return [(x * w).sum() * factor, (x * w).sum() / factor]

    program, stages = stages_of(function, [f32(2), f32(2), f32()], [P("x"), P("x"), P()], MESH_OF_2)
    args = [np.array([2.0, -1.0]), np.ones(2), np.array(np.inf)]
    assert_simulates(program, stages.local, args)
    local = partition(stages.problem, plan_from_picks(stages.problem, partial_through(stages.problem)))
    assert_simulates(program, local, args)
    zero = [*args[:2], np.array(0.0)]
    assert_simulates(program, local, zero)


def test_partial_sums_of_integers_are_multiplied_by_data():
    """Integers have no infinity, and overflow is the same in the terms as in the sum."""
    i32 = ArrayType((4,), np.int32)

    def function(x, factor):
        return [x.sum() * factor + x.sum()]

    program, stages = stages_of(function, [i32, ArrayType((), np.int32)], [P("x"), P()], MESH_OF_2)
    local = partition(stages.problem, plan_from_picks(stages.problem, partial_through(stages.problem)))
    assert [equation.op.name for equation in local.collectives()] == ["all_reduce"]
    args = [np.array([2**30, 2**30, 7, -5], np.int32), np.array(3, np.int32)]
    for actual, expected in zip(evaluate_shards(local, args), evaluate(program, args), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_constant_is_never_the_partial_operand_of_a_product():
    """`constant · sum`: a candidate had the constant as partial operand, zero on all devices but one."""

    def function(x):
        return [full((), 3.0, np.float32) * x.sum()]

    _, stages = stages_of(function, [f32(4)], [P("x")], MESH_OF_2)
    for equation, options in stages.problem.candidates["x"].items():
        if equation.op.name == "mul":
            assert [c.operands for c in options] == [("replicated", "replicated"), ("replicated", PARTIAL_SUM)]


def test_new_padding_needs_no_mask():
    """Padding a dim fills it with zeros; they were masked again."""

    def function(x, y):
        return [x.sum(0), (x + y).sum(0)]

    program, stages = stages_of(function, [f32(5, 2)] * 2, [P(), P("x")], MESH_OF_2)
    local = partition(stages.problem, plan_from_picks(stages.problem, sharded_along(stages.problem, {"x": 0})))
    names = [equation.op.name for equation in local.program.equations]
    grown = [equation.op.padded_size for equation in local.program.equations if equation.op.name == "local_slice"]
    assert grown == [6]  # of x, which is replicated
    assert names.count("select") == 1  # of x + y: the padding of y may hold anything
    assert_simulates(program, local, [np.ones((5, 2))] * 2)


def test_gradient_of_many_layers_can_be_planned():
    """The value of the first layer had more neighbours in the search than a numpy array can have dims."""
    layers = 70

    def loss(weights, x):
        for weight in weights:
            x = x + x @ weight
        return x.sum()

    def function(x, *weights):
        return shardwise.grad(loss)(list(weights), x)

    types = [f32(4, 2), *[f32(2, 2)] * layers]
    _, stages = stages_of(function, types, [P("x"), *[P()] * layers], out_specs=[P()] * layers)
    assert len(stages.local.collectives()) == layers


def test_sum_over_two_axes_is_one_reduce_scatter():
    """It was one reduce-scatter per axis."""

    def function(x, y):
        return [jnp.dot(x, y)]

    specs = [P(None, ("x", "a")), P(("x", "a"), None)]
    program, stages = stages_of(function, [f32(64, 64)] * 2, specs, out_specs=[P(("x", "a"), None)])
    assert [equation.op.name for equation in stages.local.collectives()] == ["reduce_scatter"]
    rng = np.random.default_rng(0)
    assert_simulates(program, stages.local, [rng.integers(-3, 4, (64, 64)) for _ in range(2)])


def test_sum_of_constant_booleans_is_a_logical_or():
    """XLA folded `true + true` to false, so it is lowered to a logical or."""

    @shardwise.jit
    def function(x):
        always = x == x
        return always + always, always * always, jnp.maximum(always, always)

    assert [np.asarray(actual).tolist() for actual in function(np.arange(2))] == [[True, True]] * 3


def test_all_to_all_of_blocks_that_the_program_also_slices():
    """XLA shared the slices, whose memory layout differs if a dim has size 1, and then rejected the all-to-all."""

    def local_function(x, y):
        product = Dot(((), ()), ((0,), (1,)))(x, y)
        rows = Transpose((1, 0))
        return [
            PadOrTrim(0, 1)(rows(product)),
            PadOrTrim(0, 1)(rows(-product)),
            AllToAll(0, 1, ("x",), 2)(rows(product)),
        ]

    program, _ = build(local_function, [f32(5), f32(2, 5)], "pieces")
    columns, rows = Layout(((), ("x",))), Layout((("x",), ()))
    local = LocalProgram(
        program,
        MESH_OF_2,
        (Placement(f32(10), Layout((("x",),))), Placement(f32(2, 10), columns)),
        (Placement(f32(1, 10), columns), Placement(f32(1, 10), columns), Placement(f32(2, 10), rows)),
    )
    args = [np.arange(10, dtype=np.float32), np.arange(20, dtype=np.float32).reshape(2, 10)]
    for actual, expected in zip(run_local(verify_local(local), args), evaluate_shards(local, args), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_fill_of_padding_has_the_dtype_of_the_value():
    """The fill was a Python scalar, so the fill after a select of bfloat16 could not be computed."""
    bf16 = ArrayType((5,), np.dtype("bfloat16"))

    def function(predicate, x, y):
        return [jnp.where(predicate, x, 2.0) + y]

    program, stages = stages_of(function, [ArrayType((5,), np.bool_), bf16, bf16], [P(), P(), P("x")], MESH_OF_2)
    local = partition(stages.problem, plan_from_picks(stages.problem, sharded_along(stages.problem, {"x": 0})))
    args = [np.arange(5) % 2 == 0, np.arange(5).astype(bf16.dtype), np.ones(5, bf16.dtype)]
    for actual, expected in zip(evaluate_shards(local, args), evaluate(program, args), strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("length", [0, 1, 3])
def test_loop_without_operands_runs_on_every_device(length):
    """A scan may stack constants alone; the simulation then returned the shards of one device only."""

    def function(x):
        def step(carry, row):
            return carry, Iota((4, 2), 0, np.dtype(np.int32))()

        return [x + 1, lax.scan(step, (), None, length=length)[1]]

    out_specs = [P("x"), P(None, "x")]
    program, stages = stages_of(function, [f32(4)], [P("x")], MESH_OF_2, out_specs)
    loops = [len(e.inputs) for e in stages.local.program.equations if e.op.name == "scan"]
    assert loops == ([] if length == 1 else [0])  # a scan of length 1 is inlined
    assert_simulates(program, stages.local, [np.ones(4)])


def in_scan(f):
    return lambda x: lax.scan(lambda carry, _: (f(carry), None), x, None, length=2)[0]


def in_branch(f):
    return lambda x: lax.cond(x > 0, f, lambda x: x, x)


@pytest.mark.parametrize("inside", [in_scan, in_branch], ids=["scan", "cond"])
def test_gradient_of_control_flow_around_a_custom_vjp(inside):
    """The nonzero tangents were determined in forward mode, which a custom_vjp does not have."""

    @shardwise.custom_vjp
    def square(x):
        return x * x

    square.defvjp(lambda x: (x * x, x), lambda x, ct: (2 * x * ct,))
    expected = shardwise.grad(inside(lambda x: x * x))(3.0)
    assert shardwise.grad(inside(square))(3.0) == expected
    assert shardwise.jit(shardwise.grad(inside(square)))(3.0) == expected


def in_call(f):
    return shardwise.jit(f)


@pytest.mark.parametrize("inside", [in_scan, in_branch, in_call], ids=["scan", "cond", "call"])
def test_gradient_of_a_custom_jvp_whose_rule_differentiates_control_flow(inside):
    """`mul … is not linear in the operands …`: x ** 2 uses the result of a rule that is the jvp of a loop."""
    body = inside(lambda x: x * x)
    function = shardwise.custom_jvp(body)
    function.defjvp(lambda primals, tangents: shardwise.jvp(body, primals, tangents))
    assert shardwise.grad(lambda x: function(x) ** 2)(3.0) == shardwise.grad(lambda x: body(x) ** 2)(3.0)


@pytest.mark.parametrize("predicate", [False, True])
def test_padding_after_branches_with_different_fills(predicate):
    """One branch leaves zeros in the padding, the other exp(0): after the cond it must be masked again."""

    def function(predicate, x):
        before = x.sum(0)  # masks the row padding of x
        return [before, lax.cond(predicate, jnp.exp, lambda x: x, x).sum(0)]

    program, stages = stages_of(function, [ArrayType((), np.bool_), f32(5, 2)], [P(), P("x")], MESH_OF_2)
    local = partition(stages.problem, plan_from_picks(stages.problem, sharded_along(stages.problem, {"x": 0})))
    assert_simulates(program, local, [np.array(predicate), np.ones((5, 2))])


def test_gradient_of_a_loop_around_a_loop_invariant_loop():
    """The inner loop is hoisted; some of its results are residuals, others are used by the outer loop."""

    def function(x, y):
        def step(carry, _):
            rows = lax.scan(lambda power, _: (power * power, power * power), y, None, length=2)[1]
            return carry + rows.sum(), None

        return lax.scan(step, x, None, length=3)[0]

    assert shardwise.grad(function, (0, 1))(1.0, 2.0) == (1.0, 3 * (2 * 2.0 + 4 * 2.0**3))


@pytest.mark.parametrize("reverse", [False, True])
def test_infinite_factors_of_cumprod(reverse):
    """Seed 10002116: before the first element there is no factor, and infinity times that must not be NaN."""
    x = np.array([np.inf, 2, 3, -1, 2, 0.5, 1, 3, 2, np.inf, 4, 1, 2, 3, 0.25, np.inf], np.float32)
    dx = np.ones_like(x)
    order = slice(None, None, -1 if reverse else 1)
    total, tangent, expected = np.float32(1), None, []
    with np.errstate(invalid="ignore"):
        for value, dvalue in zip(x[order], dx[order], strict=True):
            tangent = total * dvalue if tangent is None else tangent * value + total * dvalue
            total = total * value
            expected.append(tangent)
    expected = np.array(expected)[order]

    def tangents(x):
        return shardwise.jvp(lambda x: lax.cumprod(x, reverse=reverse), (x,), (jnp.asarray(dx),))[1]

    np.testing.assert_array_equal(shardwise.jit(tangents)(x), expected)
    mesh = shardwise.make_mesh((4, 2), ("data", "model"))
    for spec in (P("data"), P(("data", "model"))):
        problem = shardwise.device_put(x, shardwise.NamedSharding(mesh, spec))
        np.testing.assert_array_equal(shardwise.jit(tangents)(problem), expected)


def test_infinite_factor_before_padding():
    """Seed 20004168: infinity times the padding of an uneven dim must not be NaN, in the simulator too."""
    a, b = np.array([1, np.inf, 1], np.float32), np.array([-0.0, 5, 2], np.float32)
    np.testing.assert_array_equal(Recurrence(0).reference(a, b), np.array([-0.0, 5, 7], np.float32))


def test_roll_whose_result_is_padded_but_not_its_operand():
    """Seed 40001609: 10 rows divide evenly by 2, but are padded to 12 where the result is also sharded by 3."""
    mesh = shardwise.make_mesh((3, 2), ("x", "a"))
    x = np.arange(20, dtype=np.float32).reshape(10, 2)
    by_a, by_x = (shardwise.NamedSharding(mesh, P(axis)) for axis in ("a", "x"))

    def roll_between(x):
        y = lax.with_sharding_constraint(jnp.roll(lax.with_sharding_constraint(x, by_a), -2, 0), by_a)
        return y, lax.with_sharding_constraint(y, by_x)

    for actual in shardwise.jit(roll_between)(x):
        np.testing.assert_array_equal(actual, np.roll(x, -2, 0))
