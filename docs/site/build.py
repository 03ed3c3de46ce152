"""Build the documentation site: `make docs`, or python docs/site/build.py [FOLDER].

The pages are docs/*.md and the *.md files of the repository's root. They link to each other as files of the repository,
so that the links work on a forge; here they are copied into one folder, with links to match. Warnings are errors.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from api_pages import write_pages

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "docs/site"
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[\w-]+)?\)")  # to a file of the repository


def assemble(folder: Path) -> None:
    """Write the sources of the site to a folder, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:

        def site_link(link: re.Match[str], page: Path = page) -> str:
            return f"]({_site_path((page.parent / link[1]).resolve(), folder)}{link[2] or ''})"

        (folder / page.name).write_text(_LINK.sub(site_link, page.read_text()))
    write_pages(folder / "api")


def _site_path(target: Path, folder: Path) -> str:
    """Return the path in the site of a linked file. Files that are no pages, such as examples, are copied there."""
    if target.suffix == ".md":
        return target.name
    path = target.relative_to(ROOT)
    (folder / path.parent).mkdir(parents=True, exist_ok=True)
    shutil.copy(target, folder / path)
    return str(path)


def build(output: Path) -> int:
    """Build the site in a folder, and return Sphinx's exit code."""
    sources = output.with_name(f"{output.name}-sources")
    assemble(sources)
    options = ["-b", "html", "-c", SITE, "-W", "--keep-going", "-q", "-j", "2"]
    command = [
        sys.executable,
        "-m",
        "sphinx",
        *options,
        "-d",
        sources.with_name(f"{output.name}-cache"),
        sources,
        output,
    ]
    return subprocess.run([str(word) for word in command], check=False).returncode


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build/docs"
    code = build(folder.absolute())
    if code == 0:
        print(f"The site is at {folder}/index.html")
    sys.exit(code)
