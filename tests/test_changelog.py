"""The changelog has a section for the version of the package, and says whether that version is released."""

import re
from pathlib import Path

from shardwise.version import __version__

ROOT = Path(__file__).resolve().parents[1]
HEADINGS = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_unreleased_changes_come_first():
    assert HEADINGS[0] == "Unreleased"


def test_newest_section_is_the_version_of_the_package():
    release = __version__.removesuffix(".dev0")
    assert re.fullmatch(r"\d+\.\d+\.\d+", release)
    state = "not released yet" if __version__.endswith(".dev0") else r"\d{4}-\d{2}-\d{2}"
    assert re.fullmatch(rf"{re.escape(release)} \({state}\)", HEADINGS[1])


def test_older_sections_are_releases_in_descending_order():
    releases = [re.fullmatch(r"(\d+)\.(\d+)\.(\d+) \(\d{4}-\d{2}-\d{2}\)", heading) for heading in HEADINGS[2:]]
    versions = [tuple(map(int, release.groups())) for release in releases]
    assert versions == sorted(versions, reverse=True)
