"""Samples for the ranks: every one once per epoch, the same joined batches on any number."""

from hpcflow.names import later

__getattr__, __dir__, __all__ = later(
    __name__,
    {
        "": "experimental=data.experimental",
        "hpcflow.data.dataset": "Dataset",
        "hpcflow.data.elements": "TextLineDataset=text_lines",
        "hpcflow.data.feeding": "Batch",
        "hpcflow.data.h5": "hdf5",
        "hpcflow.data.iterator": (
            "Iterator get_output_classes get_output_shapes get_output_types "
            "make_initializable_iterator=initializable make_one_shot_iterator=one_shot"
        ),
        "hpcflow.data.options": "Options",
        "hpcflow.data.orders": "Blocks",
        "hpcflow.data.pipeline": "Pipeline",
        "hpcflow.data.queued": "dequeued",
        "hpcflow.data.sources": "Source",
        "hpcflow.data.stream": "Stream",
    },
)
