// SPDX-License-Identifier: Apache-2.0
#include "profile/range_observer.h"

#include <ATen/record_function.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>

#include "farandole/comm/event_stream.h"
#include "profile/range_names.h"

namespace farandole::profiler {
namespace {

/// Of the training; a step ends on whatever thread steps an optimizer.
struct Steps {
  std::mutex mutex;
  uint64_t number = 0;
  uint64_t since_ns = 0;
  bool are_of_program = false;
};
Steps& steps() {
  static auto* const instance = new Steps;
  return *instance;
}

void emit_step(Steps& steps, const std::string& mode) {
  comm::Span span;
  span.kind = comm::SpanKind::kStep;
  span.name = comm::name_id(mode);
  span.number = steps.number++;
  span.begin_ns = steps.since_ns;
  span.end_ns = steps.since_ns = comm::now_ns();
  comm::emit(span);
}

void end_step_of_optimizer() {
  Steps& known = steps();
  const std::lock_guard<std::mutex> lock(known.mutex);
  if (!known.are_of_program) emit_step(known, "TRAIN");
}

std::atomic<WorkerCounter> g_count_workers{nullptr};

/// Optimizers within which this thread is: one may call another.
thread_local int depth = 0;

struct OpenRange : at::ObserverContext {
  uint64_t begin_ns = comm::now_ns();
  std::optional<uint32_t> workers;  ///< of a DataLoader
  bool is_step = false;
};

std::unique_ptr<at::ObserverContext> begin_range(const at::RecordFunction& range) {
  const char* const name = range.name();
  if (!comm::is_streaming() || !is_shown(name)) return nullptr;
  auto open = std::make_unique<OpenRange>();
  open->is_step = is_step(name);
  if (open->is_step) ++depth;
  const WorkerCounter count_workers = g_count_workers.load();
  if (count_workers != nullptr && is_data_wait(name)) open->workers = count_workers();
  return open;
}

void end_range(const at::RecordFunction& range, at::ObserverContext* context) {
  if (context == nullptr) return;
  const auto& open = static_cast<const OpenRange&>(*context);
  comm::Span span;
  span.name = comm::name_id(range.name());
  if (open.workers) span.number = *open.workers + 1;
  span.begin_ns = open.begin_ns;
  span.end_ns = comm::now_ns();
  comm::emit(span);
  if (open.is_step && --depth == 0) end_step_of_optimizer();
}

std::optional<at::CallbackHandle> g_handle;

}  // namespace

void observe_ranges(std::optional<uint64_t> first_step) {
  if (g_handle) return;
  {
    Steps& known = steps();
    const std::lock_guard<std::mutex> lock(known.mutex);
    known.number = first_step.value_or(0);
    known.since_ns = comm::now_ns();
    known.are_of_program = first_step.has_value();
  }
  g_handle = at::addGlobalCallback(
      at::RecordFunctionCallback(&begin_range, &end_range).scopes({at::RecordScope::USER_SCOPE}));
}

void leave_ranges() {
  if (g_handle) at::removeCallback(*g_handle);
  g_handle.reset();
}

void count_workers_by(WorkerCounter counter) { g_count_workers.store(counter); }

void end_step(const std::string& mode) {
  Steps& known = steps();
  const std::lock_guard<std::mutex> lock(known.mutex);
  known.are_of_program = true;
  emit_step(known, mode);
}

}  // namespace farandole::profiler
