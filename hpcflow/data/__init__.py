"""Samples for the ranks: every one once per epoch, the same joined batches on any number."""

from hpcflow.names import later

__getattr__, __dir__, __all__ = later(
    __name__,
    {
        "hpcflow.data.dataset": "Dataset",
        "hpcflow.data.feeding": "Batch",
        "hpcflow.data.h5": "hdf5",
        "hpcflow.data.orders": "Blocks",
        "hpcflow.data.queued": "dequeued",
        "hpcflow.data.sources": "Source",
        "hpcflow.data.stream": "Stream",
    },
)
