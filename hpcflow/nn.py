"""Neural network functions `hf.nn`: names of TensorFlow 1's `tf.nn`; re-exports only."""

from hpcflow.platform.lazy_imports import later

__getattr__, __dir__, __all__ = later(
    __name__,
    {
        "": "rnn_cell",
        "hpcflow.ops.nn.activations": (
            "crelu gelu hard_sigmoid l2_normalize leaky_relu relu_layer selu softsign swish "
            "xw_plus_b zero_fraction"
        ),
        "hpcflow.ops.nn.attention": "scaled_dot_product_attention",
        "hpcflow.ops.nn.candidate_sampling_ops": (
            "all_candidate_sampler compute_accidental_hits fixed_unigram_candidate_sampler "
            "log_uniform_candidate_sampler uniform_candidate_sampler"
        ),
        "hpcflow.ops.nn.convolution_functions": (
            "atrous_conv2d atrous_conv2d_transpose conv1d conv1d_transpose conv2d "
            "conv2d_backprop_filter conv2d_backprop_input conv2d_transpose conv3d "
            "conv3d_backprop_filter_v2 conv3d_transpose convolution depthwise_conv2d "
            "depthwise_conv2d_native depthwise_conv2d_native_backprop_filter "
            "depthwise_conv2d_native_backprop_input separable_conv2d"
        ),
        "hpcflow.ops.nn.ctc_ops": "ctc_beam_search_decoder ctc_greedy_decoder ctc_loss ctc_loss_v2",
        "hpcflow.ops.rnn.dynamic_rnn": "bidirectional_dynamic_rnn dynamic_rnn raw_rnn",
        "hpcflow.ops.nn.embedding_lookup": (
            "embedding_lookup embedding_lookup_sparse safe_embedding_lookup_sparse"
        ),
        "hpcflow.ops.math.arithmetic_ops": "sigmoid tanh",
        "hpcflow.ops.math.moments": (
            "moments normalize_moments sufficient_statistics weighted_moments"
        ),
        "hpcflow.ops.nn.morphology": "dilation2d erosion2d",
        "hpcflow.ops.nn.nn_ops": (
            "bias_add dropout elu in_top_k l2_loss log_sigmoid log_softmax relu relu6 "
            "sigmoid_cross_entropy_with_logits softmax softplus "
            "sparse_softmax_cross_entropy_with_logits"
        ),
        "hpcflow.ops.nn.per_example_losses": (
            "log_poisson_loss softmax_cross_entropy_with_logits "
            "softmax_cross_entropy_with_logits_v2 weighted_cross_entropy_with_logits"
        ),
        "hpcflow.ops.nn.normalization_ops": (
            "batch_norm_with_global_normalization batch_normalization fused_batch_norm "
            "group_normalization instance_normalization layer_normalization "
            "local_response_normalization lrn synchronized_moments"
        ),
        "hpcflow.ops.nn.pooling_ops": (
            "avg_pool avg_pool1d avg_pool2d avg_pool3d max_pool max_pool1d max_pool2d max_pool3d "
            "max_pool_with_argmax pool"
        ),
        "hpcflow.ops.rnn.static_rnn": "static_bidirectional_rnn static_rnn static_state_saving_rnn",
        "hpcflow.ops.nn.sampled_softmax": "nce_loss sampled_softmax_loss",
        "hpcflow.ops.array.cumulative_ops": "top_k",
    },
)
