"""Pages and stubs that follow from the code are those that it makes."""

from __future__ import annotations

import operator
import re
from pathlib import Path
from types import ModuleType

import pytest

import hpcflow as hf
from hpcflow.cli import help_topics
from hpcflow.settings import Settings
from tools import api_pages, pages, site_pages
from tools.public_surface import lines

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


@pytest.mark.parametrize("path", pages.PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_is_what_the_code_makes(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == pages.PAGES[path](), "run: make pages"


def test_each_setting_and_variable_of_the_code_has_a_row() -> None:
    settings, variables = (
        (DOCS / f"{name}.md").read_text() for name in ("settings", "environment")
    )
    for name in Settings.__dataclass_fields__:
        assert len(re.findall(rf"^\| `{name}` \|", settings, re.MULTILINE)) == 1, name
    named = set(re.findall(r"`(HPCFLOW_[A-Z0-9_]*[A-Z0-9])`", variables))
    in_code = {line.removeprefix("variable ") for line in lines() if line.startswith("variable ")}
    of_settings = {f"HPCFLOW_{name.upper()}" for name in Settings.__dataclass_fields__}
    assert named == in_code | of_settings


def test_each_option_has_a_row() -> None:
    text = (DOCS / "commands.md").read_text()
    parts = re.split(r"^## hpcflow (\S+)$", text, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    options = re.findall(r"^command (\S+) (-\S+)", "\n".join(lines()), re.MULTILINE)
    assert len(options) > 50
    for command, option in options:
        told = f"| `{option.replace('/', ', ')}" in sections[command]
        assert told or option == "--look", (command, option)  # --look is for other ranks


def test_links_lead_to_headings() -> None:
    """Of all pages: the file exists, and the heading, as sites make its name."""
    wrong = []
    for page in [*DOCS.glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
            if target.startswith(("http://", "https://")):
                continue
            name, _, anchor = target.partition("#")
            other = (page.parent / name).resolve() if name else page
            if not other.exists() or (anchor and anchor not in _anchors(other)):
                wrong.append(f"{page.name}: {target}")
    assert wrong == []


def test_the_site_has_each_page_once() -> None:
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages_of_docs = {page.name for page in DOCS.glob("*.md")}
    assert sorted(listed) == sorted(pages_of_docs | set(site_pages.OUTSIDE.values()))


def test_each_topic_has_a_guide() -> None:
    assert set(pages.GUIDES) == set(help_topics.titles())


def _prose(page: Path) -> str:
    """The text without blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def _anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", _prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.slow
def test_each_public_name_is_on_a_page_of_the_reference() -> None:
    text = "\n".join(api_pages.pages().values())
    on_pages = set(re.findall(r"^(?:      heading: |## |\*\*)(hf\.[\w.]+)", text, re.MULTILINE))
    recorded = {line.split("(")[0] for line in lines() if line.startswith("hf.")}
    modules = {
        name
        for name in recorded
        if name.rpartition(".")[2].islower()
        and isinstance(operator.attrgetter(name.removeprefix("hf."))(hf), ModuleType)
    }
    public = {name for name in recorded - modules if name.rpartition(".")[0] in {"hf"} | modules}
    missing = {name for name in public - on_pages if not name.startswith("hf.app.flags.")}
    assert missing <= {"hf.newaxis"}
    assert len(public) > 900


@pytest.mark.slow
def test_an_entry_of_the_reference_is_described_once() -> None:
    text = "\n".join(api_pages.pages().values())
    entries = re.findall(r"^::: (\S+)|\{ #(\S+) \}$", text, re.MULTILINE)
    targets = [own or made for own, made in entries]
    assert len(targets) == len(set(targets)) > 800
    linked = set(re.findall(r"\]\[(hpcflow\S+)\]", text))
    assert linked and linked <= set(targets)


@pytest.mark.slow
def test_a_function_that_a_call_makes_has_its_signature_and_docstring() -> None:
    page = api_pages.pages()["api/hf-mathematics.md"]
    entry = page[page.index("## hf.sin {") :].split("\n## ")[0]
    assert "hf.sin(x, name=None)" in entry and "The sine of `x`." in entry
