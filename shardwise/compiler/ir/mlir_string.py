"""String attributes of MLIR."""


def mlir_string(text: str) -> str:
    """Return a string attribute of MLIR. Other bytes than printable ASCII are escaped."""
    shown = (chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:02X}" for byte in text.encode())
    return '"' + "".join(shown) + '"'
