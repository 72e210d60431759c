// SPDX-License-Identifier: Apache-2.0
#include "farandole/ddp/replica_group.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "farandole/error.h"
#include "log.h"
#include "process_group/message_device.h"
#include "process_group/torch_compat.h"

namespace farandole {
namespace {

/// Bytes at which a message of several tensors is full.
constexpr size_t kMessageBytes = size_t{64} << 20;

/// Tensors that travel together: those of one dtype and device, in their order.
std::vector<std::vector<at::Tensor>> messages_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::vector<at::Tensor>> messages;
  std::map<std::pair<at::ScalarType, std::string>, std::pair<size_t, size_t>> open;  // index, bytes
  for (const at::Tensor& tensor : tensors) {
    const auto kind = std::make_pair(tensor.scalar_type(), tensor.device().str());
    const auto found = open.try_emplace(kind, messages.size(), 0).first;
    auto& [index, bytes] = found->second;
    if (index == messages.size()) messages.emplace_back();
    messages[index].push_back(tensor);
    bytes += tensor.nbytes();
    if (bytes >= kMessageBytes) open.erase(found);
  }
  return messages;
}

/// Gives `group` the backends that `other` has for devices other than the CPU, and `own` in place
/// of ours.
void adopt_other_devices(c10d::ProcessGroup& group,
                         const c10::intrusive_ptr<ProcessGroupFarandole>& own,
                         c10d::ProcessGroup& other) {
  using Type = c10d::ProcessGroup::BackendType;
  group.setBoundDeviceId(other.getBoundDeviceId());  // which c10d passes on to backends
  for (const c10::Device& each : other.getDeviceTypes()) {
    const c10::DeviceType device = each.type();
    if (device == c10::DeviceType::CPU) continue;
    const c10::intrusive_ptr<c10d::Backend> backend = other.getBackend(device);
    if (dynamic_cast<ProcessGroupFarandole*>(backend.get()) != nullptr) {
      group.setBackend(device, Type::CUSTOM, own);
      continue;
    }
    // c10d keeps one backend a type, and ours is the custom one.
    const Type type = c10d::ProcessGroup::strToBackendType(backend->getBackendName());
    group.setBackend(device, type == Type::CUSTOM ? Type::UNDEFINED : type, backend);
  }
}

/// A group object around our backend for tensors of the CPU, unknown to the registry of groups.
Group wrap(const c10::intrusive_ptr<ProcessGroupFarandole>& backend) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(backend->getRank(), backend->getSize());
  constexpr auto kCustom = c10d::ProcessGroup::BackendType::CUSTOM;
  group->setDefaultBackend(kCustom);
  group->setBackend(c10::DeviceType::CPU, kCustom, backend);
  return group;
}

}  // namespace

ReplicaGroup::ReplicaGroup(const Group& group, const std::string& purpose)
    : of_program_(group ? group : default_group()),
      group_(of_program_),
      rank_(of_program_->getRank()),
      world_size_(of_program_->getSize()),
      name_(of_program_->getGroupDesc()),
      device_(message_device(*of_program_)) {
  const auto backend = ProcessGroupFarandole::of(*of_program_);
  if (!backend) return;
  own_ = backend->duplicate(purpose);
  name_ = own_->name();
  group_ = wrap(own_);
  adopt_other_devices(*group_, own_, *of_program_);
}

ReplicaGroup::ReplicaGroup(const Group& of_program, c10::intrusive_ptr<ProcessGroupFarandole> own)
    : of_program_(of_program),
      own_(std::move(own)),
      group_(wrap(own_)),
      rank_(own_->getRank()),
      world_size_(own_->getSize()),
      name_(own_->name()),
      device_(at::kCPU) {}

std::shared_ptr<ReplicaGroup> ReplicaGroup::of_host(const ReplicaGroup& all,
                                                    const std::string& purpose) {
  if (!all.own_) return nullptr;
  return std::shared_ptr<ReplicaGroup>(
      new ReplicaGroup(all.of_program_, all.own_->duplicate_on_host(purpose)));
}

const std::vector<int>& ReplicaGroup::host_of_rank() const {
  static const std::vector<int> kUnknown;
  return own_ ? own_->topology().host_of_rank : kUnknown;
}

std::shared_ptr<comm::Communicator> ReplicaGroup::shared_communicator() const {
  auto communicator = own_ ? own_->communicator(c10::DeviceType::CPU) : nullptr;
  return communicator && communicator->shared_memory() ? communicator : nullptr;
}

void ReplicaGroup::check_alive() const {
  const auto communicator = own_ ? own_->communicator(c10::DeviceType::CPU) : nullptr;
  if (communicator) communicator->check_alive();
}

std::shared_ptr<comm::SharedMemory> ReplicaGroup::shared_memory() const {
  const auto communicator = shared_communicator();
  return {communicator, communicator ? communicator->shared_memory() : nullptr};
}

at::Tensor ReplicaGroup::zeros(int64_t bytes, at::Device device) const {
  const at::TensorOptions options = at::TensorOptions(device).dtype(at::kByte);
  const auto ours = ProcessGroupFarandole::of(*group_, device.type());
  if (!ours) return at::zeros({bytes}, options);
  try {
    return ours->allocateTensor(bytes, options).zero_();
  } catch (const SystemError& error) {  // on all ranks
    log(LogLevel::kInfo,
        std::string("buckets are in memory that NCCL has not registered: ") + error.what());
    return at::zeros({bytes}, options);
  }
}

void ReplicaGroup::broadcast(const std::vector<at::Tensor>& tensors, int root) const {
  if (world_size_ == 1) return;
  const c10::NoGradGuard no_grad;
  for (const auto& together : messages_of(tensors)) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& tensor : together) flat.push_back(tensor.reshape({-1}));
    const at::Tensor message = at::cat(flat);
    send(message, root);
    if (rank_ == root) continue;
    int64_t begin = 0;
    for (const at::Tensor& tensor : together) {
      tensor.copy_(message.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
      begin += tensor.numel();
    }
  }
}

/// One broadcast; the next one is not under way before it has gone well, so that ranks which differ
/// in one are in step again after the error.
void ReplicaGroup::send(const at::Tensor& message, int root) const {
  std::vector<at::Tensor> tensors{message};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  options.asyncOp = false;
  const auto work = group_->broadcast(tensors, options);
  if (work) work->wait();
}

std::vector<int64_t> ReplicaGroup::broadcast(std::vector<int64_t> numbers, int root) const {
  if (numbers.empty() || world_size_ == 1) return numbers;
  const size_t bytes = numbers.size() * sizeof(int64_t);
  const at::Tensor sent = message(numbers.data(), bytes);
  send(sent, root);
  const at::Tensor received = sent.cpu();
  std::memcpy(numbers.data(), received.const_data_ptr(), bytes);
  return numbers;
}

std::chrono::milliseconds ReplicaGroup::timeout() const {
  try {
    return of_program_->getBackend(device_.type())->getBackendOptions()->timeout;
  } catch (const c10::Error&) {  // a backend that does not tell
    return kBackendDefaultTimeout;
  }
}

bool ReplicaGroup::has_uncompared(c10::DeviceType type) const {
  if (type == c10::DeviceType::CPU || !own_) return false;
  const auto of_program = ProcessGroupFarandole::of(*of_program_, type);
  return own_->communicator(type) || (of_program && of_program->communicator(type));
}

uint64_t ReplicaGroup::started_by_program() const {
  try {
    return of_program_->getBackend(device_.type())->getSequenceNumberForGroup();
  } catch (const c10::Error&) {
    return 0;
  }
}

std::vector<std::byte> ReplicaGroup::all_gather(
    const std::vector<std::byte>& bytes, std::optional<std::chrono::milliseconds> timeout) const {
  if (world_size_ == 1 || bytes.empty()) return bytes;
  const at::Tensor received = gather(message(bytes.data(), bytes.size()), timeout);
  const auto* first = static_cast<const std::byte*>(received.const_data_ptr());
  return {first, first + received.numel()};
}

/// On all ranks, in host memory.
at::Tensor ReplicaGroup::gather(const at::Tensor& own,
                                std::optional<std::chrono::milliseconds> timeout) const {
  at::Tensor input = own;
  at::Tensor output = at::empty({world_size_ * input.numel()}, input.options());
  c10d::AllgatherOptions options;
  options.asyncOp = false;
  if (timeout) options.timeout = *timeout;
  const auto work = all_gather_single(*group_, output, input, options);
  if (work) work->wait();
  return output.cpu();
}

std::vector<double> ReplicaGroup::all_gather(const std::vector<double>& numbers) const {
  if (world_size_ == 1 || numbers.empty()) return numbers;
  std::vector<double> all(numbers.size() * static_cast<size_t>(world_size_));
  if (const auto communicator = shared_communicator()) {
    communicator->all_gather(numbers.data(), all.data(), numbers.size(), comm::DataType::kFloat64);
    return all;
  }
  const at::Tensor received = gather(at::tensor(numbers, at::kDouble).to(device_), {});
  std::memcpy(all.data(), received.const_data_ptr(), all.size() * sizeof(double));
  return all;
}

void ReplicaGroup::exchange(const void* own, void* all, size_t bytes) const {
  if (const auto communicator = shared_communicator()) {
    communicator->all_gather(own, all, bytes, comm::DataType::kUInt8);
    return;
  }
  const auto* first = static_cast<const std::byte*>(own);
  const std::vector<std::byte> received = all_gather(std::vector<std::byte>(first, first + bytes));
  if (bytes != 0) std::memcpy(all, received.data(), received.size());
}

std::vector<uint64_t> ReplicaGroup::all_gather(uint64_t number) const {
  std::vector<std::byte> packed(sizeof(number));
  std::memcpy(packed.data(), &number, sizeof(number));
  const std::vector<std::byte> all = all_gather(packed);
  std::vector<uint64_t> numbers(static_cast<size_t>(world_size_));
  std::memcpy(numbers.data(), all.data(), all.size());
  return numbers;
}

std::vector<std::string> ReplicaGroup::all_gather(const std::string& text) const {
  if (world_size_ == 1) return {text};
  std::vector<uint64_t> sizes(static_cast<size_t>(world_size_));
  // Not as bytes: a rank that tells why it failed must not meet a number of another rank.
  const at::Tensor own = at::tensor({static_cast<int64_t>(text.size())}, at::kLong).to(device_);
  const at::Tensor received = gather(own, {});
  std::memcpy(sizes.data(), received.const_data_ptr(), sizes.size() * sizeof(uint64_t));
  const size_t longest = *std::max_element(sizes.begin(), sizes.end());
  if (longest == 0) return std::vector<std::string>(sizes.size());
  std::vector<std::byte> packed(longest);
  std::memcpy(packed.data(), text.data(), text.size());
  const std::vector<std::byte> all = all_gather(packed);
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < sizes.size(); ++rank) {
    const auto* begin = reinterpret_cast<const char*>(all.data()) + rank * longest;
    texts.emplace_back(begin, sizes[rank]);
  }
  return texts;
}

at::Tensor ReplicaGroup::message(const void* data, size_t bytes) const {
  at::Tensor tensor = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
  if (bytes != 0) std::memcpy(tensor.mutable_data_ptr(), data, bytes);
  return tensor.to(device_);
}

}  // namespace farandole
