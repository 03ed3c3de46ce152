"""Every op obeys every law that applies to it."""

from collections import Counter

import numpy as np
import pytest

import shardwise  # noqa: F401  (fills the registry with every op that users can reach)
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ops.collective.collectives import Collective
from shardwise.compiler.ops.collective.named import Named
from shardwise.compiler.ops.elementwise.unary import Unary
from tests.compiler.ops.cases import op_cases
from tests.compiler.ops.laws import (
    LAWS,
    factors_like_shards,
    folds_like_numpy,
    jvp_like_finite_difference,
    lowers_like_numpy,
    padding_is_as_stated,
    second_derivative_like_finite_difference,
    sum_results,
    sums_pass_through,
    transpose_is_adjoint,
    vmap_like_loop,
)

# Ops with user-defined behaviour, and constant arrays. In tests/api, transformations/test_custom.py,
# transformations/test_custom_batching.py, callbacks/test_callback.py, meshes/test_inspect_sharding.py and
# jaxprs/test_primitive.py test them; so do tests/experimental/test_custom_partitioning.py and
# tests/inside_jax/test_opaque.py.
USER_DEFINED = {
    "custom_jvp",
    "custom_vmap",
    "custom_vjp",
    "custom_lin",
    "custom_partitioning",
    "array_constant",
    "callback",
    "inspect",
    "primitive",
    "missing_lowering",
    "jax_equation",
}
# XLA defines the results: tests/lax/test_random.py compares them with JAX's.
XLA_DEFINED = {"rng_bit_generator", "rng_uniform"}
# Under vmap the first key generates all bits, so a loop is no oracle: tests/random/test_keys_rbg.py.
RBG = {"philox_bits", "rbg_bits"}
# Conversions between keys and numbers, which are removed before planning: tests/random/test_keys.py.
KEY_CONVERSIONS = {"key_data", "wrap_key_data"}
# Boundary ops exist during planning only, and never run: control/test_control.py, layout_search.
BOUNDARY_OPS = {"enter", "carry", "merge", "unstack", "stack", "predicate", "split", "join", "argument"}
# Manual regions, and casts of varying types inside them: tests/manual.
MANUAL = {"manual", "pvary", "preduced", "punreduced", "assert_replicated"}
# Loops of the program of one device, which the schedule makes after planning: control/test_pipelined_scan.py.
SCHEDULED = {"pipelined_scan"}
# In tests: api/transformations/test_remat.py, experimental/test_overlap.py, and compiler/kernels/test_fp8_dot.py.
CALLS = {"remat", "program_order", "fp8_dot"}
# Kernels of Pallas, and the ops of their bodies: compiler/kernels/pallas, and tests/experimental/pallas.
PALLAS = {"open_block", "load_block", "store_block", "atomic_update", "pallas_call", "interpreted_kernel"}
# Grouped products, whose offsets ascend: tests/kernels/test_grouped_products.py.
GROUPED = {"grouped_dot", "grouped_outer"}
# Adjacent barriers are lowered together: tests/lax/test_barriers.py, tests/lax/test_async_collectives.py.
BARRIERS = {"barrier", "collective_done"}
# Ops over named axes cannot run until the name is bound: tests/lax/test_collectives.py.
OPS = sorted(
    name
    for name, op in Op.registry.items()
    if not issubclass(op, (Collective, Named))
    and name not in {*USER_DEFINED, *XLA_DEFINED, *RBG, *KEY_CONVERSIONS, *BOUNDARY_OPS, *MANUAL, *CALLS, *BARRIERS}
    and name not in {*SCHEDULED, *PALLAS, *GROUPED}
)

BITWISE = {
    *("and", "or", "xor", "not", "shift_left", "shift_right_logical", "shift_right_arithmetic"),
    *("population_count", "clz", "mulhi", "reduce_and", "reduce_or", "reduce_xor"),
}
CUSTOM_DERIVATIVE = {"stop_gradient", "reduce_precision", "nextafter", "bitcast_convert"}
# Functions with loops inside, which are slow to fold; LAST_DERIVATIVES have no further derivative.
LAST_DERIVATIVES = {"igamma_grad_a", "random_gamma_grad", "hyp1f1_grad_parameter", "hyp2f1_grad_parameter"}
INCOMPLETE = {"igamma", "igammac", "betainc", "expn", "hyp1f1", "hyp2f1", *LAST_DERIVATIVES}
# Nonlinear functions, as `test_functions_are_not_additive` shows: those of one base class, and a few others.
FUNCTIONS = {
    *(name for name in OPS if issubclass(Op.registry[name], Unary)),
    *("max", "min", "clamp", "rem", "relu", "pow", "atan2"),
}
REDUCTIONS = {"sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "reduce_xor"}
POSITIONS = {"argmax", "argmin", "extremum_with_index", "window_arg_extremum"}
CUMULATIVE = {"cumulative", "recurrence"}
ORDERED = {"sort", "top_k"}
WINDOWS = {"conv", "reduce_window", "gather_from_window", "scatter_add_to_window"}
INDEXED = {"dynamic_slice", "dynamic_update_slice", "gather", "scatter"}

SOLVES = {"triangular_solve", "tridiagonal_solve"}
NO_DERIVATIVE = {"geqrf", "householder_product", "ormqr", "schur", "hessenberg", "tridiagonal"}
FACTORS = {"cholesky", "lu", "lu_pivots_to_permutation", "qr", "eigh", "eig", "svd", *NO_DERIVATIVE}

RANDOM = {"random_bits", "random_keys", "random_gamma", "random_waiting", "random_rejection"}

CONTROL = {"cond", "scan", "while"}
# Their derivatives are those of the system, and of the user's transpose: tests/lax, tests/api/transformations.
LINEAR_SOLVE = {"linear_solve", "linear_call"}
ATTENTION = {"fused_attention", "fused_attention_grad"}
# Rounded numbers have no derivative: tests/compiler/kernels/test_fp8_dot.py.
ROUNDED = {"quantize", "scaled_dot"}
KERNELS = {"norm", "norm_factors", "norm_grad", "cross_entropy", "cross_entropy_grad", "unpack", *ROUNDED}

# For each law, the ops that it does not apply to.
EXCEPTIONS = {
    lowers_like_numpy: {"constrain", "reshard"},  # need a mesh: placement/test_constrain.py, tests/explicit
    # no operands, or nothing to fold
    folds_like_numpy: {
        *(
            "full",
            "iota",
            "call",
            "constrain",
            "reshard",
            *CONTROL,
            *WINDOWS - {"reduce_window"},
            *FACTORS,
            *SOLVES,
            *ATTENTION,
            *KERNELS,
            *LINEAR_SOLVE,
        ),
        *RANDOM - {"random_bits"},
        *("fft", *INCOMPLETE),
    },
    # no operands, no derivative, or a derivative that is defined otherwise
    jvp_like_finite_difference: {
        *ROUNDED,
        *LAST_DERIVATIVES,
        *(
            "full",
            "iota",
            *BITWISE,
            *CUSTOM_DERIVATIVE,
            *NO_DERIVATIVE,
            *ATTENTION,
            *LINEAR_SOLVE,
            "lu_pivots_to_permutation",
        ),
        *RANDOM,
    },
    # no operands, or no derivative
    transpose_is_adjoint: {
        *ROUNDED,
        *LAST_DERIVATIVES,
        *BITWISE,
        *CUSTOM_DERIVATIVE,
        *POSITIONS - {"extremum_with_index"},
        *NO_DERIVATIVE,
        *ATTENTION,
        *LINEAR_SOLVE,
        *RANDOM,
        "lu_pivots_to_permutation",
        "is_finite",
        "full",
        "iota",
        "compare",
        "while",
    },
    second_derivative_like_finite_difference: set(OPS) - (KERNELS - ROUNDED),
    vmap_like_loop: {"full", "iota"},  # no operands
    # inlined, unfolded, or made after planning; constrain: placement/test_constrain.py
    factors_like_shards: {"call", "constrain", "reshard", "unpack", *CONTROL, *LINEAR_SOLVE},
    # not linear, or pinned
    sums_pass_through: {
        *(*BITWISE, *FUNCTIONS, *POSITIONS, *ORDERED, *REDUCTIONS - {"sum"}, *CUSTOM_DERIVATIVE - {"stop_gradient"}),
        *(
            "is_finite",
            "call",
            "compare",
            "constrain",
            "full",
            "iota",
            *CONTROL,
            *FACTORS,
            *RANDOM,
            *ATTENTION,
            *KERNELS,
        ),
        *LINEAR_SOLVE,
    },
    # the padding of the result is unknown
    padding_is_as_stated: {
        *(*REDUCTIONS, *POSITIONS, *CUMULATIVE, *ORDERED, *INDEXED, *WINDOWS, *CONTROL, *FACTORS, *SOLVES, *RANDOM),
        *("call", "dot", "fft", "iota", *ATTENTION, *KERNELS, *LINEAR_SOLVE),
    },
}


def is_default(place):
    """Return whether a law is checked by default for the case at this place among the cases of its op.

    These are the first, in the order of cases.py, and every twelfth from the 36th on. `make slow` checks the rest.
    """
    return place == 0 or (place >= 36 and place % 12 == 0)


def law_params(law, applies, with_slow):
    """Yield a law with each case that it applies to; with those that only `make slow` checks, if `with_slow`."""
    places = Counter()
    for case in op_cases():
        if applies(case):
            default = is_default(places[case.op.name])
            places[case.op.name] += 1
            if default or with_slow:
                marks = [] if default else [pytest.mark.slow]
                yield pytest.param(law, case, id=f"{law.__name__}-{case}", marks=marks)


def pytest_generate_tests(metafunc):
    """Parametrize by laws and cases. There are 20,000 slow ones: `-m "not slow"` does not even collect them."""
    if "law" in metafunc.fixturenames and "case" in metafunc.fixturenames:
        with_slow = metafunc.config.option.markexpr != "not slow"
        params = [param for law, applies in LAWS.items() for param in law_params(law, applies, with_slow)]
        metafunc.parametrize(("law", "case"), params)


def test_op_obeys(law, case):
    law(case)


@pytest.mark.parametrize("name", OPS)
def test_op_has_cases(name):
    assert any(case.op.name == name for case in op_cases()), f"{name}: add cases to tests/compiler/ops/cases.py"


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_law_applies_to_every_op_except_those_listed(law):
    covered = {case.op.name for case in op_cases() if LAWS[law](case)}
    assert sorted(covered) == sorted(set(OPS) - EXCEPTIONS.get(law, set()))


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_functions_are_not_additive(name):
    """Partial sums would pass through an additive function: it must declare its operands with `linear_in`."""
    cases = [case for case in op_cases() if case.op.name == name and not case.special]
    results = (sum_results(case, range(len(case.types))) for case in cases)
    assert any(not np.allclose(result_of_sum, sum_of_results) for result_of_sum, sum_of_results in results)


def test_cases_differ():
    names = [str(case) for case in op_cases()]
    assert len(set(names)) == len(names), sorted(name for name in names if names.count(name) > 1)
