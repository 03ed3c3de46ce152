"""Parse a module: text, MLIR bytecode, or a portable artifact of StableHLO (as `jax.export` writes).

MLIR's parser is made for compilers, whose input is trusted: deep nesting overflows its stack, and the process ends. So
size and nesting are limited before it sees a module. It accepts bytecode with constants whose data do not fit their
types, on which its printer crashes. `isolated` parses and prints in another process first.
"""

import io
import re
import subprocess
import sys
from typing import Any

from shardwise.base._jaxlib import parse_module, parse_portable_artifact, stablehlo_version
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.errors import ProgramError, UnsupportedError
from shardwise.stablehlo.module import Module

MAX_BYTES = 1 << 30
MAX_NESTING = 500
ISOLATED_SECONDS = 600

_BYTECODE = b"ML\xefR"
_PRODUCER = re.compile(rb"StableHLO_v(\d+)\.(\d+)\.(\d+)\x00")
_MLIR_ERROR = re.compile(r"error: (?:\"-\":(\d+):(\d+): )?(.*)")
_STRUCTURE = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|->|[<>=]=|[\[({<\])}>]')
_ESCAPED = re.compile(rb"(?:\\[89A-F][0-9A-F])+")
ISOLATED_PROGRAM = "from shardwise.stablehlo.parse import serve_isolated; serve_isolated()"


def parse(source: str | bytes, mesh: Mesh | AbstractMesh | None = None, isolated: bool = False) -> Module:
    """Parse a module.

    Args:
        source: text, or bytecode.
        mesh: the mesh to use in place of the module's.
        isolated: parse it in another process first, so that a crash of MLIR is an error here.

    Raises:
        ProgramError: if it is no valid module, too large, or too deeply nested.
        UnsupportedError: if its version of StableHLO is newer than that of the installed jaxlib.
    """
    if len(source) > MAX_BYTES:
        raise ProgramError(f"the module has {len(source):,} bytes: at most {MAX_BYTES:,} are parsed")
    if isinstance(source, bytes) and not is_bytecode(source):
        try:
            source = source.decode()
        except UnicodeDecodeError as error:
            raise ProgramError("the module is neither text in UTF-8 nor MLIR bytecode") from error
    if isinstance(source, str):
        _check_nesting(source)
    else:
        _check_version(source)
    parsed = _parse(_parse_isolated(source) if isolated else source)
    _check_strings(parsed)
    return Module(parsed, mesh)


def is_bytecode(data: bytes) -> bool:
    """Return whether `data` is MLIR bytecode, by its first bytes."""
    return data.startswith(_BYTECODE)


def _parse(source: str | bytes) -> Any:
    """Parse text or bytecode in this process."""
    try:
        if isinstance(source, bytes) and _PRODUCER.search(source[:64]):
            return parse_portable_artifact(source)
        return parse_module(source)
    except Exception as error:  # jaxlib's errors have no common class
        raise ProgramError(f"the module cannot be parsed: {_first_error(str(error))}") from error


def _first_error(message: str) -> str:
    match = _MLIR_ERROR.search(message)
    if match is None:
        return message.strip().splitlines()[0] if message.strip() else "MLIR states no reason"
    return f"line {match[1]}, column {match[2]}: {match[3]}" if match[1] else match[3]


def _check_nesting(text: str) -> None:
    """Reject text with deeply nested brackets, outside of strings and comments."""
    depth = 0
    for match in _STRUCTURE.finditer(text):
        token = match[0]
        if token in "[({<":
            depth += 1
            if depth > MAX_NESTING:
                line = text.count("\n", 0, match.start()) + 1
                raise ProgramError(f"the module has brackets nested more than {MAX_NESTING} deep at line {line}")
        elif token in "])}>":
            depth -= 1


def _check_strings(parsed: Any) -> None:
    """Reject a module with a string that is not UTF-8: jaxlib ends the process when it converts one to Python."""
    text = parsed.operation.get_asm(binary=True, enable_debug_info=True, large_elements_limit=16)
    for escaped in _ESCAPED.findall(text):  # MLIR escapes all bytes that are not ASCII
        try:
            bytes.fromhex(escaped.replace(b"\\", b"").decode()).decode()
        except UnicodeDecodeError as error:
            raise ProgramError("the module has a name or a string that is not UTF-8") from error


def _check_version(bytecode: bytes) -> None:
    """Reject a portable artifact of a newer version of StableHLO."""
    match = _PRODUCER.search(bytecode[:64])
    if match is None:
        return
    stated, current = tuple(map(int, match.groups())), stablehlo_version()
    if stated > current:
        module, newest = (".".join(map(str, version)) for version in (stated, current))
        raise UnsupportedError(
            f"the module has version {module} of StableHLO, and the installed jaxlib reads versions up to {newest}. "
            f"Install a newer jaxlib, or serialize the module for version {newest}."
        )


def _parse_isolated(source: str | bytes) -> bytes:
    """Parse a module in another process, and return it as bytecode that MLIR itself wrote."""
    data = source.encode() if isinstance(source, str) else source
    try:
        child = subprocess.run(
            [sys.executable, "-c", ISOLATED_PROGRAM],
            input=data,
            capture_output=True,
            timeout=ISOLATED_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ProgramError(f"the module was not parsed within {ISOLATED_SECONDS} seconds") from error
    if child.returncode == 0:
        return child.stdout
    if child.returncode == 1 and child.stdout:
        raise ProgramError(child.stdout.decode())
    raise ProgramError(f"MLIR crashed on the module (exit status {child.returncode})")


def serve_isolated() -> None:
    """Parse the module on the standard input, and write its bytecode, or the error with exit status 1."""
    data = sys.stdin.buffer.read()
    try:
        bytecode = io.BytesIO()
        _parse(data if is_bytecode(data) else data.decode()).operation.write_bytecode(bytecode)
        _check_strings(_parse(bytecode.getvalue()))  # as the other process will: a crash must happen here
        sys.stdout.buffer.write(bytecode.getvalue())
    except ProgramError as error:
        sys.stdout.buffer.write(str(error).encode())
        sys.exit(1)
