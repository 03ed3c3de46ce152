"""The table of models in docs/from-pytorch.md.

python -m tests.torch.table     writes it from what tests/torch/test_torch_models.py has measured
"""

import json
import re
from dataclasses import asdict
from pathlib import Path

from tests.torch.compare import Comparison
from tests.torch.models import MODELS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/from-pytorch.md"
MEASURED = ROOT / "build/torch-models"
HEAD = (
    "| model | from | gradient error, 1 device | 4 × 2 | parameters | per device | sent per device and step |\n"
    "|---|---|---|---|---|---|---|\n"
)
_TABLE = re.compile(re.escape(HEAD) + r"(\|.*\n)*")


def record(name: str, result: Comparison) -> None:
    """Keep what was measured of a model, for `write`."""
    MEASURED.mkdir(parents=True, exist_ok=True)
    _file(name).write_text(json.dumps(asdict(result)))


def _file(name: str) -> Path:
    return MEASURED / f"{name.replace(' ', '-')}.json"


def row(name: str, result: Comparison) -> str:
    """Return the row of a model."""
    errors = f"{result.gradient_error:.0e} | {result.sharded_gradient_error:.0e}"
    sizes = " | ".join(kib(size) for size in (result.parameter_bytes, result.device_bytes, result.wire_bytes))
    return f"| {name} | {MODELS[name][0]} | {errors} | {sizes} |\n"


def kib(size: float) -> str:
    return f"{size / 1024:,.0f} KiB"


def write() -> None:
    """Replace the table of the page. All models must have been measured."""
    rows = [row(name, Comparison(**json.loads(_file(name).read_text()))) for name in MODELS]
    print("".join(rows), end="")
    page = PAGE.read_text()
    match = _TABLE.search(page)
    assert match is not None, f"{PAGE} has no table that begins with {HEAD!r}"
    PAGE.write_text(page.replace(match.group(), HEAD + "".join(rows)))


if __name__ == "__main__":
    write()
