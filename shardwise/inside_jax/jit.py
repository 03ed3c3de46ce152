"""`jit` for programs that stay on JAX: Shardwise plans, JAX traces, compiles and runs.

A jitted function calls JAX's own dispatch in C++. When a call needs a new program, JAX's jaxpr is replaced by
the planned one (`plan`); all else is JAX's: static and donated arguments, pytrees, caches and execution.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from shardwise.execute.launch_hooks import launch_hooks
from shardwise.inside_jax import _jax
from shardwise.inside_jax.call import bind
from shardwise.inside_jax.donation import check_donated
from shardwise.inside_jax.plan import Call, plan


def jit(fun: Callable[..., Any], /, **options: object) -> Any:
    """Return a version of `fun` that Shardwise plans and partitions, and that JAX runs.

    Args:
        fun: a function of JAX's arrays.
        **options: the options of `jax.jit`: `in_shardings`, `out_shardings`, `static_argnums`, `donate_argnums` and
            others.
    """
    jitted = _jax.jax.jit(fun, **options)
    return _jax.PlannedFunction(jitted, _planned_params, _bind, _check_donated) if _plans.enabled else jitted


class _Plans:
    """Whether `jit` plans functions."""

    enabled = True


_plans = _Plans()


@contextmanager
def unplanned() -> Iterator[None]:
    """Make `jit` return the function of `jax.jit` in this block, for tools that plan what JAX has compiled and run."""
    _plans.enabled = False
    try:
        yield
    finally:
        _plans.enabled = True


def call_of(params: dict[str, Any], names: Sequence[str]) -> Call:
    """Return the call with the parameters that JAX's `jit` has for one, and the names of its arguments."""

    def stated(shardings: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(None if isinstance(each, _jax.UnspecifiedValue) else each for each in shardings)

    constants = [f"the constant {number}" for number in range(len(params["jaxpr"].in_avals) - len(names))]
    shardings = stated(params["in_shardings"]), stated(params["out_shardings"])
    return Call(params["jaxpr"], params["name"], None, *shardings, (*constants, *names), params["donated_invars"])


def _planned_params(params: dict[str, Any], args: Sequence[Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of a call of JAX's `jit` with the planned jaxpr, for arguments that are not traced."""
    planned = plan(call_of(params, names).placed(args))
    if launch_hooks.hooks:
        launch_hooks.notify(planned, runs=True)
    replaced = {**params, "jaxpr": _jax.jax.make_jaxpr(planned)(*params["jaxpr"].in_avals)}
    if planned.mesh is None:
        return replaced
    return {**replaced, "in_shardings": planned.in_shardings, "out_shardings": planned.out_shardings}


def _bind(params: dict[str, Any], args: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """Apply a call to tracers. In a manual region over all mesh axes, there is nothing to partition."""
    if _jax.jax.sharding.get_abstract_mesh().are_all_axes_manual:
        return list(_jax.jaxpr_as_fun(params["jaxpr"])(*args))
    return bind(call_of(params, names).placed(args), *args)


def _check_donated(params: dict[str, Any], args: Sequence[Any], names: Sequence[str]) -> None:
    """Raise an error if arguments that are not traced were freed, or are donated twice."""
    check_donated(call_of(params, names).placed(args), args)
