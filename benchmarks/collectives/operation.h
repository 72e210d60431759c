// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "farandole/comm/communicator.h"

namespace farandole::benchmark {

/// One operation of the benchmark on float32 buffers of its own; they are kept for all rounds, so
/// that their pages are touched only once. definition.py says what each operation takes and what
/// must come out; worker.py does the same as this class for Python lanes.
class Operation {
 public:
  /// `bytes` as operations.py counts them; `pieces` are the messages of one call of send_stream.
  /// Collective if `symmetric`. Throws std::invalid_argument for an unknown name.
  Operation(comm::Communicator& communicator, const std::string& name, size_t bytes, size_t pieces,
            bool symmetric);

  struct Check {
    size_t wrong;        ///< elements
    int64_t entered_ns;  ///< on the clock that all processes of the host share
    int64_t left_ns;
  };
  /// One call on values whose results are exact. Ranks come at different times.
  Check check();
  /// Nanoseconds from the end of one call to the end of the next, `iterations` times. On zeros,
  /// whose sums never overflow however often they are summed in place.
  std::vector<int64_t> measure(int warmup, int iterations);

 private:
  using Call = std::function<void()>;
  /// What element i of the result must be.
  using Expected = std::function<float(size_t)>;

  float* allocate(size_t elements, bool symmetric);
  Call make_call(const std::string& name);
  Call make_send_recv();
  Call make_send_stream();
  Expected make_expected(const std::string& name) const;
  Expected make_expected_of_uneven(size_t world, size_t rank) const;

  comm::Communicator& communicator_;
  size_t elements_;
  size_t block_;  ///< elements of one rank's part
  size_t pieces_;
  size_t input_elements_ = 0;
  size_t output_elements_ = 0;
  float* input_ = nullptr;
  float* output_ = nullptr;  ///< input_ where the operation works in place
  bool has_result_ = true;   ///< whether this rank gets one
  std::vector<std::shared_ptr<comm::SymmetricMemory>> shared_;
  std::vector<std::vector<float>> ordinary_;
  float acknowledgement_ = 0;
  Call call_;
  Expected expected_;
};

}  // namespace farandole::benchmark
