"""Checkpoints of scripts that know nothing of them: by settings, in every mode."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpcflow.launch import launcher_detection
from hpcflow.plan.serialization.plan_cache_key import UNRELATED_SETTINGS

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    launcher_detection.detect_launcher() is not None, reason="a job cannot start jobs"
)
BEGIN = """
import argparse
import hpcflow as hf
import numpy as np

parser = argparse.ArgumentParser()  # without --checkpoints and --resume
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()
hf.set_random_seed(1)
x = hf.placeholder(hf.float32, [None, 4])
w = hf.Variable(hf.ones([4]), name="w")
count = hf.train.get_or_create_global_step()
optimizer = hf.train.GradientDescentOptimizer(0.1)
train = optimizer.minimize(hf.reduce_mean(hf.square(x - w)), global_step=count)
samples = np.random.default_rng(3).normal(size=(24, 4)).astype("float32")
"""
TRAINING = """
data = hf.data.Dataset({x: samples}, batch=4, seed=5)
with hf.train.TrainingSession() as sess:
    for batch in data.epochs(args.epochs):
        sess.step(train, batch)
    sess.wait()
    if sess.is_chief:
        print("end", sess.first_step, sess.run(w).tobytes().hex(), flush=True)
"""
MONITORED = """
hooks = [hf.train.StopAtStepHook(last_step=12)]
with hf.train.MonitoredTrainingSession(hooks=hooks) as sess:
    while not sess.should_stop():
        at, _, value = sess.run([count, train, w], {x: samples[:4]})
    if sess._session.is_chief:
        print("end", at, value.tobytes().hex(), flush=True)
"""
SUPERVISED = """
supervisor = hf.train.Supervisor(save_summaries_secs=0)
with supervisor.managed_session() as sess:
    while not supervisor.should_stop() and sess.run(count) < 12:
        sess.run(train, {x: samples[:4]})
    print("end", sess.run(count), sess.run(w).tobytes().hex(), flush=True)
"""
KINDS = {"training": TRAINING, "monitored": MONITORED, "supervised": SUPERVISED}
MODES = {
    "single": (),
    "collective": ("-n", "2"),
    "servers": ("-n", "3", "--ps", "1", "--sync", "all"),
}


def started(folder: Path, script: str, *options: str, code: int = 0) -> str:
    """What a run of the script prints, which ends with `code`."""
    (folder / "script.py").write_text(BEGIN + script)
    words = [sys.executable, "-m", "hpcflow", "run", *options, "script.py"]
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("HPCFLOW_", "SLURM_"))}
    done = subprocess.run(
        words,
        cwd=folder,
        env={**environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=220,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


CASES = [
    *((kind, mode, "default_checkpoints") for kind in KINDS for mode in MODES),
    ("training", "servers", "checkpoints"),
    ("monitored", "single", "checkpoints"),
    ("supervised", "single", "checkpoints"),
]
# Where replicas step together all runs are theirs: no worker may look at the count between them.
CASES.remove(("supervised", "collective", "default_checkpoints"))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "mode", "setting"), CASES)
def test_a_script_that_names_no_folder_is_saved_and_goes_on(
    tmp_path: Path, kind: str, mode: str, setting: str
) -> None:
    keeps = (*MODES[mode], "--set", f"{setting}=saved")
    text = started(tmp_path, KINDS[kind], *keeps, "--set", "stop_at=5", code=75)
    (stopped,) = re.findall(r"stopped before step (\d+); saved", text)
    text = started(tmp_path, KINDS[kind], *keeps)
    assert f"resumed step={stopped} " in text and "end " in text
    if mode != "servers":  # whose workers may end a round more
        whole = started(tmp_path, KINDS[kind], *MODES[mode])
        ends = [re.findall(r"end \d+ (\w+)", said) for said in (text, whole)]
        assert ends[0] == ends[1] and ends[0]


OWN = TRAINING.replace("TrainingSession()", "TrainingSession(checkpoints='own', resume=True)")


@pytest.mark.slow
def test_the_folder_that_a_script_names_is_used_not_the_default(tmp_path: Path) -> None:
    started(tmp_path, OWN, "--set", "default_checkpoints=default", "--set", "stop_at=5", code=75)
    assert (tmp_path / "own" / "step-5").exists() and not (tmp_path / "default").exists()


@pytest.mark.slow
def test_a_setting_that_takes_the_place_of_the_scripts_folder_says_so(tmp_path: Path) -> None:
    text = started(tmp_path, OWN, "--set", "checkpoints=other", "--set", "stop_at=5", code=75)
    assert "the setting checkpoints, other, replaces the script's folder own" in text
    assert (tmp_path / "other" / "step-5").exists() and not (tmp_path / "own").exists()
    keeps = ("--set", f"checkpoints={tmp_path}/own", "--set", "stop_at=5")
    assert "replaces the script's folder" not in started(tmp_path, OWN, *keeps, code=75)


HOOKED = """
hooks = [hf.train.StopAtStepHook(last_step=12), hf.train.CheckpointSaverHook("own", save_steps=3)]
with hf.train.MonitoredTrainingSession(hooks=hooks) as sess:
    while not sess.should_stop():
        sess.run(train, {x: samples[:4]})
"""


@pytest.mark.slow
def test_the_folder_that_a_hook_names_is_used_not_the_default(tmp_path: Path) -> None:
    started(tmp_path, HOOKED, "--set", "default_checkpoints=default")
    assert (tmp_path / "own" / "step-12").exists() and not (tmp_path / "default").exists()


SEVERAL = """
for rate in (0.1, 0.2):
    hf.reset_default_graph()
    x = hf.placeholder(hf.float32, [None, 4])
    w = hf.Variable(hf.ones([4]), name="w")
    train = hf.train.GradientDescentOptimizer(rate).minimize(hf.reduce_mean(hf.square(x - w)))
    data = hf.data.Dataset({x: samples}, batch=4, seed=5)
    with hf.train.TrainingSession() as sess:
        for batch in data.epochs(1):
            sess.step(train, batch)
        print("end", sess.steps, sess.run(w).tobytes().hex())
"""


@pytest.mark.slow
def test_sessions_of_one_script_do_not_go_on_from_each_other(tmp_path: Path) -> None:
    plain = re.findall(r"end (\d+) (\w+)", started(tmp_path, SEVERAL))
    kept = started(tmp_path, SEVERAL, "--set", "default_checkpoints=saved")
    assert re.findall(r"end (\d+) (\w+)", kept) == plain and plain[0] != plain[1]
    assert {p.name for p in tmp_path.glob("saved*")} == {"saved", "saved-2"}
    again = started(tmp_path, SEVERAL, "--set", "default_checkpoints=saved")
    ends = re.findall(r"end (\d+) (\w+)", again)
    assert [weights for _, weights in ends] == [weights for _, weights in plain]


LOOP = """
graph = hf.Graph()
with graph.as_default():
    x = hf.placeholder(hf.float32, [None, 4])
    w = hf.Variable(hf.ones([4]), name="w")
    train = hf.train.GradientDescentOptimizer(0.1).minimize(hf.reduce_mean(hf.square(x - w)))
with hf.train.TrainingSession(graph) as sess:
    for step in range(sess.first_step, 12):
        sess.step(train, {x: samples[:4]})
    print("end", sess.first_step, sess.run(w).tobytes().hex())
"""


@pytest.mark.slow
def test_a_loop_of_the_scripts_own_is_told_where_it_is(tmp_path: Path) -> None:
    keeps = ("--set", "default_checkpoints=saved")
    started(tmp_path, LOOP, *keeps, "--set", "stop_at=5", code=75)
    text = started(tmp_path, LOOP, *keeps)
    assert "resumes from step 5, but the script feeds its own data" in text
    whole = started(tmp_path, LOOP)
    ((first, mine),) = re.findall(r"end (\d+) (\w+)", text)
    assert first == "5" and f"end 0 {mine}" in whole


def test_where_checkpoints_are_makes_no_other_plan() -> None:
    assert {"checkpoints", "default_checkpoints"} <= UNRELATED_SETTINGS
