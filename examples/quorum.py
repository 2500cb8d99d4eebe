"""A synchronization rule of the script: an update uses the first gradients, of enough samples.

hpcflow run -n 4 --ps 1 examples/quorum.py
"""

import dataclasses
import time

import hpcflow as hf

import numpy as np  # isort: skip


@dataclasses.dataclass(frozen=True)
class Quorum(hf.SyncRule):
    """An update uses gradients of this fraction of the global batch; later ones are dropped."""

    fraction: float
    joins = True

    def select(self, update):
        """All that have arrived, once they are enough."""
        arrived = sum(share for _, share in update.arrived)
        return update.arrived if arrived >= self.fraction else None


hf.register_sync_rule("quorum", Quorum)


def main() -> None:
    """Fits a line to samples; the last worker is slow, so that its gradients come late."""
    x = hf.placeholder(hf.float64, [None], name="x")
    slope = hf.Variable(0.0, dtype=hf.float64, name="slope")
    loss = hf.reduce_mean((x * slope - 3.0 * x) ** 2)
    train = hf.train.GradientDescentOptimizer(0.5).minimize(loss)
    samples = hf.data.Dataset({x: np.linspace(-1, 1, 600)}, batch=30, seed=1)
    with hf.train.TrainingSession(sync=Quorum(0.6)) as sess:
        for batch in samples.epochs(2):
            if sess.worker == 2:
                time.sleep(0.02)
            sess.step([loss, train], batch)
        result = sess.result()
        if result is not None:  # on the chief
            print(f"slope {sess.run(slope):.3f}, gradients {result['gradients']}")


if __name__ == "__main__":
    main()
