// SPDX-License-Identifier: Apache-2.0
#include "farandole/process_group/symmetric_tensor.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <mutex>
#include <sstream>
#include <utility>
#include <vector>

#include "farandole/error.h"
#include "process_group/device/accelerators.h"
#include "process_group/device/stream_capture.h"
#include "process_group/process_group_private.h"

namespace farandole {
namespace {

size_t bytes_of(at::IntArrayRef sizes, at::ScalarType dtype) {
  if (std::any_of(sizes.begin(), sizes.end(), [](int64_t size) { return size < 0; })) {
    std::ostringstream text;
    text << sizes;
    throw InvalidArgument("negative-size", "symmetric_empty() got sizes " + text.str() + ".",
                          "a tensor cannot have a negative size.", "pass sizes of 0 or more.");
  }
  return static_cast<size_t>(c10::multiply_integers(sizes)) * c10::elementSize(dtype);
}

/// "cuda" is the current one.
at::Device with_index(at::Device device) {
  return device.has_index() ? device : c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

/// Whether a stream of the device can be asked; not once the device has failed.
bool answers(at::Device device) {
  try {
    c10::Event event(device.type());
    event.record(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
    event.query();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

/// Waits for all streams. False if that is impossible, because one of them is captured into a
/// graph.
bool wait_until_idle(at::Device device) {
  const QueriesWhileOthersCapture allowed;
  const c10::impl::VirtualGuardImpl of_type(device.type());
  if (is_captured(of_type.getStream(device))) return false;
  try {
    of_type.synchronizeDevice(device.index());
    return true;
  } catch (const std::exception&) {
    return !answers(device);  // it has failed, and runs nothing any more
  }
}

/// Memory that could not be released, because its device was not known to be idle.
struct Unreleased {
  std::mutex mutex;
  std::vector<std::pair<at::Device, std::shared_ptr<comm::DeviceMemory>>> memory;  // under mutex
};

/// What is released while a graph is captured waits here for the next release after it.
void release_when_idle(std::shared_ptr<comm::DeviceMemory>&& memory, at::Device device) {
  static auto* const unreleased = new Unreleased;  // threads may release while the process ends
  const bool is_idle = wait_until_idle(device);
  std::vector<std::shared_ptr<comm::DeviceMemory>> released;  // without the mutex
  const std::lock_guard<std::mutex> lock(unreleased->mutex);
  auto& waiting = unreleased->memory;
  waiting.emplace_back(device, std::move(memory));
  if (!is_idle) return;
  const auto of_device = std::stable_partition(
      waiting.begin(), waiting.end(), [&](const auto& each) { return each.first != device; });
  for (auto each = of_device; each != waiting.end(); ++each) {
    released.push_back(std::move(each->second));
  }
  waiting.erase(of_device, waiting.end());
}

}  // namespace

at::Tensor ProcessGroupFarandole::allocate_symmetric(at::IntArrayRef sizes, at::ScalarType dtype) {
  static constexpr Operation kOperation{c10d::OpType::UNKNOWN, "symmetric_empty",
                                        "farandole:symmetric_empty"};
  const size_t bytes = bytes_of(sizes, dtype);
  std::shared_ptr<comm::SymmetricMemory> memory;
  launch({kOperation, {}, /*async=*/false, kNoTimeout, /*cost=*/{}},
         [&](comm::Communicator& communicator, const auto&) {
           memory = shared_memory_of(caller(kOperation), communicator).allocate_symmetric(bytes);
         });
  return at::from_blob(
      memory->local(), sizes, [memory](void*) mutable { memory.reset(); },
      at::TensorOptions().dtype(dtype));
}

at::Tensor ProcessGroupFarandole::allocateTensor(long size, at::TensorOptions options) {
  const at::ScalarType dtype = c10::typeMetaToScalarType(options.dtype());
  if (options.device().is_cpu()) {
    return allocate_symmetric({size}, dtype).requires_grad_(options.requires_grad());
  }
  if (!can_serve(options.device().type()) || !has_devices(options.device().type())) {
    throw NotSupported("symmetric-device",
                       "group '" + name() + "' cannot allocate on " + options.device().str() + ".",
                       "this process has no such device that collectives serve.",
                       "pass device='cpu', or allocate with torch.empty().");
  }
  const at::Device device = with_index(options.device());
  auto memory = communicators()->allocate(device, bytes_of({size}, dtype));
  return at::for_blob(memory->data(), {size})
      .deleter([memory, device](void*) mutable { release_when_idle(std::move(memory), device); })
      .options(options.device(device).requires_grad(false))
      .target_device(device)
      .make_tensor()
      .requires_grad_(options.requires_grad());
}

at::Tensor symmetric_empty(at::IntArrayRef sizes, at::ScalarType dtype, const Group& group) {
  if (const auto backend = ProcessGroupFarandole::of(group ? *group : *default_group())) {
    return backend->allocate_symmetric(sizes, dtype);
  }
  throw InvalidArgument(
      "symmetric-foreign-group", "symmetric_empty() cannot allocate for this group.",
      "its backend for CPU tensors is not farandole.", "pass a group of backend farandole.");
}

}  // namespace farandole
