"""Which module has the kernels of which ops: a rank imports those that its plans name.

Of several modules with kernels of an op all are imported. tests/kernels/test_families.py compares
this page with what the modules add to the table.
"""

from __future__ import annotations

PROVIDERS = {  # the better first -> the module whose `absent()` says why it cannot be used here
    "llvm": "hpcflow.native.machine",
    "onednn": "hpcflow.kernels.onednn",
    "cublaslt": "hpcflow.kernels.cublaslt",
    "cudnn": "hpcflow.kernels.cudnn",
}
FAMILIES = {  # modules of hpcflow.kernels -> ops
    "array": (
        "BroadcastTo CheckSizes EnsureShape ExpandDims Fill FromParcel Identity OnesLike "
        "PlaceholderWithDefault Range Rank Reshape Rows Shape Size Squeeze StopGradient "
        "SumToShape Transpose TransposeTold ZerosLike"
    ),
    "axes": "AroundAxis DotAxes JoinedShapes ReducedAxes",
    "bits": "Bitcast",
    "boxes": "BestBoxes",
    "candidates": "SampleCandidates",
    "complex": "Angle Complex ComplexAbs Imag Real",
    "contract": "Einsum",
    "conv": "Conv ConvFilterGrad ConvInputGrad",
    "count": "Bincount",
    "ctc": "CTCBeamSearch CTCLoss CTCLossGrad",
    "cublaslt": "MatMul MatMulBias",
    "cudnn": "Conv ConvBias ConvFilterGrad ConvInputGrad",
    "distinct": "DistinctSlices",
    "einsum": "Einsum",
    "elementwise": (
        "Acos Acosh Asin Asinh Atan Atan2 Atanh BitwiseAnd BitwiseOr BitwiseXor Ceil Conj "
        "Cosh Cross DivNoNan Expm1 Floor Invert IsFinite IsInf IsNan LeftShift MulNoNan "
        "NextAfter Reciprocal RightShift Rint Sinh SquaredDifference Tan TruncateDiv TruncateMod"
    ),
    "epilogue": "ConvBias MatMulBias MaxPoolReluGrad",
    "fft": "Fft Irfft Rfft",
    "fused": "Fused",
    "gamma": "Betainc Digamma Igamma IgammaGradA Igammac Lgamma Polygamma Zeta",
    "host": "Assert CustomGradient IdentityN Print PyFunc PyFuncStateless PyFuncThread",
    "linalg": (
        "Cholesky Expm LogMatrixDeterminant MatrixDeterminant MatrixInverse MatrixSolve "
        "MatrixTriangularSolve Qr SelfAdjointEig Svd"
    ),
    "lists": "ListCopy ListEmpty ListPop ListPush ListRows",
    "llvm_pool": "MaxPool MaxPoolGrad MaxPoolReluGrad",
    "math": (
        "Abs Add AddN Cast CheckNumerics ClipByValue Cos Equal Exp FloorDiv FloorMod "
        "Greater GreaterEqual Less LessEqual Log Log1p LogicalAnd LogicalNot LogicalOr "
        "LogicalXor MatMul Maximum Minimum Mul Neg NotEqual Pow RealDiv RowCondition Rsqrt "
        "Select Sigmoid SigmoidGrad Sign Sin Sqrt Square Sub Tanh TanhGrad"
    ),
    "matrix": "MatrixBandPart MatrixDiag MatrixDiagPart MatrixSetDiag",
    "narrow": "RoundToFormat",
    "nn": (
        "BiasAdd Elu EluGrad InTopK L2Loss LogSoftmax LogSoftmaxGrad Relu Relu6 Relu6Grad "
        "ReluGrad Softmax SoftmaxCrossEntropy SoftmaxGrad Softplus "
        "SparseSoftmaxCrossEntropy"
    ),
    "norm": "Normalize NormalizeGrad",
    "onednn_conv": "Conv ConvBias ConvFilterGrad ConvInputGrad",
    "onednn_matmul": "MatMul MatMulBias",
    "onednn_pool": "AvgPool AvgPoolGrad MaxPoolGrad",
    "packed": "Packed PackedMatMul",
    "partition": "DynamicPartition DynamicStitch",
    "pool": "AvgPool AvgPoolGrad MaxPool MaxPoolGrad MaxPoolGradGrad MaxPoolWithArgmax",
    "positions": "FirstInRow InvertPermutation ListDiff SearchSorted Unique Where",
    "random": (
        "PickCategory RandomGamma RandomNormal RandomPermutation RandomPoisson "
        "RandomUniform RandomUniformInt StatelessRandomGamma StatelessRandomNormal "
        "StatelessRandomPermutation StatelessRandomPoisson StatelessRandomUniform "
        "StatelessRandomUniformInt StatelessTruncatedNormal TruncatedNormal"
    ),
    "rearrange": "BroadcastArgs Reverse ReverseSequence ReverseTold Roll UnravelIndex",
    "records": "DecodeCSV DecodeRaw MatchingFiles ReadFile WriteFile",
    "reduce": (
        "All Any ArgMax ArgMin ExtremeGrad LogSumExp Max Mean MeanGrad Min Prod ProdGrad "
        "Sum SumGrad"
    ),
    "rows": (
        "Gather GatherGrad ReadRows ScatterAdd ScatterDiv ScatterMax ScatterMin "
        "ScatterMul ScatterSub ScatterUpdate SumEqualRows UnsortedSegmentProd "
        "UnsortedSegmentSum UpdateRows1 UpdateRows2 UpdateRows3 UpdateRows4 UpdateRows5 "
        "UpdateRows6"
    ),
    "scans": "Cumprod Cumsum CumulativeLogSumExp TopK",
    "scatter": (
        "AddEntries JoinRows PieceRows ReadRows ScatterAdd ScatterDiv ScatterMax "
        "ScatterMin ScatterMul ScatterNdAdd ScatterNdSub ScatterNdUpdate ScatterSub "
        "ScatterUpdate SumEqualRows"
    ),
    "scatter_nd": "GatherNd ScatterNd TensorScatterAdd TensorScatterUpdate",
    "segment": (
        "SegmentMax SegmentMin SegmentProd SegmentSum UnsortedSegmentMax "
        "UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum"
    ),
    "sequences": "EditDistance StringSplit",
    "slicing": (
        "Concat Gather GatherGrad OneHot Pack Pad Slice SliceGrad Split StridedSlice "
        "StridedSliceGrad Tile TileGrad Unpack"
    ),
    "sparse": "SortOrder SparseTensorDenseMatMul SparseToDense",
    "special": "Erf Erfc",
    "state": (
        "ApplyAdam ApplyGradientDescent ApplyMomentum AssignAdd AssignSub IsVariableInitialized"
    ),
    "strided": "StridedMatMul",
    "strings": (
        "AsString DecodeBase64 EncodeBase64 ReduceJoin RegexFullMatch RegexReplace "
        "StringCase StringJoin StringLength StringToHashBucket StringToNumber Substr"
    ),
    "summaries": (
        "AudioSummary HistogramSummary ImageSummary MergeSummary ScalarSummary TensorSummary"
    ),
    "tensor_array": (
        "TensorArrayAccumulate TensorArrayAddN TensorArrayConcat TensorArrayEmpty "
        "TensorArrayFirst TensorArrayGather TensorArrayNew TensorArrayRead TensorArrayScatter "
        "TensorArraySize TensorArraySplit TensorArrayStack TensorArrayUnstack "
        "TensorArrayWrite"
    ),
}
