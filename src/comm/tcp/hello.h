// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "comm/sha256.h"
#include "farandole/export.h"

namespace farandole::comm::tcp {

/// How the two ends of a new connection prove to each other that they are ranks of a group: the one
/// that has connected, the caller, sends a Hello; the other one, the listener, answers with one of
/// its own and a code; the caller sends its code. Codes are made of the job's secret, the group's
/// session, the side and both hellos, which hold a nonce each: none fits another connection, side,
/// rank or lane. Neither secret nor session is sent. Bytes in network order would not help: ranks
/// have the same build.
struct Hello {
  char magic[8];
  uint32_t version;
  int32_t rank;  ///< of its sender
  int32_t lane;
  unsigned char nonce[32];
};

/// What a listener sends back.
struct Answer {
  Hello hello;
  Digest code;
};

/// One end's part in it. Immutable.
class FARANDOLE_API Identity {
 public:
  /// `secret`: of the job; empty: it has none, and whoever can read the store may pass for a rank.
  /// `session`: the group's random token, which its ranks know through the store.
  Identity(std::string secret, std::string session, int rank);

  /// False: in a job without a secret, the other end of `socket` is another user's of this host.
  bool allows_user_of(int socket) const;

  /// A new one. Throws SystemError.
  Hello hello(int lane) const;

  /// Of a listener, to `caller`. Throws SystemError.
  Answer answer(const Hello& caller) const;
  /// Of a listener, to which `caller` was sent and which has sent `answer`.
  bool is_proof(const Digest& proof, const Hello& caller, const Answer& answer) const;

  /// Of a caller that has sent `own`: whether `answer` is that of rank `peer`.
  bool is_right(const Answer& answer, const Hello& own, int peer) const;
  /// Of a caller, which sends it.
  Digest proof(const Hello& own, const Answer& answer) const;

 private:
  Digest code(const char* side, const Hello& caller, const Hello& listener) const;

  std::string secret_;
  std::string session_;
  int rank_;
};

/// Whether `hello` is one of this version, whoever has sent it.
FARANDOLE_API bool is_hello(const Hello& hello);

}  // namespace farandole::comm::tcp
