"""Run the kernels of JAX's wheel, unmodified, and write their results: `python jax_kernels.py LIBRARY FILE CASE...`.

With the library "shardwise", `import jax` means Shardwise, and the kernels are loaded from the files of the installed
wheel, which is not imported. With "jax", it is the real one, and the kernels run in its interpret mode.
"""

import importlib
import importlib.util
import sys
import sysconfig
from collections.abc import Callable
from functools import partial
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import numpy as np

OPS = "jax.experimental.pallas.ops"
CASES: dict[str, Callable[[Any], Any]] = {}


class KernelFinder(MetaPathFinder):
    """Finds the modules of `jax.experimental.pallas.ops` in the files of the installed wheel."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname != OPS and not fullname.startswith(f"{OPS}."):
            return None
        base = Path(sysconfig.get_paths()["purelib"], *fullname.split("."))
        if base.is_dir():
            return importlib.util.spec_from_file_location(
                fullname, base / "__init__.py", submodule_search_locations=[str(base)]
            )
        return importlib.util.spec_from_file_location(fullname, base.with_suffix(".py"))


def case(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    CASES[function.__name__] = function
    return function


def is_interpreted_by_jax(jax) -> bool:
    return "shardwise" not in jax.__file__


def kernels(path: str) -> Any:
    return importlib.import_module(f"{OPS}.{path}")


def normal(jax, seed: int, shape: tuple[int, ...], dtype: str = "float32") -> Any:
    return jax.numpy.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def with_gradients(jax, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Return the results of a function, and the gradients of a weighted sum of them."""
    out, vjp = jax.vjp(function, *args)
    leaves = jax.tree.leaves(out)
    weights = [normal(jax, 100 + number, leaf.shape, str(leaf.dtype)) for number, leaf in enumerate(leaves)]
    return [*leaves, *jax.tree.leaves(vjp(jax.tree.unflatten(jax.tree.structure(out), weights)))]


@case
def matmul(jax):
    run = kernels("tpu.matmul").matmul
    results = []
    for dtype in ("float32", "bfloat16"):
        x, y = normal(jax, 0, (256, 512), dtype), normal(jax, 1, (512, 256), dtype)
        results.append(run(x, y, block_shape=(128, 128), block_k=128))
    return results


def flash_inputs(jax, dtype, heads=2, length=256, size=64):
    return [normal(jax, seed, (1, heads, length, size), dtype) for seed in range(3)]


def flash(jax, dtype, causal, biased, segmented, blocks=128):
    module = kernels("tpu.flash_attention")
    q, k, v = flash_inputs(jax, dtype)
    bias = normal(jax, 9, (1, 2, 256, 256), dtype) if biased else None
    ids = jax.numpy.asarray(np.arange(256)[None] // 100, "int32") if segmented else None
    sizes = module.BlockSizes(
        block_q=blocks, block_k_major=blocks, block_k=blocks, block_b=1,
        block_q_major_dkv=blocks, block_k_major_dkv=blocks, block_k_dkv=blocks, block_q_dkv=blocks,
        block_k_major_dq=blocks, block_k_dq=blocks, block_q_dq=blocks,
    )  # fmt: skip
    segment_ids = None if ids is None else module.SegmentIds(ids, ids)

    def run(q, k, v):
        return module.flash_attention(q, k, v, bias, segment_ids, causal=causal, sm_scale=0.125, block_sizes=sizes)

    return with_gradients(jax, run, q, k, v)


@case
def flash_attention(jax):
    return flash(jax, "float32", True, False, False)


@case
def flash_attention_bfloat16(jax):
    return flash(jax, "bfloat16", False, True, False)


@case
def flash_attention_segments(jax):
    return flash(jax, "float32", True, False, True, 64 * 2)


@case
def megablox(jax):
    module = kernels("tpu.megablox")
    results = []
    for dtype in ("float32", "bfloat16"):
        lhs, rhs = normal(jax, 0, (256, 128), dtype), normal(jax, 1, (4, 128, 128), dtype)
        sizes = jax.numpy.asarray([100, 0, 56, 100], "int32")

        def run(lhs, rhs, sizes=sizes):
            return module.gmm(lhs, rhs, sizes, jax.numpy.float32, (64, 128, 128), interpret=True)

        results += with_gradients(jax, run, lhs, rhs)
    return results


@case
def splash_attention(jax):
    module = kernels("tpu.splash_attention")
    heads, length, size = 2, 256, 128
    mask = module.MultiHeadMask([module.CausalMask((length, length)), module.LocalMask((length, length), (64, 0), 0)])
    blocks = module.BlockSizes(
        block_q=128, block_kv=128, block_kv_compute=128, block_q_dkv=128, block_kv_dkv=128, block_kv_dkv_compute=128,
        block_q_dq=128, block_kv_dq=128,
    )  # fmt: skip
    kernel = module.make_splash_mha(mask, block_sizes=blocks, head_shards=1, q_seq_shards=1, interpret=True)
    q, k, v = (normal(jax, seed, (heads, length, size)) for seed in range(3))
    segments = jax.numpy.asarray(np.arange(length) // 100, "int32")
    ids = module.SegmentIds(segments, segments)
    return with_gradients(jax, lambda q, k, v: kernel(q * size**-0.5, k, v, segment_ids=ids), q, k, v)


@case
def splash_attention_fused_backward(jax):
    module = kernels("tpu.splash_attention")
    heads, length, size = 4, 256, 128
    mask = module.MultiHeadMask([module.FullMask((length, length))] * heads)
    blocks = module.BlockSizes(
        block_q=128, block_kv=256, block_kv_compute=128, block_q_dkv=128, block_kv_dkv=256, block_kv_dkv_compute=128,
        use_fused_bwd_kernel=True,
    )  # fmt: skip
    kernel = module.make_splash_mqa(mask, block_sizes=blocks, head_shards=1, q_seq_shards=1, interpret=True)
    q = normal(jax, 0, (heads, length, size), "bfloat16")
    k, v = (normal(jax, seed, (length, size), "bfloat16") for seed in (1, 2))
    return with_gradients(jax, kernel, q, k, v)


def pages(jax, dtype):
    """Return queries, pages of keys and values, lengths and page indices: 4 sequences of up to 4 pages."""
    heads, kv_heads, size, count, page = 8, 2, 128, 16, 16
    q = normal(jax, 0, (4, heads, size), dtype)
    k, v = (normal(jax, seed, (kv_heads, count, page, size), dtype) for seed in (1, 2))
    indices = jax.numpy.asarray(np.random.default_rng(3).permutation(count).reshape(4, 4), "int32")
    return q, k, v, jax.numpy.asarray([64, 5, 17, 33], "int32"), indices


@case
def paged_attention(jax):
    module = kernels("tpu.paged_attention.paged_attention_kernel")
    results = []
    for dtype in ("float32", "bfloat16"):
        q, k, v, lengths, indices = pages(jax, dtype)
        results.append(module.paged_attention(q, k, v, lengths, indices, pages_per_compute_block=2))
        results.append(
            module.paged_attention(q, k, v, lengths, indices, pages_per_compute_block=4, inline_seq_dim=False)
        )
    return results


@case
def ragged_paged_attention(jax):
    module = kernels("tpu.ragged_paged_attention.kernel")
    jnp = jax.numpy
    heads, kv_heads, size, count, page = 4, 2, 128, 16, 16
    q = normal(jax, 0, (32, heads, size))
    kv = normal(jax, 1, (count, page, 2 * kv_heads, size))
    indices = jnp.asarray(np.random.default_rng(3).permutation(count).reshape(4, 4), "int32")
    args = (
        *(q, kv, jnp.asarray([40, 20, 64, 0], "int32"), indices, jnp.asarray([0, 5, 12, 28, 28], "int32")),
        jnp.asarray([3], "int32"),
    )
    if is_interpreted_by_jax(jax):  # JAX's interpreter fails on the masked stores of this kernel
        out = module.ref_ragged_paged_attention(*args, sm_scale=0.1)
    else:
        out = module.ragged_paged_attention(*args, sm_scale=0.1, num_kv_pages_per_block=2, num_queries_per_block=8)
    return out[:28]  # the rows of the three sequences


@case
def gpu_attention(jax):
    module = kernels("gpu.attention")
    results = []
    for dtype in ("float32", "bfloat16"):
        q, k, v = (normal(jax, seed, (2, 128, 2, 32), dtype) for seed in range(3))
        sizes = module.BlockSizes(
            block_q=64, block_k=32, block_q_dkv=32, block_kv_dkv=32, block_q_dq=32, block_kv_dq=32
        )
        run = partial(module.mha, segment_ids=None, sm_scale=0.2, causal=True, block_sizes=sizes, interpret=True)
        results += with_gradients(jax, run, q, k, v)
    return results


@case
def gpu_softmax(jax):
    run = kernels("gpu.softmax").softmax
    return [run(normal(jax, 0, (5, 100), dtype), interpret=True) for dtype in ("float32", "bfloat16")]


@case
def gpu_layer_norm(jax):
    run = kernels("gpu.layer_norm").layer_norm
    args = normal(jax, 0, (3, 4, 100)), normal(jax, 1, (100,)), normal(jax, 2, (100,))
    return with_gradients(jax, partial(run, interpret=True), *args)


@case
def gpu_rms_norm(jax):
    run = kernels("gpu.rms_norm").rms_norm
    args = normal(jax, 0, (3, 4, 100)), normal(jax, 1, (100,)), normal(jax, 2, (100,))
    return with_gradients(jax, partial(run, interpret=True), *args)


@case
def gpu_decode_attention(jax):
    module = kernels("gpu.decode_attention")
    q, k, v = normal(jax, 0, (2, 8, 64)), normal(jax, 1, (2, 128, 64)), normal(jax, 2, (2, 128, 64))
    results = [module.mqa(q, k, v, sm_scale=0.1, k_splits=4, interpret=True)]
    keys, values = (normal(jax, seed, (2, 128, 2, 64)) for seed in (3, 4))
    lengths = jax.numpy.asarray([100, 30], "int32")
    return [*results, module.gqa(q, keys, values, None, lengths, sm_scale=0.1, k_splits=4, interpret=True)]


@case
def gpu_paged_attention(jax):
    module = kernels("gpu.paged_attention")
    q, k, v, lengths, indices = pages(jax, "float32")
    return module.paged_attention(q, k, v, indices, lengths, k_splits=2, pages_per_compute_block=2, interpret=True)


def main(library: str, file: str, names: list[str]) -> None:
    if library == "shardwise":
        jax = importlib.import_module("shardwise").as_jax()
        sys.meta_path.insert(0, KernelFinder())
    else:
        jax = importlib.import_module("jax")
        pallas = importlib.import_module("jax.experimental.pallas")
        pallas.pallas_call = partial(interpreted, pallas.pallas_call)
    arrays = {}
    for name in names:
        for number, x in enumerate(jax.tree.leaves(CASES[name](jax))):
            arrays[f"{name}:{number}"] = np.asarray(x).astype(np.float64)
    np.savez(file, **arrays)


def interpreted(pallas_call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call JAX's `pallas_call` in interpret mode; some kernels have no parameter for it."""
    return pallas_call(*args, **{**options, "interpret": True})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
