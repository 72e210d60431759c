// SPDX-License-Identifier: Apache-2.0
#include "ddp/allocation/allocation_predictor.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <memory>
#include <vector>

namespace farandole::test {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr size_t kSmall = 16 << 10;
constexpr size_t kLarge = 32 << 10;

/// Runs a function within a node of autograd.
struct InNode : torch::autograd::Function<InNode> {
  static inline thread_local const std::function<void()>* body = nullptr;

  static at::Tensor forward(AutogradContext* /*context*/, const at::Tensor& x) { return x.clone(); }
  static variable_list backward(AutogradContext* /*context*/, const variable_list& gradients) {
    (*body)();
    return gradients;
  }
};

/// Two parameters of `bytes`, and the backward passes of a model that has them.
class Births : public testing::Test {
 protected:
  explicit Births(std::vector<size_t> bytes = {kSmall, kLarge})
      : schedule_(std::make_shared<AllocationPredictor>(bytes)) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      std::shared_ptr<void> memory(
          ::mmap(nullptr, bytes[i], PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0),
          [size = bytes[i]](void* data) { ::munmap(data, size); });
      slots_.push_back(AliasedSlot::of(memory.get(), bytes[i], memory));
    }
    schedule_->assign_slots(slots_);
  }

  static at::Tensor allocate(size_t bytes) {
    return at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte));
  }

  /// As the Reducer does. Whether the gradient was born.
  bool came(size_t parameter, at::Tensor gradient) {
    const bool is_born = slots_[parameter]->holds(gradient);
    if (!is_born) schedule_->learn(parameter, gradient);
    gradient.reset();  // p.grad is the slot
    slots_[parameter]->evict();
    return is_born;
  }

  template <class Body>
  void backward(const Body& body) {
    for (const auto& slot : slots_) slot->open();
    schedule_->begin();
    watch_allocations(schedule_);
    const std::function<void()> function(body);
    InNode::body = &function;
    InNode::apply(at::ones({}).requires_grad_()).backward();
    watch_allocations(nullptr);
    schedule_->end();
  }

  std::shared_ptr<AllocationPredictor> schedule_;
  std::vector<std::shared_ptr<AliasedSlot>> slots_;
};

TEST_F(Births, BeginWithTheSecondBackward) {
  for (int step = 0; step < 4; ++step) {
    backward([&] {
      EXPECT_EQ(came(0, allocate(kSmall)), step > 0);
      allocate(100);  // no gradient's size
      EXPECT_EQ(came(1, allocate(kLarge)), step > 0);
    });
  }
}

TEST_F(Births, EndWithTheFirstAllocationOfAnotherSize) {
  const auto usual = [&] {
    came(0, allocate(kSmall));
    EXPECT_FALSE(slots_[1]->holds(allocate(kSmall)));
    came(1, allocate(kLarge));
  };
  for (int step = 0; step < 3; ++step) backward(usual);
  backward([&] {
    EXPECT_TRUE(came(0, allocate(kSmall)));
    EXPECT_FALSE(slots_[1]->holds(allocate(kLarge)));  // a small one stood here
    EXPECT_FALSE(slots_[1]->holds(allocate(kSmall)));
    EXPECT_FALSE(came(1, allocate(kLarge)));
  });
}

TEST_F(Births, GoOnInEachOfSeveralSequences) {
  for (int step = 0; step < 12; ++step) {
    const bool is_known = step >= 3;
    backward([&] {
      if (step % 3 == 1) allocate(kLarge);
      EXPECT_EQ(came(0, allocate(kSmall)), is_known || step == 2) << step;  // as in step 0
      if (step % 3 == 2) allocate(kSmall);
      EXPECT_EQ(came(1, allocate(kLarge)), is_known) << step;
    });
  }
}

TEST_F(Births, AreLearnedAnewWhereEachBackwardWasAnother) {
  for (int step = 0; step < 40; ++step) {
    backward([&] {
      for (int i = 0; i < step; ++i) allocate(kLarge);
      came(0, allocate(kSmall));
    });
  }
  int born = 0;
  for (int step = 0; step < 3; ++step) backward([&] { born += came(0, allocate(kSmall)) ? 1 : 0; });
  EXPECT_EQ(born, 2);
}

struct EqualBirths : Births {
  EqualBirths() : Births({kSmall, kSmall}) {}
};

TEST_F(EqualBirths, AreToldApartByOtherAllocationsOnceAGuessWasWrong) {
  for (int step = 0; step < 12; ++step) {
    const size_t first = step % 4 == 3 ? 1 : 0;  // the last batch is small, and turns them about
    const bool is_known = step == 1 || step == 2 || (step >= 5 && step != 7);
    backward([&] {
      allocate(first == 1 ? 100 : 200);
      EXPECT_EQ(came(first, allocate(kSmall)), is_known) << step;
      EXPECT_EQ(came(1 - first, allocate(kSmall)), is_known) << step;
    });
  }
}

TEST_F(Births, AreToldApartWhereAShorterBackwardIsTheBeginOfALongerOne) {
  for (int step = 0; step < 12; ++step) {
    const bool is_short = step % 4 == 3;
    const bool is_known = step == 1 || step == 2 || step >= 6;
    backward([&] {
      allocate(is_short ? 100 : 200);
      if (!is_short) allocate(kSmall);  // the gradient of the short one
      if (step != 3 && step != 4 && step != 7) {
        EXPECT_EQ(came(0, allocate(kSmall)), is_known) << step;
      } else {
        came(0, allocate(kSmall));
      }
    });
  }
}

TEST_F(EqualBirths, GoOnAfterAWrongGuessWhereOtherAllocationsAreNeverTheSame) {
  size_t born = 0;
  for (size_t step = 0; step < 60; ++step) {
    const size_t first = step == 3 ? 1 : 0;
    backward([&] {
      allocate(1000 + step);  // an activation of a sequence of any length
      born += came(first, allocate(kSmall)) && came(1 - first, allocate(kSmall)) && step >= 50;
    });
  }
  EXPECT_EQ(born, 10U);
}

TEST_F(Births, LearnNothingOfAPassThatIsNotSynchronized) {
  backward([&] { came(0, allocate(kSmall)); });
  schedule_->learn(0, allocate(kSmall));  // of a pass in no_sync()
  backward([&] { EXPECT_TRUE(came(0, allocate(kSmall))); });
}

TEST_F(Births, DoNotCountAllocationsOutsideOfNodes) {
  schedule_->begin();
  watch_allocations(schedule_);
  came(0, allocate(kSmall));
  watch_allocations(nullptr);
  schedule_->end();
  backward([&] { EXPECT_FALSE(came(0, allocate(kSmall))); });
}

}  // namespace
}  // namespace farandole::test
