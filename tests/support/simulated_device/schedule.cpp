// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_device/schedule.h"

#include <atomic>
#include <chrono>
#include <ostream>
#include <random>
#include <thread>

namespace farandole::sim {
namespace {

std::atomic<Schedule> current{Schedule::kEager};
std::atomic<unsigned> next_seed{1};

}  // namespace

std::ostream& operator<<(std::ostream& out, Schedule schedule) {
  switch (schedule) {
    case Schedule::kEager:
      return out << "Eager";
    case Schedule::kLazy:
      return out << "Lazy";
    case Schedule::kSlowDefault:
      return out << "SlowDefault";
    case Schedule::kSlowSide:
      return out << "SlowSide";
  }
  return out;
}

Schedule schedule() { return current.load(); }

void set_schedule(Schedule schedule) { current.store(schedule); }

void delay_kernel(bool on_default_stream) {
  const Schedule slow = on_default_stream ? Schedule::kSlowDefault : Schedule::kSlowSide;
  if (schedule() != slow) return;
  thread_local std::minstd_rand random{next_seed++};
  std::uniform_int_distribution<int> microseconds(100, 300);
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds(random)));
}

}  // namespace farandole::sim
