"""TracedExport: lower a traced function to a StableHLO module in the calling convention of `jax.export`."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from shardwise.api.ahead_of_time.aot import Traced, captured_arrays
from shardwise.api.ahead_of_time.shape_dtype_struct import struct
from shardwise.api.jit import jit
from shardwise.api.transformations.differentiate import vjp as vjp_of
from shardwise.api.transformations.float0 import float0, is_float0
from shardwise.base._jaxlib import MlirObject, mlir_dialects, parse_module, serialize_portable_artifact
from shardwise.compiler.control.manual import Manual
from shardwise.compiler.dtypes import is_inexact, is_key
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.partition.local_program import Placement
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.compiler.shardings.spec import UNCONSTRAINED, spec_of
from shardwise.compiler.transforms.drop_shardings import drop_shardings
from shardwise.compiler.transforms.inline import inline
from shardwise.compiler.transforms.replay import replay
from shardwise.errors import UnsupportedError
from shardwise.execute.executor import LoweredRequest, lower_request
from shardwise.execute.request import Request, default_device
from shardwise.export.abstract_array import AbstractArray, abstract_array
from shardwise.export.exported import Exported
from shardwise.export.module_function import maximum_supported_calling_convention_version
from shardwise.export.module_text import Value, partitioned_module, unpartitioned_module
from shardwise.export.safety_checks import DisabledSafetyCheck, check_custom_calls
from shardwise.runtime.array import array_signature
from shardwise.runtime.sharding import SingleDeviceSharding


@final
@dataclass(frozen=True)
class LoweredModule:
    """A lowered function.

    Attributes:
        text: the module.
        kept: the positions of the arguments that it takes.
        in_shardings: the sharding of each argument, or None.
        out_shardings: the sharding of each result, or None.
    """

    text: str
    kept: tuple[int, ...]
    in_shardings: tuple[NamedSharding | None, ...]
    out_shardings: tuple[NamedSharding | None, ...]

    @property
    def devices(self) -> int:
        """The number of devices of the shardings."""
        shardings = (*self.in_shardings, *self.out_shardings)
        return max([1, *(each.mesh.abstract.device_count for each in shardings if each is not None)])


@final
@dataclass(frozen=True)
class ExportOptions:
    """The options of `export`; see there.

    Attributes:
        keep_unused: whether modules take arguments that the function does not use; their dims may define variables.
    """

    platforms: tuple[str, ...]
    disabled_checks: tuple[DisabledSafetyCheck, ...]
    partitioned: bool
    keep_unused: bool


@final
class TracedExport:
    """The export of a traced function.

    Args:
        traced: the function.
        options: the options of `export`.
        primal: the export whose VJP it is, or None.
    """

    def __init__(self, traced: Traced, options: ExportOptions, primal: "TracedExport | None" = None):
        self.traced, self.options = traced, options
        self.request = replace(traced._request, keep_unused=options.keep_unused or traced._request.keep_unused)
        self.program = traced._request.program
        if traced._refs:
            raise UnsupportedError(
                f"export: `{traced.fun_name}` uses Refs: pass their arrays, and return those that change"
            )
        self.arguments = traced.in_tree.num_leaves
        self.in_avals = tuple(map(abstract_array, self.program.in_types[: self.arguments]))
        self.out_avals = tuple(map(abstract_array, self.program.out_types))
        if primal is not None:  # float0 arrays are booleans in the program
            self.in_avals = (*primal.in_avals, *map(tangent_aval, primal.out_avals))
            self.out_avals = tuple(map(tangent_aval, primal.in_avals))

    def exported(self) -> Exported:
        """Lower the function."""
        module = self.module()
        raw = parse_module(module.text)
        polymorphic = len(self.options.platforms) > 1
        return self.assemble(module, raw, self.in_avals, self.out_avals, polymorphic, lambda _: self.vjp().exported())

    def assemble(
        self,
        module: LoweredModule,
        raw: MlirObject,
        in_avals: tuple[AbstractArray, ...],
        out_avals: tuple[AbstractArray, ...],
        polymorphic: bool,
        vjp: Callable[[Exported], Exported],
    ) -> Exported:
        """Return the exported function with a module of MLIR, types, and a function that exports its VJP."""
        options, name = self.options, self.traced.fun_name
        check_custom_calls(raw, name, options.disabled_checks)
        stablehlo = mlir_dialects["stablehlo"]
        # A month old, as in JAX, so that installations of XLA that are a little older can read it.
        version = stablehlo.get_version_from_compatibility_requirement(
            stablehlo.StablehloCompatibilityRequirement.WEEK_4
        )
        return Exported(
            fun_name=name,
            in_tree=self.traced.in_tree,
            in_avals=in_avals,
            out_tree=self.traced.out_tree,
            out_avals=out_avals,
            _in_named_shardings=module.in_shardings,
            _out_named_shardings=module.out_shardings,
            nr_devices=module.devices,
            platforms=options.platforms,
            disabled_safety_checks=options.disabled_checks,
            mlir_module_serialized=bytes(serialize_portable_artifact(raw, version, True)),
            calling_convention_version=maximum_supported_calling_convention_version,
            module_kept_var_idx=module.kept,
            uses_global_constants=polymorphic,
            _get_vjp=vjp,
        )

    def module(self) -> LoweredModule:
        """Return the StableHLO module."""
        return self._partition() if self.options.partitioned else self._lower()

    def _lower(self) -> LoweredModule:
        """Return the unpartitioned module, with the shardings that the user states."""
        request, constants = self._on_one_device(), captured_arrays(self.program, self.traced._captured)
        lowered = {name: lower_request(replace(request, platform=name), constants) for name in self.options.platforms}
        in_shardings, out_shardings = self._stated_shardings()
        first = lowered[self.options.platforms[0]]
        kept = self._kept(first)
        local = first.stages.local
        arguments = [Value(p.type, in_shardings[index]) for p, index in zip(local.inputs, kept, strict=False)]
        results = [Value(p.type, sharding) for p, sharding in zip(local.outputs, out_shardings, strict=True)]
        module = LoweredModule("", kept, in_shardings, out_shardings)
        text = unpartitioned_module(self.traced.fun_name, lowered, arguments, results, module.devices)
        return replace(module, text=text)

    def _partition(self) -> LoweredModule:
        """Return the partitioned module, with the shardings of the plan."""
        (platform,) = self.options.platforms
        request = replace(self.request, platform=platform, for_jax=True)
        lowered = lower_request(request, captured_arrays(self.program, self.traced._captured))
        local, kept = lowered.stages.local, self._kept(lowered)
        if local.mesh.device_count == 1:
            raise ValueError(
                f"export: partitioned=True needs a mesh, but no argument and no sharding of `{self.traced.fun_name}` "
                "is on one. Pass ShapeDtypeStructs with a NamedSharding."
            )
        in_types, out_types = self.program.in_types, self.program.out_types
        planned = {
            index: _planned(p, local.mesh, in_types[index]) for p, index in zip(local.inputs, kept, strict=False)
        }
        outs = tuple(_planned(p, local.mesh, type) for p, type in zip(local.outputs, out_types, strict=True))
        arguments = [Value(p.type, planned[index]) for p, index in zip(local.inputs, kept, strict=False)]
        results = [Value(p.type, sharding) for p, sharding in zip(local.outputs, outs, strict=True)]
        text = partitioned_module(self.traced.fun_name, lowered, platform, arguments, results)
        return LoweredModule(text, kept, tuple(planned.get(index) for index in range(self.arguments)), outs)

    def _kept(self, lowered: LoweredRequest) -> tuple[int, ...]:
        """Return the positions of the arguments that the lowered program uses."""
        kept = lowered.request.kept
        return tuple(range(self.arguments) if kept is None else (index for index in kept if index < self.arguments))

    def _on_one_device(self) -> Request:
        """Return the request of the program without shardings."""
        program = inline(self.program)
        for equation in program.walk():
            if isinstance(equation.op, Manual):
                raise UnsupportedError(
                    f"export: shard_map at {equation.source} fixes the mesh of `{self.traced.fun_name}`, so the module "
                    "cannot be unpartitioned. Pass partitioned=True to `export`."
                )
        program = drop_shardings(program)
        sharding = SingleDeviceSharding(default_device())
        return replace(
            self.request,
            program=program,
            signatures=tuple(array_signature(type, sharding, committed=False) for type in program.in_types),
            in_shardings=(),
            out_shardings=(None,) * len(program.out_types),
            donated=(),
            device=None,
            jit_source=None,
            mesh=None,
            on_current_mesh=False,
        )

    def _stated_shardings(self) -> tuple[tuple[NamedSharding | None, ...], tuple[NamedSharding | None, ...]]:
        """Return the shardings of arguments and results that `jit`, the arguments and Explicit types state."""
        request = self.request
        in_shardings = [
            requested or (signature.sharding if signature.committed else None)
            for requested, signature in zip(request.in_shardings, request.signatures, strict=False)
        ]
        types = self.program.out_types
        out_shardings = [
            requested or (type.sharding if type.explicit else None)
            for requested, type in zip(request.out_shardings, types, strict=True)
        ]
        return tuple(map(_stated, in_shardings[: self.arguments])), tuple(map(_stated, out_shardings))

    def vjp(self) -> "TracedExport":
        """Return the export of the VJP: a function of the leaves of the arguments and of the results' cotangents."""
        program, captured, count = self.program, self.traced._captured, self.arguments
        in_types, out_types = program.in_types[:count], program.out_types

        def function(*operands: Any) -> tuple[Any, ...]:
            cotangents = [
                x if _has_tangents(type.dtype) else np.zeros(type.shape, float0)
                for x, type in zip(operands[count:], out_types, strict=True)
            ]
            _, pullback = vjp_of(lambda *args: tuple(replay(program, [*args, *captured])), *operands[:count])
            results = pullback(tuple(cotangents))
            return tuple(full(x.shape, False, np.dtype(bool)) if is_float0(x) else x for x in results)

        function.__name__ = f"{self.traced.fun_name}_vjp"
        in_shardings = [s.sharding if s.committed else None for s in self.request.signatures[:count]]
        requested = [a or b for a, b in zip(self.request.in_shardings, in_shardings, strict=False)] or in_shardings
        specs = [struct(type, sharding) for type, sharding in zip(in_types, requested, strict=True)]
        cotangents = [
            struct(type.strong() if _has_tangents(type.dtype) else ArrayType(type.shape, bool), sharding)
            for type, sharding in zip(out_types, self.request.out_shardings, strict=True)
        ]
        out_shardings = tuple(requested) if any(requested) else None
        traced = jit(function, out_shardings=out_shardings).trace(*specs, *cotangents)
        return TracedExport(traced, self.options, self)


def tangent_aval(aval: AbstractArray) -> AbstractArray:
    """Return the type of a tangent."""
    return aval if _has_tangents(aval.dtype) else AbstractArray(aval.shape, float0)


def _has_tangents(dtype: Any) -> bool:
    return dtype != float0 and not is_key(dtype) and is_inexact(dtype)


def _stated(sharding: Sharding | None) -> NamedSharding | None:
    """Return a sharding without devices; None for one device, and for dims that are left open: files have none."""
    if not isinstance(sharding, NamedSharding) or sharding.num_devices == 1 or UNCONSTRAINED in sharding.spec:
        return None
    return NamedSharding(sharding.mesh.abstract, sharding.spec, memory_kind=sharding.nondefault_memory)


def _planned(placement: Placement, mesh: AbstractMesh, type: ArrayType) -> NamedSharding:
    """Return the sharding of a placement on the mesh of the plan. The layout of keys has a trailing dim."""
    layout = placement.layout
    return NamedSharding(mesh, spec_of(Layout(layout.dims[: type.ndim], layout.partial)))
