"""Products and memory traffic of kernels in every form in which XLA writes them, compared with values by hand."""

import json
from pathlib import Path

import pytest

from shardwise.compiler.dtypes import SHORT_NAMES
from shardwise.compiler.plan.hardware import chip
from shardwise.explain.device_trace import read_trace
from shardwise.explain.hlo_kernels import Attention, HloKernels, Product, Work
from shardwise.runtime.hlo_text import read_computations

H200 = chip("h200")
RECORDED = Path(__file__).parent / "recorded"
CONFIG = json.dumps(
    {
        "gemm_backend_config": {
            "dot_dimension_numbers": {"lhs_contracting_dimensions": ["1"], "rhs_contracting_dimensions": ["0"]}
        }
    }
)
MODULE = """HloModule m, is_scheduled=true

%fused_dot (p0: bf16[64,128], p1: bf16[128,32]) -> bf16[64,32] {
  %p0 = bf16[64,128]{1,0} parameter(0)
  %p1 = bf16[128,32]{1,0} parameter(1)
  %dot.1 = bf16[64,32]{1,0} dot(%p0, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %neg = bf16[64,32]{1,0} negate(%dot.1)
}

%fused_slice (p: f32[8,4,16], i: s32[]) -> f32[4,16] {
  %p = f32[8,4,16]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  %slice = f32[1,4,16]{2,1,0} dynamic-slice(%p, %i, %zero, %zero), dynamic_slice_sizes={1,4,16}
  %view = f32[4,16]{1,0} bitcast(%slice)
  ROOT %exp = f32[4,16]{1,0} exponential(%view)
}

%fused_update (p: f32[8,4,16], u: f32[4,16], i: s32[]) -> f32[8,4,16] {
  %p = f32[8,4,16]{2,1,0} parameter(0)
  %u = f32[4,16]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %zero = s32[] constant(0)
  %view = f32[1,4,16]{2,1,0} bitcast(%u)
  ROOT %update = f32[8,4,16]{2,1,0} dynamic-update-slice(%p, %view, %i, %zero, %zero)
}

ENTRY %main (a: bf16[64,128], b: bf16[128,32], x: f32[8,4,16], u: f32[4,16], i: s32[]) -> f32[8,4,16] {
  %a = bf16[64,128]{1,0} parameter(0)
  %b = bf16[128,32]{1,0} parameter(1)
  %x = f32[8,4,16]{2,1,0} parameter(2)
  %u = f32[4,16]{1,0} parameter(3)
  %i = s32[] parameter(4)
  %k = f32[3,3,4,6]{3,2,1,0} constant({...})
  %fusion = bf16[64,32]{1,0} fusion(%a, %b), kind=kCustom, calls=%fused_dot
  %call = (bf16[64,32]{1,0}, s8[1024]{0}) custom-call(%a, %b), custom_call_target="__cublas$gemm", CONFIG
  %batched = f32[8,4,4]{2,1,0} dot(%x, %x), lhs_batch_dims={0}, rhs_batch_dims={0}, DIMS
  %images = f32[2,10,10,4]{3,2,1,0} broadcast(%i), dimensions={}
  %conv = f32[2,10,10,6]{3,2,1,0} convolution(%images, %k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f
  %sliced = f32[4,16]{1,0} fusion(%x, %i), kind=kLoop, calls=%fused_slice
  %copy = f32[4,16]{1,0} copy(%u)
  %view = f32[64]{0} bitcast(%u)
  %later = (OPERANDS, f32[8,4,16]{2,1,0}, u32[]) fusion-start(%x, %u, %i), kind=kLoop, calls=%fused_update
  %done = f32[8,4,16]{2,1,0} fusion-done(%later)
  %to_host = (f32[4,16]{1,0:S(5)}, f32[4,16]{1,0}, u32[]) copy-start(%u)
  %on_host = f32[4,16]{1,0:S(5)} copy-done(%to_host)
  ROOT %updated = f32[8,4,16]{2,1,0} fusion(%x, %u, %i), kind=kLoop, calls=%fused_update
}
""".replace("CONFIG", f"backend_config={CONFIG}").replace("DIMS", "lhs_contracting_dims={2}, rhs_contracting_dims={2}")
MODULE = MODULE.replace("OPERANDS", "(f32[8,4,16]{2,1,0}, f32[4,16]{1,0}, s32[])")


@pytest.fixture(scope="module")
def kernels():
    return HloKernels(read_computations(MODULE), H200)


def instruction(kernels, name):
    return next(each for each in kernels.computations.by_name["main"] if each.name == name)


@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("fusion", Product(1, 64, 32, 128, "bf16")),
        ("call", Product(1, 64, 32, 128, "bf16")),
        ("batched", Product(8, 4, 4, 16, "f32")),
        ("conv", Product(1, 200, 6, 36, "f32")),
        ("sliced", None),
        ("copy", None),
    ],
)
def test_products(kernels, name, product):
    assert kernels.product(instruction(kernels, name), "main") == product


@pytest.mark.parametrize(
    ("name", "accessed"),
    [
        ("fusion", 2 * (64 * 128 + 128 * 32 + 64 * 32)),
        ("sliced", 4 * (64 + 64) + 4),  # one of 8 slices, the result, and the index
        ("updated", 4 * (64 + 64) + 4),  # the update is read and written; the rest of the array is left in place
        ("copy", 4 * (64 + 64)),
        ("later", 4 * (64 + 64) + 4),
        ("to_host", 4 * (64 + 64)),
    ],
)
def test_memory_traffic(kernels, name, accessed):
    assert kernels.bytes_accessed(instruction(kernels, name), "main") == accessed


@pytest.mark.parametrize("name", ["done", "on_host", "view"])
def test_the_ends_of_asynchronous_instructions_are_no_kernels(kernels, name):
    assert kernels.work(instruction(kernels, name), "main") == Work()


def recorded(step, name):
    """Return the kernels of a step that ran on an H200, and an instruction of it."""
    program = read_trace(RECORDED / f"h200_{step}.xplane.pb.gz").program("step")
    kernels, scope = HloKernels(program.module.computations, H200), program.module.entry
    return kernels, next(each for each in kernels.computations.by_name[scope] if each.name == name), scope


def test_attention_of_cudnn():
    scores = 2 * 16 * 8192 * 8192 / 2  # batch, heads, queries and keys; a causal mask leaves one half
    kernels, forward, scope = recorded("attention_at_8192", "fused_attention.5")
    assert kernels.attention(forward, scope) == Attention(2 * 2 * scores * 128, 4096, "bf16", False)
    array, logsumexp = 2 * 2 * 8192 * 16 * 128, 4 * 2 * 16 * 8192
    assert kernels.bytes_accessed(forward, scope) == 4 * array + logsumexp  # without the workspace
    _, backward, _ = recorded("attention_at_8192", "fused_attention_grad.8")
    assert kernels.attention(backward, scope) == Attention(5 * 2 * scores * 128, 4096, "bf16", True)
    seconds = H200.attention_time(5 * 2 * scores * 128, 4096, 0, SHORT_NAMES["bf16"], is_gradient=True)
    assert kernels.seconds(backward, scope) == pytest.approx(seconds)
    _, other, _ = recorded("attention_at_8192", "input_reduce_fusion")
    assert kernels.attention(other, scope) is None


@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("cudnn-conv.12", Product(1, 128 * 32 * 32, 256, 9 * 256, "bf16")),
        ("cudnn-conv-bw-input.12", Product(1, 128 * 32 * 32, 256, 9 * 256, "bf16")),
        ("cudnn-conv-bw-filter.12", Product(1, 9 * 256, 256, 128 * 32 * 32, "bf16")),
    ],
)
def test_convolutions_of_cudnn(name, product):
    kernels, instruction, scope = recorded("conv_net", name)
    assert kernels.product(instruction, scope) == product


def test_times_are_those_of_the_chip(kernels):
    product = H200.product_time(1, 64, 32, 128, 28672, SHORT_NAMES["bf16"])
    assert kernels.seconds(instruction(kernels, "fusion"), "main") == product
    assert kernels.seconds(instruction(kernels, "copy"), "main") == H200.memory_time(512)
    assert kernels.seconds(instruction(kernels, "view"), "main") == 0
    assert kernels.seconds(instruction(kernels, "a"), "main") == 0
