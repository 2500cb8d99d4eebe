"""Made by tools/stubs.py."""

# ruff: noqa
# fmt: off
from hpcflow.test.case import TestCase as TestCase
from hpcflow.test.cluster import create_local_cluster as create_local_cluster
from hpcflow.test.cluster import end_local_cluster as end_local_cluster
from hpcflow.test.differences import compute_gradient as compute_gradient
from hpcflow.test.differences import compute_gradient_error as compute_gradient_error
from hpcflow.test.machine import get_temp_dir as get_temp_dir
from hpcflow.test.machine import gpu_device_name as gpu_device_name
from hpcflow.test.machine import is_built_with_cuda as is_built_with_cuda
from hpcflow.test.machine import is_gpu_available as is_gpu_available
from hpcflow.test.machine import main as main
from hpcflow.test.machine import mock as mock
