"""Typical mistakes of users: each script of `mistakes/` is told its line, the cause and the remedy.

The line is that of the comment `# the mistake`. Where a script fails, the last line of the output
is hpcflow's, not that of the launcher.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = Path(__file__).parent / "mistakes"
MARK = "# the mistake"
ABORTED = 86


class Mistake(NamedTuple):
    """A script, its exit code, and words of the cause and of the remedy."""

    script: str
    code: int
    cause: str
    remedy: str
    options: str = ""


ONE_RANK = [
    Mistake("matmul_shape", 1, "inner sizes 4 and 5 differ", "transpose_a=True"),
    Mistake("missing_feed", 1, "placeholder 'x' needs a feed", "add it to feed_dict"),
    Mistake("feed_shape", 1, "shape [8, 3]; it takes [?, 4]", "reshape the array"),
    Mistake("feed_dtype", 1, "is int32 and cannot hold float64 0.5", "astype('int32')"),
    Mistake("feed_text", 1, "cannot hold the text '1.0'", "convert it"),
    Mistake("rate_text", 1, "learning_rate='0.1' of Adam is text", "learning_rate=float("),
    Mistake("not_initialized", 1, "variable 'w' has no value yet", "global_variables_initializer"),
    Mistake("closed_session", 1, "the session is closed", "make a new hf.Session()"),
    Mistake("finalized_graph", 1, "the graph is finalized", "before the training loop"),
    Mistake("growing_graph", 0, "the graph grew before each of", "once, before the loop"),
    Mistake("unused_variable", 1, "None cannot be fetched", "does not depend on a variable"),
    Mistake("untrained_variable", 0, "'unused' ({0}) is not trained", "trainable=False"),
    Mistake("nothing_to_train", 1, "the loss depends on none of w", "compute the loss from"),
    Mistake("integer_labels", 1, "are class numbers", "hf.one_hot(labels"),
    Mistake("label_range", 1, "label 3 is outside [0, 3)", "count from 0"),
    Mistake("two_softmax", 0, "which is a softmax already", "give it the logits"),
    Mistake("nan_loss", 0, "is NaN at step 1", "check_numerics=1"),
    Mistake("other_checkpoint", 1, "a checkpoint of another model", "build the graph that it"),
    Mistake("used_folder", 1, "in use by another job", "name another folder"),
    Mistake("not_writable", 1, "making a checkpoint in /proc/saved", "choose another folder"),
    Mistake("saver_not_writable", 1, "making a checkpoint in /proc/saved", "another folder"),
    Mistake("unknown_fetch", 1, "no operation is called 'los'", "did you mean loss?"),
    Mistake("int_division", 1, "0.5 does not fit int32", "hf.cast the tensor first"),
    Mistake("mixed_dtypes", 1, "is int32 and 'weights:0' is float32", "hf.cast one of them"),
    Mistake("tensor_equal", 0, "compares objects, not values", "hf.equal(a, b)"),
    Mistake("if_tensor", 1, "a tensor has no truth value", "hf.where"),
    Mistake("for_tensor", 1, "a tensor cannot be iterated over", "hf.unstack(tensor)"),
    Mistake("numpy_function", 1, "np.sqrt of <hf.Tensor 'x:0'", "hf.sqrt makes an operation"),
    Mistake("numpy_mean", 1, "np.mean of <hf.Tensor 'x:0'", "hf.reduce_mean makes"),
    Mistake("numpy_array", 1, "np.asarray of <hf.Tensor", "session.run(tensor) returns"),
    Mistake("math_function", 1, "float() of <hf.Tensor", "hf's functions to compute"),
    Mistake("print_format", 1, "the format '.3f' of <hf.Tensor", "use session.run(tensor)"),
    Mistake("print_tensor", 0, "<hf.Tensor 'loss:0'", "session.run(tensor) computes it"),
    Mistake("other_graph", 1, "belongs to another graph", "inside the same `with graph"),
    Mistake("other_graph_run", 1, "belongs to another graph", "hf.Session(graph)"),
    Mistake("no_session", 1, "needs a session, and none is the default", "with hf.Session()"),
    Mistake("keras_item", 1, ".item of <hf.Tensor", "use session.run(tensor)"),
    Mistake("script_argument", 1, "was given 0 arguments", "hpcflow run script_argument.py"),
    Mistake("python_side_effect", 1, "float() of <hf.Tensor 'while", "session.run(tensor)"),
    Mistake("misspelt_name", 1, "no attribute 'reduce_maen'", "did you mean 'reduce_mean'"),
    Mistake("wrong_keyword", 1, "keyword argument 'activaton'", "did you mean activation="),
]
SEVERAL_RANKS = [
    Mistake("unequal_steps", ABORTED, "rank 0 came to the end", "the same number of times"),
    Mistake("chief_only", ABORTED, "rank 1 has ended", "the same number of times"),
    Mistake("different_graphs", ABORTED, "built different graphs", "do not branch on the rank"),
    Mistake("one_rank_fails", ABORTED, "failed on rank 1: IndexError", "{0}"),
    Mistake("loss_summed", 0, "sums over the samples of a batch", "minimize a mean"),
    Mistake("same_data", 0, "were fed the same 3 batches", "hf.data.Dataset"),
    Mistake("small_batch", 0, "leaves 1 of 2 workers without", "use fewer ranks"),
    Mistake("matmul_shape", ABORTED, "failed on ranks 0-1: ShapeError", "transpose_a=True"),
]
COMMAND_LINES = [
    Mistake("plain", ABORTED, "a rule for workers of parameter", "--ps 1", "-n 2 --sync backup:1"),
    Mistake("plain", 2, "which leaves no worker", "at least 3 ranks", "-n 2 --ps 2"),
    Mistake("plain", 2, "retmat=1: there is no such setting", "help settings", "--set retmat=1"),
    Mistake("plain", 2, "there is no such setting", "FIELD profile", "--set profil=1"),
    Mistake("plain", 2, "unknown option --pss", "did you mean --ps?", "-n 2 --pss 1"),
    Mistake("plain", 2, "there must be at least one rank", "-n", "-n 0"),
    Mistake("missing", 2, "there is no script 'missing.py'", "give a path", "-n 2"),
]


# Of two ranks that fail with the same error one may stand still for a while on a busy machine.
PATIENT = """
import os
if os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK"):
    from hpcflow.runtime.failure import abort_on_error
    abort_on_error.LET_OTHERS_SIGN_S = 5.0
"""


def output_of(folder: Path, mistake: Mistake) -> tuple[int, str]:
    """The exit code and the output of `hpcflow run` on a copy of the script."""
    script = SCRIPTS / f"{mistake.script}.py"
    if script.exists():
        (folder / script.name).write_text(script.read_text())
    words = [sys.executable, "-m", "hpcflow", "run", *mistake.options.split(), script.name]
    places = [str(ROOT)]
    if "on ranks 0-1" in mistake.cause:
        (folder / "patient").mkdir()
        (folder / "patient" / "sitecustomize.py").write_text(PATIENT)
        places.insert(0, str(folder / "patient"))
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(words, cwd=folder, env=environ, text=True, timeout=300, **streams)
    return done.returncode, done.stdout


def check(folder: Path, mistake: Mistake) -> None:
    """The exit code, the line, the cause, the remedy, and who has the last word."""
    code, output = output_of(folder, mistake)
    assert code == mistake.code, output
    source = (folder / f"{mistake.script}.py").read_text()
    number = source[: source.index(MARK)].count("\n") + 1
    line = f"{mistake.script}.py:{number}"
    assert line in output or f'File "{mistake.script}.py", line {number},' in output, output
    cause, remedy = mistake.cause.format(line), mistake.remedy.format(line)
    assert cause in output, output
    assert remedy in output[output.index(cause) :], output
    if code:
        assert remedy in output.splitlines()[-1], output
    assert "hpcflow/graph/" not in output and "hpcflow/runtime/" not in output, output


@pytest.mark.parametrize("mistake", ONE_RANK, ids=lambda mistake: mistake.script)
def test_a_mistake_is_told_with_line_cause_and_remedy(tmp_path: Path, mistake: Mistake) -> None:
    check(tmp_path, mistake)


@pytest.mark.slow
@pytest.mark.parametrize("mistake", SEVERAL_RANKS, ids=lambda mistake: mistake.script)
def test_on_several_ranks_too(tmp_path: Path, mistake: Mistake) -> None:
    check(tmp_path, mistake._replace(options="-n 2"))


@pytest.mark.slow
@pytest.mark.parametrize("mistake", COMMAND_LINES, ids=lambda mistake: mistake.options)
def test_a_wrong_command_line_is_told_with_cause_and_remedy(
    tmp_path: Path, mistake: Mistake
) -> None:
    code, output = output_of(tmp_path, mistake)
    assert code == mistake.code, output
    assert mistake.cause in output, output
    assert mistake.remedy in output.rstrip().splitlines()[-1], output


def test_each_script_is_in_the_table() -> None:
    told = {m.script for m in [*ONE_RANK, *SEVERAL_RANKS, *COMMAND_LINES]} - {"missing"}
    assert told == {path.stem for path in SCRIPTS.glob("*.py")}


@pytest.mark.slow
def test_a_correct_script_is_told_nothing(tmp_path: Path) -> None:
    code, output = output_of(tmp_path, Mistake("plain", 0, "", "", "-n 2"))
    lines = [line for line in output.splitlines() if line != "trained"]
    assert code == 0 and output.count("trained") == 2, output
    assert all("next" not in line for line in lines), output


def test_full_tracebacks_are_a_setting(tmp_path: Path) -> None:
    shown = Mistake("matmul_shape", 1, "", "", "--set full_traceback=1")
    assert "hpcflow/graph/" in output_of(tmp_path, shown)[1]
