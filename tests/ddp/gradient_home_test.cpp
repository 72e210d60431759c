// SPDX-License-Identifier: Apache-2.0
#include "ddp/gradient_home.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <memory>
#include <vector>

#include "ddp/training.h"

namespace farandole::test {
namespace {

using torch::nn::Linear;
using torch::nn::Sequential;

constexpr int64_t kColumns = 64;  // weights of 16 KiB, which are computed in their slots

/// Memory as ranks share it.
at::Tensor shared_memory(int64_t elements) {
  const size_t bytes = static_cast<size_t>(elements) * sizeof(float);
  void* const data =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  TORCH_CHECK(data != MAP_FAILED);
  return at::from_blob(
      data, {elements}, [bytes](void* each) { ::munmap(each, bytes); }, at::kFloat);
}

/// A net whose gradients live in one piece of memory, beside a plain one.
struct Trained {
  static Sequential net_of_integers() {
    Sequential made(Linear(kColumns, kColumns), Linear(kColumns, 1));
    fill_with_integers(*made);
    return made;
  }

  Sequential net = net_of_integers();
  Sequential plain = net_of_integers();
  std::vector<at::Tensor> parameters = net->parameters();
  std::shared_ptr<GradientHome> home = GradientHome::make(parameters);
  at::Tensor memory = shared_memory(elements());

  int64_t elements() const {
    int64_t sum = 0;
    for (const at::Tensor& each : parameters) sum += each.numel();
    return sum;
  }
  void backward(int64_t rows, int64_t seed) {
    const at::Tensor batch = integers({rows, kColumns}, seed);
    net->forward(batch).sum().backward();
    plain->forward(batch).sum().backward();
  }
  void clear() {
    zero_gradients(parameters);
    zero_gradients(plain->parameters());
  }
  void expect_gradients_in(const at::Tensor& place) const {
    int64_t offset = 0;
    for (const at::Tensor& each : parameters) {
      EXPECT_TRUE(shares_memory(each.grad(), place.slice(0, offset, offset + each.numel())));
      offset += each.numel();
    }
  }
  void expect_as_plain() const {
    expect_gradients(parameters, gradients_of(plain->parameters()), "");
  }
};

TEST(GradientHome, HasNoMemoryAtFirst) {
  Trained trained;
  trained.backward(2, 1);
  EXPECT_FALSE(trained.home->gather(0).defined());
  trained.expect_as_plain();
}

TEST(GradientHome, GathersEachStepWhateverTheBatch) {
  Trained trained;
  trained.home->assign(0, trained.memory);
  for (int64_t step = 0; step < 6; ++step) {
    trained.backward(1 + step % 3, step);
    const at::Tensor gathered = trained.home->gather(0);
    ASSERT_TRUE(gathered.defined());
    EXPECT_EQ(gathered.data_ptr(), trained.memory.data_ptr());
    trained.expect_gradients_in(trained.memory);
    trained.expect_as_plain();
    if (step % 2 == 0) trained.clear();  // else gradients add up
  }
}

TEST(GradientHome, AddsPassesUp) {
  Trained trained;
  trained.home->assign(0, trained.memory);
  for (int step = 0; step < 3; ++step) {
    trained.clear();
    trained.backward(2, step);
    trained.backward(3, 10 + step);
    ASSERT_TRUE(trained.home->gather(0).defined());
    trained.expect_as_plain();
  }
}

TEST(GradientHome, KeepsWhatTheProgramKeeps) {
  Trained trained;
  trained.home->assign(0, trained.memory);
  std::vector<at::Tensor> kept;
  std::vector<at::Tensor> expected;
  for (int step = 0; step < 4; ++step) {
    trained.clear();
    trained.backward(2, step);
    ASSERT_TRUE(trained.home->gather(0).defined());
    kept.push_back(trained.parameters[0].grad());
    expected.push_back(trained.plain->parameters()[0].grad());
  }
  for (size_t step = 0; step < kept.size(); ++step) {
    EXPECT_TRUE(at::equal(kept[step], expected[step])) << "of step " << step;
  }
}

TEST(GradientHome, TakesInGradientsThatTheProgramSets) {
  Trained trained;
  trained.home->assign(0, trained.memory);
  trained.backward(2, 1);
  for (const at::Tensor& each : trained.parameters) {
    each.mutable_grad() = at::empty_like(each.detach()).fill_(5);
  }
  ASSERT_TRUE(trained.home->gather(0).defined());
  trained.expect_gradients_in(trained.memory);
  EXPECT_EQ(trained.memory.sum().item<float>(), 5.0F * static_cast<float>(trained.elements()));
}

TEST(GradientHome, PutsBackWhatTheProgramHasReplaced) {
  Trained trained;
  trained.home->assign(0, trained.memory);
  trained.backward(2, 1);
  ASSERT_TRUE(trained.home->gather(0).defined());
  trained.parameters[0].mutable_grad() = trained.parameters[0].grad().clone();
  trained.parameters[1].mutable_grad() = at::Tensor();
  trained.home->settle(0);
  trained.expect_gradients_in(trained.memory);
  trained.expect_as_plain();
}

TEST(GradientHome, MovesNothingWhereAGradientIsMissing) {
  Trained trained;
  trained.home->assign(0, trained.memory);
  trained.backward(2, 1);
  trained.parameters[1].mutable_grad() = at::Tensor();
  EXPECT_FALSE(trained.home->gather(0).defined());
}

TEST(GradientHome, MovesNothingWhereAParameterWasFrozen) {
  Trained trained;
  trained.home->assign(0, trained.memory);
  trained.backward(2, 1);
  trained.parameters[1].set_requires_grad(false);
  EXPECT_FALSE(trained.home->gather(0).defined());
}

TEST(GradientHome, HasSeveralRooms) {
  Trained trained;
  const int64_t first = trained.parameters[0].numel() + trained.parameters[1].numel();
  const at::Tensor behind = shared_memory(trained.elements() - first);
  const at::Tensor front = shared_memory(first);
  trained.home->assign(2, behind);
  for (int step = 0; step < 3; ++step) {
    trained.clear();
    trained.backward(2, step);
    EXPECT_EQ(trained.home->gather(0).defined(), step > 0);
    ASSERT_TRUE(trained.home->gather(2).defined());
    const at::Tensor& gradient = trained.parameters[2].grad();
    EXPECT_TRUE(shares_memory(gradient, behind.slice(0, 0, gradient.numel())));
    trained.expect_as_plain();
    if (step == 0) trained.home->assign(0, front);
  }
}

TEST(GradientHome, AGraphOfItsOwnStaysWhereItIs) {
  Trained trained;
  trained.home->assign(0, trained.memory);
  const at::Tensor loss = trained.net->forward(integers({2, kColumns}, 1)).pow(2).sum();
  loss.backward({}, /*retain_graph=*/true, /*create_graph=*/true);
  EXPECT_TRUE(trained.parameters[0].grad().requires_grad());
  EXPECT_FALSE(trained.home->gather(0).defined());
  zero_gradients(trained.parameters);  // they would keep themselves alive
}

TEST(GradientHome, LeavesValidGradientsBehind) {
  Trained trained;
  trained.home->assign(0, trained.memory);
  trained.backward(2, 1);
  ASSERT_TRUE(trained.home->gather(0).defined());
  trained.home.reset();
  trained.memory = at::Tensor();
  trained.expect_as_plain();
  trained.backward(2, 2);
  trained.expect_as_plain();
}

}  // namespace
}  // namespace farandole::test
