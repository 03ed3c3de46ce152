"""export: lower a jitted function to StableHLO, to run it in another process, with another version, or with JAX."""

from collections.abc import Callable, Sequence
from typing import Any

from shardwise import tree
from shardwise.api.ahead_of_time.shape_dtype_struct import SymbolicStruct
from shardwise.api.jit import Jitted
from shardwise.base.symbolic_dim import Dim, scope_of, variables_of
from shardwise.compiler.dtypes import is_key, key_words
from shardwise.errors import UnsupportedError
from shardwise.execute.traceback_filter import filter_traceback
from shardwise.export.abstract_array import AbstractArray
from shardwise.export.exported import Exported
from shardwise.export.safety_checks import DisabledSafetyCheck
from shardwise.export.size_fit import SizeFit, sample_sizes
from shardwise.export.symbolic_module import SymbolicModule
from shardwise.export.traced_export import ExportOptions, TracedExport
from shardwise.runtime.client import canonical_lowering_platform, default_lowering_platform


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
        leaves, structure = tree.flatten((args, kwargs))
        symbolic = [leaf for leaf in leaves if isinstance(leaf, SymbolicStruct)]
        options = ExportOptions(names, tuple(disabled_checks), partitioned, keep_unused=bool(symbolic))
        if not symbolic:
            return TracedExport(fun_jit.trace(*args, **kwargs), options).exported()
        if partitioned or len(names) > 1:
            raise UnsupportedError(
                "export: symbolic dims cannot be combined with partitioned=True or several platforms"
            )
        dims = [dim for struct in symbolic for dim in struct.shape]
        scope = scope_of(dims)
        samples = sample_sizes(sorted(variables_of(dims)), scope)
        exports = []
        for sizes in samples:
            concrete = [leaf.at(sizes) if isinstance(leaf, SymbolicStruct) else leaf for leaf in leaves]
            arguments, keywords = structure.unflatten(concrete)
            exports.append(TracedExport(fun_jit.trace(*arguments, **keywords), options))
        return _export_symbolic(exports, SizeFit(samples, scope))

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


def _export_symbolic(exports: Sequence[TracedExport], fit: SizeFit) -> Exported:
    """Return one exported function with symbolic dims.

    Args:
        exports: the export of the function at each sample of `fit`.
        fit: finds the polynomials of sizes.
    """
    first, modules = exports[0], [each.module() for each in exports]
    name = first.traced.fun_name
    if len({module.kept for module in modules}) > 1:
        raise UnsupportedError(f"export: which arguments `{name}` uses depends on a symbolic dim")
    in_avals = tuple(_fit_aval(avals, fit) for avals in zip(*(each.in_avals for each in exports), strict=True))
    shapes = [_with_words(in_avals[index]) for index in modules[0].kept]
    symbolic = SymbolicModule(name, [module.text for module in modules], shapes, fit)
    out_avals = tuple(
        AbstractArray(shape[: aval.ndim], aval.dtype)
        for aval, shape in zip(first.out_avals, symbolic.out_shapes, strict=True)
    )
    return first.assemble(
        modules[0],
        symbolic.raw,
        in_avals,
        out_avals,
        True,
        lambda _: _export_symbolic([each.vjp() for each in exports], fit),
    )


def _fit_aval(avals: Sequence[AbstractArray], fit: SizeFit) -> AbstractArray:
    """Return the type of an argument from its types at all samples."""
    shape = []
    for sizes in zip(*(aval.shape for aval in avals), strict=True):
        dim = fit([int(size) for size in sizes])
        if dim is None:
            raise UnsupportedError(
                f"export: the sizes {sizes} of an argument's dim are no polynomial of the dimension variables. Use a "
                "variable for it."
            )
        shape.append(dim)
    return AbstractArray(tuple(shape), avals[0].dtype)


def _with_words(aval: AbstractArray) -> tuple[Dim, ...]:
    """Return the shape of an argument of a module, in which keys have a trailing dim of words."""
    return (*aval.shape, key_words(aval.dtype)) if is_key(aval.dtype) else aval.shape
