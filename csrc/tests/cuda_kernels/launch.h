// Giving work to torch's current stream, as a kernel is launched.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <functional>
#include <string>

namespace cuda_kernels {

// Ops of the calling thread are kernels and nothing else, as a kernel's own steps are: no autograd, no autocast, and no
// hooks of an observer (umadvise's lie at the key of testing modes).
class KernelsOnly {
  c10::NoGradGuard no_grad_;
  at::AutoDispatchBelowADInplaceOrView below_;
  c10::impl::ExcludeDispatchKeyGuard no_hooks_{
      c10::autocast_dispatch_keyset.add(c10::DispatchKey::TESTING_ONLY_GenericMode)};
};

// torch's, of this device and thread.
c10::Stream current_stream(c10::Device device);

// Runs `compute` when the current stream of the device comes to it. If it throws, the device is lost, as by an
// assertion in a kernel, and later errors say why.
void launch(c10::Device device, const std::string& name, std::function<void()> compute);

}  // namespace cuda_kernels
