"""Hooks of MkDocs for the site of `make docs`: its pages that do not lie in docs/, and their links.

README.md is the first page; CONTRIBUTING.md, CHANGELOG.md and benchmarks/RESULTS.md are pages, and
tools/api_pages.py makes those of the API. A link to a file that is no page becomes its name.
"""

from __future__ import annotations

import functools
import importlib.util
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = {  # file of the repository -> page of the site
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/RESULTS.md": "results.md",
}
SOURCES = {page: file for file, page in OUTSIDE.items()}
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s:]+)\)")


def on_config(config: Any) -> Any:
    """Fill the entry `API` of the navigation."""
    for entry in config.nav:
        if "API" in entry:
            entry["API"] = list(_api_pages())
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that do not lie in docs/."""
    from mkdocs.structure.files import File

    texts = {page: (ROOT / file).read_text(encoding="utf-8") for file, page in OUTSIDE.items()}
    for path, text in {**texts, **_api_pages()}.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links as they must be in the site."""
    path = page.file.src_uri
    source = SOURCES.get(path, f"docs/{path}")

    def linked(found: re.Match[str]) -> str:
        label, target = found.groups()
        name, mark, anchor = target.partition("#")
        if not name or path.startswith("api/"):
            return found[0]
        there = posixpath.normpath(posixpath.join(posixpath.dirname(source), name))
        inside = OUTSIDE.get(there, there.removeprefix("docs/"))
        if files.get_file_from_path(inside) is None:
            return label
        return (
            f"[{label}]({posixpath.relpath(inside, posixpath.dirname(path) or '.')}{mark}{anchor})"
        )

    return LINK.sub(linked, markdown)


@functools.cache
def _api_pages() -> dict[str, str]:
    """Of tools/api_pages.py, which stands beside this file; hooks are no package."""
    place = Path(__file__).with_name("api_pages.py")
    spec = importlib.util.spec_from_file_location("api_pages", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: dict[str, str] = module.pages()
    return made
