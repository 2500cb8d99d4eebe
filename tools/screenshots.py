"""Screenshots of the guides, docs/screenshots/*.png, from real runs: `make screenshots`.

It trains examples/digits.py a few times in a temporary folder, then takes a picture for each row of
SHOTS in Debian's chromium without a network. Needs chromium, chromium-driver and selenium.
"""

from __future__ import annotations

import html
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "screenshots"
MOST_BYTES = 150_000  # of a picture
WIDTH, TERMINAL_WIDTH, HEIGHT = 1000, 1240, 900
TERMINAL = """<!doctype html><html lang="en"><meta charset="utf-8"><title>terminal</title>
<style>body {{ margin: 0; background: #1b1d22; }}
pre {{ margin: 0; padding: 16px 20px; font: 14px/1.45 "DejaVu Sans Mono", monospace;
color: #e6e6e6; display: inline-block; min-width: 100%; }}
b {{ color: #8fd08f; }}</style><pre id="shot"><b>$ {command}</b>
{text}</pre></html>
"""
RUNS = {  # name -> options of `hpcflow run` and of the script
    "digits": ("-n 4 --profile", ""),
    "servers": ("-n 4 --ps 1", ""),
    "n1": ("", ""),
    "n2": ("-n 2", ""),
    "n4": ("-n 4", ""),
}


class Shot(NamedTuple):
    """A picture of what an hpcflow command writes to {html}, or else prints, or of a notebook.

    `selector` is the element of the page that is drawn; "" for the first screen.
    """

    name: str
    command: str
    selector: str = ""
    notebook: str = ""  # of examples/notebooks
    width: int = WIDTH


SHOTS = (
    Shot("watch", "watch live --once"),  # first, while that run goes on
    Shot("watch-folder", "watch . --once"),
    Shot("page", "report digits --html {html}"),
    Shot("page-waiting", "report digits --html {html}", "figure:has(img.heat)"),
    Shot("page-roofline", "report digits --html {html}", 'figure:has([aria-label^="roofline"])'),
    Shot("page-servers", "report servers --html {html}", 'figure:has([aria-label^="bytes of a"])'),
    Shot("page-events", "report restarted --html {html}", 'figure:has([aria-label^="timeline"])'),
    Shot("page-runs", "report n1 n2 n4 --html {html}"),
    Shot(
        "plan",
        "plan --ranks 4 --ps 1 {examples}/learn/transformer.py --html {html}",
        width=TERMINAL_WIDTH,
    ),
    Shot("notebook", "", notebook="ranks"),
)


def main() -> None:
    """Make the runs, and take the pictures."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hpcflow-screenshots-") as place:
        for name, (options, arguments) in RUNS.items():
            hpcflow(place, f"run {options} --run-dir {name} {script()} -- {arguments}")
        restarted(place)
        with browser() as driver, live_run(place):
            for shot in SHOTS:
                path = FOLDER / f"{shot.name}.png"
                picture(driver, shot, Path(place), path)
                print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")
                if path.stat().st_size > MOST_BYTES:
                    sys.exit(f"{path} is larger than {MOST_BYTES:,} bytes: draw a smaller element")


def script() -> str:
    """The example that is trained."""
    return shlex.quote(str(ROOT / "examples" / "digits.py"))


def hpcflow(place: str | Path, words: str, codes: tuple[int, ...] = (0,)) -> str:
    """Run an hpcflow command in a folder; returns its output. Ends the tool if it fails."""
    command = [sys.executable, "-m", "hpcflow", *shlex.split(words)]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, env=environ())
    if done.returncode not in codes:
        sys.exit(f"hpcflow {words}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def environ() -> dict[str, str]:
    """The environment of the commands: this repository's hpcflow."""
    more = [path for path in (os.environ.get("PYTHONPATH"),) if path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *more])}


def restarted(place: str) -> None:
    """A run with checkpoints that is stopped once, and started again by the same command."""
    words = f"run -n 2 --run-dir restarted {script()} -- --epochs 60 --checkpoints kept --resume"
    command = [sys.executable, "-m", "hpcflow", *shlex.split(f"{words} --save-every 200")]
    run = subprocess.Popen(command, cwd=place, env=environ(), stdout=subprocess.PIPE, text=True)
    wait_for_rows(Path(place) / "restarted" / "events.csv", 3)
    run.terminate()
    run.communicate()
    hpcflow(place, f"{words} --save-every 200")


@contextmanager
def live_run(place: str) -> Iterator[None]:
    """A run that goes on meanwhile."""
    words = f"run -n 2 --run-dir live {script()} -- --epochs 500"
    command = [sys.executable, "-m", "hpcflow", *shlex.split(words)]
    silent = subprocess.DEVNULL
    run = subprocess.Popen(command, cwd=place, env=environ(), stdout=silent, stderr=silent)
    try:
        wait_for_rows(Path(place) / "live" / "metrics.csv", 30)
        yield
    finally:
        run.terminate()
        run.wait()


def wait_for_rows(path: Path, rows: int) -> None:
    """Wait until a table has some rows; ends the tool after two minutes."""
    end = time.monotonic() + 120
    while not path.exists() or path.read_text().count("\n") <= rows:
        if time.monotonic() > end:
            sys.exit(f"{path} has no {rows} rows after two minutes")
        time.sleep(0.1)


@contextmanager
def browser() -> Iterator[Any]:
    """Chromium without a network."""
    try:
        from selenium import webdriver
    except ImportError:
        sys.exit("screenshots need selenium: pip install 'selenium>=4.20,<5'")
    options = webdriver.ChromeOptions()
    for word in ("headless=new", "no-sandbox", "disable-gpu", "hide-scrollbars"):
        options.add_argument(f"--{word}")
    options.add_argument(f"--window-size={WIDTH},{HEIGHT}")
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND")
    service = webdriver.ChromeService(executable_path="/usr/bin/chromedriver")
    driver = webdriver.Chrome(options=options, service=service)
    light = {"name": "prefers-color-scheme", "value": "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [light]})
    try:
        yield driver
    finally:
        driver.quit()


def run_notebook(name: str, place: Path, page: Path) -> None:
    """Execute a notebook in a folder, and write it with its outputs as a page."""
    source = ROOT / "examples" / "notebooks" / f"{name}.ipynb"
    command = [sys.executable, "-m", "nbconvert", "--to", "html", "--execute", "--log-level=ERROR"]
    command += ["--output-dir", str(page.parent), "--output", page.stem, str(source)]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, env=environ())
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")


def picture(driver: Any, shot: Shot, place: Path, path: Path) -> None:
    """Take a picture of what a command writes or prints."""
    driver.set_window_size(shot.width, HEIGHT)
    page, selector = place / f"{shot.name}.html", shot.selector
    if shot.notebook:
        run_notebook(shot.notebook, place, page)
        printed = ""
    else:
        printed = hpcflow(place, shot.command.format(html=page, examples=ROOT / "examples"))
    if "{html}" not in shot.command and not shot.notebook:
        text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", printed).rstrip("\n")
        command = html.escape(f"hpcflow {shot.command}")
        page.write_text(TERMINAL.format(command=command, text=html.escape(text)), encoding="utf-8")
        selector = "#shot"
        driver.set_window_size(TERMINAL_WIDTH, HEIGHT)
    driver.get(page.as_uri())
    if selector:
        driver.find_element("css selector", selector).screenshot(str(path))
    else:
        driver.save_screenshot(str(path))


if __name__ == "__main__":
    main()
