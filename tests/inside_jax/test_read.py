"""Every primitive of JAX is read: some case of `primitives` has it, or a reason says why none does."""

import importlib

import numpy as np
import pytest

from shardwise.errors import UnsupportedError
from tests.inside_jax.primitives import cases
from tests.inside_jax.primitives.cases import inside_jax, jax, jnp

core = pytest.importorskip("jax._src.core")
mlir = pytest.importorskip("jax._src.interpreters.mlir")

pytestmark = pytest.mark.jax

MODULES = [
    *("callbacks", "collectives", "control", "elementwise", "indexing", "linalg", "placement", "random"),
    *("reductions", "shape"),
]

# JAX registers the primitives of a module when it is imported.
IMPORTED = [
    *("jax.experimental.checkify", "jax.experimental.custom_partitioning", "jax.experimental.multihost_utils"),
    "jax.experimental.pallas.tpu",  # JAX imports it when it lowers a `pallas_call`
    *("jax.experimental.pallas", "jax.experimental.scheduling_groups", "jax.experimental.sparse", "jax.export"),
    *("jax.experimental.rnn", "jax.experimental.shard_alike", "jax.experimental.xla_metadata"),
]

ASYNCHRONOUS = "no public function of JAX splits a collective into a start and a done"
KERNEL = "an equation of a kernel or of its state, inside `pallas_call`, which is opaque: test_opaque.py"
CUDNN = "XLA has it on GPUs with cuDNN only; it is opaque, like an FFI call: test_opaque.py"
SPARSE = "its implementation is planned, or it is opaque: test_opaque.py"
SYMBOLIC = "computes with symbolic shapes, which JAX has while it exports a function only"
INSIDE_LOWERING = "JAX emits it in the lowering of other primitives only"
TRANSFORMED = "JAX replaces it when it differentiates or batches; it is not in a traced function"
TESTED = "test_opaque.py runs it"
ERROR = "an error that names it, or its keys, is tested"
PRIVATE = "no public function of JAX applies it"

# The primitives that no case has, with the reason.
REASONS: dict[str, str] = {
    **dict.fromkeys(
        (
            *("all_gather_done", "all_gather_reduced_start", "all_gather_start", "all_to_all_done", "all_to_all_start"),
            *("pbroadcast_done", "pbroadcast_start", "ppermute_done", "ppermute_start", "psum_done", "psum_start"),
            *("psum_invariant_start", "reduce_scatter_done", "reduce_scatter_start", "unreduced_psum_start"),
            "unreduced_reduce_scatter_start",
        ),
        ASYNCHRONOUS,
    ),
    **dict.fromkeys(("core_map", "mpmd_map", "multiple_of", "pin", "run_scoped", "run_state", "unpin"), KERNEL),
    **dict.fromkeys(("bitcast", "einshape_lo", "remove_memory_space", "roll", "tpu_custom_call"), KERNEL),
    **dict.fromkeys(("create_linear", "reciprocal", "with_memory_space_constraint"), KERNEL),
    **dict.fromkeys(
        (
            *(f"dot_product_attention_{form}" for form in ("bwd", "bwd_wrapper", "fwd", "fwd_wrapper")),
            *(f"dot_product_attention_fp8_{form}" for form in ("bwd", "bwd_wrapper", "fwd", "fwd_wrapper")),
            *("cudnn_fusion", "scaled_matmul", "scaled_matmul_wrapper"),
        ),
        CUDNN,
    ),
    **dict.fromkeys(
        (
            *(f"bcoo_{name}" for name in ("dot_general", "dot_general_sampled", "extract", "fromdense", "todense")),
            *(f"bcoo_{name}" for name in ("sort_indices", "spdot_general", "sum_duplicates", "transpose")),
            *(f"bcsr_{name}" for name in ("dot_general", "extract", "fromdense", "todense")),
            *(f"{form}_{name}" for form in ("coo", "csr") for name in ("fromdense", "matmat", "matvec", "todense")),
            *(f"{form}_{name}" for form in ("coo", "csr") for name in ("spmm", "spmv")),
            *("spsolve", "todense"),
        ),
        SPARSE,
    ),
    **dict.fromkeys(("broadcast_to", "dim_as_value", "dimension_size", "shape_assertion"), SYMBOLIC),
    **dict.fromkeys(("geqp3", "iota_2x32_shape"), INSIDE_LOWERING),
    **dict.fromkeys(("custom_lin", "unreachable"), TRANSFORMED),
    **dict.fromkeys(("call_exported", "custom_partitioning", "ffi_call", "pallas_call"), TESTED),
    **dict.fromkeys(("inspect_sharding", "philox2x32", "philox4x32", "precv", "psend", "threefry4x32"), ERROR),
    **dict.fromkeys(("call", "closed_call", "from_edtype", "select_and_scatter", "stage", "tie", "to_edtype"), PRIVATE),
    **dict.fromkeys(("rnn_bwd", "rnn_fwd"), CUDNN),
    **dict.fromkeys(("pbroadcast", "ragged_all_to_all"), "XLA has it on GPUs only: test_collectives.py uses numpy"),
    "check": "`checkify` replaces it; without `checkify` JAX itself raises an error",
    "global_array_to_host_local_array": "moves arrays between processes, outside of jitted functions",
    "host_local_array_to_global_array": "moves arrays between processes, outside of jitted functions",
    "rng_uniform": "its numbers depend on the device: test_random.py checks their range",
}


def primitives_of(jaxpr):
    """Return the names of the primitives of a jaxpr and of the jaxprs in it."""
    names = {eqn.primitive.name for eqn in jaxpr.eqns}
    return names.union(*map(primitives_of, core.subjaxprs(jaxpr)))


def covered():
    names = set()
    for module in MODULES:
        for case in importlib.import_module(f"tests.inside_jax.primitives.test_{module}").CASES:
            functions = [case.function] if case.no_grad else [case.function, cases.gradient_of(case)]
            for function in functions:
                names |= primitives_of(jax.jit(function).trace(*case.args).jaxpr.jaxpr)
    return names


def lowered():
    """Return the names of all primitives that JAX can lower."""
    tables = (mlir._lowerings, *mlir._platform_specific_lowerings.values())
    names = {primitive.name for table in tables for primitive in table}
    return {name for name in names if not name.startswith(("shardwise_", "test_"))}


@pytest.mark.slow
def test_every_primitive_of_jax_has_a_case_or_a_reason():
    for name in IMPORTED:
        importlib.import_module(name)
    missing = lowered() - covered()
    assert sorted(missing - REASONS.keys()) == []
    assert sorted(REASONS.keys() - missing) == []


def test_an_equation_of_a_function_of_jax_has_the_line_of_the_caller():
    unknown_p = jax.extend.core.Primitive("test_unknown")
    unknown_p.def_abstract_eval(lambda x: x)
    with pytest.raises(UnsupportedError, match=r"'test_unknown' of JAX at test_read.py:\d+ is not supported"):
        inside_jax.jit(lambda x: jax.lax.cond(x[0] > 0, unknown_p.bind, jnp.sin, x))(np.ones(2, np.float32))


def test_parameters_that_change_the_meaning_are_an_error():
    exact = jax.lax.Tolerance(1e-5, 0.0, 0)
    with pytest.raises(UnsupportedError, match=r"'exp' of JAX at test_read.py:\d+ has accuracy=.*Tolerance"):
        inside_jax.jit(lambda x: jax.lax.exp(x, accuracy=exact))(np.float32(1))
