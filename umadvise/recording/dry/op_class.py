"""Which class of the roofline an operator belongs to, by its name."""

from umadvise.records.trace import OpClass


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names.split())


_MATMUL = _aten(
    "mm addmm addmm_ bmm baddbmm baddbmm_ addbmm mv addmv dot vdot linear linear_backward matmul _scaled_mm "
    "mkldnn_rnn_layer mkldnn_rnn_layer_backward _cudnn_rnn _cudnn_rnn_backward _addmm_activation addr "
    "_thnn_fused_lstm_cell _thnn_fused_gru_cell mkldnn_linear _cdist_forward _cdist_backward "
    "_euclidean_dist"
)
_COPY = _aten(
    "copy_ _to_copy clone contiguous cat stack split_with_sizes_copy index index_put index_put_ _index_put_impl_ "
    "index_select index_add index_add_ index_copy_ gather scatter scatter_ scatter_add scatter_add_ take "
    "masked_scatter masked_select nonzero embedding embedding_dense_backward embedding_renorm_ "
    "embedding_sparse_backward _embedding_bag _embedding_bag_forward_only _embedding_bag_backward "
    "_embedding_bag_dense_backward fill_ fill zero_ zeros zeros_like new_zeros "
    "ones ones_like new_ones full full_like new_full scalar_tensor arange eye linspace constant_pad_nd roll flip "
    "select_backward slice_backward unfold_backward diagonal_backward select_scatter slice_scatter repeat "
    "reflection_pad2d reflection_pad2d_backward replication_pad2d replication_pad2d_backward tril triu tril_ triu_ "
    "im2col col2im pixel_shuffle pixel_unshuffle _foreach_copy_ _foreach_zero_ resize_ _copy_from _pin_memory "
    "new_empty_strided_copy _local_scalar_dense _reshape_copy channel_shuffle"
)
_REDUCTION_WORDS = (
    *("norm", "softmax", "sum", "mean", "var", "std", "max", "min", "argmax", "argmin", "loss", "prod", "pool"),
    *("any", "all", "topk", "sort", "cross_entropy", "amax", "amin", "unique", "bincount", "upsample"),
)
_NOT_REDUCTIONS = _aten("maximum minimum clamp_min clamp_max clamp_min_ clamp_max_ cumsum_ addcmul_ normal_ normal")
_ELEMENTWISE_WORDS = (
    *("_foreach_", "_fused_", "dropout", "bernoulli", "normal", "uniform", "random", "rand", "exponential"),
    *("relu", "gelu", "silu", "tanh", "sigmoid", "threshold", "where", "masked_fill", "lerp", "cumsum"),
)


def op_class_of(base_name: str, *, pointwise: bool) -> OpClass:
    """The class of an operator.

    Args:
        base_name: the operator's name without its overload, such as "aten::add_".
        pointwise: whether torch tags the operator as pointwise.
    """
    if base_name in _MATMUL:
        return OpClass.MATMUL
    if "conv" in base_name:
        return OpClass.CONVOLUTION
    if "attention" in base_name:
        return OpClass.ATTENTION
    if base_name in _COPY:
        return OpClass.COPY
    word = base_name.partition("::")[2].strip("_")
    if pointwise or base_name in _NOT_REDUCTIONS or base_name.startswith("aten::_f"):
        return OpClass.ELEMENTWISE
    if any(part in word for part in _REDUCTION_WORDS):
        return OpClass.REDUCTION
    if any(part in base_name for part in _ELEMENTWISE_WORDS):
        return OpClass.ELEMENTWISE
    return OpClass.OTHER
