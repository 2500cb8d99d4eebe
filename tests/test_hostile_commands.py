"""Commands with empty names, unusual files and interruptions end with one line and an exit code."""

from __future__ import annotations

import getpass
import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import hpcflow as hf
from hpcflow.cli import main as cli
from hpcflow.cli.terminal_output import error_text
from hpcflow.errors import DataError
from hpcflow.kernels.machine_facts import own_profile_file
from hpcflow.sweep.slurm_states import user_name
from hpcflow.train.result_files import write_output

INTERRUPTING = """
import os, signal, sys
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "{module}":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
"""


def ended(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """The exit code of a command, and what it wrote to stderr."""
    with hf.Graph().as_default():
        code = cli.main([str(word) for word in words])
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["plan", "--dot", "", "x.py"], "hpcflow plan: --dot: the name of the file is empty"),
        (["plan", "--svg=", "x.py"], "hpcflow plan: --svg: the name of the file is empty"),
        (["report", "run", "--html", ""], "--html: the name of the file is empty"),
        (["report", "run", "--out", ""], "--out: the name of the folder is empty"),
        (["report", "run", ""], "RUN: the name of the folder is empty"),
        (["plan", "--passes", "--dot", "g.dot", __file__], "which --dot would show"),
        (["plan", "--diff", "graph_pruning", "--svg", "g", "--code", __file__], "--code, --svg"),
        (["costs", ""], "RUN: the name of the folder is empty"),
        (["run", "--run-dir", "", "x.py"], "--run-dir: the name of the folder is empty"),
        (["doctor", "--run-dir", __file__], f"--run-dir {__file__} is no folder"),
        (["scale", "--ranks", "1," + "9" * 17, __file__], "at most 1,048,576"),
        (["scale", "--ranks", "1,2", "--repeats", "9" * 11, __file__], "runs, more than 10,000"),
        (["inspect", ""], "DIR|FILE: the name of the file or folder is empty"),
        (["diff", "", "x"], "A: the name of the file or folder is empty"),
        (["infer", "x", ""], "DATA.h5: the name of the file is empty"),
        (["check-job", "--signal-before-end", "nan", __file__], "a number of seconds from 0 on"),
        (["check-job", "--signal-before-end=-5", __file__], "a number of seconds from 0 on"),
        (["submit", '--sbatch="a', __file__], "No closing quotation"),
    ],
)
def test_a_name_that_names_nothing_is_an_error(words, told, capsys) -> None:
    code, said = ended(capsys, *words)
    assert code in (1, 2) and told in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--set", "time_limit=soon"], "time_limit='soon' is no time"),
        (["-n", "99999999"], "at most 1,048,576 ranks"),
        (["-n", "2", "--hostfile", "."], "--hostfile .: it is a folder"),
        (["-n", "2", "--hostfile", "empty"], "--hostfile empty: it is empty"),
    ],
)
def test_a_run_that_cannot_start_is_refused_in_two_lines(
    words, told, tmp_path, capsys, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").write_text("")
    (tmp_path / "train.py").write_text("raise AssertionError('it has started')\n")
    code, said = ended(capsys, "run", *words, "train.py")
    assert code == 2 and told in said and "Errno" not in said and said.count("\n") <= 2


def test_a_file_in_the_place_of_a_run_directory_is_told_without_a_number(tmp_path) -> None:
    (tmp_path / "empty").write_text("")
    (tmp_path / "train.py").write_text("raise AssertionError('it has started')\n")
    done = subprocess.run(
        [sys.executable, "-m", "hpcflow", "run", "--run-dir", "empty", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(hf.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 2 and "'empty' cannot be written: File exists\n" in done.stderr


def test_an_abbreviated_option_that_a_script_gets_is_told(tmp_path, capsys) -> None:
    path = tmp_path / "train.py"
    path.write_text("import hpcflow as hf\nhf.Session().run(hf.Variable(1.0).initializer)\n")
    assert "the option of this command is --ranks" in ended(capsys, "plan", path, "--rank", "2")[1]
    assert "the option of this command is --ranks" in ended(capsys, "plan", path, "-n", "2")[1]
    assert "the option of" not in ended(capsys, "plan", path, "--", "--rank", "2")[1]
    path.write_text(path.read_text() + "# takes --rank\n")
    assert "the option of" not in ended(capsys, "plan", path, "--rank", "2")[1]


@pytest.mark.parametrize("text", ["abc", "0", "-1", "²", "9" * 5000])
def test_a_wrong_number_of_threads_is_one_message(text, tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hpcflow", "costs"],
        cwd=tmp_path,
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith("_HPCFLOW")},
            "PYTHONPATH": str(Path(hf.__file__).parents[1]),
            "OMP_NUM_THREADS": text,
        },
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert "Traceback" not in done.stderr and "is not a number of threads" in done.stderr


def test_a_setting_counts_in_either_spelling(tmp_path, monkeypatch, capsys) -> None:
    """The last one counts, and checks of an option are also those of `--set`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "read.py").write_text(
        "import hpcflow as hf\nhf.Session().run(hf.Variable(1.0).initializer)\n"
    )
    for words, servers in ((["--set", "ps=1", "--ps", "2"], 2), (["--ps=2", "--set=ps=1"], 1)):
        with hf.Graph().as_default():
            assert cli.main(["plan", "--ranks", "4", *words, "read.py"]) == 0
        assert f"{4 - servers} workers + {servers} servers" in capsys.readouterr().out
    for command in (["sweep", "--grid", "a=1"], ["scale", "--ranks", "1"]):
        code, said = ended(capsys, *command, "--set", "run_dir=x", "read.py")
        assert code == 2 and "each run has its own" in said
    code, said = ended(capsys, "scale", "--ranks", "2,3", "--set", "ps=2", "read.py")
    assert code == 2 and "leaves no worker" in said


def test_an_empty_name_of_a_pass_is_no_pass(tmp_path, capsys) -> None:
    path = tmp_path / "read.py"
    path.write_text("import hpcflow as hf\nhf.Session().run(hf.constant(1.0) + 1.0)\n")
    code, said = ended(capsys, "plan", "--diff", "", path)
    assert code == 2 and "there is no pass ''" in said


@pytest.mark.parametrize("words", [["--clear"], []])
def test_a_folder_in_the_place_of_the_profile_is_told_without_a_number(
    words, tmp_path, capsys, monkeypatch
) -> None:
    monkeypatch.setenv("HPCFLOW_COST_CACHE", str(tmp_path))
    file = own_profile_file(str(tmp_path))
    assert file is not None
    file.path.mkdir()
    code, said = ended(capsys, "costs", *words)
    assert code == 1 and str(file.path) in said and "Errno" not in said and said.count("\n") == 1


def test_errors_of_the_system_name_files_and_reasons() -> None:
    error = OSError(2, "No such file or directory", "a", None, "b")
    assert (
        error_text(error) == error_text(error, typed=True) == "a and b: No such file or directory"
    )
    assert error_text(OSError("squeue does not answer")) == "squeue does not answer"
    assert error_text(OSError(28, "No space left on device")) == "No space left on device"
    assert error_text(DataError("no"), typed=True) == "DataError: no"


@pytest.mark.parametrize("word", ["-n", "-n4", "-np", "--ntasks"])
def test_another_launchers_number_of_ranks_is_said_in_words_of_this_command(word, capsys) -> None:
    with pytest.raises(SystemExit):
        cli.main(["predict", word, "4", "train.py"])
    assert "use --ranks" in capsys.readouterr().err


# -- files that the user names


def test_a_link_keeps_its_place_and_missing_folders_are_made(tmp_path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_output(link, "new")
    assert link.is_symlink() and target.read_text() == "new"
    write_output(tmp_path / "a" / "b", "text")
    assert (tmp_path / "a" / "b").read_text() == "text"


@pytest.mark.parametrize("kind", ["folder", "pipe", "below a file", "device"])
def test_what_cannot_be_written_is_named_and_stays(kind, tmp_path) -> None:
    path = tmp_path / "out"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "below a file":
        path.write_text("")
        path = path / "x"
    else:
        path = Path("/dev/full")
    before = path.lstat().st_mode if kind != "below a file" else None
    with pytest.raises(OSError) as raised:
        write_output(path, "text")
    assert raised.value.filename == str(path)
    assert before is None or path.lstat().st_mode == before
    assert not list(tmp_path.glob(".*"))


def test_a_pipe_with_a_reader_has_the_text(tmp_path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write_output(path, "text")
    assert os.read(reader, 100) == b"text"
    os.close(reader)


# -- the surroundings


def test_ctrl_c_while_a_command_is_imported_is_one_line(capsys, monkeypatch) -> None:
    """NumPy raises ImportError if Ctrl-C comes while it is imported."""

    def interrupted(name: str) -> Any:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        except KeyboardInterrupt:
            raise ImportError("numpy._core.multiarray failed to import") from None
        raise AssertionError("the command starts")

    def imported(name: str) -> Any:
        with pytest.raises(AssertionError):
            interrupted(name)
        return real(name)

    hf.Graph()  # imported before
    real = importlib.import_module
    monkeypatch.setattr(importlib, "import_module", imported)
    assert ended(capsys, "costs") == (130, "hpcflow costs: interrupted\n")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    "module", ["hpcflow.errors", "numpy", "hpcflow.cli.main", "importlib.metadata"]
)
@pytest.mark.parametrize("words", [["-m", "hpcflow"], ["bin/hpcflow"]], ids=["module", "script"])
def test_ctrl_c_before_a_command_begins_is_one_line(module, words, tmp_path) -> None:
    """Ctrl-C comes when the module is imported: by the package, or by the command."""
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTING.format(module=module))
    (tmp_path / "bin").mkdir()
    script = "import sys\nfrom hpcflow.cli.main import main\nsys.exit(main())\n"
    (tmp_path / "bin" / "hpcflow").write_text(script)
    path = os.pathsep.join((str(tmp_path), str(Path(hf.__file__).parents[1])))
    command = "--version" if module == "importlib.metadata" else "costs"
    done = subprocess.run(
        [sys.executable, *words, command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 130, done.stderr
    assert done.stdout == "" and done.stderr.count("\n") == 1
    assert done.stderr.startswith("hpcflow") and done.stderr.endswith(": interrupted\n")


def test_a_script_can_be_interrupted_as_by_python(tmp_path) -> None:
    path = tmp_path / "stops.py"
    path.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = subprocess.run(
        [sys.executable, "-m", "hpcflow", "run", "stops.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(hf.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert 'stops.py", line 2' in done.stderr and "KeyboardInterrupt" in done.stderr
    assert done.returncode in (130, -signal.SIGINT)


def test_a_closed_stderr_does_not_change_the_exit_code(monkeypatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with pytest.raises(SystemExit) as raised:
        cli.main(["plan", "--ranks", "x", "train.py"])
    assert raised.value.code == 2


def test_a_user_without_a_name_has_a_number(monkeypatch) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr(getpass, "getuser", nameless)
    assert user_name() == str(os.geteuid())


def test_an_sbatch_that_cannot_start_is_told(tmp_path, capsys, monkeypatch) -> None:
    (tmp_path / "sbatch").write_bytes(b"\x7fELF, but not really")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    job = tmp_path / "job.sbatch"
    job.write_text("#!/bin/bash\ntrue\n")
    code, said = ended(capsys, "submit", "--no-check", job)
    assert code == 1 and "sbatch cannot be started: " in said and "Errno" not in said


def test_the_exit_code_of_a_script_is_a_number(tmp_path, capsys) -> None:
    path = tmp_path / "ends.py"
    path.write_text("raise SystemExit(True)\n")
    code, said = ended(capsys, "plan", path)
    assert code == 1 and "ended with exit code 1 before" in said
