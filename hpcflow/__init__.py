"""hpcflow: training of dataflow graphs on supercomputers over MPI ranks.

`import hpcflow as hf` gives the public API. Names equal TensorFlow 1's where the function is the
same (`hpcflow help tf1` lists them). A submodule is imported when one of its names is first used.
"""

import os as _os
import sys as _sys

if _is_command := (
    _os.path.basename(_sys.argv[0]) == "hpcflow"
    or (_sys.argv[0] == "-m" and " -m hpcflow " in f" {' '.join(_sys.orig_argv)} ")
):  # Ctrl-C ends it from now on; `hpcflow.cli.main.main` takes this back
    import signal as _signal

    def _end_interrupted(*_: object) -> None:
        _os.write(2, b"hpcflow: interrupted\n")
        _os._exit(128 + _signal.SIGINT)

    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _end_interrupted)

if _os.environ.get("HPCFLOW_PACK_FILE"):  # before any other module of hpcflow
    from hpcflow.platform import pack_importer as _pack_importer

    _pack_importer.use_pack_file(_os.path.dirname(__file__))

from hpcflow import errors
from hpcflow.namespaces import NAMESPACES
from hpcflow.platform import cpu_threads
from hpcflow.platform.lazy_imports import lazy_names, namespace

try:
    cpu_threads.chosen_threads()  # sizes the pools of BLAS and OpenMP before numpy loads
except errors.HpcflowError as _error:
    if not _is_command:
        raise
    _os.write(2, f"hpcflow: {_error}\n".encode())
    raise SystemExit(2) from None


def _print_error(*raised: object) -> None:
    """`sys.excepthook` until this process joins its job, for programs without a hook."""
    from hpcflow.monitoring.users_traceback import print_error

    print_error(*raised)  # type: ignore[arg-type]


if _sys.excepthook is _sys.__excepthook__:
    _sys.excepthook = _print_error

__version__ = "0.1.0"
newaxis = None  # x[..., hf.newaxis] adds an axis of size 1

__getattr__, __dir__, _later = lazy_names(
    __name__,
    {
        "": (
            "app bitwise callbacks=model.callbacks data distributions flags gfile image "
            "initializers layers linalg logging losses math metrics nn notebook onnx random signal "
            "spectral strings summary test train"
        ),
        "hpcflow.autodiff.gradients": "UnconnectedGradients gradients hessians",
        "hpcflow.model.model": "Model Sequential",
        "hpcflow.model.model_graph": "Input",
        "hpcflow.ps.backup_workers": "Backup",
        "hpcflow.ps.bounded_staleness": "Stale",
        "hpcflow.ps.sync_rule": "SyncRule register_sync_rule",
        "hpcflow.graph.device_spec": "DeviceSpec",
        "hpcflow.graph.dtypes": (
            "as_dtype bfloat16 bool=bool_ complex128 complex64 float16 float32 float64 int16 "
            "int32 int64 int8 string uint16 uint32 uint64 uint8"
        ),
        "hpcflow.graph.graph_keys": (
            "AggregationMethod GraphKeys VariableAggregation VariableSynchronization"
        ),
        "hpcflow.graph.node_def": "NodeDef",
        "hpcflow.graph.name_scopes": (
            "add_to_collection add_to_collections colocate_with container control_dependencies "
            "device get_collection get_collection_ref name_scope"
        ),
        "hpcflow.graph.default_session": "get_default_session",
        "hpcflow.graph.static_shape": "Spec",
        "hpcflow.graph.tensor_shape": "Dimension TensorShape",
        "hpcflow.kernels.kernel_registry": "kernel",
        "hpcflow.ops": (
            "Graph Operation Tensor convert_to_tensor get_default_graph reset_default_graph"
        ),
        "hpcflow.ops.data_flow.conditional_accumulators": (
            "ConditionalAccumulator ConditionalAccumulatorBase SparseConditionalAccumulator"
        ),
        "hpcflow.ops.array.array_ops": (
            "constant ensure_shape expand_dims guarantee_const=identity identity placeholder "
            "placeholder_with_default range "
            "rank reshape shape size squeeze stop_gradient transpose"
        ),
        "hpcflow.ops.math.bitwise_ops": "bitcast",
        "hpcflow.ops.array.space_depth_ops": (
            "batch_to_space batch_to_space_nd depth_to_space extract_image_patches "
            "required_space_to_batch_paddings space_to_batch space_to_batch_nd space_to_depth"
        ),
        "hpcflow.ops.array.broadcast_ops": "broadcast_to fill ones ones_like zeros zeros_like",
        "hpcflow.ops.control_flow.assertions": (
            "assert_equal assert_greater assert_greater_equal assert_integer assert_less "
            "assert_less_equal assert_near assert_negative assert_non_negative "
            "assert_non_positive assert_none_equal assert_positive assert_proper_iterable "
            "assert_rank assert_rank_at_least assert_rank_in assert_same_float_dtype "
            "assert_scalar assert_type is_non_decreasing is_numeric_tensor is_strictly_increasing"
        ),
        "hpcflow.ops.math.norm_clipping": (
            "clip_by_average_norm clip_by_global_norm clip_by_norm global_norm"
        ),
        "hpcflow.ops.replicas.replica_ops": "replica_offset replica_share replica_sum",
        "hpcflow.ops.math.complex_number_ops": "angle complex imag real",
        "hpcflow.ops.control_flow.control_dependencies": "group no_op tuple",
        "hpcflow.ops.math.histogram_ops": (
            "bincount confusion_matrix count_nonzero histogram_fixed_width "
            "histogram_fixed_width_bins"
        ),
        "hpcflow.ops.custom_ops": (
            "NoGradient NotDifferentiable RegisterGradient custom_gradient identity_n op=own_op"
        ),
        "hpcflow.ops.linalg.matrix_decomposition_ops": (
            "qr self_adjoint_eig self_adjoint_eigvals svd"
        ),
        "hpcflow.ops.linalg.einsum_ops": "einsum tensordot",
        "hpcflow.ops.math.elementwise_math_ops": (
            "accumulate_n acos acosh asin asinh atan atan2 atanh ceil cosh cross div div_no_nan "
            "expm1 floor floor_div floormod is_finite is_inf is_nan realdiv "
            "reciprocal rint round saturate_cast scalar_mul sinh squared_difference tan "
            "to_bfloat16 to_complex128 to_complex64 to_double to_float to_int32 to_int64 "
            "truncatediv truncatemod"
        ),
        "hpcflow.ops.linalg.fft_ops": "fft fft2d fft3d ifft ifft2d ifft3d",
        "hpcflow.ops.control_flow.cond_while": "case cond while_loop",
        "hpcflow.ops.control_flow.map_fold_scan": "foldl foldr map_fn scan",
        "hpcflow.ops.array.gather_ops": "batch_gather gather one_hot",
        "hpcflow.ops.graph_def": "import_graph_def",
        "hpcflow.ops.control_flow.host_callback_ops": (
            "Assert Print add_check_numerics_ops py_func verify_tensor_all_finite"
        ),
        "hpcflow.ops.variables.indexed_slices": "IndexedSlices convert_to_tensor_or_indexed_slices",
        "hpcflow.ops.variables.uninitialized_variables": (
            "assert_variables_initialized report_uninitialized_variables"
        ),
        "hpcflow.ops.variables.initializer_objects": (
            "constant_initializer glorot_normal_initializer glorot_uniform_initializer "
            "ones_initializer orthogonal_initializer random_normal_initializer "
            "random_uniform_initializer truncated_normal_initializer "
            "uniform_unit_scaling_initializer variance_scaling_initializer zeros_initializer"
        ),
        "hpcflow.ops.variables.initializer_functions": (
            "glorot_normal glorot_uniform he_normal he_uniform"
        ),
        "hpcflow.ops.array.concat_split_ops": "concat pad split stack tile unstack",
        "hpcflow.ops.linalg.linalg_ops": (
            "cholesky cholesky_solve matrix_determinant matrix_inverse matrix_solve "
            "matrix_solve_ls matrix_triangular_solve"
        ),
        "hpcflow.ops.math.arithmetic_ops": (
            "abs add add_n cast check_numerics clip_by_value conj cos divide equal exp floordiv "
            "greater greater_equal less less_equal log log1p logical_and logical_not logical_or "
            "logical_xor maximum minimum mod multiply negative not_equal pow rsqrt sigmoid sign "
            "sin sqrt square subtract tanh truediv where where_v2"
        ),
        "hpcflow.ops.linalg.matmul_ops": "matmul",
        "hpcflow.ops.linalg.matrix_diagonal_ops": (
            "diag diag_part eye matrix_band_part matrix_diag matrix_diag_part matrix_set_diag "
            "matrix_transpose norm trace"
        ),
        "hpcflow.ops.nn.nn_ops": "log_sigmoid",
        "hpcflow.ops.array.dynamic_partition_ops": "dynamic_partition dynamic_stitch",
        "hpcflow.ops.variables.partitioned_variable": "PartitionedVariable",
        "hpcflow.ops.variables.partitioners": (
            "create_partitioned_variables fixed_size_partitioner min_max_variable_partitioner "
            "variable_axis_size_partitioner"
        ),
        "hpcflow.ops.array.where_unique_ops": (
            "invert_permutation searchsorted setdiff1d unique unique_with_counts"
        ),
        "hpcflow.ops.data_flow.queue_classes": (
            "FIFOQueue PaddingFIFOQueue PriorityQueue QueueBase RandomShuffleQueue"
        ),
        "hpcflow.ops.random.random_ops": (
            "random_gamma random_normal random_poisson random_uniform set_random_seed "
            "truncated_normal"
        ),
        "hpcflow.ops.random.shuffle_multinomial": "multinomial random_crop random_shuffle",
        "hpcflow.ops.array.rearrange_ops": (
            "broadcast_dynamic_shape broadcast_static_shape lin_space linspace meshgrid "
            "parallel_stack repeat reverse_sequence roll sequence_mask shape_n unravel_index"
        ),
        "hpcflow.ops.data_flow.file_readers": (
            "FixedLengthRecordReader IdentityReader ReaderBase TextLineReader WholeFileReader"
        ),
        "hpcflow.ops.strings.file_record_ops": (
            "decode_csv decode_raw matching_files read_file write_file"
        ),
        "hpcflow.ops.math.reduction_ops": (
            "arg_max arg_min argmax argmin reduce_all reduce_any reduce_logsumexp reduce_max "
            "reduce_mean reduce_min reduce_prod reduce_sum"
        ),
        "hpcflow.ops.array.cumulative_ops": "cumprod cumsum",
        "hpcflow.ops.variables.sparse_row_update_ops": (
            "scatter_add scatter_div scatter_max scatter_min scatter_mul scatter_nd_add "
            "scatter_nd_sub scatter_nd_update scatter_sub scatter_update"
        ),
        "hpcflow.ops.array.gather_nd_scatter_nd": (
            "gather_nd scatter_nd tensor_scatter_add tensor_scatter_nd_add tensor_scatter_nd_sub "
            "tensor_scatter_nd_update tensor_scatter_sub tensor_scatter_update"
        ),
        "hpcflow.ops.array.segment_ops": (
            "segment_max segment_mean segment_min segment_prod segment_sum unsorted_segment_max "
            "unsorted_segment_mean unsorted_segment_min unsorted_segment_prod "
            "unsorted_segment_sqrt_n unsorted_segment_sum"
        ),
        "hpcflow.ops.strings.string_sequence_ops": "edit_distance string_split",
        "hpcflow.ops.session_handles": (
            "delete_session_tensor get_session_handle get_session_tensor"
        ),
        "hpcflow.ops.array.slice_ops": "boolean_mask reverse reverse_v2 slice strided_slice",
        "hpcflow.ops.sparse.sparse_tensor_ops": (
            "SparseTensor SparseTensorValue convert_to_tensor_or_sparse_tensor sparse_placeholder "
            "sparse_tensor_dense_matmul sparse_tensor_to_dense sparse_to_dense"
        ),
        "hpcflow.ops.sparse.sparse_functions": (
            "sparse_add sparse_concat sparse_fill_empty_rows sparse_mask "
            "sparse_reorder sparse_reshape sparse_retain sparse_slice sparse_softmax "
            "sparse_to_indicator sparse_transpose"
        ),
        "hpcflow.ops.sparse.sparse_reductions": (
            "sparse_maximum sparse_minimum sparse_reduce_max sparse_reduce_max_sparse "
            "sparse_reduce_sum sparse_reduce_sum_sparse"
        ),
        "hpcflow.ops.sparse.sparse_segment_sum": (
            "sparse_segment_mean sparse_segment_sqrt_n sparse_segment_sum"
        ),
        "hpcflow.ops.sparse.sparse_reshape": "sparse_merge sparse_reset_shape sparse_split",
        "hpcflow.ops.math.special_function_ops": (
            "betainc digamma erf erfc igamma igammac lbeta lgamma polygamma zeta"
        ),
        "hpcflow.ops.variables.variable_ops": (
            "Variable all_variables=global_variables assign assign_add assign_sub count_up_to "
            "global_variables global_variables_initializer "
            "initialize_all_variables=global_variables_initializer "
            "initialize_local_variables=local_variables_initializer "
            "initialize_variables=variables_initializer is_variable_initialized local_variables "
            "local_variables_initializer model_variables moving_average_variables "
            "trainable_variables variables_initializer"
        ),
        "hpcflow.ops.strings.string_ops": (
            "as_string decode_base64 encode_base64 reduce_join regex_full_match regex_replace "
            "string_join string_length string_lower string_strip string_to_hash_bucket "
            "string_to_hash_bucket_fast string_to_hash_bucket_strong string_to_number "
            "string_upper substr"
        ),
        "hpcflow.ops.variables.variable_template": "make_template",
        "hpcflow.ops.control_flow.tensor_array": "TensorArray",
        "hpcflow.ops.variables.variable_scope": (
            "AUTO_REUSE VariableScope get_local_variable get_variable get_variable_scope "
            "no_regularizer variable_scope"
        ),
        "hpcflow.autodiff.rematerialization": "recompute",
        "hpcflow.runtime.session.config_proto": (
            "ConfigProto GPUOptions GraphOptions OptimizerOptions RunMetadata RunOptions"
        ),
        "hpcflow.plan.pass_list": "register_pass",
        "hpcflow.runtime.device.device": "Device register_device",
        "hpcflow.runtime.session.session": "InteractiveSession Session",
    },
)
__all__ = ["errors", "newaxis", *_later]
for _name, _homes in NAMESPACES.items():
    namespace(f"{__name__}.{_name}", _homes)
