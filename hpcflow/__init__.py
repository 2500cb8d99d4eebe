# ruff: noqa: E402
"""hpcflow trains models on supercomputers as one dataflow graph over MPI ranks.

`import hpcflow as hf`; this page is the public API. Names are TensorFlow 1's where the thing is the
same (docs/tf1.md lists them all). Importing it loads the standard library and numpy only; what
runs graphs is loaded when it is first named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcflow import errors, threads

threads.chosen()  # the pools of BLAS and OpenMP are sized when numpy loads, which is next

from hpcflow import (
    bitwise,
    initializers,
    linalg,
    losses,
    math,
    nn,
    random,
    signal,
    spectral,
    strings,
)
from hpcflow.autodiff import gradients, hessians
from hpcflow.consistency import Backup, Stale
from hpcflow.graph.dtypes import (
    as_dtype,
    bfloat16,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    string,
    uint8,
    uint16,
    uint32,
    uint64,
)
from hpcflow.graph.dtypes import bool_ as bool
from hpcflow.graph.graph import (
    Graph,
    Operation,
    Tensor,
    convert_to_tensor,
    get_default_graph,
    reset_default_graph,
)
from hpcflow.graph.keys import GraphKeys
from hpcflow.graph.scopes import (
    add_to_collection,
    add_to_collections,
    colocate_with,
    control_dependencies,
    device,
    get_collection,
    get_collection_ref,
    name_scope,
)
from hpcflow.graph.sessions import get_default_session
from hpcflow.graph.shape import Spec
from hpcflow.ops.accumulators import (
    ConditionalAccumulator,
    ConditionalAccumulatorBase,
    SparseConditionalAccumulator,
)
from hpcflow.ops.array import (
    constant,
    expand_dims,
    identity,
    placeholder,
    placeholder_with_default,
    range,
    rank,
    reshape,
    shape,
    size,
    squeeze,
    stop_gradient,
    transpose,
)
from hpcflow.ops.bits import bitcast
from hpcflow.ops.blocks import (
    batch_to_space,
    batch_to_space_nd,
    depth_to_space,
    extract_image_patches,
    required_space_to_batch_paddings,
    space_to_batch,
    space_to_batch_nd,
    space_to_depth,
)
from hpcflow.ops.broadcast import broadcast_to, fill, ones, ones_like, zeros, zeros_like
from hpcflow.ops.checks import (
    assert_equal,
    assert_greater,
    assert_greater_equal,
    assert_integer,
    assert_less,
    assert_less_equal,
    assert_near,
    assert_negative,
    assert_non_negative,
    assert_non_positive,
    assert_none_equal,
    assert_positive,
    assert_proper_iterable,
    assert_rank,
    assert_rank_at_least,
    assert_rank_in,
    assert_same_float_dtype,
    assert_scalar,
    assert_type,
    is_non_decreasing,
    is_numeric_tensor,
    is_strictly_increasing,
)
from hpcflow.ops.clip import clip_by_average_norm, clip_by_global_norm, clip_by_norm, global_norm
from hpcflow.ops.comm import replica_offset, replica_share, replica_sum
from hpcflow.ops.complex import angle, complex, conj, imag, real
from hpcflow.ops.control import group, no_op, tuple
from hpcflow.ops.count import (
    bincount,
    confusion_matrix,
    count_nonzero,
    histogram_fixed_width,
    histogram_fixed_width_bins,
)
from hpcflow.ops.counting import count_up_to
from hpcflow.ops.custom import (
    NoGradient,
    NotDifferentiable,
    RegisterGradient,
    custom_gradient,
    identity_n,
)
from hpcflow.ops.custom import own_op as op
from hpcflow.ops.decompositions import qr, self_adjoint_eig, self_adjoint_eigvals, svd
from hpcflow.ops.einsum import einsum, tensordot
from hpcflow.ops.elementwise import (
    accumulate_n,
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    ceil,
    cosh,
    cross,
    div,
    div_no_nan,
    expm1,
    floor,
    floor_div,
    floormod,
    is_finite,
    is_inf,
    is_nan,
    log_sigmoid,
    realdiv,
    reciprocal,
    rint,
    round,
    saturate_cast,
    scalar_mul,
    sinh,
    squared_difference,
    tan,
    to_bfloat16,
    to_complex64,
    to_complex128,
    to_double,
    to_float,
    to_int32,
    to_int64,
    truncatediv,
    truncatemod,
)
from hpcflow.ops.fft import fft, fft2d, fft3d, ifft, ifft2d, ifft3d
from hpcflow.ops.flow import case, cond, while_loop
from hpcflow.ops.functional import foldl, foldr, map_fn, scan
from hpcflow.ops.gather import batch_gather, gather, one_hot
from hpcflow.ops.graph_data import import_graph_def
from hpcflow.ops.host import (
    Assert,
    Print,
    add_check_numerics_ops,
    py_func,
    verify_tensor_all_finite,
)
from hpcflow.ops.indexed_slices import IndexedSlices, convert_to_tensor_or_indexed_slices
from hpcflow.ops.initialized import assert_variables_initialized, report_uninitialized_variables
from hpcflow.ops.initializer_objects import (
    constant_initializer,
    glorot_normal_initializer,
    glorot_uniform_initializer,
    ones_initializer,
    orthogonal_initializer,
    random_normal_initializer,
    random_uniform_initializer,
    truncated_normal_initializer,
    uniform_unit_scaling_initializer,
    variance_scaling_initializer,
    zeros_initializer,
)
from hpcflow.ops.initializers import glorot_normal, glorot_uniform, he_normal, he_uniform
from hpcflow.ops.join import concat, pad, split, stack, tile, unstack
from hpcflow.ops.linalg import (
    cholesky,
    cholesky_solve,
    matrix_determinant,
    matrix_inverse,
    matrix_solve,
    matrix_solve_ls,
    matrix_triangular_solve,
)
from hpcflow.ops.math import (
    abs,
    add,
    add_n,
    cast,
    check_numerics,
    clip_by_value,
    cos,
    divide,
    equal,
    exp,
    floordiv,
    greater,
    greater_equal,
    less,
    less_equal,
    log,
    log1p,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    mod,
    multiply,
    negative,
    not_equal,
    pow,
    rsqrt,
    sigmoid,
    sign,
    sin,
    sqrt,
    square,
    subtract,
    tanh,
    truediv,
    where,
)
from hpcflow.ops.matmul import matmul
from hpcflow.ops.matrix import (
    diag,
    diag_part,
    eye,
    matrix_band_part,
    matrix_diag,
    matrix_diag_part,
    matrix_set_diag,
    matrix_transpose,
    norm,
    trace,
)
from hpcflow.ops.partition import dynamic_partition, dynamic_stitch
from hpcflow.ops.partitioned import PartitionedVariable
from hpcflow.ops.partitioners import (
    create_partitioned_variables,
    fixed_size_partitioner,
    min_max_variable_partitioner,
    variable_axis_size_partitioner,
)
from hpcflow.ops.positions import (
    invert_permutation,
    searchsorted,
    setdiff1d,
    unique,
    unique_with_counts,
)
from hpcflow.ops.queues import (
    FIFOQueue,
    PaddingFIFOQueue,
    PriorityQueue,
    QueueBase,
    RandomShuffleQueue,
)
from hpcflow.ops.random import (
    random_gamma,
    random_normal,
    random_poisson,
    random_uniform,
    set_random_seed,
    truncated_normal,
)
from hpcflow.ops.random_order import multinomial, random_crop, random_shuffle
from hpcflow.ops.rearrange import (
    broadcast_dynamic_shape,
    broadcast_static_shape,
    lin_space,
    linspace,
    meshgrid,
    parallel_stack,
    repeat,
    reverse,
    reverse_sequence,
    reverse_v2,
    roll,
    sequence_mask,
    shape_n,
    unravel_index,
)
from hpcflow.ops.records import decode_csv, decode_raw, matching_files, read_file, write_file
from hpcflow.ops.reduce import (
    arg_max,
    arg_min,
    argmax,
    argmin,
    reduce_all,
    reduce_any,
    reduce_logsumexp,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_prod,
    reduce_sum,
)
from hpcflow.ops.scans import cumprod, cumsum
from hpcflow.ops.scatter import (
    scatter_add,
    scatter_div,
    scatter_max,
    scatter_min,
    scatter_mul,
    scatter_nd_add,
    scatter_nd_sub,
    scatter_nd_update,
    scatter_sub,
    scatter_update,
)
from hpcflow.ops.scatter_nd import (
    gather_nd,
    scatter_nd,
    tensor_scatter_add,
    tensor_scatter_nd_add,
    tensor_scatter_nd_sub,
    tensor_scatter_nd_update,
    tensor_scatter_sub,
    tensor_scatter_update,
)
from hpcflow.ops.segment import (
    segment_max,
    segment_mean,
    segment_min,
    segment_prod,
    segment_sum,
    unsorted_segment_max,
    unsorted_segment_mean,
    unsorted_segment_min,
    unsorted_segment_prod,
    unsorted_segment_sqrt_n,
    unsorted_segment_sum,
)
from hpcflow.ops.sequences import edit_distance, string_split
from hpcflow.ops.slicing import boolean_mask, slice, strided_slice
from hpcflow.ops.sparse import (
    SparseTensor,
    SparseTensorValue,
    convert_to_tensor_or_sparse_tensor,
    sparse_placeholder,
    sparse_tensor_dense_matmul,
    sparse_tensor_to_dense,
    sparse_to_dense,
)
from hpcflow.ops.sparse_parts import (
    sparse_add,
    sparse_concat,
    sparse_fill_empty_rows,
    sparse_mask,
    sparse_reduce_sum,
    sparse_reorder,
    sparse_reshape,
    sparse_retain,
    sparse_slice,
    sparse_softmax,
    sparse_to_indicator,
    sparse_transpose,
)
from hpcflow.ops.special import (
    betainc,
    digamma,
    erf,
    erfc,
    igamma,
    igammac,
    lbeta,
    lgamma,
    polygamma,
    zeta,
)
from hpcflow.ops.state import (
    Variable,
    assign,
    assign_add,
    assign_sub,
    global_variables,
    global_variables_initializer,
    is_variable_initialized,
    local_variables,
    local_variables_initializer,
    model_variables,
    moving_average_variables,
    trainable_variables,
    variables_initializer,
)
from hpcflow.ops.strings import (
    as_string,
    decode_base64,
    encode_base64,
    reduce_join,
    regex_full_match,
    regex_replace,
    string_join,
    string_length,
    string_lower,
    string_strip,
    string_to_hash_bucket,
    string_to_hash_bucket_fast,
    string_to_hash_bucket_strong,
    string_to_number,
    string_upper,
    substr,
)
from hpcflow.ops.template import make_template
from hpcflow.ops.tensor_array import TensorArray
from hpcflow.ops.variable_scope import (
    AUTO_REUSE,
    VariableScope,
    get_local_variable,
    get_variable,
    get_variable_scope,
    no_regularizer,
    variable_scope,
)
from hpcflow.recompute import recompute

if TYPE_CHECKING:
    from hpcflow import app, data, flags, layers, onnx, test, train
    from hpcflow.kernels.table import kernel
    from hpcflow.runtime.device import Device, register_device
    from hpcflow.runtime.session import InteractiveSession, Session

__version__ = "0.1.0"
newaxis = None  # x[..., hf.newaxis] adds an axis of size 1

# fmt: off
__all__ = [
    "AUTO_REUSE", "Assert", "Backup", "ConditionalAccumulator", "ConditionalAccumulatorBase",
    "Device", "FIFOQueue", "Graph", "GraphKeys", "IndexedSlices", "InteractiveSession",
    "NoGradient", "NotDifferentiable", "Operation", "PaddingFIFOQueue", "PartitionedVariable",
    "Print", "PriorityQueue", "QueueBase", "RandomShuffleQueue", "RegisterGradient", "Session",
    "SparseConditionalAccumulator", "SparseTensor", "SparseTensorValue", "Spec", "Stale", "Tensor",
    "TensorArray", "Variable", "VariableScope", "abs", "accumulate_n", "acos", "acosh", "add",
    "add_check_numerics_ops", "add_n", "add_to_collection", "add_to_collections", "angle", "app",
    "arg_max", "arg_min", "argmax", "argmin", "as_dtype", "as_string", "asin", "asinh",
    "assert_equal", "assert_greater", "assert_greater_equal", "assert_integer", "assert_less",
    "assert_less_equal", "assert_near", "assert_negative", "assert_non_negative",
    "assert_non_positive", "assert_none_equal", "assert_positive", "assert_proper_iterable",
    "assert_rank", "assert_rank_at_least", "assert_rank_in", "assert_same_float_dtype",
    "assert_scalar", "assert_type", "assert_variables_initialized", "assign", "assign_add",
    "assign_sub", "atan", "atan2", "atanh", "batch_gather", "batch_to_space", "batch_to_space_nd",
    "betainc", "bfloat16", "bincount", "bitcast", "bitwise", "bool", "boolean_mask",
    "broadcast_dynamic_shape", "broadcast_static_shape", "broadcast_to", "case", "cast", "ceil",
    "check_numerics", "cholesky", "cholesky_solve", "clip_by_average_norm", "clip_by_global_norm",
    "clip_by_norm", "clip_by_value", "colocate_with", "complex", "complex64", "complex128",
    "concat", "cond", "confusion_matrix", "conj", "constant", "constant_initializer",
    "control_dependencies", "convert_to_tensor", "convert_to_tensor_or_indexed_slices",
    "convert_to_tensor_or_sparse_tensor", "cos", "cosh", "count_nonzero", "count_up_to",
    "create_partitioned_variables", "cross", "cumprod", "cumsum", "custom_gradient", "data",
    "decode_base64", "decode_csv", "decode_raw", "depth_to_space", "device", "diag", "diag_part",
    "digamma", "div", "div_no_nan", "divide", "dynamic_partition", "dynamic_stitch",
    "edit_distance", "einsum", "encode_base64", "equal", "erf", "erfc", "errors", "exp",
    "expand_dims", "expm1", "extract_image_patches", "eye", "fft", "fft2d", "fft3d", "fill",
    "fixed_size_partitioner", "flags", "float16", "float32", "float64", "floor", "floor_div",
    "floordiv", "floormod", "foldl", "foldr", "gather", "gather_nd", "get_collection",
    "get_collection_ref", "get_default_graph", "get_default_session", "get_local_variable",
    "get_variable", "get_variable_scope", "global_norm", "global_variables",
    "global_variables_initializer", "glorot_normal", "glorot_normal_initializer", "glorot_uniform",
    "glorot_uniform_initializer", "gradients", "greater", "greater_equal", "group", "he_normal",
    "he_uniform", "hessians", "histogram_fixed_width", "histogram_fixed_width_bins", "identity",
    "identity_n", "ifft", "ifft2d", "ifft3d", "igamma", "igammac", "imag", "import_graph_def",
    "initializers", "int8", "int16", "int32", "int64", "invert_permutation", "is_finite", "is_inf",
    "is_nan", "is_non_decreasing", "is_numeric_tensor", "is_strictly_increasing",
    "is_variable_initialized", "kernel", "layers", "lbeta", "less", "less_equal", "lgamma",
    "lin_space", "linalg", "linspace", "local_variables", "local_variables_initializer", "log",
    "log1p", "log_sigmoid", "logical_and", "logical_not", "logical_or", "logical_xor", "losses",
    "make_template", "map_fn", "matching_files", "math", "matmul", "matrix_band_part",
    "matrix_determinant", "matrix_diag", "matrix_diag_part", "matrix_inverse", "matrix_set_diag",
    "matrix_solve", "matrix_solve_ls", "matrix_transpose", "matrix_triangular_solve", "maximum",
    "meshgrid", "min_max_variable_partitioner", "minimum", "mod", "model_variables",
    "moving_average_variables", "multinomial", "multiply", "name_scope", "negative", "newaxis",
    "nn", "no_op", "no_regularizer", "norm", "not_equal", "one_hot", "ones", "ones_initializer",
    "ones_like", "onnx", "op", "orthogonal_initializer", "pad", "parallel_stack", "placeholder",
    "placeholder_with_default", "polygamma", "pow", "py_func", "qr", "random", "random_crop",
    "random_gamma", "random_normal", "random_normal_initializer", "random_poisson",
    "random_shuffle", "random_uniform", "random_uniform_initializer", "range", "rank", "read_file",
    "real", "realdiv", "reciprocal", "recompute", "reduce_all", "reduce_any", "reduce_join",
    "reduce_logsumexp", "reduce_max", "reduce_mean", "reduce_min", "reduce_prod", "reduce_sum",
    "regex_full_match", "regex_replace", "register_device", "repeat", "replica_offset",
    "replica_share", "replica_sum", "report_uninitialized_variables",
    "required_space_to_batch_paddings", "reset_default_graph", "reshape", "reverse",
    "reverse_sequence", "reverse_v2", "rint", "roll", "round", "rsqrt", "saturate_cast",
    "scalar_mul", "scan", "scatter_add", "scatter_div", "scatter_max", "scatter_min", "scatter_mul",
    "scatter_nd", "scatter_nd_add", "scatter_nd_sub", "scatter_nd_update", "scatter_sub",
    "scatter_update", "searchsorted", "segment_max", "segment_mean", "segment_min", "segment_prod",
    "segment_sum", "self_adjoint_eig", "self_adjoint_eigvals", "sequence_mask", "set_random_seed",
    "setdiff1d", "shape", "shape_n", "sigmoid", "sign", "signal", "sin", "sinh", "size", "slice",
    "space_to_batch", "space_to_batch_nd", "space_to_depth", "sparse_add", "sparse_concat",
    "sparse_fill_empty_rows", "sparse_mask", "sparse_placeholder", "sparse_reduce_sum",
    "sparse_reorder", "sparse_reshape", "sparse_retain", "sparse_slice", "sparse_softmax",
    "sparse_tensor_dense_matmul", "sparse_tensor_to_dense", "sparse_to_dense",
    "sparse_to_indicator", "sparse_transpose", "spectral", "split", "sqrt", "square",
    "squared_difference", "squeeze", "stack", "stop_gradient", "strided_slice", "string",
    "string_join", "string_length", "string_lower", "string_split", "string_strip",
    "string_to_hash_bucket", "string_to_hash_bucket_fast", "string_to_hash_bucket_strong",
    "string_to_number", "string_upper", "strings", "substr", "subtract", "svd", "tan", "tanh",
    "tensor_scatter_add", "tensor_scatter_nd_add", "tensor_scatter_nd_sub",
    "tensor_scatter_nd_update", "tensor_scatter_sub", "tensor_scatter_update", "tensordot", "test",
    "tile", "to_bfloat16", "to_complex64", "to_complex128", "to_double", "to_float", "to_int32",
    "to_int64", "trace", "train", "trainable_variables", "transpose", "truediv", "truncated_normal",
    "truncated_normal_initializer", "truncatediv", "truncatemod", "tuple", "uint8", "uint16",
    "uint32", "uint64", "uniform_unit_scaling_initializer", "unique", "unique_with_counts",
    "unravel_index", "unsorted_segment_max", "unsorted_segment_mean", "unsorted_segment_min",
    "unsorted_segment_prod", "unsorted_segment_sqrt_n", "unsorted_segment_sum", "unstack",
    "variable_axis_size_partitioner", "variable_scope", "variables_initializer",
    "variance_scaling_initializer", "verify_tensor_all_finite", "where", "while_loop", "write_file",
    "zeros", "zeros_initializer", "zeros_like", "zeta",
]
# fmt: on

# Public names that need the runtime -> where they are; a module's own name stands for all of it.
_RUNTIME = {
    "Device": "hpcflow.runtime.device",
    "InteractiveSession": "hpcflow.runtime.session",
    "Session": "hpcflow.runtime.session",
    "app": "hpcflow.app",
    "data": "hpcflow.data",
    "flags": "hpcflow.flags",
    "layers": "hpcflow.layers",
    "kernel": "hpcflow.kernels.table",
    "onnx": "hpcflow.onnx",
    "register_device": "hpcflow.runtime.device",
    "test": "hpcflow.test",
    "train": "hpcflow.train",
}


def __getattr__(name: str) -> Any:
    if name not in _RUNTIME:
        raise AttributeError(f"module 'hpcflow' has no attribute {name!r} (see docs/tf1.md)")
    import importlib

    module = importlib.import_module(_RUNTIME[name])
    value = module if module.__name__ == f"hpcflow.{name}" else getattr(module, name)
    globals()[name] = value
    return value
