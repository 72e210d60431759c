// SPDX-License-Identifier: Apache-2.0
#include "support/driver.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <iostream>
#include <stdexcept>

namespace farandole::benchmark {

Driver::Driver(const std::string& path, int rank) : socket_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) throw std::runtime_error("path too long: " + path);
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  if (::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    throw std::runtime_error("cannot connect to run.py at " + path);
  }
  answer(std::to_string(rank));
}

Driver::~Driver() { ::close(socket_); }

std::optional<std::string> Driver::next_question() {
  std::string line;
  for (char letter; ::read(socket_, &letter, 1) == 1; line += letter) {
    if (letter == '\n') return line;
  }
  return std::nullopt;
}

void Driver::answer(std::string line) {
  line += '\n';
  for (size_t sent = 0; sent < line.size();) {
    const ssize_t count = ::write(socket_, line.data() + sent, line.size() - sent);
    if (count < 0) throw std::runtime_error("run.py has gone");
    sent += static_cast<size_t>(count);
  }
}

int run_program(int argc, char** argv, Serve serve) {
  if (argc != 5) {
    std::cerr << "usage: " << argv[0] << " SOCKET FOLDER RANK WORLD_SIZE (started by run.py)\n";
    return 2;
  }
  try {
    serve(argv[1], argv[2], std::stoi(argv[3]), std::stoi(argv[4]));
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}

}  // namespace farandole::benchmark
