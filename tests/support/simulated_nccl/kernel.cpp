// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_nccl/kernel.h"

#include <cstring>
#include <deque>

#include "support/simulated_device/memory.h"
#include "support/simulated_nccl/exchange.h"
#include "support/simulated_nccl/reduction.h"

namespace farandole::sim::nccl {
namespace {

/// One operation in a kernel. Addresses are those of bytes.
class Step {
 public:
  Step(const Operation& operation, Member member)
      : signature_(operation.signature),
        member_(member),
        peer_(operation.peer),
        bytes_(signature_.count * size_of(signature_.dtype)),
        send_(const_cast<char*>(bytes_of(operation.send))),
        receive_(bytes_of(operation.receive)) {
    if (operation.factor) apply(*operation.factor);
  }

  void add_messages(std::vector<Message>& messages) {
    if (signature_.function == Function::kSend) {
      messages.push_back({peer_, true, signature_, send_, bytes_});
    } else if (signature_.function == Function::kReceive) {
      messages.push_back({peer_, false, signature_, receive_, bytes_});
    } else {
      for (int peer = 0; peer < member_.world_size; ++peer) {
        if (peer == member_.rank) continue;
        messages.push_back({peer, true, signature_, to(peer), sent_to(peer)});
        messages.push_back({peer, false, signature_, from(peer), sent_by(peer)});
      }
    }
  }

  /// When all messages are there.
  void finish() {
    const bool is_root = member_.rank == signature_.root;
    switch (signature_.function) {
      case Function::kReduce:
        if (!is_root) return;
        [[fallthrough]];
      case Function::kAllReduce:
      case Function::kReduceScatter:
        return reduce_received();
      case Function::kAllGather:
        return copy(receive_ + block(member_.rank));
      case Function::kBroadcast:
        if (is_root) copy(receive_);
        return;
      case Function::kSend:
      case Function::kReceive:
        return;
    }
  }

 private:
  size_t block(int rank) const { return static_cast<size_t>(rank) * bytes_; }

  bool is_reduction() const { return signature_.op >= 0; }

  /// Each rank multiplies what it gives by a factor of its own.
  void apply(const Factor& factor) {
    const bool all = signature_.function == Function::kReduceScatter;
    const size_t blocks = all ? static_cast<size_t>(member_.world_size) : 1;
    scaled_.resize(blocks * bytes_);
    const char* value = factor.on_device == nullptr
                            ? factor.value
                            : static_cast<const char*>(bytes_of(factor.on_device));
    scale(send_, value, scaled_.data(), blocks * signature_.count, signature_.dtype);
    send_ = scaled_.data();
  }

  char* to(int peer) {
    return signature_.function == Function::kReduceScatter ? send_ + block(peer) : send_;
  }

  /// Where the bytes of `peer` go.
  char* from(int peer) {
    if (is_reduction()) return received_.emplace_back(sent_by(peer)).data();
    return signature_.function == Function::kAllGather ? receive_ + block(peer) : receive_;
  }

  size_t sent_to(int peer) const { return sent(member_.rank, peer); }
  size_t sent_by(int peer) const { return sent(peer, member_.rank); }
  size_t sent(int source, int destination) const {
    if (signature_.function == Function::kBroadcast && source != signature_.root) return 0;
    if (signature_.function == Function::kReduce && destination != signature_.root) return 0;
    return bytes_;
  }

  void copy(char* output) const {
    if (bytes_ > 0 && output != send_) std::memcpy(output, send_, bytes_);
  }

  void reduce_received() {
    std::vector<const char*> inputs;
    for (const std::vector<char>& each : received_) inputs.push_back(each.data());
    inputs.insert(inputs.begin() + member_.rank, to(member_.rank));
    const auto op = static_cast<ncclRedOp_t>(signature_.op);
    reduce(inputs, receive_, signature_.count, signature_.dtype, op);
  }

  const Signature signature_;
  const Member member_;
  const int peer_;
  const size_t bytes_;  ///< of one block
  char* send_;
  char* const receive_;
  std::vector<char> scaled_;
  std::deque<std::vector<char>> received_;  ///< to be reduced, from the other ranks in order
};

}  // namespace

void run_kernel(const std::vector<Operation>& operations, Member member, Region& region,
                const Until& until) {
  std::deque<Step> steps;
  std::vector<Message> messages;
  for (bool point_to_point : {false, true}) {
    for (const Operation& each : operations) {
      if (is_point_to_point(each.signature.function) != point_to_point) continue;
      steps.emplace_back(each, member).add_messages(messages);
    }
  }
  Exchange exchange(region, member, std::move(messages));
  until([&] { return exchange.advance(); });
  for (Step& each : steps) each.finish();
}

}  // namespace farandole::sim::nccl
