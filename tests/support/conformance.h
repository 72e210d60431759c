// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "farandole/comm/communicator.h"

namespace farandole::test {

/// One row of the conformance matrix: how all ranks call an operation, and on which memory.
struct Case {
  comm::DataType dtype;
  comm::ReduceOp op;
  size_t count;   ///< elements, as the operation counts them
  int root;       ///< 0 where the operation has none
  bool in_place;  ///< on one buffer, at the place that communicator.h names
  enum class Memory { kOrdinary, kSymmetric, kMixed } memory;  ///< mixed: symmetric on odd ranks
  size_t shift;  ///< bytes that buffers begin after an address aligned to 64
};

/// A part of an output: elements [offset, offset + count) of what rank `source` contributes, or of
/// the reduction over all ranks.
struct Segment {
  static constexpr int kReduction = -1;
  int source;
  size_t offset;
  size_t count;
};

/// What an operation of Communicator takes and gives on one rank, told independently of how it is
/// done.
struct Operation {
  const char* name;
  bool reduces;  ///< takes a ReduceOp
  bool rooted;   ///< takes a root
  enum class InPlace { kNever, kMay, kAlways } in_place;
  /// A rank's part in a call.
  struct Part {
    int rank;
    int world_size;
    size_t count;
    int root;
  };
  size_t (*input_elements)(const Part&);  ///< 0: no input on this rank
  std::vector<Segment> (*output)(const Part&);
  void (*call)(comm::Communicator&, const void* input, void* output, const Case&,
               const comm::CollectiveOptions&);
};

void PrintTo(const Operation& operation, std::ostream* out);

/// Every operation that moves data.
const std::vector<Operation>& operations();

/// Which of the combinations of parameters to run.
enum class Selection {
  kAll,       ///< the full cross product
  kPairwise,  ///< every pair of values of two parameters; FARANDOLE_TEST_THIN leaves out some
              ///< values
};

/// The matrix of `operation` on `world_size` ranks with staging slots of `slot_bytes`. It is kept
/// for the life of the process: to select from it takes longer than to run it.
const std::vector<Case>& cases_of(const Operation& operation, int world_size, size_t slot_bytes,
                                  Selection selection);

/// The memory of one rank in which cases are run, one after the other. Collective.
class CaseMemory {
 public:
  /// Large enough for any case with staging slots of `slot_bytes`.
  CaseMemory(comm::Communicator& group, size_t slot_bytes);

  /// Runs one case on this rank. Returns what is wrong, "" if nothing: an element of the output, a
  /// byte beside it, or an input that was altered.
  std::string run(comm::Communicator& group, const Operation& operation, const Case& instance);

  /// Calls an operation with an input and an output in ordinary().
  using Call = std::function<void(const void* input, void* output)>;
  /// As run(), with `call` in place of the operation's own.
  std::string run(comm::Communicator& group, const Operation& operation, const Case& instance,
                  const Call& call);
  /// All memory that is not symmetric.
  std::vector<std::byte>& ordinary() { return ordinary_; }

 private:
  /// Where buffers of a case may lie: inputs in the first half, outputs in the second.
  std::byte* half(const Case& instance, int rank, bool second) const;

  size_t half_bytes_;
  std::vector<std::byte> ordinary_;
  std::shared_ptr<comm::SymmetricMemory> symmetric_;  ///< null where ranks share no memory
};

}  // namespace farandole::test
