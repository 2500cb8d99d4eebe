"""The notebooks of examples/notebooks run from the first cell to the last, and hold no outputs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient", reason="needs nbclient")
nbformat = pytest.importorskip("nbformat", reason="needs nbclient")
pytest.importorskip("ipykernel", reason="needs nbclient")

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["first_model", "ranks", "run_folder"]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None, "clear the outputs"
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("MPLBACKEND", "agg")
    client = nbclient.NotebookClient(
        notebook, timeout=400, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", ())]
    assert not any(out.output_type == "error" for out in outputs)
    shown = [out.data.get("text/html", "") for out in outputs if "data" in out]
    if path.stem == "first_model":
        assert any("<svg" in text and "hidden" in text for text in shown)
    if path.stem == "ranks":
        text = "".join(out.text for out in outputs if out.output_type == "stream")
        assert "starting 4 ranks" in text and "rank 0 raised ZeroDivisionError" in text
    assert list(tmp_path.iterdir()) == []
