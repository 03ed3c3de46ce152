"""The table of `make coverage`."""

from tests.coverage_report import table


def summary(lines, covered):
    return {"summary": {"num_statements": lines, "covered_lines": covered}}


def test_lines_are_added_up_per_folder():
    files = {
        "shardwise/lax/slicing.py": summary(30, 30),
        "shardwise/config.py": summary(10, 5),
        "shardwise/lax/control.py": summary(10, 9),
        "shardwise/empty/__init__.py": summary(0, 0),
    }
    assert table(files).splitlines() == [
        "folder            lines  covered",
        "shardwise            10    50.0%",
        "shardwise/empty       0   100.0%",
        "shardwise/lax        40    97.5%",
        "all                  50    88.0%",
    ]
