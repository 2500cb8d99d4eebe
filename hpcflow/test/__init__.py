"""What tests of programs need: TensorFlow 1's test cases, gradients by differences, clusters."""

from hpcflow.platform.lazy_imports import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "hpcflow.test.case": "TestCase",
        "hpcflow.test.cluster": "create_local_cluster end_local_cluster",
        "hpcflow.test.differences": "compute_gradient compute_gradient_error",
        "hpcflow.test.machine": (
            "get_temp_dir gpu_device_name is_built_with_cuda is_gpu_available main mock"
        ),
    },
)
