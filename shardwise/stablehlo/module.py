"""A parsed module: its functions and its meshes."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

from shardwise.base._jaxlib import mlir_ir
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.errors import ProgramError
from shardwise.stablehlo.annotations import Annotations
from shardwise.stablehlo.types import array_type

_PARTITIONS = "mhlo.num_partitions"


@final
@dataclass(frozen=True)
class Function:
    """A `func.func`.

    Attributes:
        name: its name.
        raw: the op of MLIR.
    """

    name: str
    raw: Any

    @property
    def is_public(self) -> bool:
        visibility = "sym_visibility"
        return visibility not in self.raw.attributes or self.raw.attributes[visibility].value == "public"

    @property
    def body(self) -> Any:
        """Its only block."""
        blocks = list(self.raw.regions[0].blocks)
        if len(blocks) != 1:
            raise ProgramError(
                f"the function @{self.name} has {len(blocks)} blocks instead of one: it has no body, or branches"
            )
        return blocks[0]

    def attributes(self, group: str) -> list[dict[str, Any]]:
        """Return the attributes of each argument (`arg_attrs`) or result (`res_attrs`)."""
        count = len(self.raw.type.inputs if group == "arg_attrs" else self.raw.type.results)
        if group not in self.raw.attributes:
            return [{} for _ in range(count)]
        return [{entry.name: entry.attr for entry in each} for each in self.raw.attributes[group]]

    @property
    def in_names(self) -> list[str]:
        """The names of the arguments that their locations state, else `arg0` and so on."""
        locations = [argument.location for argument in self.body.arguments]
        return [
            location.name_str if isinstance(location, mlir_ir.NameLoc) else f"arg{index}"
            for index, location in enumerate(locations)
        ]

    @property
    def in_types(self) -> list[Any]:
        return [array_type(type) for type in self.raw.type.inputs]

    @property
    def out_types(self) -> list[Any]:
        return [array_type(type) for type in self.raw.type.results]


@final
@dataclass(frozen=True, eq=False)
class Module:
    """A parsed module.

    Attributes:
        raw: the module of MLIR.
        mesh: the mesh to use in place of the module's; None to use that.
    """

    raw: Any
    mesh: Mesh | AbstractMesh | None = None

    @property
    def operations(self) -> Iterator[Any]:
        """The ops at its top level."""
        for view in self.raw.body.operations:
            yield view.operation

    @cached_property
    def functions(self) -> dict[str, Function]:
        views = [view for view in self.raw.body.operations if view.operation.name == "func.func"]
        return {view.name.value: Function(view.name.value, view) for view in views}

    @cached_property
    def annotations(self) -> Annotations:
        """The shardings that the module states."""
        return Annotations(self.raw, self.mesh)

    @property
    def name(self) -> str:
        attributes = self.raw.operation.attributes
        return str(attributes["sym_name"].value) if "sym_name" in attributes else "module"

    @property
    def num_partitions(self) -> int:
        """The number of devices that the module is for; 1 if it states none."""
        attributes = self.raw.operation.attributes
        return int(attributes[_PARTITIONS].value) if _PARTITIONS in attributes else 1

    @property
    def main(self) -> Function:
        """The entry: `@main`, else the only public function."""
        if "main" in self.functions:
            return self.functions["main"]
        public = [function for function in self.functions.values() if function.is_public]
        if len(public) != 1:
            raise ProgramError(
                f"the module has no function @main, and {len(public)} public functions instead of one: "
                f"{', '.join(f'@{function.name}' for function in public) or 'none'}"
            )
        return public[0]

    def function(self, name: str) -> Function:
        if name not in self.functions:
            raise ProgramError(f"the module has no function @{name}")
        return self.functions[name]
