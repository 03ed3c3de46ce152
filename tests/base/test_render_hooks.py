"""HTML reports: files, and frames in notebooks."""

import html
import re

from shardwise.base.render_hooks import HtmlReport


class Report(HtmlReport):
    name = "f < g"

    def to_html(self):
        return '<p class="a">é</p>'


def test_the_page_is_written_as_utf_8(tmp_path):
    path = Report().write_html(str(tmp_path / "report.html"))
    assert path.read_bytes() == '<p class="a">é</p>'.encode()


def test_a_notebook_shows_the_page_in_a_frame():
    frame = Report()._repr_html_()
    assert 'title="plan of f &lt; g"' in frame
    assert html.unescape(re.search(r'srcdoc="([^"]*)"', frame)[1]) == Report().to_html()
