"""AutoSharding: the result of `autoshard`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, final

from shardwise import tree_util
from shardwise.api.aot import Lowered
from shardwise.api.jit import Jitted
from shardwise.api.shape_dtype_struct import ShapeDtypeStruct
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.compiler.trace.provenance import user_source
from shardwise.config import config
from shardwise.execute.executor import as_array, lower_request
from shardwise.execute.plan_report import Plan, request_report
from shardwise.explain.text import align, human_bytes, human_seconds
from shardwise.layout_search.evaluate import Alternative

_ROWS = 12  # alternatives that are printed


@final
class AutoSharding:
    """The mesh and the shardings that `autoshard` chose for a step. It prints as a table of alternatives.

    Attributes:
        mesh: the mesh; an AbstractMesh if the devices are not present.
        in_shardings: the sharding of each argument, as a tuple of trees like the arguments.
        out_shardings: the shardings of the results, as a tree like the results.
        alternatives: the plans that were compared, the best first: name, mesh, seconds, wire bytes and peak bytes.
        memory_limit: the bytes that each device may hold, if the user set a limit.
        checkpoints_scans: whether the step is traced with the setting `checkpoint_scans`, since nothing fits otherwise.
    """

    def __init__(
        self,
        jitted: Jitted[..., Any],
        args: tuple[Any, ...],
        mesh: Mesh | AbstractMesh,
        shardings: tuple[Any, Any],
        alternatives: Sequence[Alternative],
        chip: Chip,
        settings: Mapping[str, Any],
        platform: Mapping[str, Any],
    ):
        self.mesh = mesh
        self.in_shardings, self.out_shardings = shardings
        self.alternatives = tuple(alternatives)
        self.memory_limit: int | None = settings.get("memory_limit")
        self.checkpoints_scans: bool = settings.get("checkpoint_scans", False)
        self._jitted = jitted
        self._types = tree_util.tree_map(ShapeDtypeStruct.like, args)
        self._chip = chip
        self._settings = settings
        self._platform = platform

    @property
    def best(self) -> Alternative:
        """The alternative that was chosen."""
        return self.alternatives[0]

    @property
    def seconds(self) -> float:
        """The predicted time of a call."""
        return self.best.seconds

    @property
    def wire_bytes(self) -> float:
        """The bytes that each device sends in a call."""
        return self.best.wire_bytes

    @property
    def peak_bytes(self) -> int:
        """The most bytes that a device is predicted to hold at once."""
        return self.best.peak_bytes

    @cached_property
    def plan(self) -> Plan:
        """The plan of the step with these shardings: every collective with its bytes, time, line and reason."""
        args = tree_util.tree_map(lambda leaf, sharding: leaf.update(sharding=sharding), self._types, self.in_shardings)
        with overridden({**self._settings, **self._platform}):
            request, traced = self._sharded.request(args, {})
            lowered = lower_request(request, [as_array(x) for x in traced.captured], self._chip)
        return request_report(lowered.request, lowered.stages, self._chip)

    def jit(self) -> "ShardedStep":
        """Return the step, to be compiled with these shardings and within the memory limit.

        Returns:
            A function like the step.

        Raises:
            DeviceMismatchError: when called, if the mesh has no devices.

        Example:
            >>> step = lambda w, x: w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
            >>> w, x = jnp.ones((64, 64)), jnp.ones((128, 64))
            >>> jax.autoshard(step)(w, x).jit()(w, x).shape
            (64, 64)
        """
        return ShardedStep(self._sharded, self._settings)

    @cached_property
    def _sharded(self) -> Jitted[..., Any]:
        options = replace(
            self._jitted.options,
            in_shardings=self.in_shardings,
            out_shardings=self.out_shardings,
            source=user_source(),
        )
        return Jitted(self._jitted.function, options)

    def __str__(self) -> str:
        best, name = self.best, getattr(self._jitted.function, "__name__", "step")
        limit = "" if self.memory_limit is None else f" of {human_bytes(self.memory_limit)}"
        remat = ", bodies of scans recomputed" if self.checkpoints_scans else ""
        heads = ["plan", "mesh", "time", "sent", "memory", ""]
        rows = [
            [
                alternative.name,
                str(alternative.mesh),
                human_seconds(alternative.seconds),
                human_bytes(alternative.wire_bytes),
                human_bytes(alternative.peak_bytes),
                "" if alternative.fits else "does not fit",
            ]
            for alternative in self.alternatives[:_ROWS]
        ]
        more = len(self.alternatives) - _ROWS
        return "\n".join(
            [
                f"{name} on {self._chip.name}, mesh {best.mesh}: {best.name}{remat}",
                f"  {human_seconds(best.seconds)} per call, {human_bytes(best.wire_bytes)} sent, "
                f"{human_bytes(best.peak_bytes)}{limit} per device",
                "",
                *align([heads, *rows], (24, 20, -9, -10, -10, 0)),
                *([f"  and {more} more"] if more > 0 else []),
            ]
        )

    __repr__ = __str__


@final
class ShardedStep:
    """A step that is compiled with the shardings of `autoshard`. It is called like the step."""

    def __init__(self, jitted: Jitted[..., Any], settings: Mapping[str, Any]):
        self._jitted = jitted
        self._settings = settings

    def __call__(self, *args: Any) -> Any:
        with overridden(self._settings):
            return self._jitted(*args)

    def lower(self, *args: Any) -> Lowered:
        """Trace, plan, partition and lower the step to StableHLO, without running it."""
        with overridden(self._settings):
            return self._jitted.lower(*args)


@contextmanager
def overridden(settings: Mapping[str, Any]) -> Iterator[None]:
    """Return a context in which settings have these values."""
    with ExitStack() as stack:
        for name, value in settings.items():
            stack.enter_context(config.override(name, value))
        yield
