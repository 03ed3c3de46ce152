"""StepSource: a step and its arguments, from which variants are traced.

A step that scans over its layers can be traced with this scan as a pipeline.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial, update_wrapper
from typing import Any, final

from shardwise.api.attention_calls import attention_calls
from shardwise.api.jit import Jitted
from shardwise.api.layer_scans import layer_scans
from shardwise.base.config import config
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.layout_search.evaluate import BALANCED_RING, Variant
from shardwise.layout_search.meshes import CONTEXT, STAGE
from shardwise.layout_search.step import Step, trace_step
from shardwise.parallel.context_parallel_attention import ContextParallelAttention, SelfAttentionRecorder
from shardwise.parallel.pipelined_scan import LayerScan, LayerScanRecorder, PipelinedScan

PIPELINE_PARAMETERS = ("mesh", "microbatches")
CHUNKS = "chunks"  # the optional parameter of steps whose pipeline may be interleaved


@final
@dataclass(frozen=True, eq=False)
class StepSource:
    """A step and its arguments, from which variants are traced.

    Attributes:
        jitted: the step.
        args: its arguments.
        settings: the settings of all variants.
        parameters: the keyword parameters to fill in, of a pipelined step, or none.
    """

    jitted: Jitted[..., Any]
    args: tuple[Any, ...]
    settings: Mapping[str, Any]
    parameters: tuple[str, ...] = ()
    _traced: dict[Variant, Step] = field(default_factory=dict)

    @property
    def is_pipelined(self) -> bool:
        """Whether the step has the parameters of a pipelined step."""
        return bool(self.parameters)

    @property
    def has_chunks(self) -> bool:
        """Whether the number of stages on each device is a parameter."""
        return CHUNKS in self.parameters

    @property
    def layer_scan(self) -> LayerScan | None:
        """The scan of an ordinary step over its layers, which can be a pipeline: the one with the most bytes."""
        return max(self._layer_scans, default=None)

    @cached_property
    def _layer_scans(self) -> Mapping[LayerScan, Sequence[int]]:
        """The positions of all such scans."""
        recorder = LayerScanRecorder()
        with overridden(self.settings), layer_scans(recorder):
            self.jitted.trace(*self.args)
        return recorder.found

    @cached_property
    def self_attention(self) -> SelfAttentionRecorder:
        """The calls of attention of an ordinary step that may run as ring attention."""
        recorder = SelfAttentionRecorder()
        with overridden(self.settings), attention_calls(recorder):
            self.jitted.trace(*self.args)
        return recorder

    def bind(self, variant: Variant, mesh: Mesh | AbstractMesh | None = None) -> Jitted[..., Any]:
        """Return the step of a variant. `mesh` has devices, or is the variant's mesh."""
        function = self.jitted.function
        if not self.is_pipelined:
            if variant.mesh is None:
                return self.jitted
            if variant.attention:
                is_balanced = variant.attention == BALANCED_RING
                attention = ContextParallelAttention(mesh or variant.mesh, CONTEXT, is_balanced)
                return Jitted(attention.applied(function), self.jitted.options)
            assert self.layer_scan is not None and variant.microbatches is not None
            positions = self._layer_scans[self.layer_scan]
            scan = PipelinedScan(self.layer_scan, positions, mesh or variant.mesh, STAGE, variant.microbatches)
            return Jitted(update_wrapper(scan.applied(function), function, updated=()), self.jitted.options)
        values = {"mesh": mesh or variant.mesh, "microbatches": variant.microbatches, CHUNKS: variant.chunks}
        bound = partial(function, **{name: values[name] for name in self.parameters})
        return Jitted(update_wrapper(bound, function, updated=()), self.jitted.options)

    def trace(self, variant: Variant) -> Step:
        """Trace a variant; each is traced once."""
        if variant not in self._traced:
            with overridden({**self.settings, **variant.settings}):
                self._traced[variant] = trace_step(self.bind(variant), self.args)
        return self._traced[variant]


def pipeline_parameters(step: Callable[..., Any]) -> tuple[str, ...]:
    """Return the keyword parameters of a pipelined step: `mesh`, `microbatches` and optionally `chunks`; else none.

    Raises:
        ValueError: if it has only some of them, or others without a default.
    """
    try:
        parameters = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):  # the callable has no signature
        return ()
    required = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if required and {*required, CHUNKS} != {*PIPELINE_PARAMETERS, CHUNKS}:
        raise ValueError(
            f"autoshard: the step has the keyword parameters {required}. A pipelined step has `mesh`, `microbatches` "
            "and perhaps `chunks`, which autoshard fills in; bind others with functools.partial."
        )
    return tuple(required)


@contextmanager
def overridden(settings: Mapping[str, Any]) -> Iterator[None]:
    """Return a context in which settings have these values."""
    with ExitStack() as stack:
        for name, value in settings.items():
            stack.enter_context(config.override(name, value))
        yield
