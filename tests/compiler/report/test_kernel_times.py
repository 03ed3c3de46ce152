"""The times of kernels against the formulas of the chip."""

import pytest

from shardwise.compiler.partition.product_shape import product_shape
from shardwise.compiler.report.kernel_times import bytes_sent, kernel_seconds
from shardwise.compiler.traffic import all_gather, in_one_launch
from tests.compiler.schedule.local_programs import DOT, H200, MESH, local_of

GATHER = "all_gather[dim=0, axes=('data',), count=4, launch=0]"


def kernels_of(text):
    local = local_of(text)
    return local, local.kernel_groups(local.program).kernels


def product_shape_of(kernel):
    return product_shape(kernel.root.op, tuple(value.type for value in kernel.root.inputs))


def test_a_product_takes_the_time_of_its_flops():
    local, (kernel,) = kernels_of(f"(x: f32[512,64], y: f32[64,256]) {{\nz: f32[512,256] = {DOT} x y\nreturn z\n}}")
    shape = product_shape_of(kernel)
    assert shape in ((1, 512, 64, 256), (1, 512, 256, 64))
    expected = H200.product_time(*shape, kernel.bytes_accessed, kernel.root.inputs[0].type.dtype)
    assert kernel_seconds(local, kernel, H200) == expected
    assert bytes_sent(local, kernel) == 0


def test_a_batched_product_is_several_products():
    _, (kernel,) = kernels_of(
        "(x: f32[8,32,64], y: f32[8,64,16]) {\nz: f32[8,32,16] = dot[contract=((2,), (1,)), batch=((0,), (0,))] x y\n"
        "return z\n}"
    )
    batch, m, n, k = product_shape_of(kernel)
    assert (batch, m) == (8, 32) and {n, k} == {16, 64}


def test_other_kernels_take_the_time_of_their_memory_traffic():
    local, (kernel,) = kernels_of("(x: f32[512,64]) {\ny: f32[512,64] = tanh x\nreturn y\n}")
    assert kernel_seconds(local, kernel, H200) == H200.memory_time(2 * 4 * 512 * 64)


def test_a_launch_sends_the_bytes_of_all_and_pays_the_hops_of_one():
    local, (kernel,) = kernels_of(
        f"(x: f32[512], y: f32[64]) {{\na: f32[2048] = {GATHER} x\nb: f32[256] = {GATHER} y\nreturn a, b\n}}"
    )
    assert bytes_sent(local, kernel) == 3 * 4 * (512 + 64)
    together = in_one_launch(all_gather(4 * 512, 4), all_gather(4 * 64, 4))
    assert kernel_seconds(local, kernel, H200) == pytest.approx(H200.collective_time(together, MESH, ("data",)))
    alone = sum(H200.collective_time(all_gather(4 * size, 4), MESH, ("data",)) for size in (512, 64))
    assert kernel_seconds(local, kernel, H200) < alone
