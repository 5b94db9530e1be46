// The operators of torch whose schemas do not say what they do to memory (torch 2.9 to 2.15,
// aten/src/ATen/native/native_functions.yaml). operator_info.cpp applies the lists. operator_lists.py reads them for
// recorders, which also run where nothing has been compiled: each list is an array of strings or of rows of
// SilentWrite.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace um::hooks {

inline constexpr std::array<std::string_view, 7> kCreations = {
    "aten::empty",     "aten::empty_like",        "aten::empty_strided", "aten::empty_permuted",
    "aten::new_empty", "aten::new_empty_strided", "aten::set_"};
// These copy all bytes of their storage, also beyond the tensor, to a larger storage.
inline constexpr std::array<std::string_view, 2> kResizes = {"aten::resize_", "aten::resize_as_"};
// These touch no bytes: views whose schemas have no alias, and questions about sizes.
inline constexpr std::array<std::string_view, 9> kUnannotatedBystanders = {
    "aten::_unsafe_view",      "aten::unsafe_split",  "aten::unsafe_split_with_sizes",
    "aten::_fused_sdp_choice", "aten::is_same_size",  "aten::is_pinned",
    "aten::is_set_to",         "aten::record_stream", "aten::_has_same_storage_numel"};
// These read only the shape of their `self`.
inline constexpr std::array<std::string_view, 9> kShapeReaders = {
    "aten::ones_like",    "aten::zeros_like", "aten::full_like", "aten::rand_like", "aten::randn_like",
    "aten::randint_like", "aten::new_zeros",  "aten::new_ones",  "aten::new_full"};
// Schemas of c10d have no aliases. These only read, as do all of c10d their arguments whose names begin with "input".
inline constexpr std::array<std::string_view, 2> kReadingCollectives = {"c10d::barrier", "c10d::send"};

enum class Write : uint8_t { never, when_training, always };
struct SilentWrite {
  std::string_view op, argument;
  Write write;
};
inline constexpr std::array<SilentWrite, 17> kSilentWrites = {{
    {"aten::native_batch_norm", "running_mean", Write::when_training},
    {"aten::native_batch_norm", "running_var", Write::when_training},
    {"aten::cudnn_batch_norm", "running_mean", Write::when_training},
    {"aten::cudnn_batch_norm", "running_var", Write::when_training},
    {"aten::miopen_batch_norm", "running_mean", Write::when_training},
    {"aten::miopen_batch_norm", "running_var", Write::when_training},
    {"aten::batch_norm_update_stats", "running_mean", Write::always},
    {"aten::batch_norm_update_stats", "running_var", Write::always},
    {"aten::batch_norm_gather_stats", "running_mean", Write::always},
    {"aten::batch_norm_gather_stats", "running_var", Write::always},
    {"aten::batch_norm_gather_stats_with_counts", "running_mean", Write::always},
    {"aten::batch_norm_gather_stats_with_counts", "running_var", Write::always},
    {"aten::_cudnn_rnn", "dropout_state", Write::when_training},  // a generator's state, which advances
    {"aten::miopen_rnn", "dropout_state", Write::when_training},
    // The backward passes of the next three use a buffer of the forward pass as workspace.
    {"aten::mkldnn_rnn_layer_backward", "workspace", Write::always},
    {"aten::_cudnn_rnn_backward", "reserve", Write::always},
    {"aten::miopen_rnn_backward", "reserve", Write::always},
}};

}  // namespace um::hooks
