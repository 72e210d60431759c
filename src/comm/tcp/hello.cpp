// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/hello.h"

#include <sys/random.h>

#include <cstring>
#include <string_view>
#include <type_traits>
#include <utility>

#include "comm/shm/system/system_call.h"
#include "comm/tcp/peer_user.h"

namespace farandole::comm::tcp {
namespace {

constexpr char kMagic[8] = {'F', 'A', 'R', 'A', 'N', 'D', 'O', 'L'};
constexpr uint32_t kVersion = 2;
constexpr const char* kCaller = "caller";
constexpr const char* kListener = "listener";

// Their bytes are hashed.
static_assert(std::has_unique_object_representations_v<Hello>);
static_assert(sizeof(Answer) == sizeof(Hello) + sizeof(Digest));

std::string_view bytes_of(const Hello& hello) {
  return {reinterpret_cast<const char*>(&hello), sizeof(hello)};
}

}  // namespace

Identity::Identity(std::string secret, std::string session, int rank)
    : secret_(std::move(secret)), session_(std::move(session)), rank_(rank) {}

bool Identity::allows_user_of(int socket) const {
  return !secret_.empty() || user_of_peer(socket) != PeerUser::kOther;
}

Hello Identity::hello(int lane) const {
  Hello hello{};
  std::memcpy(hello.magic, kMagic, sizeof(kMagic));
  hello.version = kVersion;
  hello.rank = rank_;
  hello.lane = lane;
  const ssize_t size =
      shm::retried([&] { return ::getrandom(hello.nonce, sizeof(hello.nonce), 0); });
  if (size != static_cast<ssize_t>(sizeof(hello.nonce))) {
    shm::throw_errno("getrandom", "see whether the sandbox forbids it.");
  }
  return hello;
}

Answer Identity::answer(const Hello& caller) const {
  Answer answer{hello(caller.lane), {}};
  answer.code = code(kListener, caller, answer.hello);
  return answer;
}

bool Identity::is_proof(const Digest& proof, const Hello& caller, const Answer& answer) const {
  return equal_in_constant_time(proof, code(kCaller, caller, answer.hello));
}

bool Identity::is_right(const Answer& answer, const Hello& own, int peer) const {
  return is_hello(answer.hello) && answer.hello.rank == peer && answer.hello.lane == own.lane &&
         equal_in_constant_time(answer.code, code(kListener, own, answer.hello));
}

Digest Identity::proof(const Hello& own, const Answer& answer) const {
  return code(kCaller, own, answer.hello);
}

Digest Identity::code(const char* side, const Hello& caller, const Hello& listener) const {
  return code_of(secret_, "link", {session_, side, bytes_of(caller), bytes_of(listener)});
}

bool is_hello(const Hello& hello) {
  return std::memcmp(hello.magic, kMagic, sizeof(kMagic)) == 0 && hello.version == kVersion;
}

}  // namespace farandole::comm::tcp
