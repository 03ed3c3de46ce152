"""The templates of issues are valid forms, and their links point into the repository that the metadata name."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".github/ISSUE_TEMPLATE"
SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]


@pytest.mark.parametrize("name", ["bug.yml", "request.yml"])
def test_form_has_named_fields(name):
    form = yaml.safe_load((FOLDER / name).read_text())
    assert set(form) == {"name", "description", "labels", "body"}
    identifiers = [field["id"] for field in form["body"]]
    assert identifiers and len(set(identifiers)) == len(identifiers)
    assert all(field["type"] == "textarea" and field["attributes"]["description"] for field in form["body"])


def test_documents_that_templates_name_exist():
    documents = {
        name for path in FOLDER.glob("*.yml") for name in re.findall(r"(?:docs/)?[\w-]+\.md", path.read_text())
    }
    assert "docs/names.md" in documents
    assert [name for name in documents if not (ROOT / name).exists()] == []


def test_links_point_into_the_repository():
    links = [link["url"] for link in yaml.safe_load((FOLDER / "config.yml").read_text())["contact_links"]]
    assert links and all(link.startswith(f"{SOURCE}/") for link in links)
