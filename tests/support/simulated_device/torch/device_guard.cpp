// SPDX-License-Identifier: Apache-2.0
// What c10::Device, Stream, Event and their guards do on simulated devices.
#include "support/simulated_device/torch/device_guard.h"

#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "support/simulated_device/device.h"
#include "support/simulated_device/memory.h"

namespace farandole::sim {
namespace {

thread_local std::array<int64_t, kDeviceCount> current_ids{};  ///< of streams, by device

c10::DeviceIndex index_of(c10::Device device) {
  return device.has_index() ? device.index() : static_cast<c10::DeviceIndex>(current_device());
}

c10::Stream to_c10(c10::DeviceIndex device, int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kSim, device), id);
}

Event& event_at(void* event) { return *static_cast<Event*>(event); }

/// As CUDA's, a pool that goes round: two users may get the same stream.
class StreamPool {
 public:
  int64_t next(c10::DeviceIndex device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (ids_.size() < kSize) ids_.push_back(new_stream(device).id());
    return ids_[next_++ % kSize];
  }

 private:
  static constexpr size_t kSize = 32;

  std::mutex mutex_;
  // All below: guarded by mutex_.
  std::vector<int64_t> ids_;
  size_t next_ = 0;
};

class DeviceGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  DeviceGuard() { c10::register_privateuse1_backend("sim"); }

  c10::DeviceType type() const override { return kSim; }
  c10::DeviceIndex deviceCount() const noexcept override { return kDeviceCount; }
  c10::Device getDevice() const override { return {kSim, index_of(c10::Device(kSim))}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.type() == kSim && device.index() < kDeviceCount, "there is no ", device);
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) set_current_device(device.index());
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }

  c10::Stream getStream(c10::Device device) const override {
    const c10::DeviceIndex index = index_of(device);
    return to_c10(index, current_ids.at(static_cast<size_t>(index)));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return to_c10(index_of(device), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device,
                                      bool /*is_high_priority*/) const override {
    static auto* pools = new std::array<StreamPool, kDeviceCount>;
    const c10::DeviceIndex index = index_of(device);
    return to_c10(index, pools->at(static_cast<size_t>(index)).next(index));
  }
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    return getStreamFromGlobalPool(device, false);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    current_ids.at(static_cast<size_t>(stream.device_index())) = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return &stream_of(stream);
  }
  bool queryStream(const c10::Stream& stream) const override { return stream_of(stream).query(); }
  void synchronizeStream(const c10::Stream& stream) const override {
    stream_of(stream).synchronize();
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    synchronize_device(device);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex /*device*/,
              const c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) *event = new Event;
    event_at(*event).record(stream_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) stream_of(stream).wait(event_at(event));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || event_at(event).query();
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) event_at(event).synchronize();
  }
  double elapsedTime(void* begin, void* end, const c10::DeviceIndex /*device*/) const override {
    return event_at(end).since(event_at(begin)).count();
  }
  void destroyEvent(void* event, const c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    record_stream(data.get(), stream_of(stream));
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, DeviceGuard)

}  // namespace

Stream& current_stream(c10::DeviceIndex device) {
  return stream(device, current_ids.at(static_cast<size_t>(device)));
}

Stream& stream_of(const c10::Stream& stream) {
  return sim::stream(stream.device_index(), stream.id());
}

}  // namespace farandole::sim
