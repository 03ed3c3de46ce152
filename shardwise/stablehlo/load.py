"""load: a module of StableHLO as a function of arrays."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, final

from shardwise.api.jit import jit
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.errors import ProgramError
from shardwise.stablehlo.module import Module
from shardwise.stablehlo.parse import parse
from shardwise.stablehlo.read import Reader


@final
class LoadedModule:
    """The function that a module of StableHLO computes.

    A call takes one array for each argument of the module's `main`, and returns its result, or a tuple of several. It
    can be passed to `jit`, `grad`, `vmap`, `explain` and `autoshard`, as any function of arrays.

    Args:
        module: the parsed module.

    Attributes:
        in_names: the names of the arguments that the module's locations state, else `arg0` and so on.
        in_types: the types of the arguments.
        out_types: the types of the results.
        in_shardings: the sharding that the module states for each argument, or None.
        out_shardings: the sharding that the module states for each result, or None.
        mesh: the mesh of the shardings: the one that `load` was given, or the module's, which has no devices; None if
            the module states no shardings.
        num_partitions: the number of devices that the module is for; 1 if it states none.
    """

    in_names: tuple[str, ...]
    in_types: tuple[ArrayType, ...]
    out_types: tuple[ArrayType, ...]
    in_shardings: tuple[NamedSharding | None, ...]
    out_shardings: tuple[NamedSharding | None, ...]
    mesh: Mesh | AbstractMesh | None
    num_partitions: int

    def __init__(self, module: Module):
        main = module.main
        self._module, self._main = module, main
        self.__name__ = self.__qualname__ = module.name.removeprefix("jit_")
        self.in_names = tuple(main.in_names)
        self.in_types, self.out_types = tuple(main.in_types), tuple(main.out_types)
        self.num_partitions = module.num_partitions
        self.mesh = module.annotations.mesh
        self.in_shardings = self._stated("arg_attrs", self.in_types)
        self.out_shardings = self._stated("res_attrs", self.out_types)

    def _stated(self, group: str, types: Sequence[ArrayType]) -> tuple[NamedSharding | None, ...]:
        """Return the shardings of the arguments or results."""
        pins = map(self._module.annotations.pin, self._main.attributes(group), (type.ndim for type in types))
        return tuple(None if pin is None else pin.sharding for pin in pins)

    def __call__(self, *args: object) -> Any:
        """Apply the module to arrays.

        Raises:
            TypeError: if the number, a shape or a dtype of the arguments differs from the module's.
            UnsupportedError: if the module has an op that is not supported; the message names op and line.
        """
        results = self._compiled(*args)
        return results[0] if len(results) == 1 else results

    @cached_property
    def _compiled(self) -> Any:
        def evaluate(*args: object) -> tuple[Any, ...]:
            return self._evaluate(*args)

        evaluate.__name__ = evaluate.__qualname__ = self.__name__  # for messages and profiles
        return jit(evaluate, inline=True)

    def _evaluate(self, *args: object) -> tuple[Any, ...]:
        if len(args) != len(self.in_types):
            raise TypeError(f"{self.__name__} takes {len(self.in_types)} arguments, not {len(args)}")
        operands = [self._argument(index, x) for index, x in enumerate(args)]
        return tuple(Reader(self._module).call(self._main, operands))

    def _argument(self, index: int, x: object) -> Any:
        array, expected = as_operand(x), self.in_types[index]
        if (array.type.shape, array.type.dtype) != (expected.shape, expected.dtype):
            wide = expected.dtype.itemsize == 8 and array.type.dtype.itemsize == 4
            hint = " Set `jax_enable_x64` for 64-bit arguments." if wide else ""
            raise TypeError(f"{self.__name__}: argument {index} must be {expected}, not {array.type}.{hint}")
        return array.astype(expected.dtype) if array.type.weak else array

    def __repr__(self) -> str:
        ins, outs = (", ".join(map(str, types)) for types in (self.in_types, self.out_types))
        return f"<StableHLO module {self.__name__}: ({ins}) -> ({outs})>"


def load(module: str | bytes, *, mesh: Mesh | AbstractMesh | None = None, isolated: bool = False) -> LoadedModule:
    """Read a module of StableHLO, which any framework may have written, as a function of arrays.

    Ops of StableHLO and CHLO become the ops of Shardwise, so that the function can be planned, differentiated and
    explained. A while loop that counts becomes a scan. Shardings that the module states inside become constraints;
    those of arguments and results are attributes of the function. Composites are replaced by their decompositions.

    Args:
        module: the module as text, as MLIR bytecode, or as a portable artifact (`jax.export` writes one as
            `mlir_module_serialized`).
        mesh: the mesh to use in place of the one that the module's shardings refer to. The sizes of its axes must be
            the same; their names may differ. Without devices, a function with constraints can be planned, but not run.
        isolated: whether to parse the module in another process first. MLIR's parser can crash on a hostile module;
            the crash is then an error.

    Returns:
        The function. Its arguments are those of the module's `main`, in order.

    Raises:
        ProgramError: if the module is not valid, too large, too deeply nested, or has no `main`.
        ShardingError: if `mesh` has other sizes than the module's.
        UnsupportedError: if its version is newer than the installed jaxlib's, or a type, mesh or sharding is not
            supported. Ops are checked when the function is called.

    Example:
        >>> text = jax.jit(lambda x: x * 2).lower(jnp.arange(3)).as_text()
        >>> double = jax.stablehlo.load(text)
        >>> double(jnp.arange(3))
        Array([0, 2, 4], dtype=int32)
    """
    if not isinstance(module, (str, bytes)):
        raise ProgramError(f"load: the module must be text or bytes, not {type(module).__name__}; use `.as_text()`")
    return LoadedModule(parse(module, mesh, isolated))
