// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_device/memory.h"

#include <sys/mman.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "support/simulated_device/device.h"
#include "support/simulated_device/errors.h"
#include "support/simulated_device/race_detector.h"
#include "support/simulated_device/work_queue.h"

namespace farandole::sim {
namespace {

constexpr size_t kSpaceBytes = size_t{1} << 34;  ///< of addresses, for all devices together
constexpr size_t kAlignment = 512;               ///< as CUDA's
constexpr int kPoison = 0xFF;

uintptr_t reserve(int protection) {
  void* mapped =
      ::mmap(nullptr, kSpaceBytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw DeviceError("no address space is left for simulated devices.");
  return reinterpret_cast<uintptr_t>(mapped);
}

/// Where device addresses are, and where their bytes.
struct AddressSpace {
  const uintptr_t addresses = reserve(PROT_NONE);
  const uintptr_t bytes = reserve(PROT_READ | PROT_WRITE);
};

const AddressSpace& space() {
  static const auto* reserved = new AddressSpace;
  return *reserved;
}

struct Block {
  size_t bytes = 0;     ///< asked for
  size_t capacity = 0;  ///< a multiple of kAlignment
  Stream* owner = nullptr;
  std::set<Stream*> recorded = {};
  bool is_captured = false;  ///< allocated on a captured stream ...
  bool is_kept = false;      ///< ... whose graph still needs it
  bool is_released = false;  ///< only the graph does
};

/// Blocks in use and blocks to use again. The latter go to whoever asks for their capacity next:
/// when they come here, no stream uses them any more.
class Heap {
 public:
  void* allocate(Stream& owner, size_t bytes);
  /// Nobody will use it any more, unless a graph keeps it.
  Block take(void* data);
  void keep(void* data);
  /// The graph does not keep it any more; whether nobody will use it.
  bool let_go(void* data);
  void give_back(void* data, size_t capacity);
  void record(const void* data, Stream& user);
  int device_of(const void* data);
  size_t bytes_in_use(int device);

 private:
  using Blocks = std::map<uintptr_t, Block>;
  Blocks::iterator find(const void* data);
  uintptr_t unused(size_t capacity);

  std::mutex mutex_;
  // All below: guarded by mutex_.
  Blocks blocks_;                                  ///< in use, by address
  std::map<size_t, std::vector<uintptr_t>> free_;  ///< by capacity
  size_t reached_ = 0;                             ///< bytes of the space that were ever used
  std::array<size_t, kDeviceCount> bytes_in_use_{};
};

Heap& heap() {
  static auto* made = new Heap;
  return *made;
}

/// Waits for those who use released memory.
WorkQueue& reaper() {
  static auto* made = new WorkQueue("sim reaper", WorkQueue::Kind::kBackground);
  return *made;
}

void poison(void* data, size_t bytes) { std::memset(bytes_of(data), kPoison, bytes); }

void* Heap::allocate(Stream& owner, size_t bytes) {
  const size_t capacity = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const std::lock_guard<std::mutex> lock(mutex_);
  const uintptr_t address = unused(capacity);
  blocks_[address] = {bytes, capacity, &owner};
  bytes_in_use_[static_cast<size_t>(owner.device())] += bytes;
  return reinterpret_cast<void*>(address);
}

uintptr_t Heap::unused(size_t capacity) {
  std::vector<uintptr_t>& known = free_[capacity];
  if (!known.empty()) {
    const uintptr_t address = known.back();
    known.pop_back();
    return address;
  }
  if (capacity > kSpaceBytes - reached_) {
    throw DeviceError("simulated devices are out of memory.\nwhy: " + std::to_string(capacity) +
                      " bytes more than " + std::to_string(kSpaceBytes) +
                      " would be in use.\nfix: allocate less.");
  }
  const uintptr_t address = space().addresses + reached_;
  reached_ += capacity;
  poison(reinterpret_cast<void*>(address), capacity);
  return address;
}

Block Heap::take(void* data) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = blocks_.find(reinterpret_cast<uintptr_t>(data));
  if (found == blocks_.end()) {
    std::fprintf(stderr, "farandole::sim::release(%p): nothing is allocated there\n", data);
    std::abort();
  }
  Block& block = found->second;
  if (!std::exchange(block.is_released, true)) {
    bytes_in_use_[static_cast<size_t>(block.owner->device())] -= block.bytes;
  }
  Block taken = block;
  if (!taken.is_kept) blocks_.erase(found);
  return taken;
}

void Heap::keep(void* data) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Block& block = blocks_.at(reinterpret_cast<uintptr_t>(data));
  block.is_captured = true;
  block.is_kept = true;
}

bool Heap::let_go(void* data) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Block& block = blocks_.at(reinterpret_cast<uintptr_t>(data));
  block.is_kept = false;
  return block.is_released;
}

void Heap::give_back(void* data, size_t capacity) {
  const std::lock_guard<std::mutex> lock(mutex_);
  free_[capacity].push_back(reinterpret_cast<uintptr_t>(data));
}

void Heap::record(const void* data, Stream& user) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = find(data);
  if (found != blocks_.end()) found->second.recorded.insert(&user);
}

int Heap::device_of(const void* data) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = find(data);
  return found == blocks_.end() ? -1 : found->second.owner->device();
}

size_t Heap::bytes_in_use(int device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return bytes_in_use_[static_cast<size_t>(device)];
}

Heap::Blocks::iterator Heap::find(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  const auto above = blocks_.upper_bound(address);
  if (above == blocks_.begin()) return blocks_.end();
  const auto found = std::prev(above);
  return address < found->first + found->second.bytes ? found : blocks_.end();
}

}  // namespace

void* allocate(Stream& owner, size_t bytes) {
  WorkQueue::check_process();
  if (bytes == 0) return nullptr;
  void* data = heap().allocate(owner, bytes);
  if (owner.give_to_graph(data, bytes, [data, bytes] { poison(data, bytes); })) {
    heap().keep(data);
    race_detector().allocate_unused(data, bytes);
  } else {
    race_detector().allocate(data, bytes, owner.number());
  }
  return data;
}

void release(void* data) noexcept {
  if (data == nullptr || WorkQueue::lost_in_fork()) return;
  const Block block = heap().take(data);
  if (block.is_kept) {
    // An allocator cannot ask for the ends of streams that are captured, so it waits for the graph.
    if (!block.recorded.empty()) return;
    return block.owner->take_back_in_graph(data, block.bytes,
                                           [data, bytes = block.bytes] { poison(data, bytes); });
  }
  std::vector<Event> users{block.owner->enqueued()};
  for (Stream* each : block.recorded) users.push_back(each->enqueued());
  if (block.is_captured) {
    for (Stream* each : streams_of(block.owner->device())) users.push_back(each->enqueued());
  }
  std::vector<VectorClock> clocks;
  clocks.reserve(users.size());
  for (const Event& each : users) clocks.push_back(each.clock());
  race_detector().release(data, clocks);
  reaper().push([data, capacity = block.capacity, users = std::move(users)] {
    for (const Event& each : users) each.await();
    poison(data, capacity);
    heap().give_back(data, capacity);
  });
}

void let_go_of_graph_memory(void* data) noexcept {
  if (WorkQueue::lost_in_fork()) return;
  if (heap().let_go(data)) release(data);
}

void record_stream(const void* data, Stream& user) { heap().record(data, user); }

bool is_device_address(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return address >= space().addresses && address - space().addresses < kSpaceBytes;
}

int device_of(const void* data) { return heap().device_of(data); }

size_t bytes_in_use(int device) { return heap().bytes_in_use(device); }

intptr_t distance_to_bytes() { return static_cast<intptr_t>(space().bytes - space().addresses); }

}  // namespace farandole::sim
