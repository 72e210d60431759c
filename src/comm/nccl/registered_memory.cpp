// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/registered_memory.h"

#include "farandole/error.h"

namespace farandole::comm::nccl {
namespace {

constexpr std::chrono::seconds kPatience{10};

size_t whole_pages(size_t bytes) {
  constexpr size_t kPage = NCCL_WIN_REQUIRED_ALIGNMENT;
  return (bytes + kPage - 1) / kPage * kPage;
}

}  // namespace

RegisteredMemory::RegisteredMemory(std::shared_ptr<Handle> handle, size_t bytes)
    : handle_(std::move(handle)), bytes_(bytes) {
  if (handle_->api().MemAlloc(&data_, whole_pages(bytes)) != ncclSuccess) data_ = nullptr;
}

RegisteredMemory::~RegisteredMemory() {
  if (data_ == nullptr || !fork_guard_.in_creator()) return;
  const NcclApi& api = handle_->api();
  try {
    if (window_ != nullptr) {
      handle_->run({"ncclCommWindowDeregister", kPatience},
                   [&](ncclComm_t comm) { return api.CommWindowDeregister(comm, window_); });
    }
    if (registration_ != nullptr) {
      handle_->run({"ncclCommDeregister", kPatience},
                   [&](ncclComm_t comm) { return api.CommDeregister(comm, registration_); });
    }
  } catch (const Error&) {
    // The communicator is over, and its registrations are with it.
  }
  api.MemFree(data_);
}

void RegisteredMemory::register_it(std::chrono::milliseconds timeout) {
  const NcclApi& api = handle_->api();
  const size_t bytes = whole_pages(bytes_);
  if (api.CommWindowRegister != nullptr && api.CommWindowDeregister != nullptr) {
    handle_->run({"ncclCommWindowRegister", timeout}, [&](ncclComm_t comm) {
      return api.CommWindowRegister(comm, data_, bytes, &window_, NCCL_WIN_COLL_SYMMETRIC);
    });
    return;
  }
  handle_->run({"ncclCommRegister", timeout}, [&](ncclComm_t comm) {
    return api.CommRegister(comm, data_, bytes, &registration_);
  });
}

}  // namespace farandole::comm::nccl
