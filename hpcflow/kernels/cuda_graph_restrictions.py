"""CUDA graph restrictions: plain kernels that a CUDA graph can never capture, and why.

Other kernels may be refused for some nodes; capture finds that out.
tests/kernels/test_uncaptured.py tries all, on a double of CuPy.
"""

from __future__ import annotations

_WHY = {
    "CuPy does not call cuBLAS while a stream is captured": (
        "MatMul MatMulBias MatrixTriangularSolve StridedMatMul"
    ),
    "CuPy does not call cuSOLVER while a stream is captured": (
        "Cholesky LogMatrixDeterminant MatrixDeterminant MatrixInverse MatrixSolve Qr "
        "SelfAdjointEig Svd"
    ),
    "cuFFT is not tried while a stream is captured": "Irfft Rfft",
    "the size of what it makes on the way depends on values": (
        "Betainc Digamma DistinctSlices Erfc Igamma IgammaGradA Igammac Lgamma ListDiff Polygamma "
        "SumEqualRows Unique Where"
    ),
    "it looks at values": (
        "AroundAxis Assert BestBoxes BroadcastArgs CTCLossGrad CheckNumerics CheckSizes DotAxes "
        "DynamicPartition InvertPermutation JoinedShapes PieceRows RandomGamma RandomPoisson "
        "Range ReducedAxes ReverseTold Roll SampleCandidates Slice SliceGrad "
        "StatelessRandomGamma StatelessRandomNormal StatelessRandomPermutation "
        "StatelessRandomPoisson StatelessRandomUniform StatelessRandomUniformInt "
        "StatelessTruncatedNormal TransposeTold UnravelIndex UnsortedSegmentMax "
        "UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum Zeta"
    ),
    "it gives the GPU values of the host": "Shape",
    "it runs on the host": "Print PyFunc PyFuncStateless",
    "it keeps something on the host": (
        "IsVariableInitialized ListCopy ListEmpty ListPop ListPush ListRows TensorArrayAccumulate "
        "TensorArrayAddN TensorArrayConcat TensorArrayEmpty TensorArrayFirst TensorArrayGather "
        "TensorArrayNew TensorArrayRead TensorArrayScatter TensorArraySize TensorArraySplit "
        "TensorArrayStack TensorArrayUnstack TensorArrayWrite"
    ),
}
REASONS = {op: why for why, ops in _WHY.items() for op in ops.split()}
