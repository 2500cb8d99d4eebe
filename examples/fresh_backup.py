"""A synchronization rule with memory: no worker is left out of two updates in a row.

hpcflow run -n 4 --ps 1 --inject slow:rank=2x5 examples/fresh_backup.py
"""

import functools

import hpcflow as hf

import numpy as np  # isort: skip


class Fresh(hf.Backup):
    """As `hf.Backup`, but an update waits for the workers that the last one left out."""

    @functools.cached_property  # not a field: fields are the numbers in the rule's text
    def owed(self):
        """The workers that the last update left out, by training operation."""
        return {}

    def select(self, update):
        """The gradients of the owed workers and the first others, once there are enough."""
        owed = self.owed.get(update, set()) & (update.active | update.contributors)
        needed, here = self.needed(update.workers), update.contributors
        if not update.is_complete and (len(here) < needed or owed - here):
            return None
        used = sorted(update.arrived, key=lambda one: one[0] not in owed)[: max(needed, len(owed))]
        self.owed[update] = set(range(update.workers)) - {worker for worker, _ in used}
        return used


hf.register_sync_rule("fresh", Fresh)


def main() -> None:
    """Fits a line to samples."""
    x = hf.placeholder(hf.float64, [None], name="x")
    slope = hf.Variable(0.0, dtype=hf.float64, name="slope")
    train = hf.train.GradientDescentOptimizer(0.5).minimize(hf.reduce_mean((x * (slope - 3)) ** 2))
    samples = hf.data.Dataset({x: np.linspace(-1, 1, 600)}, batch=30, seed=1)
    with hf.train.TrainingSession(sync=Fresh(1)) as sess:
        for batch in samples.epochs(2):
            sess.step(train, batch)
        result = sess.result()
        if result is not None:  # on the chief
            print(f"slope {sess.run(slope):.3f}, gradients {result['gradients']}")


if __name__ == "__main__":
    main()
