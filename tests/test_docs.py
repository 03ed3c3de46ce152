"""The Python code of the documents runs, and prints the output that they show."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def code_of(document: str) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL))


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "CONTRIBUTING.md",
        "docs/ecosystem.md",
        "docs/explicit.md",
        "docs/manual.md",
        "docs/memory.md",
        "docs/own-ops.md",
        "docs/plans.md",
    ],
)
def test_python_code_runs_and_prints_the_shown_output(document, tmp_path):
    script = tmp_path / "mlp.py"
    script.write_text(code_of(document))
    # In a new process, since CONTRIBUTING registers an op.
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    printed = run.stdout
    for block in re.findall(r"```\n(\w+ on mesh.*?)\n```", (ROOT / document).read_text(), re.DOTALL):
        shown = [re.sub(r"\s+", " ", re.sub(r"mlp\.py:\d+", "LINE", line)).strip() for line in block.splitlines()]
        printed_lines = [
            re.sub(r"\s+", " ", re.sub(r"mlp\.py:\d+", "LINE", line)).strip() for line in printed.splitlines()
        ]
        missing = [line for line in shown if line not in printed_lines]
        assert missing == []


def test_links_exist():
    for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for link in re.findall(r"\]\(([^)#]+?)\)", document.read_text()):
            if link.startswith("https://"):
                continue
            assert (document.parent / link).exists(), f"{document.name} links to {link}"
