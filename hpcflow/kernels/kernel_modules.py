"""Table of kernel modules by op: a rank imports only the modules of the ops of its plans.

If several modules have kernels of an op, all are imported. tests/kernels/test_families.py compares
this table with the kernels that the modules register.
"""

from __future__ import annotations

PROVIDERS = {  # provider, the better first -> its module; `absent()` says why it is unavailable
    "llvm": "hpcflow.codegen.llvm_cpu_compiler",
    "onednn": "hpcflow.kernels.onednn_library",
    "cublaslt": "hpcflow.kernels.cublaslt_matmul",
    "cudnn": "hpcflow.kernels.cudnn_convolution",
}
FAMILIES = {  # modules of hpcflow -> ops
    "ops.array.array_kernels": (
        "BroadcastTo CheckSizes EnsureShape ExpandDims Fill FromParcel Identity OnesLike "
        "PlaceholderWithDefault Range Rank Reshape Rows Shape Size Squeeze StopGradient "
        "SumToShape Transpose TransposeTold ZerosLike"
    ),
    "ops.array.dynamic_axis_kernels": "AroundAxis DotAxes JoinedShapes ReducedAxes",
    "ops.math.bitcast_kernels": "Bitcast",
    "ops.image.non_max_suppression_kernels": "BestBoxes",
    "ops.nn.candidate_sampling_kernels": "SampleCandidates",
    "ops.math.complex_number_kernels": "Angle Complex ComplexAbs Imag Real",
    "kernels.llvm_einsum": "Einsum",
    "ops.nn.convolution_kernels": "Conv ConvFilterGrad ConvInputGrad",
    "ops.math.histogram_kernels": "Bincount",
    "ops.nn.ctc_kernels": "CTCBeamSearch CTCLoss CTCLossGrad",
    "kernels.cublaslt_matmul": "MatMul MatMulBias",
    "kernels.cudnn_convolution": "Conv ConvBias ConvFilterGrad ConvInputGrad",
    "ops.array.unique_slices_kernels": "DistinctSlices",
    "ops.linalg.einsum_kernels": "Einsum",
    "ops.math.elementwise_math_kernels": (
        "Acos Acosh Asin Asinh Atan Atan2 Atanh BitwiseAnd BitwiseOr BitwiseXor Ceil Conj "
        "Cosh Cross DivNoNan Expm1 Floor Invert IsFinite IsInf IsNan LeftShift MulNoNan "
        "NextAfter Reciprocal RightShift Rint Sinh SquaredDifference Tan TruncateDiv TruncateMod"
    ),
    "ops.nn.fused_epilogue_kernels": "ConvBias MatMulBias MaxPoolReluGrad",
    "ops.linalg.fft_kernels": "Fft Irfft Rfft",
    "kernels.llvm_fused_loop": "Fused",
    "ops.math.gamma_kernels": "Betainc Digamma Igamma IgammaGradA Igammac Lgamma Polygamma Zeta",
    "ops.control_flow.host_callback_kernels": (
        "Assert CustomGradient IdentityN Print PyFunc PyFuncStateless PyFuncThread"
    ),
    "ops.linalg.linalg_kernels": (
        "Cholesky Expm LogMatrixDeterminant MatrixDeterminant MatrixInverse MatrixSolve "
        "MatrixTriangularSolve Qr SelfAdjointEig Svd"
    ),
    "ops.control_flow.tensor_list_kernels": "ListCopy ListEmpty ListPop ListPush ListRows",
    "kernels.llvm_max_pooling": "MaxPool MaxPoolGrad MaxPoolReluGrad",
    "ops.math.arithmetic_kernels": (
        "Abs Add AddN Cast CheckNumerics ClipByValue Cos Equal Exp FloorDiv FloorMod "
        "Greater GreaterEqual Less LessEqual Log Log1p LogicalAnd LogicalNot LogicalOr "
        "LogicalXor MatMul Maximum Minimum Mul Neg NotEqual Pow RealDiv RowCondition Rsqrt "
        "Select Sigmoid SigmoidGrad Sign Sin Sqrt Square Sub Tanh TanhGrad"
    ),
    "ops.linalg.matrix_diagonal_kernels": "MatrixBandPart MatrixDiag MatrixDiagPart MatrixSetDiag",
    "ops.math.round_to_format_kernels": "RoundToFormat",
    "ops.nn.nn_kernels": (
        "BiasAdd Elu EluGrad InTopK L2Loss LogSoftmax LogSoftmaxGrad Relu Relu6 Relu6Grad "
        "ReluGrad Softmax SoftmaxCrossEntropy SoftmaxGrad Softplus "
        "SparseSoftmaxCrossEntropy"
    ),
    "ops.nn.normalization_kernels": "Normalize NormalizeGrad",
    "kernels.onednn_convolution": "Conv ConvBias ConvFilterGrad ConvInputGrad",
    "kernels.onednn_matmul": "MatMul MatMulBias",
    "kernels.onednn_pooling": "AvgPool AvgPoolGrad MaxPoolGrad",
    "kernels.onednn_packed_matmul": "Packed PackedMatMul",
    "ops.array.dynamic_partition_kernels": "DynamicPartition DynamicStitch",
    "ops.nn.pooling_kernels": (
        "AvgPool AvgPoolGrad MaxPool MaxPoolGrad MaxPoolGradGrad MaxPoolWithArgmax"
    ),
    "ops.array.where_unique_kernels": (
        "FirstInRow InvertPermutation ListDiff SearchSorted Unique Where"
    ),
    "ops.random.random_kernels": (
        "PickCategory RandomGamma RandomNormal RandomPermutation RandomPoisson "
        "RandomUniform RandomUniformInt StatelessRandomGamma StatelessRandomNormal "
        "StatelessRandomPermutation StatelessRandomPoisson StatelessRandomUniform "
        "StatelessRandomUniformInt StatelessTruncatedNormal TruncatedNormal"
    ),
    "ops.array.rearrange_kernels": (
        "BroadcastArgs Reverse ReverseSequence ReverseTold Roll UnravelIndex"
    ),
    "ops.strings.file_record_kernels": "DecodeCSV DecodeRaw MatchingFiles ReadFile WriteFile",
    "ops.math.reduction_kernels": (
        "All Any ArgMax ArgMin ExtremeGrad LogSumExp Max Mean MeanGrad Min Prod ProdGrad "
        "Sum SumGrad"
    ),
    "kernels.llvm_row_gather_scatter": (
        "Gather GatherGrad ReadRows ScatterAdd ScatterDiv ScatterMax ScatterMin "
        "ScatterMul ScatterSub ScatterUpdate SumEqualRows UnsortedSegmentProd "
        "UnsortedSegmentSum UpdateRows1 UpdateRows2 UpdateRows3 UpdateRows4 UpdateRows5 "
        "UpdateRows6"
    ),
    "ops.array.cumulative_kernels": "Cumprod Cumsum CumulativeLogSumExp TopK",
    "ops.variables.sparse_row_update_kernels": (
        "AddEntries JoinRows PieceRows ReadRows ScatterAdd ScatterDiv ScatterMax "
        "ScatterMin ScatterMul ScatterNdAdd ScatterNdSub ScatterNdUpdate ScatterSub "
        "ScatterUpdate SumEqualRows"
    ),
    "ops.array.gather_nd_scatter_nd_kernels": (
        "GatherNd ScatterNd TensorScatterAdd TensorScatterUpdate"
    ),
    "ops.array.segment_kernels": (
        "SegmentMax SegmentMin SegmentProd SegmentSum UnsortedSegmentMax "
        "UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum"
    ),
    "ops.strings.string_sequence_kernels": "EditDistance StringSplit",
    "ops.array.slice_concat_gather_kernels": (
        "Concat Gather GatherGrad OneHot Pack Pad Slice SliceGrad Split StridedSlice "
        "StridedSliceGrad Tile TileGrad Unpack"
    ),
    "ops.sparse.sparse_tensor_kernels": "SortOrder SparseTensorDenseMatMul SparseToDense",
    "ops.math.special_function_kernels": "Erf Erfc",
    "ops.variables.variable_update_kernels": (
        "ApplyAdam ApplyGradientDescent ApplyMomentum AssignAdd AssignSub IsVariableInitialized"
    ),
    "kernels.strided_matmul": "StridedMatMul",
    "ops.strings.string_kernels": (
        "AsString DecodeBase64 EncodeBase64 ReduceJoin RegexFullMatch RegexReplace "
        "StringCase StringJoin StringLength StringToHashBucket StringToNumber Substr"
    ),
    "ops.metrics.summary_kernels": (
        "AudioSummary HistogramSummary ImageSummary MergeSummary ScalarSummary TensorSummary"
    ),
    "ops.control_flow.tensor_array_kernels": (
        "TensorArrayAccumulate TensorArrayAddN TensorArrayConcat TensorArrayEmpty "
        "TensorArrayFirst TensorArrayGather TensorArrayNew TensorArrayRead TensorArrayScatter "
        "TensorArraySize TensorArraySplit TensorArrayStack TensorArrayUnstack "
        "TensorArrayWrite"
    ),
}
