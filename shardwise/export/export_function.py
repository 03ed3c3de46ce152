"""export: lower a jitted function to StableHLO, to run it in another process, with another version, or with JAX."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np

from shardwise.api.ahead_of_time.aot import Traced, captured_arrays
from shardwise.api.ahead_of_time.shape_dtype_struct import struct
from shardwise.api.jit import Jitted, jit
from shardwise.api.transformations.differentiate import vjp as vjp_of
from shardwise.api.transformations.float0 import float0, is_float0
from shardwise.base._jaxlib import mlir_dialects, parse_module, serialize_portable_artifact
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
from shardwise.execute.traceback_filter import filter_traceback
from shardwise.export.abstract_array import AbstractArray, abstract_array
from shardwise.export.exported import Exported
from shardwise.export.module_function import maximum_supported_calling_convention_version
from shardwise.export.module_text import Value, partitioned_module, unpartitioned_module
from shardwise.export.safety_checks import DisabledSafetyCheck, check_custom_calls
from shardwise.runtime.array import array_signature
from shardwise.runtime.client import canonical_lowering_platform, default_lowering_platform
from shardwise.runtime.sharding import SingleDeviceSharding


def export(
    fun_jit: Callable[..., Any],
    *,
    platforms: Sequence[str] | None = None,
    disabled_checks: Sequence[DisabledSafetyCheck] = (),
    partitioned: bool = False,
) -> Callable[..., Exported]:
    """Export a jitted function, to serialize it.

    By default the module is not partitioned: Shardwise plans it for the devices of the arguments of each call. It has
    the shardings of arguments and results that `jit` and the arguments state; JAX runs a module that states some on a
    mesh of the same axes, and one without shardings on any devices. Sharding constraints inside the function are
    dropped.

    Args:
        fun_jit: the function, which `jit` returned.
        platforms: the platforms to lower for, such as `["cpu", "cuda"]`; by default, the platform of the devices.
        disabled_checks: the safety checks to skip.
        partitioned: whether to plan the function now, for the mesh of the arguments and shardings. The module then has
            the collectives of the plan, and runs on a mesh of the same axes only.

    Returns:
        A function of arguments, or `ShapeDtypeStruct`s in their place, that returns an `Exported`.

    Raises:
        ValueError: if `fun_jit` is not the result of `jit`, or if `partitioned` is combined with several platforms.
        UnsupportedError: when called, if the function calls Python functions on the host, uses Refs, has custom calls
            that are not stable, or a `shard_map` although `partitioned` is not set.

    Example:
        >>> exported = jax.export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((4,), jnp.float32))
        >>> exported.in_avals
        (f32[4],)
    """
    if not isinstance(fun_jit, Jitted):
        raise ValueError(f"export: the function must be the result of `jit`, not {fun_jit!r}. Write `export(jit(f))`.")
    if platforms is not None and isinstance(platforms, str):
        raise ValueError(f"export: platforms must be a sequence of names, such as [{platforms!r}], not {platforms!r}")
    if partitioned and platforms is not None and len(platforms) > 1:
        raise ValueError(f"export: partitioned=True plans for one platform, not for {list(platforms)}")

    @filter_traceback
    def exporter(*args: Any, **kwargs: Any) -> Exported:
        names = tuple(map(canonical_lowering_platform, platforms or (default_lowering_platform(),)))
        return _Export(fun_jit.trace(*args, **kwargs), names, tuple(disabled_checks), partitioned).exported()

    return exporter


def default_export_platform() -> str:
    """Return the platform that functions are exported for by default: that of the devices.

    Returns:
        "cpu", "cuda", "rocm" or "tpu".

    Example:
        >>> jax.export.default_export_platform()
        'cpu'
    """
    return default_lowering_platform()


@final
class _Export:
    """The export of a traced function.

    Args:
        traced: the function.
        platforms: the platforms to lower for.
        disabled: the safety checks to skip.
        partitioned: whether to plan it for the mesh of its arguments.
    """

    def __init__(
        self,
        traced: Traced,
        platforms: tuple[str, ...],
        disabled: tuple[DisabledSafetyCheck, ...],
        partitioned: bool,
    ):
        self.traced, self.platforms, self.disabled, self.partitioned = traced, platforms, disabled, partitioned
        self.request = traced._request
        self.program = traced._request.program
        if traced._refs:
            raise UnsupportedError(
                f"export: `{traced.fun_name}` uses Refs: pass their arrays, and return those that change"
            )
        self.arguments = traced.in_tree.num_leaves

    def exported(self) -> Exported:
        """Lower the function."""
        text, kept, in_shardings, out_shardings = self._partition() if self.partitioned else self._lower()
        module = parse_module(text)
        check_custom_calls(module, self.traced.fun_name, self.disabled)
        stablehlo = mlir_dialects["stablehlo"]
        # A month old, so that installations of XLA that are a little older can read it, as JAX does.
        version = stablehlo.get_version_from_compatibility_requirement(
            stablehlo.StablehloCompatibilityRequirement.WEEK_4
        )
        meshes = [each.mesh.abstract for each in (*in_shardings, *out_shardings) if each is not None]
        return Exported(
            fun_name=self.traced.fun_name,
            in_tree=self.traced.in_tree,
            in_avals=tuple(map(abstract_array, self.program.in_types[: self.arguments])),
            out_tree=self.traced.out_tree,
            out_avals=tuple(map(abstract_array, self.program.out_types)),
            _in_named_shardings=in_shardings,
            _out_named_shardings=out_shardings,
            nr_devices=max([1, *(mesh.device_count for mesh in meshes)]),
            platforms=self.platforms,
            disabled_safety_checks=self.disabled,
            mlir_module_serialized=bytes(serialize_portable_artifact(module, version, True)),
            calling_convention_version=maximum_supported_calling_convention_version,
            module_kept_var_idx=kept,
            uses_global_constants=len(self.platforms) > 1,
            _get_vjp=self._vjp,
        )

    def _lower(self) -> tuple[str, tuple[int, ...], Any, Any]:
        """Return the unpartitioned module, the arguments that it takes, and the shardings that the user states."""
        request, constants = self._on_one_device(), captured_arrays(self.program, self.traced._captured)
        lowered = {name: lower_request(replace(request, platform=name), constants) for name in self.platforms}
        in_shardings, out_shardings = self._stated_shardings()
        first = lowered[self.platforms[0]]
        kept = self._kept(first)
        local = first.stages.local
        arguments = [Value(p.type, in_shardings[index]) for p, index in zip(local.inputs, kept, strict=False)]
        results = [Value(p.type, sharding) for p, sharding in zip(local.outputs, out_shardings, strict=True)]
        devices = max([1, *(s.mesh.abstract.device_count for s in (*in_shardings, *out_shardings) if s is not None)])
        text = unpartitioned_module(self.traced.fun_name, lowered, arguments, results, devices)
        return text, kept, in_shardings, out_shardings

    def _partition(self) -> tuple[str, tuple[int, ...], Any, Any]:
        """Return the partitioned module, the arguments that it takes, and the shardings of the plan."""
        (platform,) = self.platforms
        request = replace(self.request, platform=platform, for_jax=True)
        lowered = lower_request(request, captured_arrays(self.program, self.traced._captured))
        local, kept = lowered.stages.local, self._kept(lowered)
        if local.mesh.device_count == 1:
            raise ValueError(
                f"export: partitioned=True needs a mesh, but no argument and no sharding of `{self.traced.fun_name}` "
                "is on one. Pass ShapeDtypeStructs with a NamedSharding."
            )
        in_types, out_types = self.program.in_types, self.program.out_types
        planned = {index: _planned(p, local.mesh, in_types[index]) for p, index in zip(local.inputs, kept, strict=False)}
        outs = tuple(_planned(p, local.mesh, type) for p, type in zip(local.outputs, out_types, strict=True))
        arguments = [Value(p.type, planned[index]) for p, index in zip(local.inputs, kept, strict=False)]
        results = [Value(p.type, sharding) for p, sharding in zip(local.outputs, outs, strict=True)]
        text = partitioned_module(self.traced.fun_name, lowered, platform, arguments, results)
        return text, kept, tuple(planned.get(index) for index in range(self.arguments)), outs

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

    def _vjp(self, exported: Exported) -> Exported:
        """Export the VJP: a function of the leaves of the arguments and of the results' cotangents."""
        program, captured, count = self.program, self.traced._captured, self.arguments
        in_types, out_types = program.in_types[:count], program.out_types

        def function(*operands: Any) -> tuple[Any, ...]:
            cotangents = [
                x if is_inexact(type.dtype) else np.zeros(type.shape, float0)
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
            struct(_tangent_type(type), sharding)
            for type, sharding in zip(out_types, self.request.out_shardings, strict=True)
        ]
        out_shardings = tuple(requested) if any(requested) else None
        traced = jit(function, out_shardings=out_shardings).trace(*specs, *cotangents)
        vjp = _Export(traced, self.platforms, self.disabled, self.partitioned).exported()
        return replace(
            vjp,
            in_avals=(*exported.in_avals, *map(_tangent_aval, out_types)),
            out_avals=tuple(map(_tangent_aval, in_types)),
        )


def _tangent_type(type: ArrayType) -> ArrayType:
    """Return the type of a cotangent in a program: that of a float0 array is boolean."""
    return type.strong() if is_inexact_array(type) else ArrayType(type.shape, bool)


def is_inexact_array(type: ArrayType) -> bool:
    return not is_key(type.dtype) and is_inexact(type.dtype)


def _tangent_aval(type: ArrayType) -> AbstractArray:
    return abstract_array(type) if is_inexact_array(type) else AbstractArray(type.shape, float0)


def _stated(sharding: Sharding | None) -> NamedSharding | None:
    """Return a sharding without devices; None for one device, and for dims that are left open: files have none."""
    if not isinstance(sharding, NamedSharding) or sharding.num_devices == 1 or UNCONSTRAINED in sharding.spec:
        return None
    return NamedSharding(sharding.mesh.abstract, sharding.spec, memory_kind=sharding.nondefault_memory)


def _planned(placement: Placement, mesh: AbstractMesh, type: ArrayType) -> NamedSharding:
    """Return the sharding of a placement on the mesh of the plan. The layout of keys has a trailing dim."""
    layout = placement.layout
    return NamedSharding(mesh, spec_of(Layout(layout.dims[: type.ndim], layout.partial)))
