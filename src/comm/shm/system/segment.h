// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <memory>
#include <utility>

#include "comm/fork_guard.h"
#include "comm/shm/system/descriptor.h"
#include "farandole/config.h"
#include "farandole/export.h"

namespace farandole::comm::shm {

/// Makes an unnamed piece of shared memory of exactly `bytes`, sealed against resizing where the
/// kernel can. Nothing of it has a name, so nothing stays behind when processes die. Throws
/// SystemError (no memory, no descriptors, /dev/shm too small).
FARANDOLE_API Descriptor create_segment(size_t bytes, SegmentBacking backing);

/// Takes the pages of a part of a segment, so that there is memory for them whenever they are
/// touched: what is not there then is a SIGBUS. They lie near the caller's core. Throws
/// SystemError.
void reserve(const Descriptor& segment, size_t offset, size_t bytes);

/// What a forked child has of a segment's pages: nothing, or copies of its own
/// (private_in_child.h).
enum class InChild { kUnmapped, kPrivate };

/// A mapping of a segment. Threads of one process share one mapping of one segment, so that rank
/// threads see each other at equal addresses and race detectors see them too.
///
/// Threads: const after construction.
class Mapping {
 public:
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

  /// As reserve(), and maps the pages too, which saves the faults of who will touch them all.
  void populate(const Descriptor& segment, size_t offset, size_t bytes) const;

  /// Maps `segment`, or finds the mapping that this process already has of it. The descriptor may
  /// be closed afterwards. Throws SystemError.
  static std::shared_ptr<Mapping> of(const Descriptor& segment, InChild in_child);

 private:
  /// Which segment a mapping is of.
  using Identity = std::pair<dev_t, ino_t>;
  /// The mappings of this process.
  using Registry = std::map<Identity, std::weak_ptr<Mapping>>;
  static Registry& registry();
  static std::shared_ptr<Mapping> find_or_map(const Descriptor& segment, InChild in_child);

  Mapping(Identity identity, std::byte* data, size_t bytes, InChild in_child)
      : identity_(identity), data_(data), bytes_(bytes), in_child_(in_child) {}

  Identity identity_;
  std::byte* data_;
  size_t bytes_;
  InChild in_child_;
  ForkGuard fork_guard_;
};

}  // namespace farandole::comm::shm
