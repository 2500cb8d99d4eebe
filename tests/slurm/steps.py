"""A job of the tests: trains for so many epochs, slowly in its first life if it is told to wait."""

import argparse
import os
import signal
import time

import hpcflow as hf

import numpy as np  # isort: skip

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoints")
parser.add_argument("--resume", action="store_true")
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--save-every")
parser.add_argument("--wait", action="store_true", help="be slow, until a signal comes")
parser.add_argument("--signal-rank", type=int, default=-1, help="this rank sends it to itself")
args = parser.parse_args()
first_life = "SLURM_RESTART_COUNT" not in os.environ

hf.set_random_seed(1)
x = hf.placeholder(hf.float32, [None, 8], name="x")
w = hf.Variable(hf.glorot_uniform([8, 4]), name="w")
loss = hf.reduce_mean(hf.square(hf.matmul(x, w)))
train = hf.train.AdamOptimizer(0.01).minimize(loss)
samples = np.random.default_rng(3).normal(size=(64, 8)).astype("float32")
data = hf.data.Dataset({x: samples}, batch=8, seed=5)
with hf.train.TrainingSession(
    checkpoints=args.checkpoints, resume=args.resume, save_every=args.save_every
) as sess:
    for batch in data.epochs(args.epochs):
        if sess.steps == 20 and first_life:
            print("ready", sess.context.rank, flush=True)
            if sess.context.rank == args.signal_rank:
                os.kill(os.getpid(), signal.SIGUSR1)
        sess.step(train, batch)
        if args.wait and first_life and sess.steps >= 20:
            time.sleep(0.1 if sess.steps < 100 else 0.5)  # half a minute for who is late
    sess.wait()
    value = sess.run(w)
    result = sess.result()
    if result is not None:
        print(f"end w={value.tobytes().hex()}", flush=True)
