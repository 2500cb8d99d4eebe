"""Another job writes checkpoints to the same folder."""

import os
import subprocess
import sys

import hpcflow as hf

w = hf.Variable(hf.zeros([2]), name="w")
train = hf.train.GradientDescentOptimizer(0.1).minimize(hf.reduce_mean(hf.square(w - 1)))
if "second" not in sys.argv:
    with hf.train.TrainingSession(checkpoints="saved") as session:
        session.step(train, {})
        words = [sys.executable, "-m", "hpcflow", "run", __file__, "second"]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("HPCFLOW")}
        sys.exit(subprocess.call(words, env=clean))
with hf.train.TrainingSession(checkpoints="saved") as session:  # the mistake
    session.step(train, {})
