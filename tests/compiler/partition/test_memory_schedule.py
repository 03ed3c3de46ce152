"""The orders in which XLA's scheduler for GPUs runs the kernels of small programs."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.partition.memory_schedule import ORDERS, ModuleSchedule

N = 256
WORKSPACE = 32 * 2**20  # of cuBLASLt on Hopper


def matrices(count, *shape):
    return [sw.ShapeDtypeStruct(shape or (N, N), np.float32)] * count


def workspace(kernel):
    return WORKSPACE if kernel.root.op.is_product else 0


def schedule_of(function, *args):
    local = sw.jit(function).lower(*args)._prepared.stages.local
    return local, ModuleSchedule(local.program, lambda program: local.kernel_groups(program, "gpu"), workspace)


def names(kernels):
    return [kernel.root.op.name for kernel in kernels if kernel.writes]


def network_and_gradients(x, w):
    """Two layers and the gradients of their weights, in program order; each gradient is complete at once."""
    a = jnp.tanh(x @ w)
    first = x.T @ a
    b = jnp.tanh(a @ w)
    return b, first + a.T @ b


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_has_each_kernel_once_and_operands_first(order):
    def step(x, w):
        return sw.grad(lambda w: lax.scan(lambda x, _: (jnp.tanh(x @ w), x.sum()), x, length=4)[0].sum())(w), x @ w

    local, schedule = schedule_of(step, *matrices(2))
    program = local.program
    schedule.order = order
    kernels = schedule.kernels(program)
    assert len(kernels) == len(set(kernels))
    written = {value for kernel in kernels for value in kernel.writes} - local.kernel_groups(program, "gpu").unstored
    stored = set()
    for kernel in kernels:
        assert stored.issuperset(written.intersection(kernel.reads) - kernel.writes.keys())
        stored.update(kernel.writes)


def test_the_list_order_runs_products_with_a_workspace_late():
    """The recorded step of the continuous flow evaluates its field four times before the first gradient."""
    local, schedule = schedule_of(network_and_gradients, *matrices(2))
    program = local.program
    schedule.order = "list"
    assert names(schedule.kernels(program)).index("tanh") < names(schedule.kernels(program)).index("add")
    products = [kernel.root.outputs[0] for kernel in schedule.kernels(program) if kernel.root.op.is_product]
    in_program = [equation.outputs[0] for equation in program.equations if equation.op.is_product]
    assert products.index(in_program[1]) > products.index(in_program[2])  # the first gradient, and the second layer


def test_the_schedule_with_the_fewest_live_bytes_is_selected():
    """Postorder keeps both large arrays of the second operand, while it computes the first."""

    def wide(x):
        return jnp.cumsum(jnp.concatenate([x] * 8))[:N] + jnp.cumsum(jnp.concatenate([x] * 16))[:N]

    local, schedule = schedule_of(wide, *matrices(1, N))
    program = local.program
    least = {order: schedule._live_bytes(program, order) for order in ORDERS}
    assert least[schedule.order] == min(least.values())


def test_recomputation_waits_for_the_cotangent():
    """XLA schedules a barrier, too: the recorded steps with `checkpoint` recompute no layer before its gradient."""

    def loss(w, x):
        for _ in range(3):
            x = sw.checkpoint(lambda x: jnp.tanh(jnp.tanh(x @ w) @ w))(x)
        return (x**2).sum()

    local, schedule = schedule_of(sw.grad(loss), *matrices(2))
    program = local.program
    position = {equation: index for index, equation in enumerate(program.equations)}
    for order in ORDERS:
        schedule.order = order
        kernels = schedule.kernels(program)
        recomputed = [position[k.root] for k in kernels if k.root.op.is_product and "rematted" in str(k.root.source)]
        assert recomputed == sorted(recomputed)


def test_equal_zeros_of_two_loops_are_filled_at_once():
    """The recorded step of preferences fills the stacks of both its models when it starts."""

    def stack(x):
        return lax.scan(lambda c, _: (jnp.tanh(c), c), x, length=4)[1]

    def two(x):
        first = stack(x)
        return first, stack(jnp.sin(first[3]))

    local, schedule = schedule_of(two, *matrices(1))
    program = local.program
    loops = [kernel for kernel in schedule.kernels(program) if kernel.root.op.programs]
    (stacked,) = {value.type.shape for value in loops[0].root.outputs} - {(N, N)}
    for loop in loops:
        (number,) = [k for k, value in enumerate(loop.root.outputs) if value.type.shape == stacked]
        assert schedule.fill_index(program, loop, number) == schedule.kernels(program).index(loops[0])
        assert schedule.fill_index(program, loop, 1 - number) is None  # the carry has another initial value


def test_zeros_of_several_scatters_are_filled_at_once():
    """The recorded step of edge messages fills 20 zeros for its segment sums with one kernel."""

    def two(indices, x):
        first = jnp.zeros_like(x).at[indices].add(x)
        return first, jnp.zeros_like(x).at[indices].add(jnp.sin(first[::-1])), x.at[indices].max(x)

    local, _ = schedule_of(two, sw.ShapeDtypeStruct((N,), np.int32), *matrices(1))
    program = local.program_on_gpu(None)  # with one constant
    schedule = ModuleSchedule(program, lambda program: local.kernel_groups(program, "gpu"), workspace)
    kernels = schedule.kernels(program)
    (fill,) = [index for index, kernel in enumerate(kernels) if kernel.root.op.name == "full"]
    first, second = [kernel for kernel in kernels if not kernel.reads.keys().isdisjoint(kernels[fill].writes)]
    assert schedule.fill_index(program, first, 0) == fill
    assert schedule.fill_index(program, second, 0) is None  # it reads the first result, and overwrites the zeros
    assert [schedule.copied_constant(program, kernel) is not None for kernel in (first, second)] == [True, False]


def test_zeros_of_a_scatter_that_is_added_to_another_value_are_not_filled():
    def added(indices, x):
        return jnp.sin(x) + jnp.zeros_like(x).at[indices].add(jnp.cos(x)), jnp.zeros_like(x).at[indices].add(x)

    local, _ = schedule_of(added, sw.ShapeDtypeStruct((N,), np.int32), *matrices(1))
    program = local.program_on_gpu(None)
    schedule = ModuleSchedule(program, lambda program: local.kernel_groups(program, "gpu"), workspace)
    kernels = schedule.kernels(program)
    assert sum(kernel.root.op.name == "scatter" for kernel in kernels) == 2
    assert all(schedule.copied_constant(program, kernel) is None for kernel in kernels)
