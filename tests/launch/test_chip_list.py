"""`simulate --list-chips`: every chip that `--hardware` accepts, those of the user's table too."""

import pytest

import shardwise as sw
from shardwise.compiler.plan.hardware import built_in_chips
from shardwise.launch.command_line import main


def listed(capsys):
    with pytest.raises(SystemExit) as end:
        main(["simulate", "--list-chips"])
    assert end.value.code == 0
    return capsys.readouterr().out


def test_every_built_in_chip_is_listed(capsys):
    text = listed(capsys)
    assert all(f"│ {name} " in text for name in built_in_chips())
    assert "989 T" in text and "141 GB" in text


def test_chips_of_the_users_table_are_listed(capsys, tmp_path):
    table = tmp_path / "chips.toml"
    table.write_text('[ours]\nextends = "h100"\nmemory = 96e9\n')
    before = sw.config.chip_table
    sw.config.update("chip_table", str(table))
    try:
        (row,) = [line for line in listed(capsys).splitlines() if "│ ours " in line]
    finally:
        sw.config.update("chip_table", before)
    assert "96 GB" in row and "your table" in row
