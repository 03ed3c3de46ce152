"""The table of models in docs/from-pytorch.md.

python -m tests.torch.table     measures all models and writes it
"""

import re
from pathlib import Path

from tests.torch.compare import Comparison, compare
from tests.torch.models import MODELS

PAGE = Path(__file__).resolve().parents[2] / "docs/from-pytorch.md"
HEAD = (
    "| model | from | gradient error, 1 device | 4 × 2 | parameters | per device | sent per device and step |\n"
    "|---|---|---|---|---|---|---|\n"
)
_TABLE = re.compile(re.escape(HEAD) + r"(\|.*\n)*")


def row(name: str, result: Comparison) -> str:
    """Return the row of a model."""
    errors = f"{result.gradient_error:.0e} | {result.sharded_gradient_error:.0e}"
    sizes = " | ".join(kib(size) for size in (result.parameter_bytes, result.device_bytes, result.wire_bytes))
    return f"| {name} | {MODELS[name][0]} | {errors} | {sizes} |\n"


def kib(size: float) -> str:
    return f"{size / 1024:,.0f} KiB"


def write() -> None:
    """Measure all models and replace the table of the page."""
    rows = []
    for name in MODELS:
        rows.append(row(name, compare(name)))
        print(rows[-1], end="", flush=True)
    page = PAGE.read_text()
    match = _TABLE.search(page)
    assert match is not None, f"{PAGE} has no table that begins with {HEAD!r}"
    PAGE.write_text(page.replace(match.group(), HEAD + "".join(rows)))


if __name__ == "__main__":
    write()
