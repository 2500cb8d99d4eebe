"""A job with a time limit says before it trains that nothing saves it: in every kind of session."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcflow.launch import launcher_detection
from tests.train.test_chosen import KINDS, MODES, started

pytestmark = pytest.mark.skipif(
    launcher_detection.detect_launcher() is not None, reason="a job cannot start jobs"
)
SAYS = "this job ends in "
PLAIN = """
with hf.Session() as sess:
    sess.run(hf.global_variables_initializer())
    for step in range(3):
        sess.run(train, {x: samples[:4]})
        print("step", step, sess.context.is_chief, flush=True)
"""
INFERS = """
saver = hf.train.Saver()
value, given = hf.placeholder(hf.float32, [4]), hf.reduce_sum(w * x)
put, hits = w.assign(value), hf.Variable(0.0, collections=[hf.GraphKeys.LOCAL_VARIABLES])
hit = hits.assign_add(given)
with hf.Session() as sess:
    sess.run([hf.global_variables_initializer(), hf.local_variables_initializer()])
    saver.save(sess, "saved", 1)
    saver.restore(sess, "saved")
    sess.run(put, {value: np.ones(4, "float32")})
    sess.run(given, {x: samples[:4]})
    sess.run(hit, {x: samples[:4]})
"""
TRAINS_BY_RUN = """
with hf.train.TrainingSession(checkpoints="saved") as sess:
    sess.run(train, {x: samples[:4]})
"""
STAYS_AWAY = KINDS["training"].replace("TrainingSession()", "TrainingSession(checkpoints='saved')")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, "plain"])
def test_a_job_with_a_time_limit_that_saves_nothing_says_so(tmp_path: Path, kind: str) -> None:
    script = {**KINDS, "plain": PLAIN}[kind]
    text = started(tmp_path, script, "--set", "time_limit=1h")
    own = "hf.Session saves nothing by itself" if kind == "plain" else "it keeps no checkpoints"
    assert text.count(SAYS) == 1 and f"and {own}" in text
    assert SAYS not in started(tmp_path, script)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["collective", "servers"])
def test_the_chief_says_it_before_the_first_step(tmp_path: Path, mode: str) -> None:
    text = started(tmp_path, PLAIN, *MODES[mode], "--set", "time_limit=1h")
    assert text.count(SAYS) == 1 and text.count("step 0") > 1  # workers
    assert text.index(SAYS) < text.index("step 0 True")


@pytest.mark.slow
def test_a_job_that_saves_and_comes_back_says_only_when_it_ends(tmp_path: Path) -> None:
    keeps = ("--set", "default_checkpoints=saved", "--set", "time_limit=1h")
    text = started(tmp_path, KINDS["training"], *keeps)
    assert text.count(SAYS) == 1 and "before that training stops to save" in text


@pytest.mark.slow
def test_what_is_not_trained_is_not_lost(tmp_path: Path) -> None:
    assert SAYS not in started(tmp_path, INFERS, "--set", "time_limit=1h")


@pytest.mark.slow
def test_a_session_that_saves_but_does_not_come_back_says_so(tmp_path: Path) -> None:
    text = started(tmp_path, STAYS_AWAY, "--set", "time_limit=1h")
    assert "and does not resume by itself: it saves in saved before" in text


@pytest.mark.slow
def test_steps_by_run_are_told_not_to_be_saved(tmp_path: Path) -> None:
    text = started(tmp_path, TRAINS_BY_RUN, "--set", "time_limit=1h")
    assert "it trains by `run`, which saves nothing" in text
