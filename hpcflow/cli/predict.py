"""Predict the time of a step on a cluster, from the plan of a script or from a finished run.

SCRIPT is planned as by `hpcflow plan`; the times of its operations come from the machine profile
(`hpcflow costs`), else from the cost model. RUN is the folder of a run: its script is planned
again, and the model is scaled to the run's measured own work of a step. Computing, messages and
updates of servers are then replayed, without MPI. --compare predicts other settings one by one,
--search finds the best combination. `hpcflow help prediction` describes the method and its limits.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcflow.cli.job_predictor import JobPredictor, PredictedJob
from hpcflow.cli.memory_excess import excess_text, memory_excess
from hpcflow.cli.plan import note_end
from hpcflow.cli.prediction_options import (
    WORKERS,
    add_network_arguments,
    add_replay_arguments,
    add_search_arguments,
)
from hpcflow.cli.run import add_settings, chosen_settings
from hpcflow.cli.terminal_output import err, out
from hpcflow.errors import HpcflowError, LaunchError
from hpcflow.placement.rank_mapping import RankMapping
from hpcflow.placement.topology import MOST_RANKS
from hpcflow.plan.cost.step_prediction import StepPrediction
from hpcflow.plan.listing.plan_text import format_table
from hpcflow.platform.quantity_text import format_bytes, format_seconds
from hpcflow.settings import PREFIX, Settings, as_bytes
from hpcflow.train.result_files import versions, write_output

if TYPE_CHECKING:
    from hpcflow.cli.search_listing import SearchListing
    from hpcflow.cli.setting_comparison import Comparison

TAKES_SCRIPT = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `hpcflow predict`."""
    parser.usage = "%(prog)s [options] SCRIPT|RUN [arguments of the script]"
    parser.add_argument("--ranks", type=int, metavar="N", help="number of ranks (1, or RUN's)")
    add_settings(parser)
    add_network_arguments(parser)
    add_replay_arguments(parser)
    parser.add_argument(
        "--compare",
        action="store_true",
        help="predict also with other values of settings that do not change results, each alone",
    )
    add_search_arguments(parser)
    parser.add_argument(
        "--no-correction", action="store_true", help="do not correct by earlier runs' steps"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--out", metavar="FILE", help="write the prediction, for `hpcflow report --predicted FILE`"
    )


def main(args: argparse.Namespace) -> int:
    """Predict. Exit code: 1 if the script or the plan failed, 2 for wrong arguments."""
    try:
        _check_search(args)
        predictor = JobPredictor(args.script, args.script_args)
        job = predictor.predict(args)
        prediction = job.prediction
        script = args.script if predictor.run is None else predictor.run.script
        plan = prediction.plan if prediction is not None else None
        note_end("hpcflow predict", script, plan, job.code)
        if job.code or prediction is None:
            return job.code or 1
        limit = as_bytes(_settings(predictor, args).memory_limit)
        excess = memory_excess(prediction.memory, prediction.network, limit)
        comparison = _compared(args, predictor, prediction) if args.compare else None
        search = _searched(args, predictor, prediction) if args.search else None
    except HpcflowError as error:
        err(f"hpcflow: {type(error).__name__}: {error}")
        return 2
    data = _data(args, prediction, predictor) | {"times": job.times}
    data["exceeds_memory"] = [one._asdict() for one in excess]
    data |= {"comparison": comparison.as_data()} if comparison is not None else {}
    data |= {"search": search.as_data()} if search is not None else {}
    try:
        if args.out:
            write_output(Path(args.out), json.dumps(data, indent=1) + "\n")
    except OSError as error:
        err(f"hpcflow: {args.out} cannot be written: {error.strerror}")
        return 1
    text = prediction_text(prediction, job.times)
    text += f"\n{excess_text(excess, args.search)}" if excess else ""
    text += f"\n\n{comparison.as_text()}" if comparison is not None else ""
    text += f"\n\n{search.as_text()}" if search is not None else ""
    out(json.dumps(data, indent=1) if args.json else text)
    return 0


def _settings(predictor: JobPredictor, args: argparse.Namespace) -> Settings:
    """The settings of the predicted job."""
    return Settings.from_environ({**os.environ, **predictor.settings(args)})


def _compared(
    args: argparse.Namespace, predictor: JobPredictor, given: StepPrediction
) -> Comparison:
    """The prediction with other values of settings."""
    from hpcflow.cli.setting_comparison import compare

    settings = _settings(predictor, args)
    threads = predictor.thread_numbers(args)
    return compare(
        args, settings, given, threads, lambda changed: predictor.predict(changed).prediction
    )


def _searched(
    args: argparse.Namespace, predictor: JobPredictor, given: StepPrediction
) -> SearchListing:
    """The best combination of settings.

    Errors: PlacementError if none fits the memory.
    """
    from hpcflow.cli.search_listing import SearchListing, run_command
    from hpcflow.cli.setting_combinations import CombinationSpace
    from hpcflow.cli.setting_search import SettingSearch

    chosen, settings = predictor.settings(args), _settings(predictor, args)
    most_ranks = given.ranks if args.max_ranks is None else args.max_ranks
    if most_ranks < given.ranks:
        raise LaunchError(
            f"--max-ranks {most_ranks}, but the given job has {given.ranks} ranks",
            hint=f"give at least {given.ranks}, or fewer --ranks",
        )
    is_fixed = isinstance(given.network, RankMapping)
    threads, may_change = predictor.thread_numbers(args), WORKERS in args.may_change
    space = CombinationSpace(given.plan, settings, threads, most_ranks, may_change, is_fixed)

    def predict(changed: argparse.Namespace, is_quick: bool = True) -> PredictedJob:
        with contextlib.redirect_stderr(io.StringIO()):  # the script has printed it once
            return predictor.predict(changed, is_quick)

    search = SettingSearch(args, space, predict)
    found = search.run()
    best = predict(search.arguments(found.best.combination), is_quick=False).prediction
    assert best is not None, "it was predicted before"
    fields = space.fields(found.best.combination)
    chosen |= {PREFIX + name.upper(): value for name, value in fields.items()}
    run = predictor.run
    of_script = (args.script, args.script_args) if run is None else (run.script, run.script_args)
    command = run_command(best.ranks, chosen, *of_script)
    return SearchListing(found, given, best, predictor.scripts.runs, command)


def _check_search(args: argparse.Namespace) -> None:
    """Raise LaunchError for options of a search without one."""
    given = [name for name in ("max_ranks", "may_change") if getattr(args, name)]
    if given and not args.search:
        option = "--" + given[0].replace("_", "-")
        raise LaunchError(f"{option} is for --search", hint=f"add --search, or leave {option} out")
    if args.max_ranks is not None and args.max_ranks > MOST_RANKS:
        raise LaunchError(f"--max-ranks {args.max_ranks}: give at most {MOST_RANKS:,}")
    if args.max_ranks is not None and chosen_settings(args).get(f"{PREFIX}TOPOLOGY"):
        raise LaunchError(
            "--topology and --max-ranks both tell the number of ranks", hint="leave out --max-ranks"
        )


def prediction_text(prediction: StepPrediction, times: str) -> str:
    """The prediction as text; `times` says where the times of operations are from."""
    cluster = prediction.plan.cluster
    rate, servers = prediction.samples_per_second, f" + {cluster.servers} servers"
    sync = f", sync={cluster.sync}" if cluster.mode == "ps" else ""
    rows = [
        ("time of a step, median", format_seconds(prediction.median)),
        ("its interval", f"{format_seconds(prediction.low)} to {format_seconds(prediction.high)}"),
        ("time of a step, 90th percentile", format_seconds(prediction.p90)),
        ("samples/s", f"{rate:,.0f}" if rate else "unknown: no array with samples is fed"),
        ("steps/s of all replicas", f"{prediction.steps_per_second:,.4g}"),
        ("efficiency of a rank", f"{prediction.efficiency:.0%} of one rank alone"),
        ("limited by", f"{prediction.limit}, busy {prediction.busy[prediction.limit]:.0%}"),
        *(
            (f"memory of {task}", format_bytes(nbytes))
            for task, nbytes in prediction.memory.items()
        ),
        ("times of operations", times),
    ]
    if prediction.plan.forecast:
        rows.append(("placement", prediction.plan.forecast.partition(": ")[2]))
    head = (
        f"prediction: mode {cluster.mode}{sync}, {prediction.ranks} ranks = "
        f"{cluster.workers} workers{servers if cluster.servers else ''}"
    )
    return f"{head}\n{format_table(('figure', 'predicted'), rows)}"


def _data(
    args: argparse.Namespace, prediction: StepPrediction, predictor: JobPredictor
) -> dict[str, Any]:
    """The prediction as JSON data, with where it comes from."""
    from hpcflow.platform.git_state import git_state

    git = git_state(str(Path(__file__).parent)) or {}
    run = predictor.run
    script = args.script if run is None else run.script
    return {
        **prediction.as_data(),
        "script": os.path.abspath(script),
        "arguments": args.script_args if run is None else run.script_args,
        "settings": chosen_settings(args),
        "commit": git.get("commit"),
        "versions": versions(),
    }
