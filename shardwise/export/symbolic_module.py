"""symbolic_module: one module with dynamic shapes, from modules of the same function at several sizes.

The modules must differ in sizes only, and every size must be a polynomial of the dimension variables. Types get
dynamic dims. Ops whose attributes have sizes become their dynamic counterparts, which take the sizes as operands:

    broadcast_in_dim → dynamic_broadcast_in_dim    iota → dynamic_iota      slice → real_dynamic_slice
    reshape → dynamic_reshape                      pad → dynamic_pad        gather → dynamic_gather
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from shardwise.base._jaxlib import MlirObject, mlir_dialects, mlir_ir, parse_module
from shardwise.base.symbolic_dim import Dim, is_symbolic_dim
from shardwise.errors import UnsupportedError
from shardwise.export.size_fit import SizeFit
from shardwise.export.size_ops import SizeOps

Shape = tuple[Dim, ...]


@final
class SymbolicModule:
    """A module with dynamic shapes.

    Args:
        name: the name of the function, for messages.
        texts: its module at each sample of `fit`.
        in_shapes: the shapes of the arguments of `main`.
        fit: finds the polynomials of sizes.

    Attributes:
        raw: the module of MLIR.
        out_shapes: the shapes of the results of `main`.

    Raises:
        UnsupportedError: if an op depends on a variable in another way; the message names the op and its line.
    """

    def __init__(self, name: str, texts: Sequence[str], in_shapes: Sequence[Shape], fit: SizeFit):
        self._name, self._fit = name, fit
        modules = [parse_module(text) for text in texts]
        self.raw = modules[0]
        mains = [mlir_ir.SymbolTable(module.operation)["main"] for module in modules]
        with self.raw.context, mlir_ir.Location.unknown():
            blocks = [main.entry_block for main in mains]
            self._generalize_arguments(mains[0], blocks)
            self._sizes = SizeOps(blocks[0], in_shapes)
            results = [main.type.results for main in mains]
            self._generalize_ops(
                [list(block.operations)[self._sizes.count * (not n) :] for n, block in enumerate(blocks)]
            )
            self.out_shapes = [self._shape(mains, types) for types in zip(*results, strict=True)]
            returned = list(blocks[0].operations)[-1].operands
            types = mlir_ir.FunctionType.get([x.type for x in blocks[0].arguments], [x.type for x in returned])
            mains[0].attributes["function_type"] = mlir_ir.TypeAttr.get(types)
            self._sizes.finish()
            self.raw.operation.attributes["jax.uses_shape_polymorphism"] = mlir_ir.BoolAttr.get(True)

    def _generalize_arguments(self, owner: MlirObject, blocks: Sequence[MlirObject]) -> None:
        for arguments in zip(*(block.arguments for block in blocks), strict=True):
            self._generalize_type([owner], arguments)

    def _generalize_blocks(self, owners: Sequence[MlirObject], regions: Sequence[MlirObject]) -> None:
        for blocks in zip(*(region.blocks for region in regions), strict=True):
            self._generalize_arguments(owners[0], blocks)
            self._generalize_ops([list(block.operations) for block in blocks])

    def _generalize_ops(self, lists: Sequence[Sequence[MlirObject]]) -> None:
        names = [[view.operation.name for view in views] for views in lists]
        for other in names[1:]:
            if other != names[0]:
                pairs = enumerate(zip(names[0], other, strict=False))
                index = next((n for n, (name, its_name) in pairs if name != its_name), -1)
                raise self.unsupported(lists[0][index].operation, "the ops of the function depend on the size")
        for views in zip(*lists, strict=True):
            self._generalize_op([view.operation for view in views])

    def _generalize_op(self, operations: Sequence[MlirObject]) -> None:
        first = operations[0]
        for regions in zip(*(operation.regions for operation in operations), strict=True):
            self._generalize_blocks(operations, regions)
        shapes = [
            self._shape(operations, [x.type for x in r]) for r in zip(*(o.results for o in operations), strict=True)
        ]
        varying = {name for name in _names(first) if len({str(o.attributes[name]) for o in operations}) > 1}
        counterpart = _COUNTERPARTS.get(first.name)
        needs_sizes = first.name in _SHAPED and any(map(is_symbolic_dim, shapes[0]))
        if counterpart is not None and (varying or needs_sizes):
            with mlir_ir.InsertionPoint(first), first.location:
                result = counterpart(self, operations, shapes[0])
            first.results[0].replace_all_uses_with(result)
            first.erase()
            return
        if varying:
            raise self.unsupported(first, f"its attributes {sorted(varying)} depend on the size")
        for results in zip(*(operation.results for operation in operations), strict=True):
            self._generalize_type(operations, results)

    def _generalize_type(self, operations: Sequence[MlirObject], values: Sequence[MlirObject]) -> None:
        if isinstance(values[0].type, mlir_ir.RankedTensorType):
            shape = self._shape(operations, [value.type for value in values])
            values[0].set_type(dynamic_type(shape, values[0].type.element_type))

    def _shape(self, operations: Sequence[MlirObject], types: Sequence[MlirObject]) -> Shape:
        """Return the shape of a value from its types at all samples."""
        if not isinstance(types[0], mlir_ir.RankedTensorType):
            return ()
        return tuple(self.dim(operations[0], sizes) for sizes in zip(*(type.shape for type in types), strict=True))

    def dim(self, operation: MlirObject, values: Sequence[int]) -> Dim:
        """Return the polynomial of an observed size."""
        dim = self._fit([int(value) for value in values])
        if dim is None:
            observed = ", ".join(
                f"{value} for {', '.join(f'{name} = {size}' for name, size in sizes.items())}"
                for value, sizes in list(zip(values, self._fit.samples, strict=True))[:3]
            )
            raise self.unsupported(operation, f"a size is no polynomial of the variables: {observed}")
        return dim

    def attribute(self, operations: Sequence[MlirObject], name: str) -> Any:
        """Return an attribute with one integer per dim as a tensor."""
        attributes = [list(operation.attributes[name]) for operation in operations]
        return self._sizes.vector([self.dim(operations[0], values) for values in zip(*attributes, strict=True)])

    def shape_operand(self, shape: Shape) -> Any:
        """Return a shape as a tensor."""
        return self._sizes.vector(shape)

    def size(self, dim: Dim) -> Any:
        """Return a size as a scalar."""
        return self._sizes.value(dim)

    def unsupported(self, operation: MlirObject, reason: str) -> UnsupportedError:
        """Return the error for an op that depends on a variable in another way."""
        match = re.match(r'loc\("([^"]*)"', str(operation.location))
        place = f" at {match[1]}" if match else ""
        return UnsupportedError(
            f"export: {operation.name}{place} in `{self._name}` depends on a symbolic dim in a way that is not "
            f"supported: {reason}. Export the function for each size, or compute this part without the size."
        )


def dynamic_type(shape: Shape, element: MlirObject) -> Any:
    """Return the tensor type whose symbolic dims are dynamic."""
    dynamic = mlir_ir.ShapedType.get_dynamic_size()
    return mlir_ir.RankedTensorType.get([dynamic if is_symbolic_dim(dim) else dim for dim in shape], element)


def _names(operation: MlirObject) -> list[str]:
    """Return the names of an op's attributes."""
    return [entry if isinstance(entry, str) else entry.name for entry in operation.attributes]


def _result_type(operations: Sequence[MlirObject], shape: Shape) -> Any:
    return dynamic_type(shape, operations[0].results[0].type.element_type)


def _constant(module: SymbolicModule, operations: Sequence[MlirObject], shape: Shape) -> Any:
    """A splat of a value that may be a polynomial of the variables."""
    stablehlo, first = mlir_dialects["stablehlo"], operations[0]
    attributes = [mlir_ir.DenseElementsAttr(operation.attributes["value"]) for operation in operations]
    if not all(attribute.is_splat for attribute in attributes):
        raise module.unsupported(first, "a constant array depends on the size")
    element = first.results[0].type.element_type
    scalar_type = mlir_ir.RankedTensorType.get([], element)
    splats = [attribute.get_splat_value() for attribute in attributes]
    if len(set(map(str, splats))) == 1:
        scalar = stablehlo.constant(mlir_ir.DenseElementsAttr.get_splat(scalar_type, splats[0]))
    else:
        values = [splat.value for splat in splats]
        if any(value != np.rint(value) for value in values):
            raise module.unsupported(first, f"a constant depends on the size: {values[0]}, {values[1]}, ...")
        scalar = stablehlo.convert(scalar_type, module.size(module.dim(first, [int(value) for value in values])))
    return stablehlo.dynamic_broadcast_in_dim(_result_type(operations, shape), scalar, module.shape_operand(shape), [])


def _broadcast_in_dim(module: SymbolicModule, operations: Sequence[MlirObject], shape: Shape) -> Any:
    first, result = operations[0], _result_type(operations, shape)
    dims = list(first.attributes["broadcast_dimensions"])
    build = mlir_dialects["stablehlo"].dynamic_broadcast_in_dim
    return build(result, first.operands[0], module.shape_operand(shape), dims)


def _reshape(module: SymbolicModule, operations: Sequence[MlirObject], shape: Shape) -> Any:
    result, operand = _result_type(operations, shape), operations[0].operands[0]
    return mlir_dialects["stablehlo"].dynamic_reshape(result, operand, module.shape_operand(shape))


def _iota(module: SymbolicModule, operations: Sequence[MlirObject], shape: Shape) -> Any:
    dim = operations[0].attributes["iota_dimension"].value
    return mlir_dialects["stablehlo"].dynamic_iota(_result_type(operations, shape), module.shape_operand(shape), dim)


def _slice(module: SymbolicModule, operations: Sequence[MlirObject], shape: Shape) -> Any:
    parts = [module.attribute(operations, name) for name in ("start_indices", "limit_indices", "strides")]
    build = mlir_dialects["stablehlo"].real_dynamic_slice
    return build(_result_type(operations, shape), operations[0].operands[0], *parts)


def _pad(module: SymbolicModule, operations: Sequence[MlirObject], shape: Shape) -> Any:
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    parts = [module.attribute(operations, name) for name in names]
    return mlir_dialects["stablehlo"].dynamic_pad(_result_type(operations, shape), *operations[0].operands, *parts)


def _gather(module: SymbolicModule, operations: Sequence[MlirObject], shape: Shape) -> Any:
    first = operations[0]
    return mlir_dialects["stablehlo"].dynamic_gather(
        *first.operands,
        module.attribute(operations, "slice_sizes"),
        first.attributes["dimension_numbers"],
        indices_are_sorted=first.attributes.get("indices_are_sorted", None),
        results=[_result_type(operations, shape)],
    )


_COUNTERPARTS: dict[str, Callable[[SymbolicModule, Sequence[MlirObject], Shape], Any]] = {
    "stablehlo.broadcast_in_dim": _broadcast_in_dim,
    "stablehlo.constant": _constant,
    "stablehlo.gather": _gather,
    "stablehlo.iota": _iota,
    "stablehlo.pad": _pad,
    "stablehlo.reshape": _reshape,
    "stablehlo.slice": _slice,
}
# The ops whose result type is not determined by their operands.
_SHAPED = {"stablehlo.broadcast_in_dim", "stablehlo.constant", "stablehlo.iota", "stablehlo.reshape"}
