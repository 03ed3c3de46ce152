"""docs/ecosystem.md lists every library that `make test-ecosystem` runs, in the version that it installs."""

import re

from tests.ecosystem.table import ROOT, current, table


def pinned(distribution):
    """Return the version of a library in the extra `ecosystem`."""
    match = re.search(rf'^    "{distribution}==([\d.]+)",$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert match is not None, f"pyproject.toml does not pin {distribution} in the extra `ecosystem`"
    return match.group(1)


def test_the_table_is_up_to_date():
    assert current() == table(pinned), "run `make test-ecosystem`, or `python -m tests.ecosystem.table`"
