"""parse: limits, versions, damaged modules, and the other process."""

import pytest

from shardwise import stablehlo
from shardwise.base import _jaxlib
from shardwise.errors import ProgramError, UnsupportedError
from shardwise.stablehlo import parse

TEXT = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"


def artifact(version="1.0.0"):
    with _jaxlib.parse_module(TEXT).context:
        return _jaxlib.serialize_portable_artifact(_jaxlib.parse_module(TEXT), version)


@pytest.mark.parametrize(("source", "isolated"), [(TEXT, False), (TEXT.encode(), False), (TEXT, True)])
def test_text(source, isolated):
    assert [str(type) for type in stablehlo.load(source, isolated=isolated).in_types] == ["f32[4]"]


INVALID = "module {", "the module cannot be parsed: line 1, column 7: expected operation name in quotes"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        INVALID,
        ("tf.Add", "the module cannot be parsed: line 1, column 1: "),
        (b"\xff\xfe", "neither text in UTF-8 nor MLIR bytecode"),
        (b"ML\xefR\rMLIR", "the module cannot be parsed"),
        ("module @empty { }", "has no function @main, and 0 public functions"),
        (TEXT.replace("4xf32> {", "5xf32> {"), "doesn't match function result type"),
        ('module attributes {mhlo.name = "\\FF"} { }', "not UTF-8"),
    ],
)
def test_modules_that_are_not_valid(source, message):
    with pytest.raises(ProgramError, match=message):
        stablehlo.load(source)


@pytest.mark.slow
def test_the_other_process_states_the_same_reason():
    source, message = INVALID
    with pytest.raises(ProgramError, match=message):
        stablehlo.load(source, isolated=True)


@pytest.mark.parametrize("bracket", ["[", "(", "{", "<"])
def test_nesting_is_limited(bracket):
    nested = TEXT + "\n" + bracket * 200_000
    with pytest.raises(ProgramError, match="nested more than 500 deep at line 2"):
        stablehlo.load(nested)


def test_brackets_in_strings_and_arrows_do_not_nest():
    text = f'module attributes {{mhlo.name = "{"[" * 600}"}} {{ {TEXT} }}'
    assert stablehlo.load(text).in_types
    pairs = "\n".join(f"func.func private @f{n}() -> () {{ return }} // [[" for n in range(600))
    assert stablehlo.load(f"{TEXT}\n{pairs}").in_types


def test_size_is_limited(monkeypatch):
    monkeypatch.setattr(parse, "MAX_BYTES", 10)
    with pytest.raises(ProgramError, match="bytes: at most 10 are parsed"):
        stablehlo.load(TEXT)


def test_a_crash_in_the_other_process_is_an_error(monkeypatch):
    monkeypatch.setattr(parse, "ISOLATED_PROGRAM", "import os; os.abort()")
    with pytest.raises(ProgramError, match=r"MLIR crashed on the module \(exit status -6\)"):
        stablehlo.load(TEXT, isolated=True)


# Bytecode of a constant of type tensor<i16> with 32 bits of data. MLIR parses it, and crashes when it prints it.
WRONG_DATA = (
    b"ML\xefR\rMLIR23.0.0git\x00\x01\x1f\x07\x01\x05\t\t\x01\x03\x0f\x03\x05\x07\x13\x05\x03\x17\x03#\x11\x07\x01\x11\x0b"
    b"\x13\x0b\x0b\x13\x1f\x13\x13\x01\x07\x0f\x13\x0b\x02M\x05\r\x17\x01\x01\x01\r\x03\x05\x0f\x17\x01\x03\x03%\x01\t\x03\x00\x00"
    b"\x00\x17\x01\x03S\x17\x01\x05\x05\x1b\x01\x05\x05\x01\x03\x01\x01\x81\x04A\x05\x01P\x03\x01\x07\x041\x03\x01\x05\x03P\t\x03\x07"
    b"\x04\x1d\x03\x03\t\x07B\r\x05\x03\x01\x05\x04\x0f\x03\x01\x06\x03\x01\x05\x01\x00}\x11\x0b\x05\x13\x0f\x0f\x15\x0b\x11builtin\x00"
    b"func\x00stablehlo\x00module\x00return\x00constant\x00-\x00main\x00\x08\x1b\x07\x05\x01\x01\r\x01\x05\x01\x01\x07\x01\x03\x0b"
)


def test_a_module_that_mlir_parses_and_cannot_print_is_an_error():
    with pytest.raises(ProgramError, match="MLIR crashed on the module"):
        stablehlo.load(WRONG_DATA, isolated=True)


def test_a_hang_in_the_other_process_is_an_error(monkeypatch):
    monkeypatch.setattr(parse, "ISOLATED_PROGRAM", "import time; time.sleep(100)")
    monkeypatch.setattr(parse, "ISOLATED_SECONDS", 0.2)
    with pytest.raises(ProgramError, match=r"not parsed within 0\.2 seconds"):
        stablehlo.load(TEXT, isolated=True)


def test_older_versions_are_upgraded():
    assert stablehlo.load(artifact()).in_types


def test_newer_versions_are_not_supported():
    newer = artifact().replace(b"StableHLO_v1.", b"StableHLO_v9.")
    newest = ".".join(map(str, _jaxlib.stablehlo_version()))
    with pytest.raises(
        UnsupportedError, match=rf"version 9\.0\.0 of StableHLO.*up to {newest}.*serialize the module for"
    ):
        stablehlo.load(newer)


def test_a_damaged_artifact_states_the_reason():
    with pytest.raises(ProgramError, match="failed to deserialize"):
        stablehlo.load(artifact()[:-20])
