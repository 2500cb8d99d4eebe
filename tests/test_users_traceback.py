"""What is printed of an error: the user's frames, the message, and in the end the summary."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import HpcflowError
from hpcflow.monitoring import failure_summary
from hpcflow.monitoring.users_traceback import NOTE, users_traceback

HERE = Path(__file__).name


def printed(call) -> str:
    """The traceback of the error that `call` raises, as users see it."""
    with pytest.raises(BaseException) as caught:
        call()
    return users_traceback(caught.value, caught.tb.tb_next)


def files_of(text: str) -> set[str]:
    return {
        os.path.basename(line.split('"')[1])
        for line in text.splitlines()
        if line.lstrip(" |").startswith('File "')
    }


def test_frames_of_libraries_are_left_out() -> None:
    def wrong() -> None:
        with hf.Graph().as_default():
            hf.matmul(hf.zeros([2, 3]), hf.zeros([2, 3]))

    text = printed(wrong)
    assert files_of(text) == {HERE} and "inner sizes 3 and 2 differ" in text
    assert text.index("in wrong") < text.index(NOTE) < text.index("ShapeError")


def test_frames_of_other_libraries_are_left_out_too() -> None:
    text = printed(lambda: np.linalg.inv(np.zeros((2, 2))))
    assert files_of(text) == {HERE} and text.endswith("Singular matrix\n")


def test_an_error_of_the_user_is_printed_as_python_does() -> None:
    def wrong() -> None:
        raise ValueError("of mine")

    text = printed(wrong)
    assert NOTE not in text and text.endswith("ValueError: of mine\n")


def test_causes_stay_where_they_have_frames_of_the_user() -> None:
    def inner() -> None:
        raise KeyError("inner")

    def outer() -> None:
        try:
            inner()
        except KeyError as error:
            raise HpcflowError("outer") from error

    text = printed(outer)
    assert "KeyError: 'inner'" in text and "direct cause" in text
    assert text.index("inner") < text.index("HpcflowError: outer")


def test_causes_inside_libraries_are_left_out() -> None:
    text = printed(lambda: hf.layers.dense(hf.zeros([2, 3]), 3, activaton="relu"))
    assert text.count("Traceback") == 1 and "activaton" in text


def test_an_error_without_frames_of_the_user_is_printed_in_full() -> None:
    try:
        np.linalg.inv(np.zeros((2, 2)))
    except np.linalg.LinAlgError as error:
        text = users_traceback(error, error.__traceback__.tb_next)
    assert any("linalg" in name for name in files_of(text)) and NOTE not in text


def test_syntax_errors_show_their_line() -> None:
    text = printed(lambda: compile("def f(:", "train.py", "exec"))
    assert 'File "train.py", line 1' in text and "SyntaxError" in text


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no exception groups")
def test_groups_of_errors_are_filtered_too() -> None:
    def wrong() -> None:
        try:
            np.linalg.inv(np.zeros((2, 2)))
        except np.linalg.LinAlgError as error:
            raise ExceptionGroup("several", [error]) from None  # noqa: F821

    text = printed(wrong)
    assert files_of(text) == {HERE} and "Singular matrix" in text


def test_the_first_summary_is_the_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with failure_summary.SummaryReader("") as reader:
        folder = Path(reader.variables()[failure_summary.FOLDER])
        assert "exit code 7" in reader.last_lines(7)
        monkeypatch.setenv(failure_summary.FOLDER, str(folder))
        failure_summary.write_summary([0, 1, 3], "ValueError: x", "train.py:6", "do y")
        failure_summary.write_summary([2], "TypeError: later", None, None)
        expected = "the job failed on ranks 0-1, 3: ValueError: x (train.py:6)\n  next  do y"
        assert reader.last_lines(7) == expected
    assert not folder.exists()
    failure_summary.write_summary([2], "TypeError: nobody reads it", None, None)


def test_ranks_of_other_hosts_are_summarized_from_the_run_directory(tmp_path: Path) -> None:
    facts = '{"rank": 3, "cause": "ValueError: x", "line": "train.py:6", "hint": null}'
    path = tmp_path / "failure.json"
    path.write_text(facts)
    os.utime(path, (1, 1))
    with failure_summary.SummaryReader(str(tmp_path)) as reader:
        assert "exit code 7" in reader.last_lines(7), "of an earlier job"
        path.write_text(facts)
        os.utime(path, (2**33, 2**33))
        assert reader.last_lines(7) == "the job failed on rank 3: ValueError: x (train.py:6)"
        path.write_text("{")
        os.utime(path, (2**33, 2**33))
        assert "exit code 7" in reader.last_lines(7)


BROKEN = """import hpcflow as hf
with hf.Graph().as_default():
    hf.matmul(hf.zeros([2, 3]), hf.zeros([2, 3]))
"""


def plain_python(folder: Path, script: str, **environ: str) -> str:
    """The standard error of `python broken.py`, which fails."""
    (folder / "broken.py").write_text(script)
    given = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent), **environ}
    words = [sys.executable, "broken.py"]
    done = subprocess.run(words, cwd=folder, env=given, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1
    return done.stderr


def test_plain_python_leaves_out_frames_of_libraries_before_a_session_exists(
    tmp_path: Path,
) -> None:
    text = plain_python(tmp_path, BROKEN)
    assert files_of(text) == {"broken.py"} and "line 3" in text
    assert "inner sizes 3 and 2 differ" in text and "HPCFLOW_FULL_TRACEBACK=1" in text
    full = plain_python(tmp_path, BROKEN, HPCFLOW_FULL_TRACEBACK="1")
    assert {"broken.py", "matmul_ops.py"} <= files_of(full)


def test_plain_python_leaves_them_out_after_a_session_exists_too(tmp_path: Path) -> None:
    begun = "import hpcflow as hf\nhf.Session(hf.Graph())\n"
    text = plain_python(tmp_path, begun + BROKEN)
    assert files_of(text) == {"broken.py"} and text.count("ShapeError") == 1
    full = plain_python(tmp_path, begun + BROKEN, HPCFLOW_FULL_TRACEBACK="1")
    assert "matmul_ops.py" in files_of(full)


@pytest.mark.parametrize("before", [True, False])
def test_the_hook_of_a_program_stays(before: bool, tmp_path: Path) -> None:
    """Also if it was installed before hpcflow is imported, as by IPython."""
    hook = (
        "import sys\nsys.excepthook = lambda *e: print('my hook', e[0].__name__, file=sys.stderr)\n"
    )
    first, rest = BROKEN.split("\n", 1)
    script = f"{hook}{BROKEN}" if before else f"{first}\n{hook}{rest}"
    assert plain_python(tmp_path, script) == "my hook ShapeError\n"


def test_errors_of_other_libraries_are_printed_as_python_does(tmp_path: Path) -> None:
    fails = "import numpy as np\nnp.linalg.inv(np.zeros((2, 2)))\n"
    expected = plain_python(tmp_path, "\n" + fails)
    assert plain_python(tmp_path, "import hpcflow\n" + fails) == expected
    assert len(files_of(expected)) > 1
