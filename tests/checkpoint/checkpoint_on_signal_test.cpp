// SPDX-License-Identifier: Apache-2.0
#include "farandole/checkpoint/checkpoint_on_signal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "ddp/replica_ranks.h"
#include "farandole/checkpoint/save_checkpoint.h"
#include "farandole/error.h"

namespace farandole {
namespace {

using test::run_replicas;

int g_calls = 0;
void call(int) { ++g_calls; }
void (*g_below)(int) = nullptr;
// std::signal() returns a handler with three arguments as a handler with one.
#ifdef __clang__
__attribute__((no_sanitize("function")))
#endif
void call_and_pass_on(int number) {
  ++g_calls;
  g_below(number);
}

CheckpointOnSignalOptions of(const Group& group, std::vector<int> signals = {SIGTERM, SIGUSR1}) {
  CheckpointOnSignalOptions options;
  options.group = group;
  options.signals = std::move(signals);
  return options;
}

TEST(CheckpointOnSignal, TellsAllRanksOfASignalToOne) {
  for (const int number : {SIGTERM, SIGUSR1}) {
    run_replicas("shm", 2, [&](const Group& group) {
      // Signals are those of the process, of which ranks are threads here.
      const bool is_asked = group->getRank() == 1;
      CheckpointOnSignal preemption(
          of(group, is_asked ? std::vector{SIGTERM, SIGUSR1} : std::vector<int>{}));
      EXPECT_FALSE(preemption.requested());
      if (is_asked) std::raise(number);
      EXPECT_TRUE(preemption.requested());
      EXPECT_TRUE(preemption.requested()) << "it stays so";
    });
  }
}

TEST(CheckpointOnSignal, SaysOnRank0WhatItSaved) {
  const std::string path =
      testing::TempDir() + "farandole_checkpoint_on_signal_test_" + std::to_string(::getpid());
  testing::internal::CaptureStderr();
  run_replicas("shm", 2, [&](const Group& group) {
    CheckpointOnSignal preemption(
        of(group, group->getRank() == 1 ? std::vector{SIGUSR1} : std::vector<int>{}));
    if (group->getRank() == 1) std::raise(SIGUSR1);
    EXPECT_TRUE(preemption.requested());
    EXPECT_TRUE(preemption.requested());
    torch::nn::Linear model(2, 2);
    Training training;
    training.model = model.ptr().get();
    SaveCheckpointOptions saving;
    saving.group = group;
    saving.step = 7;
    save_checkpoint(path, training, saving);
    EXPECT_EQ(preemption.end(), CheckpointOnSignal::kStatus);
  });
  const std::string text = testing::internal::GetCapturedStderr();
  std::filesystem::remove_all(path);
  for (const std::string line : {"a rank was asked to save and end", "step-00000007'."}) {
    const size_t found = text.find(line);
    EXPECT_NE(found, std::string::npos) << text;
    EXPECT_EQ(text.find(line, found + 1), std::string::npos) << text;
  }
  EXPECT_THAT(text, testing::HasSubstr("with status 75; the last checkpoint is '"));
}

TEST(CheckpointOnSignal, TellsAllRanksOfAFile) {
  const std::string file = testing::TempDir() + "farandole-ends-here";
  std::remove(file.c_str());
  run_replicas("shm", 3, [&](const Group& group) {
    CheckpointOnSignalOptions options = of(group);
    if (group->getRank() == 2) options.file = file;
    const CheckpointOnSignal preemption(options);
    EXPECT_FALSE(preemption.requested());
    if (group->getRank() == 2) std::ofstream(file) << "now";
    EXPECT_TRUE(preemption.requested());
  });
  std::remove(file.c_str());
}

TEST(CheckpointOnSignal, SpeaksThroughAGroupOfAnotherBackend) {
  run_replicas("foreign", 2, [&](const Group& group) {
    const CheckpointOnSignal preemption(of(group));
    EXPECT_FALSE(preemption.requested());
  });
}

TEST(CheckpointOnSignal, CallsTheHandlerBeforeAndGivesItBack) {
  g_calls = 0;
  auto* const before = std::signal(SIGUSR2, &call);
  run_replicas("shm", 1, [&](const Group& group) {
    {
      CheckpointOnSignal first(of(group, {SIGUSR2, SIGUSR2}));
      const CheckpointOnSignal second(of(group, {SIGUSR2}));
      std::raise(SIGUSR2);
      EXPECT_EQ(g_calls, 1);
      EXPECT_TRUE(first.requested());
      EXPECT_TRUE(second.requested());
      const CheckpointOnSignal later(of(group, {SIGUSR2}));
      EXPECT_FALSE(later.requested()) << "what came before it was there";
    }
    EXPECT_EQ(std::signal(SIGUSR2, &call), &call);
  });
  std::signal(SIGUSR2, before);
}

TEST(CheckpointOnSignal, LivesBelowTheHandlerOfAnotherLibrary) {
  g_calls = 0;
  auto* const before = std::signal(SIGUSR2, SIG_DFL);
  run_replicas("shm", 1, [&](const Group& group) {
    {
      const CheckpointOnSignal first(of(group, {SIGUSR2}));
      g_below = std::signal(SIGUSR2, &call_and_pass_on);
    }
    const CheckpointOnSignal again(of(group, {SIGUSR2}));
    std::raise(SIGUSR2);
    EXPECT_EQ(g_calls, 1);
    EXPECT_TRUE(again.requested());
  });
  std::signal(SIGUSR2, before);
}

TEST(CheckpointOnSignal, SaysWhichSignalCannotBeHandled) {
  run_replicas("shm", 1, [&](const Group& group) {
    auto* const before = std::signal(SIGUSR2, &call);
    for (const int number : {SIGKILL, 0, -1, 1000}) {
      try {
        const CheckpointOnSignal preemption(of(group, {SIGUSR2, number}));
        ADD_FAILURE() << number;
      } catch (const InvalidArgument& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr("got the signal " + std::to_string(number)));
      }
    }
    EXPECT_EQ(std::signal(SIGUSR2, before), &call) << "the others were given back";
  });
}

}  // namespace
}  // namespace farandole
