// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_device/capture.h"

#include <algorithm>
#include <utility>

#include "support/simulated_device/errors.h"
#include "support/simulated_device/memory.h"
#include "support/simulated_device/stream.h"

namespace farandole::sim {
namespace {

thread_local CaptureMode mode_of_thread = CaptureMode::kGlobal;

/// The captures that have not ended.
struct Captures {
  std::mutex mutex;
  std::vector<Capture*> all;  ///< guarded by mutex
};

Captures& captures() {
  static auto* made = new Captures;  // threads may ask while the process ends
  return *made;
}

std::string text_of(const std::string& what, const std::string& error, const std::string& why) {
  return what + " (" + error + ").\nwhy: " + why +
         ".\nfix: see the rules of cudaStreamBeginCapture, which are those of simulated devices.";
}

}  // namespace

CaptureMode exchange_capture_mode(CaptureMode mode) { return std::exchange(mode_of_thread, mode); }

void check_unsafe_call(const std::string& call) {
  const std::lock_guard<std::mutex> lock(captures().mutex);
  for (Capture* each : captures().all) {
    if (!each->forbids(mode_of_thread)) continue;
    each->fail(call + " is not possible while a stream is captured",
               "cudaErrorStreamCaptureUnsupported",
               "the capture of " + each->origin_.name() + " forbids it to this thread");
  }
}

Capture::Capture(Stream& origin, CaptureMode mode)
    : origin_(origin), mode_(mode), streams_{&origin} {
  const std::lock_guard<std::mutex> lock(captures().mutex);
  captures().all.push_back(this);
}

Capture::~Capture() {
  const std::lock_guard<std::mutex> lock(captures().mutex);
  auto& all = captures().all;
  all.erase(std::remove(all.begin(), all.end(), this), all.end());
}

void Capture::check() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (has_ended_) {
    throw CaptureError(text_of("an event of a capture is used after its end",
                               "cudaErrorCapturedEvent",
                               "it stands for a place in the graph of " + origin_.name() +
                                   ", which no stream reaches by itself"));
  }
  if (failure_.empty()) return;
  throw CaptureError(text_of("the capture of " + origin_.name() + " goes on after an error",
                             "cudaErrorStreamCaptureInvalidated", failure_));
}

bool Capture::is_valid() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !has_ended_ && failure_.empty();
}

void Capture::fail(const std::string& what, const std::string& error, const std::string& why) {
  const std::string text = text_of(what, error, why);
  invalidate(what);
  throw CaptureError(text);
}

void Capture::invalidate(const std::string& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failure_.empty()) failure_ = why;
}

void Capture::add_stream(Stream& joined) {
  const std::lock_guard<std::mutex> lock(mutex_);
  streams_.push_back(&joined);
}

size_t Capture::add(Node node) {
  const std::lock_guard<std::mutex> lock(mutex_);
  nodes_.push_back(std::move(node));
  return nodes_.size() - 1;
}

void Capture::keep(void* memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  memory_.push_back(memory);
}

std::shared_ptr<Graph> Capture::end(const Stream& stream, const Nodes& last) {
  if (&stream != &origin_) {
    fail("the capture of " + origin_.name() + " is ended on " + stream.name(),
         "cudaErrorStreamCaptureUnmatched", "it has begun on another stream");
  }
  if (mode_ != CaptureMode::kRelaxed && thread_ != std::this_thread::get_id()) {
    fail("the capture of " + origin_.name() + " is ended by another thread",
         "cudaErrorStreamCaptureWrongThread", "only a relaxed one may be");
  }
  {
    const std::lock_guard<std::mutex> lock(captures().mutex);
    auto& all = captures().all;
    all.erase(std::remove(all.begin(), all.end(), this), all.end());
  }
  std::unique_lock<std::mutex> lock(mutex_);
  has_ended_ = true;
  const std::vector<Stream*> streams = std::exchange(streams_, {});
  std::vector<Node> nodes = std::exchange(nodes_, {});
  std::vector<void*> memory = std::exchange(memory_, {});
  const std::string failure = failure_;
  lock.unlock();
  for (Stream* each : streams) each->leave(*this);
  const std::string unjoined = find_unjoined(nodes, last);
  auto graph = std::make_shared<Graph>(std::move(nodes), std::move(memory));
  if (!failure.empty()) {
    throw CaptureError(text_of("the capture of " + origin_.name() + " has no graph",
                               "cudaErrorStreamCaptureInvalidated", failure));
  }
  if (!unjoined.empty()) {
    throw CaptureError(text_of("the capture of " + origin_.name() + " has no graph",
                               "cudaErrorStreamCaptureUnjoined",
                               origin_.name() + " has not waited for " + unjoined));
  }
  return graph;
}

bool Capture::forbids(CaptureMode asking) const {
  if (mode_ == CaptureMode::kRelaxed || asking == CaptureMode::kRelaxed) return false;
  if (thread_ == std::this_thread::get_id()) return true;
  return mode_ == CaptureMode::kGlobal && asking == CaptureMode::kGlobal;
}

std::string Capture::find_unjoined(const std::vector<Node>& nodes, const Nodes& last) {
  std::vector<bool> is_joined(nodes.size());
  for (const size_t each : last) is_joined[each] = true;
  for (size_t i = nodes.size(); i-- > 0;) {  // each comes after those before
    if (!is_joined[i]) continue;
    for (const size_t each : nodes[i].after) is_joined[each] = true;
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (is_joined[i] || nodes[i].is_aside) continue;
    return "'" + nodes[i].kernel.name + "' on " + nodes[i].stream->name();
  }
  return "";
}

}  // namespace farandole::sim
