"""Write the files that later versions must load: once for each format version, by hand.

python -m tests.checkpoint.keep
"""

from pathlib import Path

import numpy as np

from hpcflow.checkpoint import header_digests
from tests.checkpoint.jobs import save_some

if __name__ == "__main__":
    here = (
        Path(__file__).parents[1]
        / "data"
        / "checkpoints"
        / f"version-{header_digests.FORMAT_VERSION}"
    )
    here.mkdir(parents=True)
    values = save_some(here, 3, ranks=2, rows=20)
    save_some(here, 4, ranks=1, rows=20, form="parallel")
    (here / "latest").unlink()
    np.savez(here / "values.npz", **values)
