"""`explain`, `simulate` and `sweep` for functions of real JAX."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.plan.hardware import chip
from shardwise.explain.plan import Explanation
from shardwise.explain.simulate import Simulation
from shardwise.explain.sweep import Sweep, run_sweep
from shardwise.inside_jax import _jax
from shardwise.inside_jax.jit import call_of
from shardwise.inside_jax.plan import Call


def explain(
    function: Callable[..., Any], *, hardware: str | Chip | None = None, advise: bool = True
) -> Callable[..., Explanation]:
    """Return a function that prints and returns the plan of a function of JAX, without running it.

    Args:
        function: the function, jitted or not.
        hardware: the hardware to plan for, as in `shardwise.explain`; by default, the devices of the arguments.
        advise: whether to recommend constraints and other argument layouts.

    Returns:
        A function of the same arguments as `function`, arrays or ShapeDtypeStructs of JAX, which returns an
        Explanation.
    """
    target = None if hardware is None else chip(hardware)

    def call(*args: object, **kwargs: object) -> Explanation:
        lowered, _ = trace(function, args, kwargs).lower(target)
        explanation = Explanation(lowered, target, advise)
        explanation.show()
        return explanation

    return call


def simulate(
    function: Callable[..., Any], *, hardware: str | Chip, mesh: object = None, overlap: bool | None = None
) -> Callable[..., Simulation]:
    """Return a function that predicts the time and memory of a function of JAX, without running it.

    Args:
        function: the function, jitted or not.
        hardware: the chip to predict for, as in `shardwise.simulate`.
        mesh: a mesh of JAX, to which the specs of the arguments are moved; by default, the mesh of the arguments.
        overlap: whether collectives overlap with compute; by default, as on the hardware.

    Returns:
        A function of the same arguments as `function`, which returns a Simulation.
    """
    target = chip(hardware) if overlap is None else replace(chip(hardware), overlaps=overlap)

    def call(*args: object, **kwargs: object) -> Simulation:
        traced = trace(function, args, kwargs)
        lowered, _ = (traced if mesh is None else _on_mesh(traced, mesh)).lower(target)
        return Simulation(lowered.request, lowered.stages, target)

    return call


def sweep(
    function: Callable[..., Any],
    arguments: Callable[..., Any] | tuple[Any, ...],
    *,
    hardware: str | Chip | Sequence[str | Chip],
    mesh: object = None,
    overlap: bool | None = None,
    **variables: Sequence[Any],
) -> Sweep:
    """Simulate a function of JAX in all combinations of hardware, meshes and other variables.

    Args:
        function: the function, jitted or not.
        arguments: its arguments, as a tuple; or a function of the variables that returns them: arrays or
            ShapeDtypeStructs of JAX.
        hardware: the chips, as in `simulate`.
        mesh: meshes of JAX, such as `jax.sharding.AbstractMesh`.
        overlap: whether collectives overlap with compute; by default, as on the hardware.
        **variables: the values of further parameters of `arguments`.

    Returns:
        A Sweep, which prints as a table.
    """
    return run_sweep(simulate, function, arguments, hardware, mesh, overlap, variables)


def trace(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Trace a function of JAX for arrays or ShapeDtypeStructs."""
    traced = _jax.trace_call(function, args, kwargs)
    return call_of(traced.params, traced.names).placed(traced.args)


def _on_mesh(call: Call, mesh: _jax.Mesh) -> Call:
    """Return the call with the same specs on another mesh."""

    def move(sharding: _jax.Sharding) -> Any:
        return None if sharding is None else _jax.NamedSharding(mesh, sharding.spec)

    return replace(
        call,
        mesh=mesh,
        in_shardings=tuple(map(move, call.in_shardings)),
        out_shardings=tuple(map(move, call.out_shardings)),
    )
