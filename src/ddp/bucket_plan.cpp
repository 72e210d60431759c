// SPDX-License-Identifier: Apache-2.0
#include "farandole/ddp/bucket_plan.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "farandole/error.h"

namespace farandole {
namespace {

/// Shards of a bucket begin at multiples of a cache line.
constexpr int64_t kShardBytes = 64;
/// Buckets begin at multiples of two cache lines, because CPUs fetch lines in pairs.
constexpr int64_t kBucketAlignment = 128;

int64_t element_bytes(at::ScalarType dtype) {
  return static_cast<int64_t>(c10::elementSize(dtype));
}

int64_t rounded_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

void check_cap(int64_t bytes, int64_t least) {
  if (bytes >= least) return;
  throw InvalidArgument("bucket-cap-bytes",
                        "a bucket plan got a cap of " + std::to_string(bytes) + " bytes.",
                        "a bucket of no bytes cannot hold a gradient.",
                        "pass caps of 1 byte or more (last_bytes = 0 gives the last bucket the "
                        "same cap as the others).");
}

void check_caps(const BucketCaps& caps) {
  if (caps.list.empty()) check_cap(caps.first_bytes, 1);
  for (const int64_t bytes : caps.list) check_cap(bytes, 1);
  check_cap(caps.bytes, 1);
  check_cap(caps.last_bytes, 0);
}

void check_world_size(int world_size) {
  if (world_size >= 1) return;
  throw InvalidArgument("bucket-world-size",
                        "a bucket plan got world_size " + std::to_string(world_size) + ".",
                        "buckets are padded so that each rank has an equal shard.",
                        "pass the number of ranks of the group, 1 or more.");
}

void check_elements(const std::vector<PlannedParameter>& parameters) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].elements >= 0) continue;
    throw InvalidArgument("negative-parameter-size",
                          "a bucket plan got parameter " + std::to_string(i) + " with " +
                              std::to_string(parameters[i].elements) + " elements.",
                          "a parameter cannot have a negative number of elements.",
                          "pass the tensor.numel() of each parameter.");
  }
}

void check_order(const std::vector<size_t>& order, size_t count) {
  std::vector<bool> seen(count, false);
  for (const size_t parameter : order) {
    const std::string order_with = "a bucket plan got an order with parameter ";
    if (parameter >= count) {
      throw InvalidArgument("bucket-order-index", order_with + std::to_string(parameter) + ".",
                            "there are " + std::to_string(count) + " parameters, counted from 0.",
                            "pass indices into the list of parameters.");
    }
    if (seen[parameter]) {
      throw InvalidArgument(
          "bucket-order-twice", order_with + std::to_string(parameter) + " in two places.",
          "each gradient belongs to one bucket.", "pass each index at most once.");
    }
    seen[parameter] = true;
  }
}

/// The state of packing for one kind of parameters, which may share a bucket.
struct Kind {
  at::ScalarType dtype;
  at::Device device;
  size_t tail_begin = 0;  ///< position in the order from which they go into the last bucket
  int64_t tail_bytes = 0;
  bool tail_full = false;
  std::optional<size_t> open = std::nullopt;  ///< the bucket that takes the next parameter
  size_t closed = 0;                          ///< buckets before it
};

/// Fills buckets in one walk along the order. For one plan and one thread.
class Packing {
 public:
  Packing(const std::vector<PlannedParameter>& parameters, const std::vector<size_t>& order,
          const BucketCaps& caps)
      : parameters_(parameters), order_(order), caps_(caps) {}

  std::vector<BucketPlan::Bucket> run() {
    if (caps_.last_bytes != 0) find_tails();
    for (size_t position = 0; position < order_.size(); ++position) place(position);
    return in_launch_order();
  }

 private:
  Kind& kind_of(const PlannedParameter& parameter) {
    const auto known = std::find_if(kinds_.begin(), kinds_.end(), [&](const Kind& kind) {
      return kind.dtype == parameter.dtype && kind.device == parameter.device;
    });
    if (known != kinds_.end()) return *known;
    return kinds_.emplace_back(Kind{parameter.dtype, parameter.device});
  }

  /// Walks back from the end, for each kind until the last bucket of that kind is full.
  void find_tails() {
    for (size_t position = order_.size(); position-- > 0;) {
      const PlannedParameter& parameter = parameters_[order_[position]];
      Kind& kind = kind_of(parameter);
      const int64_t bytes = kind.tail_bytes + parameter.elements * element_bytes(parameter.dtype);
      kind.tail_full = kind.tail_full || (kind.tail_bytes != 0 && bytes > caps_.last_bytes);
      if (kind.tail_full) continue;
      kind.tail_begin = position;
      kind.tail_bytes = bytes;
    }
  }

  void place(size_t position) {
    const size_t parameter = order_[position];
    const int64_t elements = parameters_[parameter].elements;
    Kind& kind = kind_of(parameters_[parameter]);
    const bool in_tail = caps_.last_bytes != 0 && position >= kind.tail_begin;
    if (in_tail && position == kind.tail_begin) close(kind);
    if (!kind.open) open(kind);
    BucketPlan::Bucket& bucket = buckets_[*kind.open];
    bucket.slots.push_back({parameter, /*offset=*/0, elements});
    bucket.elements += elements;
    last_positions_[*kind.open] = position;
    if (!in_tail && bucket.elements * element_bytes(bucket.dtype) >= cap_of(kind)) close(kind);
  }

  void open(Kind& kind) {
    kind.open = buckets_.size();
    buckets_.push_back({kind.dtype, kind.device, 0, 0, 0, {}});
    last_positions_.push_back(0);
  }

  static void close(Kind& kind) {
    if (!kind.open) return;
    kind.open.reset();
    ++kind.closed;
  }

  int64_t cap_of(const Kind& kind) const {
    if (kind.closed < caps_.list.size()) return caps_.list[kind.closed];
    return kind.closed == 0 ? caps_.first_bytes : caps_.bytes;
  }

  std::vector<BucketPlan::Bucket> in_launch_order() {
    std::vector<size_t> launch(buckets_.size());
    std::iota(launch.begin(), launch.end(), size_t{0});
    std::sort(launch.begin(), launch.end(),
              [&](size_t a, size_t b) { return last_positions_[a] < last_positions_[b]; });
    std::vector<BucketPlan::Bucket> ordered;
    ordered.reserve(buckets_.size());
    for (const size_t bucket : launch) ordered.push_back(std::move(buckets_[bucket]));
    return ordered;
  }

  const std::vector<PlannedParameter>& parameters_;
  const std::vector<size_t>& order_;
  const BucketCaps& caps_;
  std::vector<Kind> kinds_;  // few: dtypes times devices
  std::vector<BucketPlan::Bucket> buckets_;
  std::vector<size_t> last_positions_;  ///< for each bucket, of its last parameter in the order
};

/// Assigns slots one after the other, those that fill whole cache lines first, so that each of
/// these begins at a line.
void place_slots(BucketPlan::Bucket& bucket) {
  int64_t offset = 0;
  for (const bool whole_lines : {true, false}) {
    for (BucketPlan::Slot& slot : bucket.slots) {
      const int64_t rest = slot.elements * element_bytes(bucket.dtype) % kShardBytes;
      if ((rest == 0) != whole_lines) continue;
      slot.offset = offset;
      offset += slot.elements;
    }
  }
}

/// Pads the buckets and places those of each device one after the other.
void lay_out(BucketPlan& plan, int world_size) {
  for (BucketPlan::Bucket& bucket : plan.buckets) {
    place_slots(bucket);
    const int64_t offset = plan.buffer_bytes(bucket.device);  // of the padded buckets so far
    const int64_t unit = world_size * (kShardBytes / element_bytes(bucket.dtype));
    bucket.padded_elements = rounded_up(bucket.elements, unit);
    bucket.offset_bytes = rounded_up(offset, kBucketAlignment);
  }
}

}  // namespace

int64_t BucketPlan::buffer_bytes(at::Device device) const {
  int64_t bytes = 0;
  for (const Bucket& bucket : buckets) {
    if (bucket.device != device) continue;
    bytes =
        std::max(bytes, bucket.offset_bytes + bucket.padded_elements * element_bytes(bucket.dtype));
  }
  return bytes;
}

std::vector<at::Device> BucketPlan::devices() const {
  std::vector<at::Device> found;
  for (const Bucket& bucket : buckets) {
    if (std::find(found.begin(), found.end(), bucket.device) == found.end()) {
      found.push_back(bucket.device);
    }
  }
  return found;
}

comm::Fingerprint BucketPlan::fingerprint() const {
  const std::vector<at::Device> known = devices();
  comm::FingerprintOfNumbers numbers;
  numbers.add(static_cast<uint64_t>(buckets.size()));
  for (const Bucket& bucket : buckets) {
    numbers.add(static_cast<int64_t>(bucket.dtype));
    numbers.add(static_cast<int64_t>(bucket.device.type()));
    numbers.add(
        static_cast<int64_t>(std::find(known.begin(), known.end(), bucket.device) - known.begin()));
    numbers.add(bucket.elements);
    numbers.add(bucket.padded_elements);
    numbers.add(bucket.offset_bytes);
    numbers.add(static_cast<uint64_t>(bucket.slots.size()));
    for (const Slot& slot : bucket.slots) {
      numbers.add(static_cast<uint64_t>(slot.parameter));
      numbers.add(slot.offset);
      numbers.add(slot.elements);
    }
  }
  return numbers.value();
}

std::vector<size_t> reverse_registration_order(size_t count) {
  std::vector<size_t> order(count);
  std::iota(order.rbegin(), order.rend(), size_t{0});
  return order;
}

BucketPlan make_bucket_plan(const std::vector<PlannedParameter>& parameters,
                            const std::vector<size_t>& order, const BucketCaps& caps,
                            int world_size) {
  check_caps(caps);
  check_world_size(world_size);
  check_elements(parameters);
  check_order(order, parameters.size());
  BucketPlan plan{Packing(parameters, order, caps).run()};
  lay_out(plan, world_size);
  return plan;
}

}  // namespace farandole
