"""Files of exported functions: round trips, and files that are damaged or of another version."""

import random
from dataclasses import fields, replace

import numpy as np
import pytest

import shardwise as sw
from shardwise import export
from shardwise.errors import ProgramError, UnsupportedError
from shardwise.export.file_format import read_exported, write_exported
from shardwise.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec


@pytest.fixture(scope="module")
def exported():
    mesh = AbstractMesh((2, 4), ("x", "y"), (AxisType.Auto, AxisType.Explicit))
    struct = sw.ShapeDtypeStruct((8, 4), np.float32, sharding=NamedSharding(mesh, PartitionSpec(("x", "y"))))
    return export.export(
        sw.jit(lambda x, n: {"a": (x * 2, None), "b": [n]}),
        disabled_checks=[export.DisabledSafetyCheck.platform(), export.DisabledSafetyCheck.custom_call("f")],
    )(struct, sw.ShapeDtypeStruct((), np.int8))


def test_a_file_has_all_attributes(exported):
    loaded = export.deserialize(exported.serialize(vjp_order=1))
    for function, other in ((loaded, exported), (loaded.vjp(), exported.vjp())):
        for field in fields(export.Exported):
            if field.name != "_get_vjp":
                assert getattr(function, field.name) == getattr(other, field.name), field.name
    assert not loaded.vjp().has_vjp()
    assert loaded.vjp().in_avals[-1].dtype == sw.dtypes.float0
    assert str(loaded.disabled_safety_checks) == "(platform, custom_call:f)"


def test_a_large_number_of_dtypes():
    names = ["bool", "int4", "uint8", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64"]
    structs = [sw.ShapeDtypeStruct((2,), name) for name in names]
    loaded = export.deserialize(export.export(sw.jit(lambda *args: args))(*structs).serialize())
    assert [x.dtype.name for x in loaded.in_avals] == names


def test_damage_is_a_typed_error_or_changes_nothing_but_values(exported):
    blob, generator = bytes(exported.serialize()), random.Random(1)
    module = exported.mlir_module_serialized
    first = blob.index(module)
    positions = [*range(first), *range(first + len(module), len(blob))]  # MLIR checks the module itself
    for _ in range(500):
        damaged = bytearray(blob)
        damaged[generator.choice(positions)] = generator.randrange(256)
        try:
            read_exported(bytes(damaged))
        except (ProgramError, UnsupportedError):
            pass
        except ValueError as error:
            assert "is not registered" in str(error)


def test_something_else_is_no_file():
    for content in (b"", b"abc", b"\x00" * 64, b"\xff" * 64, np.arange(100).tobytes()):
        with pytest.raises(ProgramError, match="is damaged, or no file of `export`"):
            export.deserialize(content)


def test_a_module_that_is_damaged_is_an_error_of_the_call(exported):
    content = exported.mlir_module_serialized
    damaged = replace(exported, mlir_module_serialized=content[: len(content) // 2])
    with pytest.raises(ProgramError, match="the module cannot be parsed"):
        export.deserialize(damaged.serialize()).call(np.ones((8, 4), np.float32), np.int8(1))


def test_a_newer_version_of_stablehlo_is_an_error(exported):
    newer = exported.mlir_module_serialized.replace(b"StableHLO_v1.", b"StableHLO_v9.")
    with pytest.raises(
        UnsupportedError, match=r"the module has version 9\.[\d.]+ of StableHLO, .* reads versions up to"
    ):
        replace(exported, mlir_module_serialized=newer).call(np.ones((8, 4), np.float32), np.int8(1))


def test_another_calling_convention_is_an_error(exported):
    newer = export.deserialize(replace(exported, calling_convention_version=11).serialize())
    with pytest.raises(UnsupportedError, match="version 11 of the calling convention, and versions 9 to 10"):
        newer.call(np.ones((8, 4), np.float32), np.int8(1))


def test_ordered_effects_of_jax_are_an_error(exported):
    ordered = replace(exported, ordered_effects=("OrderedIOEffect",))
    with pytest.raises(UnsupportedError, match="ordered effects, which are not supported: OrderedIOEffect"):
        ordered.call(np.ones((8, 4), np.float32), np.int8(1))


def test_inconsistent_files_are_errors(exported):
    for changes, match in (
        ({"in_avals": exported.in_avals[:1]}, "the numbers of types, shardings and leaves"),
        ({"module_kept_var_idx": (0, 9)}, r"the module has the arguments \[0, 9\] of 2"),
    ):
        with pytest.raises(ProgramError, match=match):
            read_exported(write_exported([replace(exported, **changes)]))
