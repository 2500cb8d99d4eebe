"""A script of a user who knows nothing of checkpoints."""

SCRIPT = """
import argparse, os, signal, time
import hpcflow as hf
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--slow", action="count", default=0, help="in the first life, or more")
parser.add_argument("--signal-rank", type=int, default=-1, help="sends it to itself, in that life")
args = parser.parse_args()
lives = int(os.environ.get("SLURM_RESTART_COUNT", 0))
hf.set_random_seed(1)
x = hf.placeholder(hf.float32, [None, 8])
w = hf.Variable(hf.glorot_uniform([8, 4]), name="w")
train = hf.train.AdamOptimizer(0.01).minimize(hf.reduce_mean(hf.square(hf.matmul(x, w))))
samples = np.random.default_rng(3).normal(size=(64, 8)).astype("float32")
data = hf.data.Dataset({x: samples}, batch=8, seed=5)
with hf.train.TrainingSession() as sess:
    for batch in data.epochs(args.epochs):
        sess.step(train, batch)
        if sess.steps == 5:
            print("ready", flush=True)
            while os.path.exists("hold"):
                time.sleep(0.1)
        if args.slow > lives:
            time.sleep(0.2)
        if sess.steps == 8 and sess.context.rank == args.signal_rank and lives == 0:
            os.kill(os.getpid(), signal.SIGUSR1)
    sess.wait()
    value = sess.run(w)
    if sess.result() is not None:
        print("end w=" + value.tobytes().hex(), flush=True)
"""
