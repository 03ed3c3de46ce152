"""The README of a folder names files that exist there, or elsewhere in the repository."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
READMES = [path for top in ("shardwise", "tests") for path in (ROOT / top).rglob("README.md")]


@pytest.mark.parametrize("readme", READMES, ids=lambda path: str(path.parent.relative_to(ROOT)))
def test_files_that_it_names_exist(readme):
    names = re.findall(r"`([\w./*]*[\w*](?:\.pyi?|/))`", readme.read_text())
    homes = (readme.parent, readme.parent.parent, ROOT, ROOT / "shardwise")
    assert [name for name in names if not any(list(home.glob(name.removeprefix("../"))) for home in homes)] == []


def test_folders_whose_name_does_not_explain_them_have_a_readme():
    folders = {str(path.parent.relative_to(ROOT)) for path in READMES}
    assert {"shardwise/compiler/candidates", "shardwise/execute", "tests/layouts"} <= folders
