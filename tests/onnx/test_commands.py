"""`hpcflow export` and `hpcflow infer`: models, sizes and accuracies, rows by rank."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import onnx
import onnxruntime
import pytest

import hpcflow as hf
from hpcflow.cli.main import main

MODEL = """
import hpcflow as hf

def dense(x, units, name):
    weights = hf.get_variable(f"{name}/weights", [x.shape[-1], units])
    bias = hf.get_variable(f"{name}/bias", [units], initializer=hf.zeros_initializer())
    return hf.nn.bias_add(hf.matmul(x, weights), bias)

def build():
    x = hf.placeholder(hf.float32, [None, 12], name="features")
    hidden = hf.nn.relu(dense(x, 32, "hidden"))
    return {"features": x}, {"scores": dense(hidden, 3, "scores"), "hidden": hidden}

def wrong():
    return 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model's checkpoint, its script, and samples with labels."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "model.py").write_text(MODEL)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1003, 12)).astype(np.float32)
    labels = (x @ rng.standard_normal((12, 3))).argmax(1)
    with h5py.File(folder / "data.h5", "w") as file:
        file["features"], file["labels"] = x, labels
    space: dict = {}
    exec(MODEL, space)
    with hf.Graph().as_default():
        inputs, outputs = space["build"]()
        truth = hf.placeholder(hf.int64, [None])
        loss = hf.reduce_mean(
            hf.nn.sparse_softmax_cross_entropy_with_logits(labels=truth, logits=outputs["scores"])
        )
        step = hf.train.AdamOptimizer(0.02).minimize(loss)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        for _ in range(150):
            session.run(step, {inputs["features"]: x, truth: labels})
        scores, hidden = session.run(
            [outputs["scores"], outputs["hidden"]], {inputs["features"]: x}
        )
        hf.train.Saver().save(session, folder / "checkpoints", 150)
    np.savez(folder / "expected.npz", scores=scores, hidden=hidden)
    return folder


def test_a_checkpoint_becomes_a_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "m.onnx"
    words = [str(folder / "checkpoints"), str(out), "--model", f"{folder}/model.py:build"]
    assert main(["export", *words]) == 0
    assert "step 150" in capsys.readouterr().out
    onnx.checker.check_model(onnx.load(out))
    session = onnxruntime.InferenceSession(out)
    with h5py.File(folder / "data.h5") as file:
        scores, hidden = session.run(["scores", "hidden"], {"features": file["features"][:]})
    expected = np.load(folder / "expected.npz")
    np.testing.assert_allclose(scores, expected["scores"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(hidden, expected["hidden"], rtol=1e-4, atol=1e-4)


def told(text: str) -> dict[str, tuple[int, float]]:
    """Name of the file -> its size and accuracy, as the command prints them."""
    rows = [line.split() for line in text.splitlines() if " accuracy " in line]
    return {Path(r[0]).name: (int(r[1].replace(",", "")), float(r[-1])) for r in rows}


def test_eight_bits_are_smaller_and_about_as_good(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(folder / "checkpoints"), str(folder / "q.onnx")]
    words += ["--model", f"{folder}/model.py:build", "--int8", str(folder / "data.h5")]
    assert main(["export", *words, "--labels", "labels"]) == 0
    found = told(capsys.readouterr().out)
    full, small = found["q.onnx"], found["q.int8.onnx"]
    assert full == ((folder / "q.onnx").stat().st_size, full[1])
    assert small[0] == (folder / "q.int8.onnx").stat().st_size
    assert full[1] > 0.9 and small[1] > full[1] - 0.05
    kinds = {n.op_type for n in onnx.load(folder / "q.int8.onnx").graph.node}
    assert "QuantizeLinear" in kinds


def test_ranges_may_be_found_when_it_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(folder / "checkpoints"), str(folder / "d.onnx")]
    assert main(["export", *words, "--model", f"{folder}/model.py:build", "--int8"]) == 0
    assert "d.int8.onnx" in capsys.readouterr().out
    kinds = {n.op_type for n in onnx.load(folder / "d.int8.onnx").graph.node}
    assert "MatMulInteger" in kinds


def check_rows(folder: Path, path: Path) -> None:
    expected = np.load(folder / "expected.npz")
    with h5py.File(path) as file:
        assert set(file) == {"scores", "hidden"}
        np.testing.assert_allclose(file["scores"][:], expected["scores"], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(file["hidden"][:], expected["hidden"], rtol=1e-4, atol=1e-4)
    assert not list(folder.glob(f"{path.name}.*"))


def infer(folder: Path, source: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hpcflow", "infer", source, str(folder / "data.h5"), *words]
    root = str(Path(__file__).parent.parent.parent)
    return subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=400)


def test_rows_of_a_checkpoint_and_of_its_model_are_the_same(folder: Path) -> None:
    words = ["--model", f"{folder}/model.py:build", "--out", str(folder / "one.h5")]
    done = infer(folder, str(folder / "checkpoints"), *words, "--batch", "100")
    assert done.returncode == 0, done.stderr
    assert "1,003 rows by 1 ranks" in done.stdout
    check_rows(folder, folder / "one.h5")
    main(["export", str(folder / "checkpoints"), str(folder / "i.onnx"), *words[:2]])
    done = infer(folder, str(folder / "i.onnx"), "--out", str(folder / "two.h5"))
    assert done.returncode == 0, done.stderr
    check_rows(folder, folder / "two.h5")


@pytest.mark.slow
def test_three_ranks_write_one_file(folder: Path) -> None:
    words = ["--model", f"{folder}/model.py:build", "--out", str(folder / "three.h5"), "-n", "3"]
    done = infer(folder, str(folder / "checkpoints"), *words)
    assert done.returncode == 0, done.stderr
    assert "1,003 rows by 3 ranks" in done.stdout
    check_rows(folder, folder / "three.h5")


def test_misuse_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    points, out = str(folder / "checkpoints"), str(folder / "x.onnx")

    def export(*words: str) -> str:
        assert main(["export", *words]) == 1
        return capsys.readouterr().err

    assert "no file" in export(points, out, "--model", "nowhere.py:build")
    assert "no function 'other'" in export(points, out, "--model", f"{folder}/model.py:other")
    assert "returned 3" in export(points, out, "--model", f"{folder}/model.py:wrong")
    here = ["--model", f"{folder}/model.py:build"]
    assert "there is no checkpoint in" in export(str(folder), out, *here)
    text = export(points, out, *here, "--int8", str(folder / "data.h5"), "--labels", "names")
    assert "has no dataset 'names'" in text
    assert main(["infer", points, str(folder / "data.h5")]) == 2
    assert "--model FILE.py:FUNCTION" in capsys.readouterr().err
    assert main(["infer", points, str(folder / "none.h5"), *here]) == 2
    assert "there is no" in capsys.readouterr().err
