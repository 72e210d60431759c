// SPDX-License-Identifier: Apache-2.0
#include "profile/trace_file.h"

#include <fcntl.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <system_error>

#include "comm/write_all.h"
#include "farandole/error.h"

namespace farandole::profiler {
namespace {

[[noreturn]] void throw_trace_error(const std::string& path, const std::string& what, int number) {
  throw SystemError("profile-file", "the profile's '" + path + "' " + what + ".",
                    std::generic_category().message(number) + ".",
                    "record into a folder that this user may write, on a disk with space.");
}

std::string made_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw_trace_error(folder, "could not be made", error.value());
  return folder;
}

/// In the folder of its hour, which is made: "2026112605/<us since 1970>_<suffix>.json".
std::string path_of(const std::string& folder, const std::string& suffix, int64_t time_ns) {
  const std::time_t seconds = time_ns / 1'000'000'000;
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  std::array<char, 16> hour{};
  std::strftime(hour.data(), hour.size(), "%Y%m%d%H", &utc);
  return made_folder(folder + "/" + hour.data()) + "/" + std::to_string(time_ns / 1000) + "_" +
         suffix + ".json";
}

/// Of a line, which the next one brings: an array has no comma at its end.
constexpr const char* kEnd = ",\n";

std::string without_end(const std::string& lines) { return lines.substr(0, lines.size() - 2); }

int open_file(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor < 0) throw_trace_error(path, "could not be made", errno);
  return descriptor;
}

}  // namespace

TraceFile::TraceFile(const std::string& folder, const std::string& suffix, int64_t begin_ns,
                     const std::string& head)
    : folder_(folder),
      suffix_(suffix),
      begin_ns_(begin_ns),
      path_(path_of(folder, suffix, begin_ns) + ".tmp"),
      descriptor_(open_file(path_)) {
  write("[\n" + without_end(head));
}

void TraceFile::append(const std::string& lines) {
  if (!lines.empty()) write(kEnd + without_end(lines));
}

void TraceFile::write(const std::string& text) {
  const int error = comm::write_all(descriptor_, text.data(), text.size());
  if (error != 0) throw_trace_error(path_, "could not be written", error);
  bytes_ += static_cast<int64_t>(text.size());
}

void TraceFile::close(int64_t end_ns) {
  write("\n]\n");
  const std::string path = path_of(folder_, suffix_, end_ns);
  if (std::rename(path_.c_str(), path.c_str()) != 0) {
    throw_trace_error(path_, "could not be renamed", errno);
  }
}

}  // namespace farandole::profiler
