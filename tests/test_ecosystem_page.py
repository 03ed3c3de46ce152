"""docs/ecosystem.md lists every library that `make test-ecosystem` runs, in the version that it installs."""

from tests.ecosystem.table import current, table


def test_the_table_is_up_to_date():
    assert current() == table(), "run `make test-ecosystem`, or `python -m tests.ecosystem.table`"
