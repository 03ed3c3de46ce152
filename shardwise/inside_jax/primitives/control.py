"""Calls, loops and branches. Calls are inlined: JAX has already differentiated and batched what they compute."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwise import lax
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import astype_weak
from shardwise.compiler.ops.shape.constants import full
from shardwise.experimental.xla_metadata import set_xla_metadata
from shardwise.inside_jax import _jax
from shardwise.inside_jax.primitives.parameters import require, unsupported_parameter
from shardwise.inside_jax.primitives.placement import constrain
from shardwise.runtime.client import canonical_lowering_platform

Function = Callable[..., list[Array]]


def _jit(
    *operands: Array, jaxpr: Function, in_shardings: Sequence[Any], out_shardings: Sequence[Any], **_: object
) -> list[Array]:
    return list(map(constrain, jaxpr(*map(constrain, operands, in_shardings)), out_shardings))


def _composite(
    *operands: Array, jaxpr: Function | None = None, call_jaxpr: Function | None = None, **_: object
) -> list[Array]:
    decomposition = jaxpr or call_jaxpr  # its name in JAX 0.10, and since then
    assert decomposition is not None
    return decomposition(*operands)


def _custom_call(*operands: Array, call_jaxpr: Function, **_: object) -> list[Array]:
    return call_jaxpr(*operands)


def _remat(*operands: Array, jaxpr: Function, prevent_cse: object, differentiated: bool, policy: object) -> list[Array]:
    # XLA must not merge what is computed again with the forward pass.
    is_guarded = differentiated and bool(prevent_cse)
    return jaxpr(*(lax.optimization_barrier(operands) if is_guarded else operands))


def _cond(index: Array, *operands: Array, branches: Sequence[Function], **_: object) -> list[Array]:
    return lax.switch(index, branches, *operands)


def _scan(
    *operands: Array,
    jaxpr: Function,
    length: int,
    reverse: bool,
    unroll: int,
    num_consts: int = 0,
    num_carry: int = 0,
    ft_in: Any = None,
    **_: object,
) -> list[Array]:
    if ft_in is not None:  # since JAX 0.11: the operands as a tree of constants, carried values and inputs
        num_consts, num_carry, _inputs = (len(list(part)) for part in ft_in.unpack())
    consts, carry = operands[:num_consts], operands[num_consts : num_consts + num_carry]

    def body(carry: Sequence[Array], x: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        results = jaxpr(*consts, *carry, *x)
        return results[:num_carry], results[num_carry:]

    carried, stacked = lax.scan(
        body, list(carry), list(operands[num_consts + num_carry :]), length, reverse=reverse, unroll=unroll
    )
    return [*carried, *stacked]


def _while(
    *operands: Array, cond_jaxpr: Function, cond_nconsts: int, body_jaxpr: Function, body_nconsts: int
) -> list[Array]:
    cond_consts = operands[:cond_nconsts]
    body_consts = operands[cond_nconsts : cond_nconsts + body_nconsts]
    return lax.while_loop(
        lambda carry: astype_weak(cond_jaxpr(*cond_consts, *carry)[0], np.dtype(bool), weak=False),
        lambda carry: body_jaxpr(*body_consts, *carry),
        list(operands[cond_nconsts + body_nconsts :]),
    )


def _linear_solve(*operands: Array, const_lengths: Any, jaxprs: Any) -> list[Array]:
    matvec, vecmat, solve, transpose_solve = const_lengths
    start = matvec + vecmat
    return jaxprs[2](*operands[start : start + solve], *operands[start + solve + transpose_solve :])


def _platform_index(*, platforms: Sequence[Sequence[str] | None]) -> Array:
    """Return the index of the first branch for the default backend's platform. None is the default branch."""
    names = {_jax.jax.default_backend(), canonical_lowering_platform(_jax.jax.devices()[0].platform)}
    index = next(
        (number for number, branch in enumerate(platforms) if branch is None or names.intersection(branch)), None
    )
    if index is None:
        raise unsupported_parameter("platform_index", "platforms", platforms)
    return full((), index, np.dtype(np.int32))


def _dce_sink(x: Array, *, prevent_mlir_dce: bool) -> list[Array]:
    require("dce_sink", prevent_mlir_dce=(prevent_mlir_dce, False))
    lax.dce_sink(x)
    return []


PRIMITIVES: dict[str, Callable[..., Any]] = {
    "after_all": lax.after_all,
    "call": _custom_call,
    "checkpoint": _remat,
    "closed_call": _custom_call,
    "composite": _composite,
    "core_call": _custom_call,
    "cond": _cond,
    "create_token": lax.create_token,
    "custom_jvp_call": _custom_call,
    "custom_linear_solve": _linear_solve,
    "custom_vjp_call": _custom_call,
    "custom_vmap_call": lambda *operands, call, **_: call(*operands),
    "dce_sink": _dce_sink,
    "jit": _jit,
    "linear_call": lambda *operands, callee, **_: callee(*operands),
    "name": lambda x, *, name: x,
    "optimization_barrier": lambda *operands: lax.optimization_barrier(operands),
    "pjit": _jit,
    "platform_index": _platform_index,
    "remat2": _remat,
    "scan": _scan,
    "shardwise_jit": lambda *operands, call: _jit(*operands, **call),
    "stage": lambda x: x,
    "tie": lambda _, x: x,
    "while": _while,
    "xla_metadata_call": lambda *operands, jaxpr, **_: jaxpr(*operands),  # a hint for XLA's scheduler
    "xla_metadata_value": set_xla_metadata,
}
