"""What `hpcflow submit` and `hpcflow check-job` know of a job before it is queued, or begins."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from hpcflow.cli.job_feasibility import JobRequest, parts_of, seconds_of
from hpcflow.cli.main import main

ROOT = Path(__file__).parent.parent
SINFO = """#!/bin/sh
[ "$*" = "${*%none*}" ] || exit 1
case "$*" in
  *gpu*) echo "gpu|2|1:00:00|8"; echo "gpu|1|1:00:00|16+";;
  *) echo "gpu|3|1:00:00|8"; echo "cpu*|4|1-00:00:00|4";;
esac
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the job scripts, `train.py`, an `sbatch` that takes all, and an `sinfo`."""
    (tmp_path / "bin").mkdir()
    tools = {"sbatch": f"#!/bin/sh\necho $@ > {tmp_path}/called\necho Submitted\n", "sinfo": SINFO}
    for name, text in {**tools, "hpcflow": "#!/bin/sh\n"}.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    for job in (ROOT / "jobs" / "slurm").glob("*.sbatch"):
        (tmp_path / job.name).write_text(job.read_text())
    (tmp_path / "train.py").write_text("print('\\x20')\n")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    for name in ("SERVERS", "SBATCH_TIMELIMIT", "SBATCH_SIGNAL", "SBATCH_PARTITION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(site: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Why it is refused, before sbatch was called; "" if it is not."""
    (site / "called").unlink(missing_ok=True)
    code = main(["submit", *words])
    said = capsys.readouterr().err
    assert (code == 0) == (site / "called").exists()
    return said if code else ""


GOOD = [
    ("train.sbatch", "train.py", "--epochs", "3"),
    ("ps.sbatch", "train.py"),
    ("ps.sbatch", "--ps", "3", "train.py"),
    ("hetero.sbatch", "train.py"),
    ("scaling.sbatch", "train.py"),
    ("train.sbatch", "--tasks-per-replica", "2", "train.py"),
    ("--sbatch=-N8 -p none", "train.sbatch", "train.py"),  # of which sinfo knows nothing
    ("--sbatch=-N 1-9 --time=2-12", "train.sbatch", "train.py", "--", "--set-x"),
]


@pytest.mark.parametrize("words", GOOD, ids=" ".join)
def test_what_can_be_is_submitted(
    site: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    if "2-12" in words[0]:
        assert "gives 24:00 h" in refused(site, capsys, *words)
        words = (words[0].replace("2-12", "0-12"), *words[1:])
    assert refused(site, capsys, *words) == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train.sbatch",), "the job script needs a script to run"),
        (("train.sbatch", "absent.py"), "no script 'absent.py' in "),
        (("train.sbatch", "wrong.py"), "the script is not Python: wrong.py:2: "),
        (("train.sbatch", "both.py", "--sync", "all"), "both.py has an option of this name, too"),
        (("train.sbatch", "zero.py"), "the script is not Python: zero.py:"),
        (("train.sbatch", "--what", "train.py"), "unknown option --what"),
        (("train.sbatch", "train.py", "--set", "tim_limit=3"), "tim_limit=3: there is no such"),
        (("train.sbatch", "train.py", "--set", "stall_s=x"), "stall_s='x' is not a number"),
        (("ps.sbatch", "--ps", "4", "train.py"), "4 of 4 ranks would serve variables"),
        (("--sbatch=-n2", "ps.sbatch", "train.py", "--ps=2"), "2 of 2 ranks would serve"),
        (("train.sbatch", "train.py", "--tasks-per-replica", "3"), "4 workers of 4 tasks cannot"),
        (("train.sbatch", "train.py", "--survive"), "srun ends all ranks with the first that dies"),
        (("--sbatch=--time=2", "train.sbatch", "train.py"), "2:00 min before its end: it comes"),
        (("--sbatch=-t 1:30", "hetero.sbatch", "train.py"), "it comes at once"),
        (("--sbatch=--nodes=5", "train.sbatch", "train.py"), "but the partition cpu has 4"),
        (("--sbatch=-N4 -p gpu", "train.sbatch", "train.py"), "but the partition gpu has 3"),
        (("--sbatch=-p gpu -t 61", "train.sbatch", "train.py"), "the partition gpu gives 1:00 h"),
        (("--sbatch=-c 3", "train.sbatch", "train.py"), "2 tasks of 3 CPUs do not fit a node of"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before(
    site: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    (site / "both.py").write_text("p.add_argument('--sync')\n")
    (site / "wrong.py").write_text("import os\nprint 'x'\n")
    (site / "zero.py").write_bytes(b"x = 1\0\n")
    text = refused(site, capsys, *words)
    assert said in text
    assert refused(site, capsys, "--no-check", *words) == ""


def test_servers_and_limits_of_the_environment_count(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVERS", "4")
    text = refused(site, capsys, "ps.sbatch", "train.py")
    assert "4 of 4 ranks would serve" in text and "--sbatch=--ntasks-per-node" in text
    monkeypatch.setenv("SERVERS", "3")
    assert refused(site, capsys, "ps.sbatch", "train.py") == ""
    monkeypatch.setenv("SBATCH_TIMELIMIT", "2")
    assert "it comes at once" in refused(site, capsys, "ps.sbatch", "train.py")
    assert refused(site, capsys, "--sbatch=--time=20", "ps.sbatch", "train.py") == ""


def test_doubts_are_told_and_the_job_is_submitted(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--sbatch=--time=3", "train.sbatch", "train.py")
    assert main(["submit", *words]) == 0
    said = capsys.readouterr()
    assert "Submitted" in said.out and "may come a minute earlier" in said.err
    assert main(["submit", "--sbatch=--time=1 --signal=CONT@10", "train.sbatch", "train.py"]) == 0
    assert "at its first step, and is queued again" in capsys.readouterr().err
    (site / "bin" / "hpcflow").unlink()
    assert main(["submit", "train.sbatch", "train.py"]) == 0
    assert "PATH has hpcflow: set its folder" in capsys.readouterr().err
    (site / ".venv" / "bin").mkdir(parents=True)
    (site / ".venv" / "bin" / "hpcflow").touch()
    assert main(["submit", "train.sbatch", "train.py"]) == 0
    assert capsys.readouterr().err == ""


def test_a_job_script_of_another_kind_is_submitted_as_it_is(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / "other.sh").write_text("#!/bin/sh\n#SBATCH -N1 --time=10\necho $1\n")
    assert refused(site, capsys, "other.sh", "what.dat") == ""
    (site / "other.sh").write_text('#!/bin/sh\n#SBATCH --comment="x\n')
    assert "No closing quotation" in refused(site, capsys, "other.sh")


def test_lines_environment_and_options_are_read_as_sbatch_does() -> None:
    text = (
        "#!/bin/bash\n# a comment\n##SBATCH --nodes=7\n#SBATCH -N2 --ntasks-per-node=3 -c 2 # so\n"
        "#SBATCH --gres gpu:1 -J name --time=1:00:00\n\n#SBATCH --signal=R:USR1@90 -p cpu\n"
        "#SBATCH hetjob\n#SBATCH --nodes=4-8 --ntasks=8\nset -e\n#SBATCH --nodes=9\n"
    )
    first, second = parts_of(text, [], {})
    assert first == JobRequest(2, None, 3, 2, 3600.0, "cpu", "R:USR1@90")
    assert (first.ranks, first.lead_s) == (6, 90.0)
    assert second == JobRequest(4, 8, None, 1, 3600.0, "cpu") and second.ranks == 8
    (given, _) = parts_of(text, ["--nodes=k", "-t", "5"], {"SBATCH_TIMELIMIT": "7"})
    assert given.nodes is None and given.ranks is None and given.seconds == 300
    assert parts_of(text, [], {"SBATCH_TIMELIMIT": "7"})[0].seconds == 420


@pytest.mark.parametrize(
    ("signal", "lead"),
    [("USR1@120", 120.0), ("SIGTERM", 60.0), ("10@5", 5.0), ("B:USR1@120", None), ("CONT@10", None),
     ("", None)],
)  # fmt: skip
def test_which_signals_stop_a_job(signal: str, lead: float | None) -> None:
    assert JobRequest(signal=signal).lead_s == lead


def test_times_as_slurm_takes_them() -> None:
    times = {"2": 120, "1:30": 90, "1:00:00": 3600, "1-0": 86400, "1-2:30": 95400}
    times |= {"2-12:00:01": 216001, "UNLIMITED": math.inf, "0": math.inf, "infinite": math.inf}
    assert {text: seconds_of(text) for text in times} == times
    assert seconds_of("soon") is None and seconds_of("1:2:3:4") is None


def test_in_a_job_script_the_time_that_is_left_counts(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["check-job", "--signal-before-end", "120", "--run-dir", "run", "train.py", "--x"]
    for left, said in ((3600, ""), (119, "comes at once"), (100, "comes at once")):
        monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + left))
        assert main(words) == 0
        text = capsys.readouterr().err
        assert said in text and bool(said) == bool(text)
    words[2] = "20"
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 80))
    assert main(words) == 0 and "at its first step" in capsys.readouterr().err
    assert main([*words[:-2], "absent.py"]) == 2
    assert "no script 'absent.py'" in capsys.readouterr().err
    assert not (site / "run").exists()
