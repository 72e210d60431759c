// SPDX-License-Identifier: Apache-2.0
// Collectives, sends, receives, groups and reduction operators of nccl.h.
#include <cstring>
#include <string>

#include "support/simulated_device/device.h"
#include "support/simulated_device/memory.h"
#include "support/simulated_nccl/api.h"
#include "support/simulated_nccl/group.h"
#include "support/simulated_nccl/misuse.h"
#include "support/simulated_nccl/reduction.h"

namespace farandole::sim::nccl {
namespace {

void check(bool good, const Communicator& communicator, const Signature& signature,
           const std::string& why) {
  if (good) return;
  throw Misuse(ncclInvalidArgument, communicator.name() + " gives a wrong argument to " +
                                        name_of(signature.function) + ".\nwhy: " + why +
                                        ".\nfix: see this function in nccl.h.");
}

/// What a caller of an operation gives.
struct Arguments {
  Function function;
  const void* send;
  void* receive;
  size_t count;
  ncclDataType_t dtype;
  ncclComm_t handle;
  cudaStream_t stream;
  std::optional<ncclRedOp_t> op = std::nullopt;
  std::optional<int> root = std::nullopt;
  std::optional<int> peer = std::nullopt;
};

Operation operation_of(const Arguments& given, Communicator& communicator) {
  Operation operation;
  operation.signature = {
      given.function,          given.dtype, given.op ? static_cast<int32_t>(*given.op) : -1,
      given.root.value_or(-1), given.count, communicator.next_call()};
  operation.send = static_cast<const char*>(given.send);
  operation.receive = static_cast<char*>(given.receive);
  operation.peer = given.peer.value_or(-1);
  operation.stream = given.stream == nullptr ? &stream(current_device(), 0)
                                             : reinterpret_cast<Stream*>(given.stream);
  return operation;
}

void check_arguments(const Arguments& given, const Operation& operation,
                     const Communicator& communicator) {
  const Signature& signature = operation.signature;
  const int device = communicator.identity().device;
  for (const std::optional<int>& rank : {given.root, given.peer}) {
    check(!rank || (*rank >= 0 && *rank < communicator.world_size()), communicator, signature,
          "there is no such rank");
  }
  check(size_of(signature.dtype) != 0, communicator, signature, "the data type is not simulated");
  check(operation.stream->device() == device, communicator, signature,
        "the stream is of another device than the communicator");
  for (const Access& each : accesses_of(operation, communicator.identity().member)) {
    check(device_of(each.data) == device, communicator, signature,
          "a buffer is not memory of the communicator's device");
  }
  check_overlap(operation, communicator.identity().member);
}

ncclResult_t operate(const Arguments& given) {
  const auto body = [&](Communicator& communicator, const std::optional<Injection>& injection) {
    Operation operation = operation_of(given, communicator);
    operation.injection = injection;
    check_arguments(given, operation, communicator);
    if (given.op && *given.op >= ncclNumOps) {
      operation.factor = communicator.factor_of(*given.op, given.dtype);
    }
    return submit(given.handle, communicator, operation);
  };
  return note_in_group(call(name_of(given.function), given.handle, body));
}

}  // namespace
}  // namespace farandole::sim::nccl

using namespace farandole::sim::nccl;  // NOLINT: the functions below are global

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t dtype,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return operate({Function::kAllReduce, send, receive, count, dtype, comm, stream, op});
}

ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t dtype,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return operate({Function::kReduce, send, receive, count, dtype, comm, stream, op, root});
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t dtype,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return operate({Function::kReduceScatter, send, receive, count, dtype, comm, stream, op});
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t dtype,
                           ncclComm_t comm, cudaStream_t stream) {
  return operate({Function::kAllGather, send, receive, count, dtype, comm, stream});
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t dtype,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return operate(
      {Function::kBroadcast, send, receive, count, dtype, comm, stream, std::nullopt, root});
}

ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t dtype, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return operate({Function::kSend, send, nullptr, count, dtype, comm, stream, std::nullopt,
                  std::nullopt, peer});
}

ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return operate({Function::kReceive, nullptr, receive, count, dtype, comm, stream, std::nullopt,
                  std::nullopt, peer});
}

ncclResult_t ncclGroupStart() {
  start_group();
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  const auto injection = injected("ncclGroupEnd", farandole::sim::current_device());
  if (injection) note_in_group(injection->result);
  return guarded(end_group);
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t dtype,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  return call(__func__, comm, [&](Communicator& communicator, const auto&) {
    Factor factor;
    if (residence == ncclScalarDevice) {
      factor.on_device = scalar;
    } else {
      std::memcpy(factor.value, scalar, size_of(dtype));
    }
    *op = communicator.add_operator(dtype, factor);
    return ncclSuccess;
  });
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  return call(__func__, comm, [&](Communicator& communicator, const auto&) {
    communicator.remove_operator(op);
    return ncclSuccess;
  });
}
