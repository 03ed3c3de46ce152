"""ExportedData: an exported function as data, without methods that run it."""

from dataclasses import dataclass
from typing import Any

from shardwise import tree
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.export.abstract_array import AbstractArray
from shardwise.export.safety_checks import DisabledSafetyCheck


@dataclass(frozen=True, eq=False, kw_only=True)
class ExportedData:
    """The attributes of an exported function, under the names of `jax.export.Exported`. `Exported` lists them."""

    fun_name: str
    in_tree: tree.Structure
    in_avals: tuple[AbstractArray, ...]
    out_tree: tree.Structure
    out_avals: tuple[AbstractArray, ...]
    _in_named_shardings: tuple[NamedSharding | None, ...]
    _out_named_shardings: tuple[NamedSharding | None, ...]
    nr_devices: int
    platforms: tuple[str, ...]
    ordered_effects: tuple[str, ...] = ()
    unordered_effects: tuple[str, ...] = ()
    disabled_safety_checks: tuple[DisabledSafetyCheck, ...]
    mlir_module_serialized: bytes
    calling_convention_version: int
    module_kept_var_idx: tuple[int, ...]
    uses_global_constants: bool

    @property
    def in_shardings_hlo(self) -> tuple[Any, ...]:
        """None for each argument: files have named shardings instead; see `in_shardings_jax`."""
        return (None,) * len(self.in_avals)

    @property
    def out_shardings_hlo(self) -> tuple[Any, ...]:
        """None for each result: files have named shardings instead; see `out_shardings_jax`."""
        return (None,) * len(self.out_avals)
