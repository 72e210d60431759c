// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_device/seeded_fault.h"

#include <atomic>

namespace farandole::sim {
namespace {

std::atomic<uint64_t> waits{0};
std::atomic<uint64_t> left_out{UINT64_MAX};

}  // namespace

uint64_t stream_waits() { return waits.load(); }

void leave_out_wait_after(uint64_t others) { left_out = waits.load() + others; }

bool leaves_out_this_wait() { return waits.fetch_add(1) == left_out.load(); }

}  // namespace farandole::sim
