"""Checks of exported modules: the custom calls in it must be stable, and the platform must be one of the module's."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

from shardwise.base._jaxlib import MlirObject
from shardwise.errors import UnsupportedError

_CUSTOM_CALL = "custom_call:"

# The targets that XLA's plugins keep compatible between versions. JAX guarantees the same.
_STABLE_TARGET = re.compile(
    r"""lapack_[sdcz](potrf|geqrf|orgqr|ungqr|syevd|heevd|geev|gesdd|getrf|sytrd|hetrd|gehrd|gees|trsm|gtsv)_ffi
    | (cu|hip)solver_(getrf|geqrf|orgqr|potrf|syevd|gesvd|gesvdj|gesdd|sytrd)_ffi | cusparse_gtsv2_ffi
    | (cu|hip)_(lu_pivots_to_permutation|threefry2x32_ffi)
    | Sharding | SPMDFullToShardShape | SPMDShardToFullShape | annotate_device_placement | shape_assertion
    | Eigh | Qr | ProductOfElementaryHouseholderReflectors | LuDecomposition | ApproxTopK | AllocateBuffer
    | tpu_custom_call | mosaic_gpu_v2 | tf\.call_tf_function
    | stablehlo\.dynamic_(approx_top_k|reduce_window|rng_bit_generator|top_k)""",
    re.VERBOSE,
)


@final
@dataclass(frozen=True)
class DisabledSafetyCheck:
    """A safety check to skip when a function is exported or called. Use `platform` and `custom_call` to create one.

    Attributes:
        _impl: the text of the check.

    Example:
        >>> jax.export.DisabledSafetyCheck.custom_call("my_kernel")
        custom_call:my_kernel
    """

    _impl: str

    @classmethod
    def platform(cls) -> "DisabledSafetyCheck":
        """Allow to call the function on platforms that it was not exported for."""
        return cls("platform")

    @classmethod
    def custom_call(cls, target_name: str) -> "DisabledSafetyCheck":
        """Allow custom calls of a target that is not known to be stable; "ALL" allows all targets."""
        return cls(f"{_CUSTOM_CALL}{target_name}")

    def is_custom_call(self) -> str | None:
        """Return the target of a check of custom calls; None for other checks."""
        return self._impl.removeprefix(_CUSTOM_CALL) if self._impl.startswith(_CUSTOM_CALL) else None

    def __str__(self) -> str:
        return self._impl

    __repr__ = __str__


def check_custom_calls(module: MlirObject, name: str, disabled: Sequence[DisabledSafetyCheck]) -> None:
    """Raise an error if a module has custom calls whose targets may change between versions.

    Args:
        module: the module of MLIR.
        name: the name of the exported function.
        disabled: the checks to skip.

    Raises:
        UnsupportedError: for such a call; the message has its target and its source line.
    """
    allowed = {check.is_custom_call() for check in disabled}
    if "ALL" in allowed:
        return
    for operation in operations(module):
        if operation.name != "stablehlo.custom_call":
            continue
        target = operation.attributes["call_target_name"].value
        if target not in allowed and _STABLE_TARGET.fullmatch(target) is None:
            raise UnsupportedError(
                f"export: `{name}` has a custom call of {target!r} at {operation.location}, which is not known to stay "
                "compatible between versions. If you load the file with the same version, pass "
                f"`disabled_checks=[export.DisabledSafetyCheck.custom_call({target!r})]`."
            )


def operations(module: MlirObject) -> Iterator[MlirObject]:
    """Yield all ops of a module of MLIR, in its regions too."""
    stack = [module.operation]
    while stack:
        operation = stack.pop()
        yield operation
        stack += [
            view.operation for region in operation.regions for block in region.blocks for view in block.operations
        ]


def platform_index(name: str, platform: str, exported: Sequence[str], disabled: Sequence[DisabledSafetyCheck]) -> int:
    """Return the index of a platform among those that a function was exported for.

    Raises:
        ValueError: if it is none of them, and the check is not disabled.
    """
    if platform in exported:
        return list(exported).index(platform)
    if DisabledSafetyCheck.platform() in disabled:
        return 0
    raise ValueError(
        f"`{name}` was exported for the platforms {tuple(exported)}, but is called on {platform!r}. Export it with "
        f"`platforms={[*exported, platform]}`, or with "
        "`disabled_checks=[export.DisabledSafetyCheck.platform()]` if its ops are the same on all platforms."
    )
