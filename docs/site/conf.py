"""Sphinx configuration of the documentation site; `docs/site/build.py` runs Sphinx with it."""

import sys
from pathlib import Path

import shardwise

SITE = Path(__file__).resolve().parent
sys.path.insert(0, str(SITE))  # the extension `pictures`

project = "Shardwise"
project_copyright = "the Shardwise authors. Apache-2.0"
version = release = shardwise.__version__

extensions = ["myst_parser", "pictures"]
myst_heading_anchors = 3  # links such as explicit.md#manual-regions, which forges also understand
suppress_warnings = ["misc.highlighting_failure"]  # plans and terminal output are no language
highlight_language = "text"

html_theme = "furo"
html_title = f"Shardwise {release}"
html_static_path = ["_static"]
html_css_files = ["page.css", "pictures.css"]
html_js_files = ["copy.js"]
html_search_scorer = str(SITE / "scorer.js")  # Sphinx opens it in the current folder otherwise
html_copy_source = False
html_show_sourcelink = False
# Signatures of many parameters, one on each line.
maximum_signature_line_length = 90
add_module_names = False
