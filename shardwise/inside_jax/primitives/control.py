"""Calls, loops and branches. Calls are inlined: JAX has already differentiated and batched what they compute."""

from collections.abc import Callable, Sequence
from typing import Any

from shardwise import lax
from shardwise.compiler.arrays.methods import Array

Function = Callable[..., list[Array]]


def _call(*operands: Array, jaxpr: Function, **_: Any) -> list[Array]:
    return jaxpr(*operands)


def _custom_call(*operands: Array, call_jaxpr: Function, **_: Any) -> list[Array]:
    return call_jaxpr(*operands)


def _remat(*operands: Array, jaxpr: Function, prevent_cse: Any, differentiated: bool, policy: Any) -> list[Array]:
    # XLA must not merge what is computed again with the forward pass.
    is_guarded = differentiated and bool(prevent_cse)
    return jaxpr(*(lax.optimization_barrier(operands) if is_guarded else operands))


def _cond(index: Array, *operands: Array, branches: Sequence[Function], **_: Any) -> list[Array]:
    return lax.switch(index, branches, *operands)


def _scan(
    *operands: Array,
    jaxpr: Function,
    length: int,
    reverse: bool,
    num_consts: int,
    num_carry: int,
    unroll: int,
    **_: Any,
) -> list[Array]:
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
        lambda carry: cond_jaxpr(*cond_consts, *carry)[0],
        lambda carry: body_jaxpr(*body_consts, *carry),
        list(operands[cond_nconsts + body_nconsts :]),
    )


PRIMITIVES: dict[str, Callable[..., Any]] = {
    "checkpoint": _remat,
    "closed_call": _custom_call,
    "core_call": _custom_call,
    "cond": _cond,
    "custom_jvp_call": _custom_call,
    "custom_vjp_call": _custom_call,
    "jit": _call,
    "name": lambda x, *, name: x,
    "optimization_barrier": lambda *operands: lax.optimization_barrier(operands),
    "pjit": _call,
    "remat2": _remat,
    "scan": _scan,
    "while": _while,
}
