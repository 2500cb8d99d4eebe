"""CUDA graph restrictions: the reasons why a CUDA graph can never capture some plain kernels.

A kernel names its reason where it is registered, as `kernel("Roll", ..., uncaptured=READS_VALUES)`.
Other kernels may be refused for some nodes; capture finds that out.
tests/kernels/test_uncaptured.py tries all kernels on a double of CuPy.
"""

CALLS_CUBLAS = "CuPy does not call cuBLAS while a stream is captured"
CALLS_CUSOLVER = "CuPy does not call cuSOLVER while a stream is captured"
CALLS_CUFFT = "cuFFT is not tried while a stream is captured"
SIZE_FROM_VALUES = "the size of an intermediate array depends on values"
READS_VALUES = "it reads values on the host"
HOST_VALUES = "it copies values of the host to the GPU"
RUNS_ON_HOST = "it runs on the host"
STATE_ON_HOST = "it keeps state on the host"
USER_KERNEL = "it is a user-defined kernel, registered without captured=True"
