"""The job of the chaos tests: it trains a small net, saves often and goes on where it was.

    hpcflow run ... training.py FOLDER EPOCHS SAVE_EVERY [FORM [PAUSE]]

The chief says when training begins, with the process numbers of all ranks, and counts its steps;
at the end it writes the weights in the folder, where the checkpoints are if no setting says
otherwise. The global step counts updates. PAUSE is in seconds, between two steps.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np

import hpcflow as hf
from tests.runtime.nets import data, net

BATCH, SAMPLES = 8, 96

if __name__ == "__main__":
    where, epochs, every = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    features, labels = data(SAMPLES)
    x, y, loss, train, _ = net()
    count = hf.train.get_or_create_global_step()
    with hf.control_dependencies([train]):
        counted = count.assign_add(1)
    dataset = hf.data.Dataset({x: features, y: labels}, batch=BATCH, seed=1)
    form = sys.argv[4] if len(sys.argv) > 4 else "auto"
    pause = float(sys.argv[5]) if len(sys.argv) > 5 else 0.0
    own = None if os.environ.get("HPCFLOW_DEFAULT_CHECKPOINTS") else where
    with hf.train.TrainingSession(
        checkpoints=own, save_every=every, resume=True, max_to_keep=3, form=form
    ) as session:
        pids = [report["pid"] for report in session.context.reports() or ()]
        if session.is_chief:
            print("RANKS", *pids, flush=True)
        for batch in dataset.epochs(epochs):
            session.step([train, counted], batch)
            time.sleep(pause)
            if session.is_chief:
                print("STEP", session.steps, flush=True)
        session.wait()
        if session.is_chief:
            print("TRAINED", flush=True)
            values = session.run({v.name: v for v in hf.global_variables()})
            np.savez(f"{where}/weights.npz", **values)
            print("ENDED", flush=True)
