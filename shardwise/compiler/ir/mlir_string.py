"""String attributes of MLIR, and names of attributes."""

import re


def mlir_string(text: str) -> str:
    """Return a string attribute of MLIR. Other bytes than printable ASCII are escaped."""
    shown = (chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:02X}" for byte in text.encode())
    return '"' + "".join(shown) + '"'


def attribute_name(name: str) -> str:
    """Return the name of an attribute, in quotes if it is not an identifier."""
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else mlir_string(name)
