// SPDX-License-Identifier: Apache-2.0
#include "support/conformance.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <tuple>

#include "support/all_pairs.h"
#include "support/pattern.h"
#include "support/ranks.h"

namespace farandole::test {
namespace {

using comm::CollectiveOptions;
using comm::Communicator;
using comm::DataType;
using comm::ReduceOp;
using Part = Operation::Part;
using InPlace = Operation::InPlace;
using Memory = Case::Memory;

size_t index_of(int rank) { return static_cast<size_t>(rank); }

size_t one_block(const Part& part) { return part.count; }
size_t block_for_each_rank(const Part& part) { return part.count * index_of(part.world_size); }
size_t blocks_on_the_root(const Part& part) {
  return part.rank == part.root ? block_for_each_rank(part) : 0;
}

/// Elements that `from` sends to `to` in all_to_all_v: all, half or a third of the count, another
/// number on the way back.
size_t uneven_block(const Part& part, int from, int to) {
  return part.count / index_of(1 + (2 * from + to) % 3);
}
/// Elements that `from` sends to all ranks before `to`.
size_t uneven_blocks(const Part& part, int from, int to) {
  size_t sum = 0;
  for (int peer = 0; peer < to; ++peer) sum += uneven_block(part, from, peer);
  return sum;
}

std::vector<Segment> whole_reduction(const Part& part) {
  return {{Segment::kReduction, 0, part.count}};
}

std::vector<Segment> every_rank_in_order(const Part& part) {
  std::vector<Segment> segments;
  for (int peer = 0; peer < part.world_size; ++peer) segments.push_back({peer, 0, part.count});
  return segments;
}

/// What all_to_all and all_to_all_v share: block `rank` of every peer, in rank order.
template <class BlockOffset, class BlockSize>
std::vector<Segment> own_block_of_every_rank(const Part& part, const BlockOffset& offset,
                                             const BlockSize& size) {
  std::vector<Segment> segments;
  for (int peer = 0; peer < part.world_size; ++peer) {
    segments.push_back({peer, offset(peer), size(peer)});
  }
  return segments;
}

void call_all_to_all_v(Communicator& group, const void* input, void* output, const Case& asked,
                       const CollectiveOptions& options) {
  const Part part{group.rank(), group.world_size(), asked.count, 0};
  std::vector<size_t> sends;
  std::vector<size_t> receives;
  for (int peer = 0; peer < part.world_size; ++peer) {
    sends.push_back(uneven_block(part, part.rank, peer));
    receives.push_back(uneven_block(part, peer, part.rank));
  }
  group.all_to_all_v(input, sends.data(), output, receives.data(), asked.dtype, options);
}

/// Everyone sends to the next rank and receives from the one before.
void call_send_and_receive(Communicator& group, const void* input, void* output, const Case& asked,
                           const CollectiveOptions& options) {
  const size_t bytes = asked.count * size_of(asked.dtype);
  const int world = group.world_size();
  const auto send = group.send(input, bytes, (group.rank() + 1) % world, 5, options);
  const auto receive = group.receive(output, bytes, (group.rank() + world - 1) % world, 5, options);
  send->wait({});
  receive->wait({});
}

constexpr std::byte kCanary{0xA5};
/// Bytes before and after each buffer that nobody may write.
constexpr size_t kGuardBytes = 64;

/// A buffer of one case, with untouched bytes around it.
class Guarded {
 public:
  Guarded(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {
    std::fill_n(data_ - kGuardBytes, bytes_ + 2 * kGuardBytes, kCanary);
  }
  std::byte* data() const { return data_; }
  bool intact() const {
    const auto untouched = [](const std::byte* begin) {
      return std::all_of(begin, begin + kGuardBytes, [](std::byte b) { return b == kCanary; });
    };
    return untouched(data_ - kGuardBytes) && untouched(data_ + bytes_);
  }

 private:
  std::byte* data_;
  size_t bytes_;
};

/// The output's first wrong element, "" if there is none.
std::string wrong_element(const std::byte* output, const std::vector<Segment>& segments,
                          const Case& asked, int world_size) {
  size_t done = 0;
  for (const Segment& segment : segments) {
    const Pattern expected = segment.source == Segment::kReduction
                                 ? Pattern::of_reduction(world_size, asked.dtype, asked.op)
                                 : Pattern::of_rank(segment.source, asked.dtype);
    const size_t first = expected.first_difference(output + done * size_of(asked.dtype),
                                                   segment.offset, segment.count);
    if (first != segment.count) return "output element " + std::to_string(done + first);
    done += segment.count;
  }
  return "";
}

std::string describe(const Operation& operation, const Case& asked, const Communicator& group) {
  constexpr std::array<const char*, 3> kMemories{"ordinary", "symmetric", "mixed"};
  std::ostringstream text;
  text << operation.name << " " << name_of(asked.dtype) << "[" << asked.count << "]";
  if (operation.reduces) text << " " << name_of(asked.op);
  if (operation.rooted) text << ", root " << asked.root;
  text << (asked.in_place ? ", in place in " : ", out of place in ")
       << kMemories[static_cast<size_t>(asked.memory)] << " memory, " << asked.shift
       << " bytes off a line, rank " << group.rank() << " of " << group.world_size();
  return text.str();
}

/// Counts at which something changes in a communicator: nothing, one, odd, inline data, the shards
/// and chunks of a slot, several chunks. Some are equal where elements are large or ranks few.
std::vector<size_t> counts_for(size_t element_bytes, int world_size, size_t slot_bytes) {
  constexpr size_t kInlineBytes = 24;
  const size_t in_line = kInlineBytes / element_bytes;
  const size_t slot = slot_bytes / element_bytes;
  const size_t part = slot / index_of(world_size);
  if (thin_matrix()) return {0, 1, in_line, 257, part + 1, slot - 1, 2 * slot + 5};
  return {0,    1,        3,        in_line, in_line + 1, 257,          1000,        4096,
          part, part + 1, slot - 1, slot,    slot + 1,    2 * slot + 5, 3 * part + 1};
}

/// Bytes of the largest buffer of any case.
size_t most_bytes(int world_size, size_t slot_bytes) {
  size_t most = 0;
  for (const DataType dtype : all_dtypes()) {
    for (const size_t count : counts_for(size_of(dtype), world_size, slot_bytes)) {
      most = std::max(most, count * size_of(dtype) * index_of(world_size));
    }
  }
  return most;
}

/// The parameters of the matrix, in the order of a Combination.
struct Parameters {
  const Operation& operation;
  int world_size;
  size_t slot_bytes;

  static constexpr size_t kShifts = 3;  ///< none, one element, one byte

  Case case_of(const Combination& row) const {
    Case result{};
    result.dtype = all_dtypes()[row[0]];
    result.op = all_reduce_ops()[row[1]];
    result.count = counts_for(size_of(result.dtype), world_size, slot_bytes)[row[2]];
    result.root = static_cast<int>(row[3]);
    result.in_place = row[4] != 0;
    result.memory = static_cast<Memory>(row[5]);
    result.shift = std::array<size_t, kShifts>{0, size_of(result.dtype), 1}[row[6]];
    return result;
  }

  std::vector<Combination> all() const {
    const size_t counts = counts_for(1, world_size, slot_bytes).size();
    const size_t roots = operation.rooted ? index_of(world_size) : 1;
    const size_t first_place = operation.in_place == InPlace::kAlways ? 1 : 0;
    const size_t last_place = operation.in_place == InPlace::kNever ? 0 : 1;
    std::vector<Combination> rows;
    for (size_t dtype = 0; dtype < all_dtypes().size(); ++dtype) {
      for (size_t op = 0; op < all_reduce_ops().size(); ++op) {
        const bool sensible =
            operation.reduces ? has_reduction(all_dtypes()[dtype], all_reduce_ops()[op]) : op == 0;
        if (!sensible) continue;
        for (size_t count = 0; count < counts; ++count) {
          for (size_t root = 0; root < roots; ++root) {
            for (size_t place = first_place; place <= last_place; ++place) {
              for (size_t memory = 0; memory < 3; ++memory) {
                for (size_t shift = 0; shift < kShifts; ++shift) {
                  rows.push_back({dtype, op, count, root, place, memory, shift});
                }
              }
            }
          }
        }
      }
    }
    return rows;
  }
};

}  // namespace

void PrintTo(const Operation& operation, std::ostream* out) { *out << operation.name; }

const std::vector<Operation>& operations() {
  static const std::vector<Operation> table{
      {"AllReduce", true, false, InPlace::kMay, one_block, whole_reduction,
       [](Communicator& group, const void* input, void* output, const Case& c,
          const CollectiveOptions& o) {
         group.all_reduce(input, output, c.count, c.dtype, c.op, o);
       }},
      {"ReduceScatter", true, false, InPlace::kMay, block_for_each_rank,
       [](const Part& part) -> std::vector<Segment> {
         return {{Segment::kReduction, index_of(part.rank) * part.count, part.count}};
       },
       [](Communicator& group, const void* input, void* output, const Case& c,
          const CollectiveOptions& o) {
         group.reduce_scatter(input, output, c.count, c.dtype, c.op, o);
       }},
      {"AllGather", false, false, InPlace::kMay, one_block, every_rank_in_order,
       [](Communicator& group, const void* input, void* output, const Case& c,
          const CollectiveOptions& o) { group.all_gather(input, output, c.count, c.dtype, o); }},
      {"Broadcast", false, true, InPlace::kAlways, one_block,
       [](const Part& part) -> std::vector<Segment> {
         return {{part.root, 0, part.count}};
       },
       [](Communicator& group, const void*, void* buffer, const Case& c,
          const CollectiveOptions& o) { group.broadcast(buffer, c.count, c.dtype, c.root, o); }},
      {"Reduce", true, true, InPlace::kMay, one_block,
       [](const Part& part) {
         return part.rank == part.root ? whole_reduction(part) : std::vector<Segment>{};
       },
       [](Communicator& group, const void* input, void* output, const Case& c,
          const CollectiveOptions& o) {
         group.reduce(input, output, c.count, c.dtype, c.op, c.root, o);
       }},
      {"Gather", false, true, InPlace::kMay, one_block,
       [](const Part& part) {
         return part.rank == part.root ? every_rank_in_order(part) : std::vector<Segment>{};
       },
       [](Communicator& group, const void* input, void* output, const Case& c,
          const CollectiveOptions& o) {
         group.gather(input, output, c.count, c.dtype, c.root, o);
       }},
      {"Scatter", false, true, InPlace::kMay, blocks_on_the_root,
       [](const Part& part) -> std::vector<Segment> {
         return {{part.root, index_of(part.rank) * part.count, part.count}};
       },
       [](Communicator& group, const void* input, void* output, const Case& c,
          const CollectiveOptions& o) {
         group.scatter(input, output, c.count, c.dtype, c.root, o);
       }},
      {"AllToAll", false, false, InPlace::kNever, block_for_each_rank,
       [](const Part& part) {
         return own_block_of_every_rank(
             part, [&](int) { return index_of(part.rank) * part.count; },
             [&](int) { return part.count; });
       },
       [](Communicator& group, const void* input, void* output, const Case& c,
          const CollectiveOptions& o) { group.all_to_all(input, output, c.count, c.dtype, o); }},
      {"AllToAllV", false, false, InPlace::kNever,
       [](const Part& part) { return uneven_blocks(part, part.rank, part.world_size); },
       [](const Part& part) {
         return own_block_of_every_rank(
             part, [&](int peer) { return uneven_blocks(part, peer, part.rank); },
             [&](int peer) { return uneven_block(part, peer, part.rank); });
       },
       call_all_to_all_v},
      {"SendAndReceive", false, false, InPlace::kNever, one_block,
       [](const Part& part) -> std::vector<Segment> {
         return {{(part.rank + part.world_size - 1) % part.world_size, 0, part.count}};
       },
       call_send_and_receive},
  };
  return table;
}

const std::vector<Case>& cases_of(const Operation& operation, int world_size, size_t slot_bytes,
                                  Selection selection) {
  static std::mutex mutex;  // ranks may be threads
  static std::map<std::tuple<std::string, int, size_t, Selection>, std::vector<Case>> known;
  const std::lock_guard lock(mutex);
  const auto [place, is_new] =
      known.try_emplace({operation.name, world_size, slot_bytes, selection});
  std::vector<Case>& cases = place->second;
  if (!is_new) return cases;
  const Parameters parameters{operation, world_size, slot_bytes};
  std::vector<Combination> rows = parameters.all();
  if (selection == Selection::kPairwise) rows = all_pairs(rows);
  for (const Combination& row : rows) cases.push_back(parameters.case_of(row));
  return cases;
}

CaseMemory::CaseMemory(Communicator& group, size_t slot_bytes)
    : half_bytes_(most_bytes(group.world_size(), slot_bytes) + 16 * kGuardBytes),
      ordinary_(2 * half_bytes_),
      symmetric_(group.shared_memory() == nullptr
                     ? nullptr
                     : group.shared_memory()->allocate_symmetric(2 * half_bytes_)) {}

std::byte* CaseMemory::half(const Case& instance, int rank, bool second) const {
  const bool symmetric = symmetric_ && (instance.memory == Memory::kSymmetric ||
                                        (instance.memory == Memory::kMixed && rank % 2 == 1));
  auto address = reinterpret_cast<uintptr_t>(symmetric ? symmetric_->local() : ordinary_.data());
  address += second ? half_bytes_ : 0;
  const uintptr_t aligned = (address + kGuardBytes - 1) / kGuardBytes * kGuardBytes;
  // Places in symmetric memory may differ from rank to rank.
  return reinterpret_cast<std::byte*>(aligned + kGuardBytes * (1 + index_of(rank)) +
                                      instance.shift);
}

std::string CaseMemory::run(Communicator& group, const Operation& operation, const Case& instance) {
  return run(group, operation, instance, [&](const void* input, void* output) {
    operation.call(group, input, output, instance, {});
  });
}

std::string CaseMemory::run(Communicator& group, const Operation& operation, const Case& instance,
                            const Call& call) {
  const int rank = group.rank();
  const Part part{rank, group.world_size(), instance.count, instance.root};
  const size_t size = size_of(instance.dtype);
  const size_t input_bytes = operation.input_elements(part) * size;
  const std::vector<Segment> segments = operation.output(part);
  size_t output_bytes = 0;
  for (const Segment& segment : segments) output_bytes += segment.count * size;

  // In place the smaller buffer is block `rank` of the larger, or the same.
  const bool in_place = instance.in_place && input_bytes != 0 && output_bytes != 0;
  const size_t own_block = index_of(rank) * instance.count * size;
  const Guarded first(half(instance, rank, false),
                      in_place ? std::max(input_bytes, output_bytes) : input_bytes);
  const Guarded second(half(instance, rank, true), in_place ? 0 : output_bytes);
  std::byte* input = first.data() + (in_place && input_bytes < output_bytes ? own_block : 0);
  std::byte* output =
      !in_place ? second.data() : first.data() + (output_bytes < input_bytes ? own_block : 0);

  const Pattern contribution = Pattern::of_rank(rank, instance.dtype);
  contribution.write(input, 0, input_bytes / size);
  call(input_bytes == 0 ? nullptr : input, output_bytes == 0 ? nullptr : output);
  std::string problem = wrong_element(output, segments, instance, group.world_size());
  if (problem.empty() && !(first.intact() && second.intact())) problem = "a byte beside a buffer";
  if (problem.empty() && !in_place &&
      contribution.first_difference(input, 0, input_bytes / size) != input_bytes / size) {
    problem = "the input, which was altered";
  }
  return problem.empty() ? "" : describe(operation, instance, group) + ": wrong is " + problem;
}

}  // namespace farandole::test
