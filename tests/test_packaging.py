"""Recipes of Spack and conda, and the citation: version and requirements are pyproject.toml's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpcflow
from tests.test_sites import extras

ROOT = Path(__file__).resolve().parent.parent
SPACK = ROOT / "packaging/spack/spack_repo/hpcflow/packages/hpcflow/package.py"
CONDA = ROOT / "packaging/conda/recipe.yaml"
CITATION = ROOT / "CITATION.cff"
PROJECT = (ROOT / "pyproject.toml").read_text()
VARIANTS = ("fast", "onnx", "plot", "tensorboard")  # extras that are variants of the Spack package
NOT_IN_SPACK = {"onednn-cpu-gomp"}


def project(pattern: str) -> str:
    match = re.search(pattern, PROJECT, re.M)
    assert match is not None
    return match[1]


VERSION = project(r'^version = "([^"]+)"')
PYTHON = project(r'^requires-python = ">=([^"]+)"')
BACKEND = project(r'^requires = \["hatchling>=([^"]+)"\]')


def least(requirement: str) -> tuple[str, str]:
    """Name and least version of `name>=1.2; marker`."""
    match = re.match(r"([\w.-]+)>=([\d.]+)(?:,|;|$)", requirement.replace(" ", ""))
    assert match is not None, requirement
    return match[1], match[2]


def calls(name: str) -> Iterator[ast.Call]:
    """The calls of a directive in the body of the Spack package."""
    for node in ast.walk(ast.parse(SPACK.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            yield node


def directives() -> set[tuple[str, str, str]]:
    """What the Spack package depends on: name, least version, condition."""
    found = set()
    for call in calls("depends_on"):
        spec, keywords = ast.literal_eval(call.args[0]), {k.arg: k.value for k in call.keywords}
        name, _, version = spec.partition("@")
        when = ast.literal_eval(keywords["when"]) if "when" in keywords else ""
        kinds = ast.literal_eval(keywords["type"])
        assert version.endswith(":") and ("run" in kinds or name == "py-hatchling")
        found.add((name, version[:-1], when))
    return found


def spack_name(name: str) -> str:
    """Spack's name of a package of the index."""
    return "py-" + name.lower().replace("_", "-")


def test_the_spack_package_depends_on_what_the_project_does() -> None:
    expected = {("python", PYTHON, ""), ("py-hatchling", BACKEND, "")}
    wanted = extras()
    for extra in ("", *VARIANTS):
        for name, version in map(least, wanted[extra]):
            if name not in NOT_IN_SPACK:
                expected.add((spack_name(name), version, f"+{extra}" if extra else ""))
    assert directives() == expected
    assert [ast.literal_eval(call.args[0]) for call in calls("variant")] == list(VARIANTS)
    assert [ast.literal_eval(call.args[0]) for call in calls("version")] == [VERSION]


def section(text: str, name: str) -> list[str]:
    """The items of the first list called `name` in a YAML file."""
    match = re.search(rf"^( *){name}:\n((?:\1 +- .*\n)+)", text, re.M)
    assert match is not None, name
    return [line.strip()[2:] for line in match[2].splitlines()]


def test_the_conda_recipe_requires_what_the_project_does() -> None:
    text = CONDA.read_text()
    needed = [f"{name} >={version}" for name, version in map(least, extras()[""])]
    assert sorted(section(text, "run")) == sorted([f"python >={PYTHON}", *needed])
    assert section(text, "host") == [f"python >={PYTHON}", "pip", f"hatchling >={BACKEND}"]
    assert f'  version: "{VERSION}"\n' in text
    script = project(r'^hpcflow = "([^"]+)"')
    assert section(text, "entry_points") == [f"hpcflow = {script}"]
    assert f"  name: {project(r'^name = .([^ ]+)[^ ] *#')}  #" in text
    for path in section(text, "include"):
        assert (ROOT / path.strip('"').removesuffix("/**")).exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [("version", VERSION), ("license", "Apache-2.0"), ("cff-version", "1.2.0")],
)
def test_the_citation_has_the_version_and_the_license(field: str, value: str) -> None:
    assert re.findall(rf"^{field}: (.+)$", CITATION.read_text(), re.M) == [value]


def test_the_module_has_the_version() -> None:
    assert hpcflow.__version__ == VERSION
