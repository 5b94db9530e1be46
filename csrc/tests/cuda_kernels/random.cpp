#include "random.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <mutex>

namespace cuda_kernels {
namespace {

// splitmix64 (Steele, Lea, Flood 2014)
uint64_t mixed(uint64_t seed, uint64_t offset) {
  uint64_t bits = seed + (offset + 1) * 0x9E3779B97F4A7C15u;
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9u;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBu;
  return bits ^ (bits >> 31);
}

}  // namespace

at::Generator generator_for_launch(const c10::IValue& given, c10::Device device) {
  at::Generator generator = given.isGenerator() ? given.toGenerator() : at::globalContext().defaultGenerator(device);
  TORCH_CHECK(generator.device().is_cuda(), "Expected a 'cuda' device type for generator but found '",
              generator.device(), "'");
  constexpr uint64_t kOffsetStep = 4;  // torch takes multiples of it alone
  const std::lock_guard<std::mutex> lock(generator.mutex());
  const uint64_t offset = generator.get_offset();
  generator.set_offset(offset + kOffsetStep);
  return at::make_generator<at::CPUGeneratorImpl>(mixed(generator.current_seed(), offset));
}

}  // namespace cuda_kernels
