"""The predicted memory of small programs: on CPU against XLA's buffer assignment, on a GPU against counts by hand."""

import math

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax, nn, random
from shardwise.compiler.partition.liveness import (
    Liveness,
    fits_in_memory,
    live_value_bytes,
    peak,
    peak_bytes,
    stored_bytes,
    total_bytes,
)
from shardwise.compiler.plan.hardware import chip

H200 = chip("h200")
N = 256
MATRIX = 4 * N * N
BATCH = 1024  # so many matrices that a loop calls LAPACK


def matrices(count, *shape, dtype=np.float32):
    return [sw.ShapeDtypeStruct(shape or (N, N), dtype)] * count


def local_of(function, *args):
    return sw.jit(function).lower(*args)._prepared.stages.local


def assigned_by_xla(jitted, *args):
    counted = jitted.lower(*args).compile().memory_analysis()
    results = counted.output_size_in_bytes - counted.alias_size_in_bytes
    return counted.argument_size_in_bytes + results + counted.temp_size_in_bytes


def layers(x, w):
    return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0]


def rectified_layers(x, ws):
    for w in ws:
        x = nn.relu(x @ w)
    return x


def two_layers(w, v, x):
    return jnp.sum(nn.relu(x @ w) @ v)


def softmax_loss(x, w, labels):
    return -jnp.mean(jnp.take_along_axis(nn.log_softmax(x @ w), labels[:, None], -1))


def attend(q, k):
    return jnp.einsum("bhts,bshd->bthd", jnp.exp(jnp.einsum("bthd,bshd->bhts", q, k)), k)


def convolved(x, w):
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def largest_in_windows(x, size=2, padding="VALID"):
    return lax.reduce_window(x, -np.inf, lax.max, (1, size, size, 1), (1, 2, 2, 1), padding)


def attention(q, k, v):
    weights = nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def products_of_pairs(x, times):
    for _ in range(times):
        x = x[::2] * x[1::2]
    return x


def likelihood(w, x, y):
    logits = x @ w
    return jnp.sum(y * logits - nn.softplus(logits))


def centered_products(x, y):
    product = x * y
    return (product + x * (-product).sum(-1, keepdims=True)) @ y.mT


def masked_windows(x, indices, y):
    rows = jnp.tanh(x)[indices]
    return jnp.where((indices > 3)[:, None], rows, 0) @ y, rows.sum(1)


def grouped(x, w, groups=N):
    names = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=names, feature_group_count=groups)


def equal_to_largest(x, y):
    is_largest = x == x.max(-1, keepdims=True)
    return (is_largest.astype(np.float32) * y).sum(-1) + jnp.where(is_largest, y, 0)[:, 0]


def product_of_scatters(x, indices, updates):
    return math.prod(x.at[indices + number].add(jnp.tanh(rows)) for number, rows in enumerate(updates))


PROGRAMS = {
    "a temporary in the buffer of a result": (lambda x: jnp.tanh(x @ x) @ x, matrices(1)),
    "two results": (lambda x: (x @ x, jnp.sin(x)), matrices(1)),
    "a result that is an argument": (lambda x: (x, x @ x), matrices(1)),
    "a loop": (layers, [*matrices(1), *matrices(1, 4, N, N)]),
    "the gradient of a weight, for rows in two dims": (
        lambda x, y: jnp.tanh(jnp.einsum("abi,abj->ij", jnp.sin(x), y)),
        matrices(2, 16, 64, N),
    ),
    "a transposed copy that two products share": (
        lambda x, y: jnp.einsum("ahi,hij->ahj", x, jnp.sin(jnp.einsum("ahi,ahj->hij", x, y))),
        matrices(2, N, 8, 64),
    ),
    "exponentials of a product with rows in two dims": (
        lambda x, y, z: jnp.exp(x @ y - z[:, :, None]) @ y,
        [*matrices(1, 4, N, N), *matrices(1), *matrices(1, 4, N)],
    ),
    "a product without a sum": (
        lambda x, y, row: jnp.sin(jnp.cos(x @ y) * (x @ row.T @ row)),
        [*matrices(2), *matrices(1, 1, N)],
    ),
    "products of columns and rows that are summed in two ways": (
        lambda x, y: (jnp.sum((xy := x[:, :, None] * y[:, None]) ** 2, (1, 2)), jnp.einsum("b,bij->ij", x[:, 0], xy)),
        matrices(2, 16, N),
    ),
    "integers that are converted": (
        lambda x, y: jnp.tanh(lax.dot(x, y, preferred_element_type=np.int32).astype(np.float32)),
        matrices(2, dtype=np.int8),
    ),
    "rows that are added to zeros": (
        lambda x, i, y: jnp.sin(jnp.zeros_like(x).at[i].add(jnp.cos(y @ x))) @ x,
        [*matrices(1), *matrices(1, N, dtype=np.int32), *matrices(1)],
    ),
    "rows that are scattered by their maximum": (
        lambda x, i, y: jnp.zeros_like(x).at[i].max(jnp.exp(y @ x)) @ x,
        [*matrices(1), *matrices(1, N, dtype=np.int32), *matrices(1)],
    ),
    "zeros that three scatters share": (
        lambda x, i, y: product_of_scatters(jnp.zeros_like(x), i, [y @ y, y @ y.T, y.T @ y]),
        [*matrices(1), *matrices(1, N, dtype=np.int32), *matrices(1)],
    ),
    "rows that are scattered into zeros and added to a value": (
        lambda x, i, y: (t := jnp.tanh(x @ x)) + jnp.zeros_like(t).at[i].add(jnp.cos(y @ x)),
        [*matrices(1), *matrices(1, N, dtype=np.int32), *matrices(1)],
    ),
    "an argument that is updated late": (
        lambda x, y: x.at[1:5].set(jnp.tanh(jnp.sin(jnp.tanh(y @ y) @ y) @ y)[:4]),
        matrices(2),
    ),
    "a sum along the dim of a concatenation": (
        lambda x, y: (c := jnp.concatenate([jnp.tanh(x @ x), y @ y], 1)) - jnp.sum(c, 1, keepdims=True),
        matrices(2),
    ),
    "a sum of operands that two kernels compute": (
        lambda x, y: (jnp.sin(p := x.T + y) @ x, jnp.cos(p) @ y),
        matrices(2),
    ),
    "gradients of attention, with copies that two products share": (
        sw.grad(lambda q, k: jnp.sum(attend(jnp.sin(q), jnp.cos(k)) ** 2), (0, 1)),
        matrices(2, 2, 128, 4, 32),
    ),
    "the mask of an activation, and of its gradient": (
        lambda x, y: (jnp.where((h := x @ y) > 0, h, 0.1 * h) @ x, jnp.where(h > 0, y, 0.1 * y) @ y),
        matrices(2),
    ),
    "random numbers that two kernels read": (
        lambda x, key: (jnp.where(m := random.bernoulli(key, 0.5, x.shape), x, 0) @ x, jnp.where(m, x, 1) @ x),
        [*matrices(1), *matrices(1, 2, dtype=np.uint32)],
    ),
    "random numbers that three kernels compute": (
        lambda x, key: ((n := random.normal(key, x.shape)) + x @ x, (x + n) @ x, (x - n) @ x),
        [*matrices(1), *matrices(1, 2, dtype=np.uint32)],
    ),
    "a narrow product whose rows are gathered for another": (
        lambda x, i: (x @ x)[i] @ x,
        [*matrices(1, dtype=jnp.bfloat16), *matrices(1, N, dtype=np.int32)],
    ),
    "a narrow product that a softmax normalizes": (
        lambda x: nn.softmax(x @ x) @ x,
        matrices(1, dtype=jnp.bfloat16),
    ),
    "narrow products that two kernels round": (
        sw.grad(lambda ws, x: jnp.sum(rectified_layers(x, ws).astype(np.float32) ** 2)),
        [matrices(3, dtype=jnp.bfloat16), *matrices(1, 8 * N, N, dtype=jnp.bfloat16)],
    ),
    "zeros that two sums share": (
        lambda x, y: (jnp.sum(nn.relu(x @ y), 0), jnp.sum(nn.relu(y @ x), 1)),
        matrices(2),
    ),
    "zeros that a sum reads and another kernel computes": (
        lambda x, y: (jnp.sum(nn.relu(x @ y), 0), nn.relu(y @ x) @ x),
        matrices(2),
    ),
    "exponentials that each iteration of a loop computes": (
        lambda x, y: lax.fori_loop(0, 5, lambda i, c: (jnp.sin(c) * jnp.exp(y)) @ y, x),
        matrices(2),
    ),
    "a mask that each iteration of a loop computes": (
        lambda x, y: lax.fori_loop(0, 5, lambda i, c: jnp.where(jnp.arange(N)[:, None] >= jnp.arange(N), c, 0) @ y, x),
        matrices(2),
    ),
    "values in an array that a product reads as a matrix": (
        lambda x, y, w: jnp.einsum("i,ijk->jk", w, jnp.sin(x) * jnp.cos(x * y)),
        [*matrices(1, 64, 32, N), *matrices(1, N), *matrices(1, 64)],
    ),
    "a factor that a product reads": (
        lambda x: (c := jnp.linalg.cholesky(x)).T @ jnp.tanh(c @ x),
        matrices(1),
    ),
    "factors of many matrices": (lambda x: jnp.sin(jnp.linalg.cholesky(jnp.tanh(x) + 1)), matrices(1, BATCH, 16, 16)),
    "solutions of many systems, for matrices that another kernel computes": (
        lambda x, y: jnp.linalg.solve(jnp.sin(y @ y), x),
        matrices(2, BATCH, 16, 16),
    ),
    "solutions of many systems with transposed matrices": (
        lambda x, y: lax.linalg.triangular_solve(jnp.swapaxes(x, 1, 2), y, left_side=True, lower=True),
        matrices(2, BATCH, 16, 16),
    ),
    "singular vectors of many matrices": (jnp.linalg.svd, matrices(1, BATCH, 16, 16)),
    "gradients of factors of many matrices": (
        sw.grad(lambda x: jnp.sum(jnp.linalg.cholesky(x @ jnp.swapaxes(x, 1, 2)) ** 3)),
        matrices(1, BATCH, 16, 16),
    ),
    "a factor that only a product reads": (lambda x: jnp.linalg.cholesky(jnp.sin(x)) @ x, matrices(1)),
    "the factors of one matrix": (lambda x: jnp.linalg.qr(jnp.sin(x)), matrices(1)),
    "products of singular vectors": (lambda x: (d := jnp.linalg.svd(jnp.sin(x))).U * d.S @ d.Vh, matrices(1)),
    "a solution with gathered rows": (lambda x, y: jnp.linalg.solve(x, jnp.sin(y)), matrices(2)),
    "a sum that batches of rows are scattered into": (
        lambda x, i, y: sw.vmap(lambda i: jnp.zeros((4 * N, 2)).at[i * 2 + 1].add(y))(i) + x,
        [*matrices(1, 24, 4 * N, 2), *matrices(1, 24, 16 * N, dtype=np.int32), *matrices(1, 16 * N, 2)],
    ),
    "the gradient of elements that are selected in each row": (
        sw.grad(lambda x, i: jnp.sum(jnp.take_along_axis(x @ x.T, i, 1) ** 2)),
        [*matrices(1, 4 * N, N), *matrices(1, 4 * N, 2 * N, dtype=np.int32)],
    ),
    "long rows that are concatenated": (
        lambda x, y: jnp.pad(jnp.concatenate([x * 2, y], 1), ((0, 0), (3, 3))) + 1,
        matrices(2),
    ),
    "rows that are interleaved": (
        lambda x, y: jnp.stack([x * 2, y], 2).reshape(N, 2 * N)[:, 5:200] * 3,
        matrices(2),
    ),
    "prefixes of products": (lambda x: lax.associative_scan(jnp.matmul, x), matrices(1, 64, 64, 64)),
    "a copy of an invariant operand in a loop, and one behind it": (
        lambda x, t: jnp.einsum(
            "prqs,rs->pq", t, lax.fori_loop(0, 4, lambda _, x: jnp.tanh(jnp.einsum("prqs,rs->pq", t, x)), x)
        ),
        [*matrices(1, 16, 16), *matrices(1, 16, 16, 16, 16)],
    ),
    "a transposed value that products read": (
        lambda x, y: (c := x - jnp.mean(x, 0)) @ jnp.tanh(c.T @ y),
        [*matrices(1, 8 * N, N), *matrices(1, 8 * N, 32)],
    ),
    "forces between all pairs, whose distances divide them": (
        lambda x: jnp.sum((d := x[:, None] - x) / (jnp.sum(d**2, -1, keepdims=True) + 1) ** 1.5, 1),
        matrices(1, 2 * N, 3),
    ),
    "the order of rows without the rows": (lambda x: jnp.argsort(x, 0), matrices(1)),
    "a constant that a product reads": (lambda x: x @ jnp.ones_like(x), matrices(1)),
    "a product of few rows that a softmax normalizes": (lambda x, w: nn.softmax(x @ w) @ w, matrices(2)),
    "a product of transposed rows that is summed": (
        lambda x, y: jnp.sum((x.T @ y) ** 2, 1),
        [*matrices(1, 64, 4 * N), *matrices(1, 64, N)],
    ),
    "distances of all pairs, and their gradient": (
        sw.grad(lambda x: jnp.sum(jnp.exp(-jnp.sum((x[:, None] - x) ** 2, -1)) @ x)),
        matrices(1, N, 32),
    ),
    "cumulative sums": (lambda x: jnp.cumsum(x @ x, 0) @ x, matrices(1)),
    "cumulative sums of an odd number of narrow rows from the end": (
        lambda x: jnp.sin(lax.cumsum(x, 0, reverse=True)),
        matrices(1, 4 * N - 1, N, dtype=jnp.bfloat16),
    ),
    "a product that is rolled": (lambda x: jnp.roll(x @ x, 3, 1) @ x, matrices(1)),
    "narrow rows that replace others": (
        lambda x, i, y: x.at[i].set(y),
        [*matrices(1, 4 * N, N, dtype=jnp.bfloat16), *matrices(1, N, dtype=np.int32), *matrices(1, dtype=jnp.bfloat16)],
    ),
    "narrow rows that are added to zeros": (
        lambda i, y: jnp.zeros((4 * N, N), y.dtype).at[i].add(y) * 2,
        [*matrices(1, N, dtype=np.int32), *matrices(1, dtype=jnp.bfloat16)],
    ),
    "narrow rows that are sorted": (jnp.sort, matrices(1, 4 * N, N, dtype=jnp.bfloat16)),
    "a convolution of images whose windows are reduced": (
        lambda x, w: lax.reduce_window(nn.relu(convolved(x, w)), -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
        [*matrices(1, 8, 32, 32, 32), *matrices(1, 3, 3, 32, 32)],
    ),
    "gradients of the largest elements of windows": (
        sw.grad(lambda x: jnp.sum(largest_in_windows(x) ** 3)),
        matrices(1, 8, 32, 32, 32),
    ),
    "gradients of the largest elements of windows that overlap": (
        sw.grad(lambda x: jnp.sum(largest_in_windows(x, 3, "SAME") ** 3)),
        matrices(1, 8, 32, 32, 32),
    ),
    "tangents of the largest elements of windows": (
        lambda x, t: sw.jvp(largest_in_windows, (x,), (t,)),
        matrices(2, 8, 32, 32, 32),
    ),
    "two slices of exponentials": (
        lambda x: ((y := jnp.exp(x))[:, 1:] * y[:, :-1])[::8],
        matrices(1, 4 * N, N),
    ),
    "two slices of a quotient": (
        lambda x: ((y := jnp.sin(x) / (x + 1))[:, 1:] * y[:, :-1])[::8],
        matrices(1, 4 * N, N),
    ),
    "half-precision rows without their maximum": (
        lambda x: x - x.max(-1, keepdims=True),
        matrices(1, 8 * N, N, dtype=np.float16),
    ),
    "slices in half precision that a loop reads": (
        lambda x, y: lax.scan(lambda y, x: (jnp.tanh(x + y), None), y, x)[0],
        [*matrices(1, 16, N, N, dtype=np.float16), *matrices(1, dtype=np.float16)],
    ),
    "attention in half precision": (attention, matrices(3, 4, N, 4, 32, dtype=np.float16)),
    "normalized rows in half precision": (nn.softmax, matrices(1, 8 * N, N, dtype=np.float16)),
    "exponentials of heads": (
        lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", jnp.exp(q), k).max(-1),
        matrices(2, 4, N, 4, 32),
    ),
    "a value that several levels of slices read": (lambda x: products_of_pairs(jnp.sin(x), 7), matrices(1, 64 * N, N)),
    "sums of transposed rows": (
        lambda w, v, x, y: sw.vmap(lambda w, v: likelihood(w, x, y) - likelihood(v, x, y))(w, v),
        [*matrices(2, 32, N), *matrices(1, 16 * N, N), *matrices(1, 16 * N)],
    ),
    "the sum of negated rows": (centered_products, matrices(2, 4, N, 8 * N)),
    "gathered windows that kernels of another shape read": (
        masked_windows,
        [*matrices(1), *matrices(1, 16 * N, dtype=np.int32), *matrices(1, N, 4)],
    ),
    "a value that a product reads as a matrix of another shape": (
        lambda x, weights: jnp.einsum("b,bij->ij", weights, jnp.sort(x) * 2),
        [*matrices(1, 8, N, N), *matrices(1, 8)],
    ),
    "rows in bfloat16 that a loop gathers": (
        lambda rows, i: lax.scan(lambda i, _: ((i + (2 * rows[i]).sum(-1).astype(np.int32)) % 7, None), i, length=4)[0],
        [*matrices(1, 16 * N, N, dtype=jnp.bfloat16), *matrices(1, N, dtype=np.int32)],
    ),
    "the memory of a carry that a body has read": (
        lambda x, w: lax.fori_loop(0, 4, lambda _, x: jnp.tanh(jnp.tanh(jnp.tanh(x @ w) @ w) @ w), x),
        [*matrices(1, 16 * N, N), *matrices(1)],
    ),
    "a comparison with the maximum of each row": (equal_to_largest, matrices(2, 16 * N, N)),
    "the gradient of the maximum of each row": (
        sw.grad(lambda x, y: (x.max(-1) * y).sum()),
        [*matrices(1, 16 * N, N), *matrices(1, 16 * N)],
    ),
    "gradients of an activation with the complementary error function": (
        sw.grad(lambda x, y: jnp.sum((nn.gelu(x @ y, approximate=False) @ y) ** 2), (0, 1)),
        matrices(2),
    ),
    "narrow gradients of an activation with the complementary error function": (
        sw.grad(lambda x, y: jnp.sum((nn.gelu(x @ y, approximate=False) @ y).astype(np.float32) ** 2), (0, 1)),
        matrices(2, dtype=jnp.bfloat16),
    ),
    "gradients of a depthwise convolution": (
        sw.grad(lambda x, w: jnp.sum(grouped(jnp.sin(x), w) ** 2), (0, 1)),
        [*matrices(1, 8, 8, 8, N), *matrices(1, 3, 3, 1, N)],
    ),
    "the narrow gradient of a depthwise kernel": (
        sw.grad(lambda x, w: jnp.sum(grouped(jnp.sin(x), w) ** 2).astype(np.float32), 1),
        [*matrices(1, 8, 8, 8, N, dtype=jnp.bfloat16), *matrices(1, 3, 3, 1, N, dtype=jnp.bfloat16)],
    ),
    "the gradient of the kernel of a convolution with 16 groups": (
        sw.grad(lambda x, w: jnp.sum(grouped(jnp.sin(x), w, 16) ** 2), 1),
        [*matrices(1, 8, 8, 8, N), *matrices(1, 3, 3, N // 16, N)],
    ),
    "a convolution of images that is averaged": (
        lambda x, w: convolved(x, w).mean((1, 2)),
        [*matrices(1, 8, 32, 32, 32), *matrices(1, 3, 3, 32, 32)],
    ),
    "a selected value that is reduced": (
        sw.grad(softmax_loss),
        [*matrices(1, 4 * N, 64), *matrices(1, 64, 4 * N), *matrices(1, 4 * N, dtype=np.int32)],
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_peak_is_that_of_xlas_buffer_assignment_on_cpu(name):
    function, args = PROGRAMS[name]
    jitted = sw.jit(function)
    expected = assigned_by_xla(jitted, *args)
    assert jitted.lower(*args).plan.peak_bytes == pytest.approx(expected, rel=0.01), expected


def test_the_cached_peak_depends_on_donated_inputs_and_hardware():
    local = local_of(lambda x: jnp.tanh(x) + 1, *matrices(1))
    cases = [(donated, hardware) for donated in ((), (0,)) for hardware in (None, H200)]
    for _ in range(2):
        for donated, hardware in cases:
            expected = Liveness.from_program(local, donated, hardware).peak_bytes
            assert peak_bytes(local, donated, hardware) == expected
            assert peak(local, donated, hardware)[0] == expected
    assert peak_bytes(local, (0,)) < peak_bytes(local)


def test_copies_for_the_gradient_of_a_kernel_run_after_other_consumers_on_cpu():
    """The gradient of the second kernel reads a copy of a cotangent that the first convolution's gradient reads."""

    def loss(w, v, x):
        return (convolved(nn.relu(convolved(x, w)), v) ** 2).sum()

    args = [*matrices(2, 3, 3, 32, 32), *matrices(1, 16, 32, 32, 32)]
    local = local_of(sw.grad(loss, (0, 1)), *args)
    kernels = Liveness.from_program(local, (), chip("cpu")).ranges.kernels
    assert [kernel.root.op.name for kernel in kernels][-4:] == ["conv", "select", "conv", "conv"]
    assert [kernel.root.outputs[0].type.shape[0] for kernel in kernels][-4:] == [16, 16, 3, 3]


def test_a_gradient_step_needs_what_xla_assigns_on_cpu():
    def step(w, v, x):
        gradients = sw.grad(two_layers, (0, 1))(w, v, x)
        return [p - 0.1 * g for p, g in zip((w, v), gradients, strict=True)]

    jitted = sw.jit(step, donate_argnums=(0, 1))
    args = [*matrices(2), *matrices(1, 16 * N, N)]
    assert jitted.lower(*args).plan.peak_bytes == pytest.approx(assigned_by_xla(jitted, *args), rel=0.05)


def test_arguments_that_are_read_later_are_copied_on_cpu():
    """The new weight does not depend on the product that reads the old one."""

    def step(w, x, g):
        return w - 0.1 * (x.T @ g), jnp.tanh(g @ w.T)

    jitted = sw.jit(step, donate_argnums=0)
    args = matrices(3)
    assert jitted.lower(*args).plan.peak_bytes == pytest.approx(assigned_by_xla(jitted, *args), rel=0.01)


def test_a_narrow_product_that_is_only_converted_is_not_rounded_on_cpu():
    jitted, args = sw.jit(lambda x, y: jnp.sin((x @ y).astype(np.float32))), matrices(2, dtype=jnp.bfloat16)
    assert jitted.lower(*args).plan.peak_bytes == pytest.approx(assigned_by_xla(jitted, *args), rel=0.01)


def test_narrow_floats_are_multiplied_as_f32_on_cpu():
    jitted, args = sw.jit(lambda x, y: (x @ y) @ y), matrices(2, dtype=jnp.bfloat16)
    expected = assigned_by_xla(jitted, *args)
    assert jitted.lower(*args).plan.peak_bytes == pytest.approx(expected, rel=0.01)
    assert peak_bytes(local_of(jitted, *args)) < 0.5 * expected  # where they are not converted


def test_donated_arguments_are_reused_behind_collectives_that_send_nothing():
    """A plan for one device has collectives along axes of size one, which XLA removes."""

    def step(state, gradient):
        mean = 0.9 * state["mean"] + gradient
        return {"mean": mean, "weight": state["weight"] - mean}

    mean, weight, gradient = matrices(3)
    search = sw.autoshard(sw.jit(step, donate_argnums=0), hardware="h100", count=1)
    assert search({"mean": mean, "weight": weight}, gradient).peak_bytes == 3 * MATRIX


def test_results_are_allocated_before_the_program_runs():
    """A temporary uses the buffer of a result that is not computed yet, if it is large enough."""
    assert peak_bytes(local_of(lambda x: (x @ x) @ x, *matrices(1))) == 3 * MATRIX - MATRIX + MATRIX
    wide = local_of(lambda x: ((x @ x) @ x)[:, :1], *matrices(1))
    assert peak_bytes(wide) == MATRIX + 4 * N + 2 * MATRIX


def test_a_donated_argument_and_its_result_are_one_allocation():
    local = local_of(lambda w, g: w - g, *matrices(2))
    assert peak_bytes(local) == 3 * MATRIX and peak_bytes(local, [0]) == 2 * MATRIX
    read_later = local_of(lambda w, g: (w - g, w @ g), *matrices(2))
    assert peak_bytes(read_later, [0]) == 4 * MATRIX  # the new w is a temporary until the product has read the old one


def test_the_peak_is_listed_and_bounded():
    local = local_of(sw.grad(lambda w, x: layers(x, w).sum()), *matrices(1, 4, N, N), *matrices(1))
    for hardware in (None, chip("cpu"), H200):
        held, levels = peak(local, (), hardware)
        if hardware is not H200:  # there, XLA splits the products, whose levels are listed as written
            assert held == sum(value.bytes for level in levels for value in level.live.values())
        assert held <= total_bytes(local.program, hardware)
    assert peak_bytes(local, (), H200) <= stored_bytes(local, H200) < total_bytes(local.program_on_gpu(H200), H200)
    assert live_value_bytes(local) <= peak_bytes(local)


def test_a_carry_is_one_buffer_if_its_initial_value_dies():
    def loop(x):
        return lax.scan(lambda c, _: (jnp.tanh(c), None), x @ x, length=4)[0][0, 0]

    # x, the product that the loop overwrites, and the scalar
    assert peak_bytes(local_of(loop, *matrices(1))) == 2 * MATRIX + 4


def test_a_slice_that_only_a_stack_reads_is_written_to_the_stack():
    def loop(x):
        return lax.scan(lambda c, _: (c, jnp.sin(x) * c), jnp.float32(1), length=4)[1]

    assert peak_bytes(local_of(loop, *matrices(1))) == MATRIX + 4 * MATRIX + 4


class TestGpu:
    """The memory that a GPU's libraries need."""

    def peak(self, function, *args):
        return sw.simulate(function, hardware="h200")(*args).peak_bytes

    def test_a_large_product_needs_a_workspace_and_a_small_one_does_not(self):
        large = sw.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
        assert self.peak(lambda x: x @ x, large) == 2 * large.size * 2 + H200.product_workspace
        thin = sw.ShapeDtypeStruct((4096, 16), jnp.bfloat16)
        parts = (32 + 1) * 4 * 16 * 16  # XLA splits the product, and sums the parts in f32
        assert self.peak(lambda x: x.T @ x, thin) == 2 * (thin.size + 16 * 16) + parts

    def test_the_heap_has_gaps(self):
        """The step of mlp × 16 has 105 MiB of live temporaries in a heap of 113 MiB on an H200."""

        def step(x):
            a = jnp.cumsum(x[:1000])
            b = jnp.cumsum(a)
            c = jnp.cumsum(jnp.concatenate([b, x])[:2000])
            d = jnp.cumsum(jnp.concatenate([c, b])[:3000])
            return (d[:2] + c[:2]).sum()

        local = local_of(step, sw.ShapeDtypeStruct((4000,), np.float32))
        liveness = Liveness.from_program(local, (), H200)
        # XLA places larger arrays first: one of 1,000 elements leaves a gap that none of the live arrays fits into.
        assert liveness.peak_bytes == max(liveness.live_bytes) + 4 * 1000

    def test_all_products_of_a_program_that_computes_need_a_workspace(self):
        """The step of continuous flow has no product in a kernel of XLA: `product_options` leaves all to cuBLASLt."""
        large = sw.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
        thin = sw.ShapeDtypeStruct((4096, 128), jnp.bfloat16)
        peak = self.peak(lambda x, y: (x @ x)[:1, :1] + (y.T @ y)[:1, :1], large, thin)
        alone = self.peak(lambda y: y.T @ y, thin)
        parts = (32 + 1) * 4 * 128 * 128  # XLA splits the product, and sums the parts in f32
        assert alone == 2 * (thin.size + 128 * 128) + parts
        assert peak >= 2 * (2 * large.size + thin.size + 2) + H200.product_workspace

    def test_long_rows_are_sorted_by_cub_with_scratch_memory(self):
        """Rows of 16,400 elements in the step of nearest neighbours, and of 8 and 1,024 in others, which XLA sorts."""

        def largest(x):
            return lax.top_k(x, 20)

        long, short = sw.ShapeDtypeStruct((64, 16400), np.float32), sw.ShapeDtypeStruct((64, 16000), np.float32)
        results = 2 * 4 * 64 * 20
        # the operand, all indices, both sorted, and the scratch memory
        assert self.peak(largest, long) == 6 * 4 * long.size + results
        assert self.peak(largest, short) == 2 * 4 * short.size + results  # the indices are sorted in place

    def test_a_gather_is_computed_again_in_each_kernel_that_reads_it(self):
        """The step of graph attention stores no rows of 131,072 edges: the kernels of its scatters gather them."""

        def sums(x, i):
            rows = x[i]
            return jnp.sum(rows * rows, -1), jnp.zeros_like(x).at[i].add(jnp.sin(rows))

        x, i = sw.ShapeDtypeStruct((1024, 256), np.float32), sw.ShapeDtypeStruct((65536,), np.int32)
        assert self.peak(sums, x, i) < 4 * i.size * 256

    def test_a_logistic_is_computed_again_in_each_kernel_that_reads_it(self):
        """The step of sorted experts stores the operands and the results of its gates, and no logistic of them."""

        def gated(x, w):
            h = x @ w
            y = nn.sigmoid(h)
            product = (h * y) @ w
            return product, y * jnp.sum(product)

        local = local_of(gated, *matrices(2))
        groups = local.kernel_groups(local.program, "gpu", H200)
        stored = [value for kernel in groups.kernels for value in kernel.writes if value not in groups.unstored]
        written = [e.op.name for e in local.program.equations if not set(stored).isdisjoint(e.outputs)]
        assert "logistic" not in written

    def test_a_quotient_of_rows_is_computed_again_in_each_kernel_that_reads_it(self):
        """The step of the tensor network stores the slices of its normalized matrices, and not the matrices."""

        def halves(x, norms):
            y = x / norms[:, None]
            return jnp.sin(y[::2]) @ y[1::2].T

        local = local_of(halves, *matrices(1), *matrices(1, N))
        kernels = local.kernel_groups(local.program, "gpu", H200).kernels
        written = {value for kernel in kernels for value in kernel.writes}
        assert not any(e.op.name == "div" and not written.isdisjoint(e.outputs) for e in local.program.equations)

    def test_a_value_that_is_read_in_two_orders_is_stored(self):
        """The step of the self-consistent field adds an array of four dims to its transpose, twice."""

        def symmetric(x):
            y = x + x.transpose(1, 0, 2, 3)
            return y + y.transpose(2, 3, 0, 1)

        x = sw.ShapeDtypeStruct((32, 32, 32, 32), np.float32)
        assert self.peak(symmetric, x) == 3 * 4 * x.size

    def test_the_result_of_merged_products_is_held_until_the_last_slice_is_read(self):
        """The step of self-distillation multiplies the rows of two images of different sizes by one weight."""

        def step(x, y, w, v):
            return jnp.sum(jnp.sin(x @ w) @ v) + jnp.sum(jnp.sin(y @ w) @ v)

        shapes = (8192, 512), (4096, 512), (512, 512), (512, 512)
        x, y, w, v = [sw.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
        rows = x.size + y.size
        # the arguments, and the operands and the result of the product of all rows
        assert self.peak(step, x, y, w, v) >= 4 * (rows + 2 * w.size + 2 * rows)
        local = local_of(step, x, y, w, v)
        assert peak_bytes(local, (), H200) <= stored_bytes(local, H200)

    def test_slices_of_stacks_are_copied_beside_the_kernels_of_a_body(self):
        """The body of lstm × 16 starts its copies of slices first, and waits for its copies into stacks last."""

        def loop(x, w):
            def body(c, w):
                h = jnp.tanh(jnp.tanh(c @ w) @ c)
                return jnp.tanh(h @ c) @ w, h.T @ h

            return lax.scan(body, x, w)

        local = local_of(loop, *matrices(1), *matrices(1, 4, N, N))
        ranges = Liveness.from_program(local, (), H200).ranges
        body = [index for index, frame in enumerate(ranges.frames) if frame.outer is not None]
        first, last = 2 * body[0], 2 * body[-1]
        (sliced,) = [buffer for buffer in ranges.buffers if buffer.held.what == "a slice for scan"]
        assert sliced.start == first
        assert any(b.end == last and b.start < last and b.held.what == "dot" for b in ranges.buffers)

    def test_int8_weights_of_all_layers_are_transposed_before_a_loop(self):
        """The step of integer inference transposes both its stacks of int8[6, 2048, 8192] before its scan."""

        def layers(x, w):
            def body(x, w):
                return lax.dot(x, w, preferred_element_type=np.int32).astype(np.int8), None

            return lax.scan(body, x, w)[0]

        x, w = [sw.ShapeDtypeStruct(shape, np.int8) for shape in ((256, 512), (16, 512, 512))]
        transposed = self.peak(lambda x, w: layers(x, w.mT), x, w)
        local = local_of(layers, x, w)
        copies = [buffer for buffer in Liveness.from_program(local, (), H200).ranges.buffers if buffer.copy_of]
        assert [copy.held.bytes for copy in copies] == [w.size]
        assert transposed >= self.peak(layers, x, w) > 2 * w.size

    def test_a_sort_overwrites_its_operand(self):
        x = sw.ShapeDtypeStruct((1 << 20,), np.float32)
        assert self.peak(lambda x: jnp.sort(jnp.cumsum(x)), x) == 2 * 4 * x.size

    def test_the_result_of_a_library_is_not_overwritten_in_place(self):
        x = sw.ShapeDtypeStruct((4096, 4096), jnp.float32)
        assert self.peak(lambda x: jnp.tanh(x @ x), x) == 3 * 4 * x.size  # the workspace is smaller than tanh

    def test_the_gradient_of_attention_accumulates_in_f32(self):
        q = sw.ShapeDtypeStruct((1, 1024, 4, 64), jnp.bfloat16)

        def loss(q, k, v):
            return nn.dot_product_attention(q, k, v, implementation="cudnn").astype(jnp.float32).sum()

        array, rows = 2 * q.size, 4 * 1024 * 4
        # q k v, their gradients, the output and its cotangent, the sums in f32, and two numbers per query
        assert self.peak(sw.grad(loss, (0, 1, 2)), q, q, q) == 8 * array + 2 * array + 2 * rows

    def test_an_argmin_computes_its_operand(self):
        """The step of vector quantization stores the products with all codes, and no distances of them."""
        types = [sw.ShapeDtypeStruct(shape, np.float32) for shape in ((8192, 64), (64, 4096), (8192, 1))]
        operands, products = sum(type.size for type in types), 8192 * 4096
        peak = self.peak(lambda x, y, z: jnp.argmin(z - x @ y, 1), *types)
        assert peak == 4 * (operands + products + 8192) + H200.product_workspace

    def test_a_convolution_reads_the_array_that_is_added_to_its_result(self):
        """The step of guided sampling broadcasts an embedding of each image, which cuDNN adds to a result."""
        image, kernel = [sw.ShapeDtypeStruct(shape, np.float32) for shape in ((8, 32, 32, 64), (3, 3, 64, 64))]
        embedding, bias = sw.ShapeDtypeStruct((8, 1, 1, 64), np.float32), sw.ShapeDtypeStruct((64,), np.float32)

        def convolve(x, kernel, y):
            return y + lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

        assert self.peak(convolve, image, kernel, embedding) == 4 * (3 * image.size + kernel.size + embedding.size)
        assert self.peak(convolve, image, kernel, bias) == 4 * (2 * image.size + kernel.size + bias.size)

    def test_gradients_of_kernels_need_the_results_of_all_cores(self):
        """Of 79 such gradients in f32 in compiled steps, none needs more, but for those of few channels."""

        def gradient(x, y):
            names = ("CHWN", "IHWO", "HWNC")
            return lax.conv_general_dilated(x, y, (1, 1), ((1, 1), (1, 1)), dimension_numbers=names)

        x = sw.ShapeDtypeStruct((8, 32, 32, 64), np.float32)
        kernel = 3 * 3 * 64 * 64
        assert self.peak(gradient, x, x) == 4 * (2 * x.size + kernel + H200.cores * 128 * 128)
        few = sw.ShapeDtypeStruct((8, 32, 32, 3), np.float32)
        assert self.peak(gradient, few, x) == 4 * (2 * (few.size + x.size) + 3 * 3 * 3 * 64)

    def test_standardized_rows_are_stored_if_no_library_reads_them(self):
        """The step of the point cloud stores rows before their scale and relu, which its products compute."""
        x, scale, w = [sw.ShapeDtypeStruct(shape, np.float32) for shape in ((32768, 64), (64,), (64, 32))]

        def loss(x, scale, w):
            centered = x - x.mean(-1, keepdims=True)
            rows = centered * lax.rsqrt((centered**2).mean(-1, keepdims=True) + 1e-6)
            h = jnp.maximum(rows * scale, 0.0)
            return h @ w, h.reshape(512, 64, 64).max(1), rows.sum(0)

        local = local_of(loss, x, scale, w)
        kernels = local.kernel_groups(local.program, "gpu", H200).kernels
        stored = {value for kernel in kernels for value in kernel.writes}
        rows = [e for e in local.program.equations if e.op.name == "mul" and e.outputs[0].type.size == x.size]
        assert [equation.outputs[0] in stored for equation in rows] == [True, False]

    def test_convolutions_of_volumes_need_copies_and_those_of_images_nothing(self):
        """249 of 389 convolutions of f32 in the recorded steps have no workspace: of images, 196 of 231.

        The one of 16 MiB of the video net has 32.4 MiB: its operand, its kernel, and its result.
        """

        def convolve(x, kernel, dims):
            names = (f"N{dims}C", f"{dims}IO", f"N{dims}C")
            return lax.conv_general_dilated(x, kernel, (1,) * len(dims), "SAME", dimension_numbers=names)

        image, kernel = [sw.ShapeDtypeStruct(shape, np.float32) for shape in ((8, 32, 32, 64), (3, 3, 64, 64))]
        arrays = 2 * image.size + kernel.size
        assert self.peak(lambda *args: convolve(*args, "HW"), image, kernel) == 4 * arrays
        volume, kernel = [sw.ShapeDtypeStruct(shape, np.float32) for shape in ((8, 8, 32, 32, 64), (3, 3, 3, 64, 64))]
        arrays = 2 * volume.size + kernel.size
        assert self.peak(lambda *args: convolve(*args, "DHW"), volume, kernel) == 2 * 4 * arrays

    def test_a_convolution_that_pads_one_end_reads_a_padded_copy(self):
        x, kernel = (
            sw.ShapeDtypeStruct((8, 32, 32, 64), jnp.bfloat16),
            sw.ShapeDtypeStruct((3, 3, 64, 64), jnp.bfloat16),
        )

        def convolve(x, kernel):
            return lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

        padded = 8 * 33 * 33 * 64
        assert self.peak(convolve, x, kernel) == 2 * (x.size + kernel.size + padded + 8 * 16 * 16 * 64)

    def test_a_dilated_convolution_reads_a_padded_copy_unless_it_is_a_gradient(self):
        """The step of the autoencoder pads images of 32 × 32 to 67 × 67 for a transposed convolution."""
        x, kernel = [sw.ShapeDtypeStruct(shape, np.float32) for shape in ((8, 32, 32, 64), (4, 4, 64, 64))]

        def upsample(x, kernel):
            return lax.conv_general_dilated(
                x, kernel, (1, 1), [(2, 2)] * 2, lhs_dilation=(2, 2), dimension_numbers=("NHWC", "HWIO", "NHWC")
            )

        padded, result = 8 * 67 * 67 * 64, 8 * 64 * 64 * 64
        assert self.peak(upsample, x, kernel) == 4 * (x.size + kernel.size + padded + result)
        as_gradient = self.peak(lambda x, kernel: upsample(x, lax.rev(kernel, (0, 1))), x, kernel)
        assert as_gradient == 4 * (x.size + 2 * kernel.size + result)


def test_the_memory_of_a_device_has_a_reserve():
    run = sw.simulate(lambda x: x @ x, hardware="h200")(sw.ShapeDtypeStruct((4096, 4096), jnp.bfloat16))
    assert run.fits and run.device_bytes == run.peak_bytes + H200.reserved_memory
    most = H200.usable_memory // 2
    almost = sw.simulate(lambda x: x + 1, hardware="h200")(sw.ShapeDtypeStruct((most,), jnp.int8))
    too_large = sw.simulate(lambda x: x + 1, hardware="h200")(sw.ShapeDtypeStruct((most + 1,), jnp.int8))
    assert almost.fits and not too_large.fits and too_large.peak_bytes < H200.memory
    assert "(does not fit)" in str(too_large) and "650.0 MB reserved of 141.0 GB" in str(too_large)


def test_copies_in_wider_dtypes_count_against_a_limit():
    """XLA's CPU compiler converts the slices of bfloat16 that loops read, and holds more than all values together."""

    def layers(weights, x):
        return lax.scan(lambda x, w: (jnp.tanh(x @ w), x), x, weights)

    shapes = [(8, 64, 64), (64, 64)]
    local = local_of(sw.grad(lambda *args: layers(*args)[0].sum()), *(np.ones(s, jnp.bfloat16) for s in shapes))
    held = peak_bytes(local, (), chip("cpu"))
    assert fits_in_memory(local, held, (), chip("cpu"))
    assert not fits_in_memory(local, held - 1, (), chip("cpu"))
