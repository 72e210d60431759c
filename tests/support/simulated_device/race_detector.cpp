// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_device/race_detector.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "support/simulated_device/errors.h"

namespace farandole::sim {
namespace {

uintptr_t address_of(const void* data) { return reinterpret_cast<uintptr_t>(data); }

const char* verb(bool writes) { return writes ? "writes" : "reads"; }

std::string hexadecimal(uintptr_t address) {
  char text[32];
  std::snprintf(text, sizeof text, "%#zx", static_cast<size_t>(address));
  return text;
}

/// "bytes [0, 4) of the 512 bytes at 0x...".
std::string describe_range(uintptr_t begin, uintptr_t end, uintptr_t block_begin,
                           uintptr_t block_end) {
  return "bytes [" + std::to_string(begin - block_begin) + ", " +
         std::to_string(end - block_begin) + ") of the " + std::to_string(block_end - block_begin) +
         " bytes at " + hexadecimal(block_begin);
}

}  // namespace

size_t RaceDetector::add_stream(std::string name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  names_.push_back(std::move(name));
  clocks_.emplace_back();
  return names_.size() - 1;
}

void RaceDetector::launch(size_t stream, const std::string& kernel,
                          const std::vector<Access>& accesses) {
  const std::lock_guard<std::mutex> lock(mutex_);
  VectorClock clock = clocks_[stream];
  clock.join(host_);
  clock.advance(stream);
  std::vector<Touch> touches;
  std::optional<std::string> first_fault;
  for (const Access& access : accesses) {
    if (access.bytes == 0) continue;
    const uintptr_t begin = address_of(access.data);
    touches.push_back(
        {begin, begin + access.bytes, access.writes, {kernel, stream, clock.at(stream)}});
    if (auto fault = fault_of(touches.back(), clock)) {
      reports_.push_back(*fault);
      if (!first_fault) first_fault = std::move(fault);
    }
  }
  if (first_fault && response_ == Response::kThrow) throw RaceError(*first_fault);
  clocks_[stream] = clock;
  for (const Touch& touch : touches) {
    Allocation* allocation = find(touch.begin);
    if (allocation != nullptr) remember(*allocation, touch, clock);
  }
}

VectorClock RaceDetector::now(size_t stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  clocks_[stream].join(host_);
  return clocks_[stream];
}

void RaceDetector::order(size_t stream, const VectorClock& earlier) {
  const std::lock_guard<std::mutex> lock(mutex_);
  clocks_[stream].join(earlier);
}

void RaceDetector::order_host(const VectorClock& earlier) {
  const std::lock_guard<std::mutex> lock(mutex_);
  host_.join(earlier);
}

void RaceDetector::allocate(const void* data, size_t bytes, size_t stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const uintptr_t begin = address_of(data);
  const uintptr_t end = begin + bytes;
  const Operation allocation{"allocation", stream, clocks_[stream].at(stream)};
  allocations_[begin] = {begin, end, {{begin, end, true, allocation}}};
}

void RaceDetector::allocate_unused(const void* data, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const uintptr_t begin = address_of(data);
  allocations_[begin] = {begin, begin + bytes, {}};
}

void RaceDetector::release(const void* data, const std::vector<VectorClock>& done) {
  const std::lock_guard<std::mutex> lock(mutex_);
  VectorClock clock = host_;
  for (const VectorClock& each : done) clock.join(each);
  const auto found = allocations_.find(address_of(data));
  const Allocation& allocation = found->second;
  const Touch release{allocation.begin, allocation.end, true, {}};
  if (const Touch* touch = find_race(allocation, release, clock)) {
    const std::string& name = names_[touch->by.stream];
    reports_.push_back("memory is released while " + describe(touch->by) + " " +
                       verb(touch->writes) + " it.\nwhy: nothing orders the release after it; " +
                       describe_range(touch->begin, touch->end, allocation.begin, allocation.end) +
                       ".\nfix: record " + name + " for the memory, or keep it until " + name +
                       " has been waited for.");
  }
  allocations_.erase(found);
}

std::vector<std::string> RaceDetector::take_reports() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(reports_, {});
}

void RaceDetector::set_response(Response response) {
  const std::lock_guard<std::mutex> lock(mutex_);
  response_ = response;
}

RaceDetector::Allocation* RaceDetector::find(uintptr_t address) {
  const auto above = allocations_.upper_bound(address);
  if (above == allocations_.begin()) return nullptr;
  Allocation& allocation = std::prev(above)->second;
  return address < allocation.end ? &allocation : nullptr;
}

std::optional<std::string> RaceDetector::fault_of(const Touch& touch, const VectorClock& clock) {
  const Allocation* allocation = find(touch.begin);
  const std::string subject = describe(touch.by) + " " + verb(touch.writes);
  if (allocation == nullptr) {
    return subject + " memory that is not allocated.\nwhy: nothing is at " +
           hexadecimal(touch.begin) + ".\nfix: keep the memory until the operation is launched.";
  }
  const std::string range =
      describe_range(touch.begin, touch.end, allocation->begin, allocation->end);
  if (touch.end > allocation->end) {
    return subject + " beyond the end of its memory.\nwhy: it touches " + range +
           ".\nfix: launch it with the size of the memory.";
  }
  const Touch* earlier = find_race(*allocation, touch, clock);
  if (earlier == nullptr) return std::nullopt;
  return subject + " what " + describe(earlier->by) + " " + verb(earlier->writes) +
         ".\nwhy: no event orders the two streams; " + range + ".\nfix: record an event on " +
         names_[earlier->by.stream] + " and let " + names_[touch.by.stream] + " wait for it.";
}

const RaceDetector::Touch* RaceDetector::find_race(const Allocation& allocation, const Touch& touch,
                                                   const VectorClock& clock) {
  for (auto each = allocation.touches.rbegin(); each != allocation.touches.rend(); ++each) {
    const bool overlaps = each->begin < touch.end && touch.begin < each->end;
    const bool is_ordered = clock.at(each->by.stream) >= each->by.position;
    if (overlaps && (each->writes || touch.writes) && !is_ordered) return &*each;
  }
  return nullptr;
}

/// A touch stands for those before it that it covers: what races with one of them races with it. A
/// read does not stand for a write, which later reads may race with.
void RaceDetector::remember(Allocation& allocation, const Touch& touch, const VectorClock& clock) {
  const auto stands_for = [&](const Touch& earlier) {
    const bool covers = touch.begin <= earlier.begin && earlier.end <= touch.end;
    const bool is_ordered = clock.at(earlier.by.stream) >= earlier.by.position;
    return covers && is_ordered && (touch.writes || !earlier.writes);
  };
  std::vector<Touch>& touches = allocation.touches;
  touches.erase(std::remove_if(touches.begin(), touches.end(), stands_for), touches.end());
  touches.push_back(touch);
}

std::string RaceDetector::describe(const Operation& operation) const {
  return "'" + operation.kernel + "' (#" + std::to_string(operation.position) + " on " +
         names_[operation.stream] + ")";
}

RaceDetector& race_detector() {
  static auto* detector = new RaceDetector;  // streams may use it while the process ends
  return *detector;
}

}  // namespace farandole::sim
