// SPDX-License-Identifier: Apache-2.0
// Every operation with every type and operator gives what a plain loop gives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "simulated_nccl/device_buffer.h"
#include "simulated_nccl/nccl_ranks.h"
#include "simulated_nccl/values.h"

namespace farandole::sim {
namespace {

constexpr int kPremultiplied = ncclNumOps;

/// Small integers, of which sums divide by the number of ranks or are a half more, and products
/// fit into every type.
double value_of(int rank, size_t i, int world_size) {
  return 1 + static_cast<double>(i % 2) +
         static_cast<double>((static_cast<size_t>(rank) + i) % static_cast<size_t>(world_size));
}

double combine(double a, double b, int op) {
  if (op == ncclProd) return a * b;
  if (op == ncclMin) return std::min(a, b);
  if (op == ncclMax) return std::max(a, b);
  return a + b;
}

double factor_of(int rank, int op) { return op == kPremultiplied ? rank + 1 : 1; }

double reduced(size_t i, int world_size, int op, ncclDataType_t dtype) {
  double result = value_of(0, i, world_size) * factor_of(0, op);
  for (int rank = 1; rank < world_size; ++rank) {
    result = combine(result, value_of(rank, i, world_size) * factor_of(rank, op), op);
  }
  if (op != ncclAvg) return result;
  return is_integer(dtype) ? std::floor(result / world_size) : result / world_size;
}

/// Launches operations one after the other, and compares their results at the end.
class EveryOperation {
 public:
  EveryOperation(const NcclRank& rank, bool blocking)
      : me_(rank), world_(static_cast<size_t>(rank.world_size)), comm_(rank.join(blocking)) {}

  void run(size_t count) {
    count_ = count;
    for (ncclDataType_t dtype : kEveryType) {
      dtype_ = dtype;
      for (int op = ncclSum; op <= kPremultiplied; ++op) reduce_with(op);
      all_gather();
      broadcast();
      pass_on();
    }
    for (const auto& each : checks_) each();
    checks_.clear();
  }

  void end() {
    expect_done(nccl().CommFinalize(comm_));
    EXPECT_EQ(nccl().CommDestroy(comm_), ncclSuccess);
  }

 private:
  using Buffer = std::shared_ptr<DeviceBuffer>;

  void reduce_with(int op) {
    auto made = static_cast<ncclRedOp_t>(op);
    if (op == kPremultiplied) {
      std::vector<char> factor = encode({factor_of(me_.rank, op)}, dtype_);
      factor.resize(8);
      EXPECT_EQ(
          nccl().RedOpCreatePreMulSum(&made, factor.data(), dtype_, ncclScalarHostImmediate, comm_),
          ncclSuccess);
    }
    all_reduce(op, made);
    reduce_scatter(op, made);
    reduce(op, made);
    if (op == kPremultiplied) {
      EXPECT_EQ(nccl().RedOpDestroy(made, comm_), ncclSuccess);
    }
  }

  void all_reduce(int op, ncclRedOp_t made) {
    const Buffer data = input(count_);
    expect_done(
        nccl().AllReduce(data->data(), data->data(), count_, dtype_, made, comm_, me_.handle()));
    expect("all_reduce", data, sequence(count_, [this, op](size_t i) { return result(i, op); }));
  }

  void reduce_scatter(int op, ncclRedOp_t made) {
    const Buffer in = input(count_ * world_);
    const Buffer out = output(count_);
    expect_done(
        nccl().ReduceScatter(in->data(), out->data(), count_, dtype_, made, comm_, me_.handle()));
    const size_t begin = static_cast<size_t>(me_.rank) * count_;
    expect("reduce_scatter", out,
           sequence(count_, [this, begin, op](size_t i) { return result(begin + i, op); }));
  }

  void reduce(int op, ncclRedOp_t made) {
    const int root = me_.world_size - 1;
    const Buffer in = input(count_);
    const Buffer out = me_.rank == root ? output(count_) : nullptr;
    expect_done(nccl().Reduce(in->data(), out ? out->data() : nullptr, count_, dtype_, made, root,
                              comm_, me_.handle()));
    if (out)
      expect("reduce", out, sequence(count_, [this, op](size_t i) { return result(i, op); }));
    keep(in);
  }

  void all_gather() {
    const Buffer in = input(count_);
    const Buffer out = output(count_ * world_);
    expect_done(nccl().AllGather(in->data(), out->data(), count_, dtype_, comm_, me_.handle()));
    expect("all_gather", out, sequence(count_ * world_, [this](size_t i) {
             return value_of(static_cast<int>(i / count_), i % count_, me_.world_size);
           }));
  }

  void broadcast() {
    const Buffer data = input(count_);
    expect_done(
        nccl().Broadcast(data->data(), data->data(), count_, dtype_, 0, comm_, me_.handle()));
    expect("broadcast", data,
           sequence(count_, [this](size_t i) { return value_of(0, i, me_.world_size); }));
  }

  /// Each rank sends to the next one; one rank to itself.
  void pass_on() {
    const int next = (me_.rank + 1) % me_.world_size;
    const int last = (me_.rank + me_.world_size - 1) % me_.world_size;
    const Buffer in = input(count_);
    const Buffer out = output(count_);
    EXPECT_EQ(nccl().GroupStart(), ncclSuccess);
    EXPECT_EQ(nccl().Send(in->data(), count_, dtype_, next, comm_, me_.handle()), ncclSuccess);
    EXPECT_EQ(nccl().Recv(out->data(), count_, dtype_, last, comm_, me_.handle()), ncclSuccess);
    expect_done(nccl().GroupEnd());
    expect("send", out,
           sequence(count_, [this, last](size_t i) { return value_of(last, i, me_.world_size); }));
  }

  double result(size_t i, int op) const { return reduced(i, me_.world_size, op, dtype_); }

  template <class F>
  static std::vector<double> sequence(size_t count, const F& at) {
    std::vector<double> values;
    for (size_t i = 0; i < count; ++i) values.push_back(at(i));
    return values;
  }

  Buffer input(size_t count) const {
    const auto mine = [this](size_t i) { return value_of(me_.rank, i, me_.world_size); };
    return std::make_shared<DeviceBuffer>(me_.stream, encode(sequence(count, mine), dtype_));
  }
  Buffer output(size_t count) const {
    const size_t bytes = encode({0}, dtype_).size() * count;
    return std::make_shared<DeviceBuffer>(me_.stream, bytes);
  }

  void keep(const Buffer& buffer) {
    checks_.emplace_back([buffer] {});
  }
  void expect(const char* operation, const Buffer& buffer, const std::vector<double>& values) {
    checks_.emplace_back([this, operation, buffer, values, dtype = dtype_] {
      EXPECT_TRUE(buffer->read() == encode(values, dtype))
          << operation << " of type " << dtype << ", rank " << me_.rank << " of " << me_.world_size;
    });
  }

  void expect_done(ncclResult_t returned) const {
    EXPECT_THAT(returned, ::testing::AnyOf(ncclSuccess, ncclInProgress))
        << nccl().GetLastError(comm_);
    EXPECT_EQ(NcclRank::settle(comm_), ncclSuccess) << nccl().GetLastError(comm_);
  }

  const NcclRank& me_;
  const size_t world_;
  const ncclComm_t comm_;
  size_t count_ = 0;
  ncclDataType_t dtype_ = ncclFloat32;
  std::vector<std::function<void()>> checks_;
};

class Operations : public NcclTest {};
INSTANTIATE_TEST_SUITE_P(, Operations, kEverySchedule, ::testing::PrintToStringParamName());

TEST_P(Operations, GiveWhatALoopGivesOnThreads) {
  for (int world_size = 1; world_size <= 4; ++world_size) {
    on_threads(world_size, [](const NcclRank& rank) {
      EveryOperation operations(rank, /*blocking=*/true);
      operations.run(7);
      operations.end();
    });
  }
}

TEST_P(Operations, GiveWhatALoopGivesOnProcesses) {
  for (int world_size = 1; world_size <= 4; ++world_size) {
    on_processes(world_size, [](const NcclRank& rank) {
      EveryOperation operations(rank, /*blocking=*/true);
      operations.run(7);
      operations.end();
    });
  }
}

TEST_P(Operations, MoveMoreThanFitsInBetween) {
  on_threads(2, [](const NcclRank& rank) {
    EveryOperation operations(rank, /*blocking=*/true);
    operations.run(5001);
    operations.run(0);
    operations.end();
  });
}

TEST_P(Operations, DoNotBlock) {
  on_threads(2, [](const NcclRank& rank) {
    EveryOperation operations(rank, /*blocking=*/false);
    operations.run(7);
    operations.end();
  });
}

TEST_P(Operations, SumTwoByteFloatsInFloat32) {
  for (const auto& [dtype, large] :
       {std::make_pair(ncclFloat16, 2048.0), std::make_pair(ncclBfloat16, 256.0)}) {
    on_threads(3, [dtype = dtype, large = large](const NcclRank& rank) {
      const ncclComm_t comm = rank.join();
      DeviceBuffer data(rank.stream, encode({rank.rank == 0 ? large : 1.0}, dtype));
      EXPECT_EQ(nccl().AllReduce(data.data(), data.data(), 1, dtype, ncclSum, comm, rank.handle()),
                ncclSuccess);
      EXPECT_EQ(data.read(), encode({large + 2}, dtype));
      EXPECT_EQ(nccl().CommDestroy(comm), ncclSuccess);
    });
  }
}

TEST_P(Operations, MultiplyByAFactorOnTheDevice) {
  on_threads(2, [](const NcclRank& rank) {
    const ncclComm_t comm = rank.join();
    DeviceBuffer factor(rank.stream, encode({0.5}, ncclFloat32));
    DeviceBuffer data(rank.stream, encode({6}, ncclFloat32));
    ncclRedOp_t op;
    EXPECT_EQ(nccl().RedOpCreatePreMulSum(&op, factor.data(), ncclFloat32, ncclScalarDevice, comm),
              ncclSuccess);
    EXPECT_EQ(nccl().AllReduce(data.data(), data.data(), 1, ncclFloat32, op, comm, rank.handle()),
              ncclSuccess);
    EXPECT_EQ(nccl().RedOpDestroy(op, comm), ncclSuccess);
    EXPECT_EQ(data.read(), encode({6}, ncclFloat32));
    EXPECT_EQ(nccl().CommDestroy(comm), ncclSuccess);
  });
}

}  // namespace
}  // namespace farandole::sim
