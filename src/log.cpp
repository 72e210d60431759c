// SPDX-License-Identifier: Apache-2.0
#include "log.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>

#include "farandole/config.h"

namespace farandole {
namespace {

struct Level {
  const char* option;
  const char* label;
};
constexpr std::array<Level, 4> kLevels{
    {{"error", "ERROR"}, {"warning", "WARNING"}, {"info", "INFO"}, {"debug", "DEBUG"}}};

size_t threshold() {
  static const size_t value = [] {
    const auto number_of = [](const std::string& wanted) {
      const auto* it = std::find_if(kLevels.begin(), kLevels.end(),
                                    [&](const Level& level) { return wanted == level.option; });
      return static_cast<size_t>(it - kLevels.begin());
    };
    // Threads and destructors call this, so it throws nothing: Config::from_environment() refuses
    // what is no level when a group is made.
    const char* const wanted = std::getenv("FARANDOLE_LOG");
    const size_t number = number_of(wanted == nullptr ? "" : wanted);
    return number < kLevels.size() ? number : number_of(Config().log_level);
  }();
  return value;
}

std::atomic<LogSink> sink{nullptr};

}  // namespace

void set_log_sink(LogSink taker) { sink.store(taker); }

void log(LogLevel level, const std::string& text) {
  const auto index = static_cast<size_t>(level);
  if (index > threshold()) return;
  const LogSink taker = sink.load();
  if (taker != nullptr && taker(level, text)) return;
  const std::string line = std::string("farandole ") + kLevels[index].label + ": " + text + "\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace farandole
