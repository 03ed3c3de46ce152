"""The HTML page of a plan: well-formed, self-contained, drawn to scale; in a browser, if there is one."""

import json
import re
import shutil
import subprocess
from html import escape, unescape
from html.parser import HTMLParser

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.explain.drawing import device_text, draw_layout, draw_memory, draw_mesh, draw_timeline
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

VOID = {"meta", "rect", "line", "polygon"}
BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)


def shaped(mesh, spec, *shape):
    return sw.ShapeDtypeStruct(shape, np.float32, sharding=NamedSharding(mesh, spec))


@pytest.fixture(scope="module")
def explained(mesh):
    def layers(w, x):
        with sw.named_scope("layers"):
            return lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, w)[0].sum()

    args = shaped(mesh, P(None, "data"), 6, 64, 64), shaped(mesh, P("data"), 250, 64)
    return sw.explain(layers, hardware="h100")(*args)


class Checker(HTMLParser):
    """An HTML parser that checks that tags close in order, and records tags, attributes and text."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.text, self.attributes = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open):
            self.text.append(data)


def checked(page):
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    return checker


def test_the_page_is_complete_and_self_contained(explained):
    page = explained.to_html()
    checker = checked(page)
    assert page.startswith("<!DOCTYPE html>")
    assert not {"link", "img", "iframe"} & set(checker.tags)
    assert not {"src", "href", "onclick"} & {name for name, _ in checker.attributes}
    assert "http" not in page and "url(" not in page and "@import" not in page
    assert "prefers-color-scheme: dark" in page
    text = " ".join(checker.text)
    for word in ("Collectives", "Time", "Memory", "Inputs and outputs", "Program", "estimated for h100", "all_gather"):
        assert word in text
    for row in explained.plan.collectives:
        assert row.reason.replace("`", "") in re.sub(r"\s+", " ", unescape("".join(checker.text)))
    pins = [row.pins for row in explained.plan.collectives if row.pins]
    assert pins and text.count("pinned: ") == len(pins)
    assert "<code title=\"P(None, 'data', None)\">w</code>" in unescape(page)
    assert str(explained.advice)[1:40] in "".join(checker.text)


def test_tables_sort_by_buttons(explained):
    page = explained.to_html()
    heads = re.findall(r"<th scope=\"col\"[^>]*>(.*?)</th>", page.split("</section>")[0])
    assert heads and all(head.startswith("<button type=button>") for head in heads)
    assert page.count("aria-sort=descending") == 4  # totals, collectives, launches, live values
    sent = [float(value) for value in re.findall(r'<td class="number" data-value="([\d.e-]+)">[\d.]+ k?B<', page)]
    assert sent[: len(explained.collectives)] == [row.sent for row in explained.collectives]


def test_plans_of_lowered_and_compiled_functions_render(mesh, tmp_path):
    """They have the same text and page as `explain`, except for the advice."""
    lowered = sw.jit(lambda x: x.sum()).lower(shaped(mesh, P("data"), 8))
    for plan in (lowered.plan, lowered.compile().plan):
        explained = sw.explain(lowered, advise=False)()
        assert str(plan) == str(explained) and plan.to_html() == explained.to_html()
        assert plan.write_html(tmp_path / "plan.html").read_text(encoding="utf-8") == plan.to_html()
        assert plan._repr_html_() == explained._repr_html_()
        assert "1 all_reduce" in repr(plan)


def test_names_are_escaped(mesh):
    page = sw.explain(lambda x: x + 1)(shaped(mesh, P("data"), 8)).to_html()
    assert "<h1>&lt;lambda&gt;</h1>" in page and "<lambda>" not in page
    assert "None: devices do not communicate." in page
    checked(page)


def test_one_device_no_ops_and_a_large_mesh():
    checked(sw.explain(lambda x: x)(np.ones(3, np.float32)).to_html())
    checked(sw.explain(lambda x: x @ x)(np.ones((3, 3), np.float32)).to_html())
    many = AbstractMesh((64, 16), ("data", "model"))
    page = sw.explain(lambda x: x.sum())(shaped(many, P("data", "model"), 640, 160)).to_html()
    checked(page)
    assert "1024 devices" in page


def test_the_page_is_written_to_files_and_notebooks(explained, tmp_path):
    path = explained.write_html(tmp_path / "plan.html")
    assert path.read_text(encoding="utf-8") == explained.to_html()
    frame = explained._repr_html_()
    (source,) = re.findall(r'srcdoc="([^"]*)"', frame)
    assert unescape(source) == explained.to_html()


class TestDrawings:
    def boxes(self, svg):
        box = r'<rect class="d\d" x="[\d.]+" y="[\d.]+" width="([\d.]+)" height="([\d.]+)" rx="2"><title>(.*?)</title>'
        return [(title, float(width), float(height)) for width, height, title in re.findall(box, svg)]

    def test_layouts_are_drawn_to_scale(self):
        mesh = AbstractMesh((4, 2), ("data", "model"))
        boxes = self.boxes(draw_layout((10, 6), Layout((("data",), ("model",))), mesh))
        assert [title for title, _, _ in boxes] == [
            "[0:3, 0:3] on 0",
            "[0:3, 3:6] on 1",
            "[3:6, 0:3] on 2",
            "[3:6, 3:6] on 3",
            "[6:9, 0:3] on 4",
            "[6:9, 3:6] on 5",
            "[9:10, 0:3] on 6",
            "[9:10, 3:6] on 7",
        ]
        heights = {height for _, _, height in boxes}
        assert (max(heights) + 1.5) / (min(heights) + 1.5) == pytest.approx(3, rel=0.02)

    def test_replicated_dims_and_axes_in_another_order(self):
        mesh = AbstractMesh((4, 2), ("data", "model"))
        assert [title for title, _, _ in self.boxes(draw_layout((8,), Layout((("model", "data"),)), mesh))][:3] == [
            "[0:1] on 0",
            "[1:2] on 2",
            "[2:3] on 4",
        ]
        assert [title for title, _, _ in self.boxes(draw_layout((8, 4), Layout(((), ())), mesh))] == [
            "[0:8, 0:4] on 0–7"
        ]
        three = draw_layout((2, 8, 4, 6), Layout(((), ("data",), (), ("model",))), mesh)  # the sharded dims are drawn
        assert len(self.boxes(three)) == 8
        assert draw_layout((), Layout(()), mesh) == ""

    def test_rows_are_higher_than_their_labels(self):
        mesh = AbstractMesh((4, 2), ("data", "model"))
        svg = draw_layout((8, 4), Layout((("data", "model"), ())), mesh)
        assert min(height for _, _, height in self.boxes(svg)) > 12  # the labels have 10
        assert re.findall(r"<text[^>]*>(\w+)</text>", svg) == [str(device) for device in range(8)]

    def test_device_labels(self):
        assert [device_text(found) for found in ([3], [0, 1], [0, 1, 2, 3], [0, 2, 4, 6, 8])] == [
            "3",
            "0,1",
            "0–3",
            "0,2,4,6,…",
        ]

    def test_meshes_have_a_cell_per_device(self):
        assert draw_mesh(AbstractMesh((4, 2), ("data", "model"))).count("<rect") == 8
        assert draw_mesh(AbstractMesh((8,), ("x",))).count("<rect") == 8
        assert draw_mesh(AbstractMesh((2, 2, 2), ("a", "b", "c"))).count("<rect") == 8

    def test_time_and_memory_are_drawn_to_scale(self, explained):
        steps = explained.plan.timeline.steps
        total = explained.plan.seconds
        svg = draw_timeline(explained.plan.timeline)
        widths = [
            float(width) for width in re.findall(r'class="talk" x="[\d.]+" y="0" height="26" width="([\d.]+)"', svg)
        ]
        assert widths == [pytest.approx(max(0.8, 1000 * s.seconds / total), abs=0.01) for s in steps if s.sent]
        memory = draw_memory(explained.plan.timeline)
        levels = [float(y) for y in re.findall(r"[\d.]+,([\d.]+)", re.findall(r'points="([^"]*)"', memory)[0])]
        assert min(levels) == pytest.approx(4)  # the peak, just below the top
        (at,) = re.findall(r'<line class="peak" x1="([\d.]+)"', memory)
        peak = steps[explained.plan.timeline.peak]
        assert float(at) == pytest.approx(1000 * (peak.start + peak.seconds / 2) / total, abs=0.01)

    def test_short_steps_share_a_bar(self):
        x = sw.ShapeDtypeStruct((2048, 2048), np.float32)

        def program(x):
            small = jnp.ones((4, 4))
            for _ in range(40):
                small = small @ x[:4, :4]
            return x @ x @ x, small

        timeline = sw.explain(program)(x).plan.timeline
        svg = draw_timeline(timeline)
        assert svg.count("<title>") < 20 < len(timeline.steps)
        assert "short steps" in svg


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_the_window_and_sorts_in_a_browser(explained, tmp_path, width):
    """The page does not overflow the window, and a click on a column head sorts.

    A frame stands in for a phone's screen, because browser windows have a larger minimum width.
    """
    probe = """<script>
    const table = document.querySelector("table.sortable"), button = table.querySelectorAll("th button")[2];
    button.click(); button.click();
    const sent = [...table.tBodies[0].rows].map(row => Number(row.cells[2].dataset.value));
    parent.document.title = JSON.stringify([document.documentElement.scrollWidth, innerWidth, sent]);
    </script>"""
    inside = escape(explained.to_html().replace("</body>", f"{probe}</body>"))
    page = tmp_path / "plan.html"
    frame = f'<iframe width="{width}" height="800" style="border: 0" srcdoc="{inside}"></iframe>'
    page.write_text(f"<!doctype html><title></title>{frame}", encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,900", "--dump-dom"]
    run = subprocess.run([BROWSER, *options, page.as_uri()], capture_output=True, text=True, timeout=60, check=True)
    wide, window, sent = json.loads(re.findall(r"<title>(\[.*?\])</title>", run.stdout)[0])
    assert wide <= window == width
    assert sent == sorted(sent)
