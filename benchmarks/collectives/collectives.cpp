// SPDX-License-Identifier: Apache-2.0
// One rank of the C++ lanes of the all-reduce benchmark. run.py starts it once for each rank:
//   farandole_bench_all_reduce <socket of run.py> <folder for the store> <rank> <world size>
// Protocol, one line each way (worker.py speaks it too): on "<lane> <bytes> <warm-up> <iterations>"
// it verifies, warms up, measures and verifies again, and answers with one line of JSON. Between
// two questions it sleeps in read(), so that it takes no core from the lane that is measured.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "farandole/comm/backends.h"
#include "farandole/comm/communicator.h"
#include "farandole/comm/store.h"

namespace {

using farandole::comm::Communicator;
using Clock = std::chrono::steady_clock;

/// One file for each key in a folder that the ranks share. A new file gets its name once it is
/// complete, so that a reader never sees half a value.
class DirectoryStore : public farandole::comm::Store {
 public:
  DirectoryStore(std::filesystem::path folder, int rank)
      : folder_(std::move(folder)), rank_(rank) {}

  void set(const std::string& key, const std::string& value) override {
    const auto unfinished = folder_ / ("unfinished." + std::to_string(rank_));
    std::ofstream(unfinished, std::ios::binary) << value;
    std::filesystem::rename(unfinished, file_of(key));
  }

  std::optional<std::string> get(const std::string& key,
                                 std::chrono::milliseconds timeout) override {
    const auto deadline = Clock::now() + timeout;
    while (!std::filesystem::exists(file_of(key))) {
      if (Clock::now() >= deadline) return std::nullopt;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::ostringstream value;
    value << std::ifstream(file_of(key), std::ios::binary).rdbuf();
    return value.str();
  }

 private:
  std::filesystem::path file_of(std::string key) const {
    for (char& letter : key) {
      if (letter == '/') letter = '|';
    }
    return folder_ / ("key." + key);
  }

  std::filesystem::path folder_;
  int rank_;
};

/// Lines to and from run.py.
class Driver {
 public:
  Driver(const std::string& path, int rank) : socket_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof(address.sun_path)) throw std::runtime_error("path too long: " + path);
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    if (::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      throw std::runtime_error("cannot connect to run.py at " + path);
    }
    answer(std::to_string(rank));
  }
  ~Driver() { ::close(socket_); }
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  /// The next line without its end; nothing when run.py is done.
  std::optional<std::string> next_question() {
    std::string line;
    for (char letter; ::read(socket_, &letter, 1) == 1; line += letter) {
      if (letter == '\n') return line;
    }
    return std::nullopt;
  }

  void answer(std::string line) {
    line += '\n';
    for (size_t sent = 0; sent < line.size();) {
      const ssize_t count = ::write(socket_, line.data() + sent, line.size() - sent);
      if (count < 0) throw std::runtime_error("run.py has gone");
      sent += static_cast<size_t>(count);
    }
  }

 private:
  int socket_;
};

/// The buffer of one lane and size; kept for all rounds, so that its pages are touched only once.
class Buffer {
 public:
  Buffer(Communicator& communicator, bool symmetric, size_t bytes)
      : communicator_(communicator), count_(bytes / sizeof(float)) {
    if (symmetric) {
      shared_ = communicator.allocate_symmetric(bytes);
      data_ = static_cast<float*>(shared_->local());
    } else {
      ordinary_.resize(count_);
      data_ = ordinary_.data();
    }
  }

  void all_reduce() {
    communicator_.all_reduce(data_, data_, count_, farandole::comm::DataType::kFloat32,
                             farandole::comm::ReduceOp::kSum);
  }

  /// Elements that one all-reduce of values with exact sums gets wrong. The period, a prime, is no
  /// divisor of any block, so that a block in the wrong place shows.
  size_t count_wrong() {
    constexpr size_t kPeriod = 1021;
    const int ranks = communicator_.world_size();
    const auto mine = static_cast<float>(communicator_.rank() + 1);
    const auto sum = static_cast<float>(ranks * (ranks + 1) / 2);
    for (size_t i = 0; i < count_; ++i) data_[i] = mine * static_cast<float>(i % kPeriod + 1);
    all_reduce();
    size_t wrong = 0;
    for (size_t i = 0; i < count_; ++i)
      wrong += data_[i] != sum * static_cast<float>(i % kPeriod + 1);
    return wrong;
  }

  /// Nanoseconds from the end of one all-reduce to the end of the next, `iterations` times. On
  /// zeros, whose sums never overflow however often they are summed in place.
  std::vector<int64_t> measure(int warmup, int iterations) {
    std::fill_n(data_, count_, 0.0F);
    for (int i = 0; i < warmup; ++i) all_reduce();
    std::vector<int64_t> periods(static_cast<size_t>(iterations));
    communicator_.barrier();
    auto previous = Clock::now();
    for (int64_t& period : periods) {
      all_reduce();
      const auto now = Clock::now();
      period = std::chrono::nanoseconds(now - previous).count();
      previous = now;
    }
    return periods;
  }

 private:
  Communicator& communicator_;
  size_t count_;
  std::shared_ptr<farandole::comm::SymmetricMemory> shared_;
  std::vector<float> ordinary_;
  float* data_;
};

std::string to_json(size_t wrong, const std::vector<int64_t>& periods_ns) {
  std::ostringstream line;
  line << "{\"wrong\": " << wrong << ", \"periods_ns\": [";
  for (size_t i = 0; i < periods_ns.size(); ++i) line << (i == 0 ? "" : ", ") << periods_ns[i];
  line << "]}";
  return line.str();
}

void serve(Driver& driver, Communicator& communicator) {
  std::unique_ptr<Buffer> buffers[2];  // ordinary, symmetric
  size_t allocated = 0;
  while (const auto question = driver.next_question()) {
    std::string lane;
    size_t bytes = 0;
    int warmup = 0;
    int iterations = 0;
    std::istringstream(*question) >> lane >> bytes >> warmup >> iterations;
    if (bytes != allocated) {
      for (auto& buffer : buffers) buffer.reset();
      allocated = bytes;
    }
    const bool symmetric = lane == "farandole_symmetric";
    auto& buffer = buffers[symmetric];
    if (!buffer) buffer = std::make_unique<Buffer>(communicator, symmetric, bytes);
    size_t wrong = buffer->count_wrong();
    const auto periods = buffer->measure(warmup, iterations);
    wrong += buffer->count_wrong();
    driver.answer(to_json(wrong, periods));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: " << argv[0] << " SOCKET FOLDER RANK WORLD_SIZE (started by run.py)\n";
    return 2;
  }
  try {
    farandole::comm::CommunicatorOptions options;
    options.name = "benchmark";
    options.rank = std::stoi(argv[3]);
    options.world_size = std::stoi(argv[4]);
    DirectoryStore store(argv[2], options.rank);
    const auto communicator = farandole::comm::make_communicator("shm", store, options);
    Driver driver(argv[1], options.rank);
    serve(driver, *communicator);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
