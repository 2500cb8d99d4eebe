"""Input pipelines: every sample once per epoch, equal global batches on any number of ranks."""

from hpcflow.platform.lazy_imports import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "": "experimental=data.experimental",
        "hpcflow.data.dataset": "Dataset",
        "hpcflow.data.dataset_sources": "TextLineDataset=text_lines",
        "hpcflow.data.batch_iterator": "Batch",
        "hpcflow.data.hdf5_rows": "hdf5",
        "hpcflow.data.dataset_iterator": (
            "Iterator get_output_classes get_output_shapes get_output_types "
            "make_initializable_iterator=initializable_iterator "
            "make_one_shot_iterator=one_shot_iterator"
        ),
        "hpcflow.data.dataset_options": "Options",
        "hpcflow.data.epoch_shuffle": "Blocks",
        "hpcflow.data.tf_data": "Pipeline",
        "hpcflow.data.queue_stream": "dequeued",
        "hpcflow.data.array_rows": "Source",
        "hpcflow.data.stream": "Stream",
    },
)
