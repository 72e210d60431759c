// SPDX-License-Identifier: Apache-2.0
// Farandole's kernels for accelerators on simulated devices: every thread of every block runs what
// it would on a GPU, one after the other.
#include "optim/device/kernels.h"

#include <torch/library.h>

#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/simulated_device/device.h"
#include "support/simulated_device/memory.h"
#include "support/simulated_device/race_detector.h"
#include "support/simulated_device/stream.h"
#include "support/simulated_device/torch/device_guard.h"

namespace farandole::sim {
namespace {

using ThreadSums = std::array<std::array<double, kKernelThreads>, kKernelSums>;

/// As update_kernels.cu adds them up.
void add_up(ThreadSums& sums, double* to) {
  for (size_t sum = 0; sum < kKernelSums; ++sum) {
    for (size_t half = kKernelThreads / 2; half > 0; half /= 2) {
      for (size_t thread = 0; thread < half; ++thread) {
        sums[sum][thread] += sums[sum][thread + half];
      }
    }
    to[sum] = sums[sum][0];
  }
}

/// A block of threads, each of which has sums.
template <class Function>
void run_summing(const Function& of_thread, double* to) {
  ThreadSums sums;
  for (int thread = 0; thread < kKernelThreads; ++thread) {
    double own[kKernelSums] = {};
    of_thread(thread, own);
    for (size_t sum = 0; sum < kKernelSums; ++sum)
      sums[sum][static_cast<size_t>(thread)] = own[sum];
  }
  add_up(sums, to);
}

/// What the kernel does in block `block`, given its arguments.
using Body = std::function<void(const void* arguments, int block)>;

template <class Formula>
void update_block(const void* arguments, int block) {
  for (int thread = 0; thread < kKernelThreads; ++thread) {
    update_elements(*static_cast<const KernelArguments<Formula>*>(arguments), block, thread);
  }
}

template <class Formula>
void measure_block(const void* raw, int block) {
  const auto& arguments = *static_cast<const KernelArguments<Formula>*>(raw);
  run_summing([&](int thread, double* sums) { measure_elements(arguments, block, thread, sums); },
              arguments.table.partial_sums + static_cast<size_t>(block) * kKernelSums);
}

void add_block(const void* raw, int piece) {
  const auto& table = *static_cast<const KernelTable*>(raw);
  run_summing([&](int thread, double* sums) { add_partial_sums(table, piece, thread, sums); },
              table.piece[piece].sums);
}

struct Kernel {
  Body body;
  size_t table;  ///< bytes before it in the arguments
  enum Kind { kUpdate, kMeasure, kAdd } kind;
};

const std::map<std::string, Kernel>& kernels() {
#define FARANDOLE_UPDATE(Rule, Type)                                                          \
  {"farandole_update_" #Rule "_" #Type,                                                       \
   {update_block<Rule##Formula<Type>>, offsetof(KernelArguments<Rule##Formula<Type>>, table), \
    Kernel::kUpdate}},
#define FARANDOLE_MEASURE(Rule, Type)                                                          \
  {"farandole_measure_" #Rule "_" #Type,                                                       \
   {measure_block<Rule##Formula<Type>>, offsetof(KernelArguments<Rule##Formula<Type>>, table), \
    Kernel::kMeasure}},
  static const std::map<std::string, Kernel> all{
      FARANDOLE_UPDATE_KERNELS(FARANDOLE_UPDATE) FARANDOLE_MEASURE_KERNELS(FARANDOLE_MEASURE)  //
      {"farandole_add_sums", {add_block, 0, Kernel::kAdd}}};
  return all;
}

size_t size_of_number(comm::DataType dtype) {
  if (dtype == comm::DataType::kFloat64) return 8;
  return is_half(dtype) ? 2 : 4;
}

/// All that the kernel touches.
std::vector<Access> accesses_of(const KernelTable& table, Kernel::Kind kind) {
  std::vector<Access> accesses;
  const auto touch = [&](const void* memory, size_t bytes, bool writes) {
    if (memory != nullptr && bytes > 0) accesses.push_back({memory, bytes, writes});
  };
  const auto blocks = static_cast<size_t>(table.first_block[table.pieces]);
  touch(table.partial_sums, blocks * kKernelSums * sizeof(double), kind == Kernel::kMeasure);
  for (int i = 0; i < table.pieces; ++i) {
    const KernelPiece& piece = table.piece[i];
    touch(piece.sums, kKernelSums * sizeof(double), kind == Kernel::kAdd);
    if (kind == Kernel::kAdd) continue;
    const auto elements = static_cast<size_t>(piece.elements);
    const bool updates = kind == Kernel::kUpdate;
    touch(piece.parameter, elements * size_of_number(table.parameter_dtype), updates);
    touch(piece.gradient, elements * size_of_number(table.gradient_dtype), false);
    touch(piece.master, elements * sizeof(float), updates);
    const size_t state_bytes = table.parameter_dtype == comm::DataType::kFloat64 ? 8 : 4;
    for (size_t state = 0; state < table.states; ++state) {
      touch(piece.states[state], elements * state_bytes, true);
    }
  }
  for (int i = 0; kind != Kernel::kAdd && i < table.changes; ++i) {
    touch(table.change[i].factor, sizeof(double), false);
  }
  return accesses;
}

/// Makes addresses of devices those of their bytes, for the body.
void follow_addresses(KernelTable& table) {
  table.partial_sums = bytes_of(table.partial_sums);
  for (int i = 0; i < table.changes; ++i) table.change[i].factor = bytes_of(table.change[i].factor);
  for (int i = 0; i < table.pieces; ++i) {
    KernelPiece& piece = table.piece[i];
    piece.parameter = bytes_of(piece.parameter);
    piece.gradient = bytes_of(piece.gradient);
    piece.master = bytes_of(piece.master);
    piece.sums = bytes_of(piece.sums);
    for (void*& state : piece.states) state = bytes_of(state);
  }
}

void launch_kernel(const std::string& name, int64_t arguments, int64_t bytes, int64_t blocks) {
  const Kernel& kernel = kernels().at(name);
  // Copied, into memory that is aligned for it.
  const auto count = (static_cast<size_t>(bytes) + sizeof(double) - 1) / sizeof(double);
  const std::shared_ptr<double[]> copy(new double[count]);
  std::memcpy(copy.get(), reinterpret_cast<const void*>(arguments), static_cast<size_t>(bytes));
  auto& table =
      *reinterpret_cast<KernelTable*>(reinterpret_cast<std::byte*>(copy.get()) + kernel.table);
  const auto accesses = accesses_of(table, kernel.kind);
  follow_addresses(table);
  current_stream(static_cast<c10::DeviceIndex>(current_device()))
      .launch(name, accesses, [copy, blocks, body = kernel.body] {
        for (int block = 0; block < static_cast<int>(blocks); ++block) body(copy.get(), block);
      });
}

TORCH_LIBRARY_IMPL(farandole, PrivateUse1, m) { m.impl("launch_kernel", launch_kernel); }

}  // namespace
}  // namespace farandole::sim
