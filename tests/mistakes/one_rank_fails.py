"""Only one rank fails."""

import hpcflow as hf

with hf.train.TrainingSession() as session:
    files = ["a.npy", "b.npy"][: 2 - session.worker]
    print(files[1])  # the mistake
