// The operators on lists whose result for an element does not depend on the other elements.
#include <algorithm>

#include "split.h"

namespace um::hooks {
namespace {

// The names, after "aten::_foreach_" and without a final "_", of operators that do the same to each element as the op
// of that name does to one tensor (torch 2.9 to 2.15, aten/src/ATen/native/native_functions.yaml). "mm" is not among
// them, because a kernel may group its products.
constexpr std::array<std::string_view, 48> kByElement = {
    "abs",   "acos", "add",    "addcdiv", "addcmul", "asin",       "atan",  "ceil",  "clamp_max", "clamp_min",
    "clone", "copy", "cos",    "cosh",    "div",     "erf",        "erfc",  "exp",   "expm1",     "floor",
    "frac",  "lerp", "lgamma", "log",     "log10",   "log1p",      "log2",  "max",   "maximum",   "minimum",
    "mul",   "neg",  "norm",   "pow",     "powsum",  "reciprocal", "round", "rsqrt", "sigmoid",   "sign",
    "sin",   "sinh", "sqrt",   "sub",     "tan",     "tanh",       "trunc", "zero"};
constexpr std::array<std::string_view, 3> kToNumbers = {"max", "norm", "powsum"};
// Whole names of further such operators. The last one also accumulates in `found_inf`, which is never reset within it.
constexpr std::array<std::string_view, 5> kOthersByElement = {"aten::_fused_adagrad_", "aten::_fused_adam_",
                                                              "aten::_fused_adamw_", "aten::_fused_sgd_",
                                                              "aten::_amp_foreach_non_finite_check_and_unscale_"};
constexpr std::string_view kForeach = "aten::_foreach_";

bool is_tensor_list(const c10::Type& type) {
  return type.kind() == c10::TypeKind::ListType && type.containedType(0)->kind() == c10::TypeKind::TensorType;
}

}  // namespace

SplitRule split_rule(const c10::OperatorHandle& op) {
  const std::string_view name = op.operator_name().name;
  const c10::FunctionSchema& schema = op.schema();
  const bool foreach = name.substr(0, kForeach.size()) == kForeach;
  std::string_view does = foreach ? name.substr(kForeach.size()) : "";
  if (!does.empty() && does.back() == '_') does.remove_suffix(1);

  SplitRule rule;
  const auto& results = schema.returns();
  const bool gives_elements = results.empty() || (results.size() == 1 && is_tensor_list(*results[0].type()));
  const bool fills_given_ones = std::any_of(schema.arguments().begin(), schema.arguments().end(),
                                            [](const c10::Argument& argument) { return argument.is_out(); });
  rule.by_element =
      gives_elements && !fills_given_ones && (contains(kByElement, does) || contains(kOthersByElement, name));
  rule.to_numbers = contains(kToNumbers, does);
  const auto packed = schema.argumentIndexWithName("scalars");
  if (packed && schema.arguments()[*packed].type()->kind() == c10::TypeKind::TensorType) rule.packed = *packed;
  return rule;
}

}  // namespace um::hooks
