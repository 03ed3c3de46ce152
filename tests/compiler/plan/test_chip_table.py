"""Tables of chips: entries are read back as they were written, and errors name the entry and the field."""

import os
from dataclasses import replace

import pytest

from shardwise.compiler.plan.chip import Link
from shardwise.compiler.plan.chip_table import format_chip, parse_chips, read_chips, write_chip
from shardwise.compiler.plan.hardware import built_in_chips, chip
from shardwise.errors import HardwareError

KNOWN = built_in_chips()
COMPLETE = """
[box]
device_kinds = ["Box 1"]
bf16_flops = 1e12
f32_flops = 5e11
memory = 1_000_000_000
memory_bandwidth = 1e11
fast_link = { bandwidth = 1e10, latency = 1e-6 }
slow_link = { bandwidth = 1e9, latency = 1e-5 }
fast_domain_size = 8
"""


@pytest.mark.parametrize("name", KNOWN)
def test_an_entry_is_read_back(name):
    row = replace(KNOWN[name], name=f"my {name}")
    assert parse_chips(format_chip(row, "Two\nlines."), "t.toml", KNOWN) == {f"my {name}": row}


def test_a_complete_entry():
    (row,) = parse_chips(COMPLETE, "t.toml", {}).values()
    assert row.slow_link == Link(1e9, 1e-5) and row.device_kinds == ("Box 1",) and row.memory == 10**9
    assert (row.cores, row.product_fraction, row.overlaps, row.platform) == (1, 1.0, False, "cpu")


def test_an_entry_extends_another():
    chips = parse_chips('[a]\nextends = "h100"\nmemory = 9\n[b]\nextends = "a"\noverlaps = false\n', "t.toml", KNOWN)
    assert chips["b"] == replace(KNOWN["h100"], name="b", device_kinds=(), memory=9, overlaps=False)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("memory_fraction = 1.7", "memory_fraction must be a number above 0 and at most 1, not 1.7"),
        ("cores = 1.5", "cores must be an integer of at least 1, not 1.5"),
        ("memory = true", "memory must be an integer of at least 1, not True"),
        ("bf16_flops = '312e12'", "bf16_flops must be a number above 0, not '312e12'"),
        ("memory_bandwidth = nan", "memory_bandwidth must be a number above 0, not nan"),
        ("kernel_gap = -1e-6", "kernel_gap must be a number of seconds, at least 0, not -1e-06"),
        ("overlaps = 1", "overlaps must be true or false, not 1"),
        ("platform = 'cuda'", "platform must be one of 'cpu', 'gpu', 'tpu', not 'cuda'"),
        ("device_kinds = 'H100'", r"device_kinds must be a list of strings, as \[\"H100\"\], not 'H100'"),
        ("fast_link = 50e9", "fast_link must have bandwidth and latency, as .*, not 50000000000.0"),
        ("fast_link = { bandwidth = 0, latency = 0 }", "fast_link.bandwidth must be a number above 0, not 0"),
        ("product_fracton = 0.5", "has an unknown field 'product_fracton'. Did you mean 'product_fraction'?"),
        ("xyz = 0.5", "has an unknown field 'xyz'. Fields: extends, device_kinds, bf16_flops"),
    ],
)
def test_a_bad_field_is_named(line, message):
    with pytest.raises(HardwareError, match=rf"t.toml: entry \[mine\]:? {message}"):
        parse_chips(f'[mine]\nextends = "h100"\n{line}\n', "t.toml", KNOWN)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[mine\n", "'t.toml' is not valid TOML: .*line 1"),
        ("mine = 3\n", "t.toml: 'mine' must be an entry"),
        (
            "[H100]\ncores = 3\n",
            r"t.toml: entry \[H100\] has the name of a built-in chip: choose another, such as 'my-H",
        ),
        ("[mine]\nextends = 'h1000'\n", r"entry \[mine\]: extends must be one of 'cpu', 'a100', .* not 'h1000'"),
        ("[mine]\nextends = 3\n", "extends must be one of .* not 3"),
        ("[mine]\ncores = 3\n", r"entry \[mine\] needs device_kinds, bf16_flops, .*; or `extends`"),
    ],
)
def test_a_bad_table_is_an_error(text, message):
    with pytest.raises(HardwareError, match=message):
        parse_chips(text, "t.toml", KNOWN)


def test_writing_replaces_the_entry_of_the_same_name_only(tmp_path):
    path = tmp_path / "new folder" / "chips.toml"
    write_chip(path, replace(KNOWN["h200"], name="one"), KNOWN, "The first.")
    with path.open("a") as file:
        file.write("\n# By hand.\n[two]  # here\nextends = 'one'\nmemory = 7\n")
    write_chip(path, replace(KNOWN["h200"], name="one", cores=5), KNOWN, "Again.")
    chips = read_chips(path, KNOWN)
    assert list(chips) == ["one", "two"] and chips["one"].cores == chips["two"].cores == 5 and chips["two"].memory == 7
    text = path.read_text()
    assert "# Again.\n[one]" in text and "\n\n# By hand.\n[two]  # here\n" in text and "The first" not in text
    write_chip(path, replace(KNOWN["v5e"], name="three"), KNOWN)
    assert list(read_chips(path, KNOWN)) == ["one", "two", "three"]
    path.write_text("[bad]\n")
    with pytest.raises(HardwareError, match=r"entry \[bad\] needs"):
        write_chip(path, replace(KNOWN["v5e"], name="three"), KNOWN)


def test_a_fifo_as_a_table_of_chips_is_an_error(tmp_path):
    os.mkfifo(tmp_path / "chips.toml")
    with pytest.raises(HardwareError, match="Is a FIFO, not a regular file"):
        read_chips(tmp_path / "chips.toml", {})
    (tmp_path / "deep.toml").write_text("a = " + "[" * 100_000)
    with pytest.raises(HardwareError, match="is not valid TOML"):
        read_chips(tmp_path / "deep.toml", {})


def test_a_profile_is_the_chip_with_other_figures():
    text = """
[box]
extends = "h100"
sources = { memory_fraction = "measured" }
[box.profiles.capped]
product_fraction = 0.5
sources = { product_fraction = "fitted: our run" }
"""
    chips = parse_chips(text, "t.toml", KNOWN)
    assert list(chips) == ["box", "box:capped"]
    capped = chips["box:capped"]
    assert capped.product_fraction == 0.5 and capped.memory_fraction == chips["box"].memory_fraction
    assert dict(capped.sources)["product_fraction"] == "fitted: our run"
    assert dict(capped.sources)["memory_fraction"] == "measured"
    assert chip("h100:eager").product_fraction < chip("h100").product_fraction


def test_a_figure_that_an_entry_changes_does_not_keep_its_source():
    chips = parse_chips('[box]\nextends = "h100"\nlink_fraction = 0.7', "t.toml", KNOWN)
    assert "link_fraction" in KNOWN["h100"].assumed and "link_fraction" not in chips["box"].assumed


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('sources = "measured"', "sources must be as"),
        ('sources = { memory = "measured" }', "sources has 'memory', which is none of product_fraction"),
        ('sources = { link_fraction = "guessed" }', "the source of link_fraction must begin with one of 'measured'"),
        ("profiles = 3", r"profiles must be entries: a line \[box.profiles.profile\]"),
        ("profiles = { fast = 3 }", "profiles must be entries"),
        ("profiles = { fast = { flops = 3 } }", r"entry \[box.profiles.fast\] has an unknown field 'flops'"),
    ],
)
def test_bad_sources_and_profiles_are_errors(line, message):
    with pytest.raises(HardwareError, match=message):
        parse_chips(f'[box]\nextends = "h100"\n{line}', "t.toml", KNOWN)


def test_sources_are_written_and_read_again():
    for original in KNOWN.values():
        text = format_chip(replace(original, name="box", device_kinds=("Box",)))
        assert parse_chips(text, "t.toml", {})["box"].sources == original.sources
