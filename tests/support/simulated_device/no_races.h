// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/simulated_device/device.h"
#include "support/simulated_device/race_detector.h"
#include "support/simulated_device/schedule.h"

namespace farandole::sim {

/// Runs all that devices were given, and fails the test if the race detector has reports.
inline void expect_no_races() {
  for (int device = 0; device < kDeviceCount; ++device) synchronize_device(device);
  EXPECT_THAT(race_detector().take_reports(), ::testing::IsEmpty());
}

/// A test on simulated devices, run under a schedule; it fails if the race detector has reports at
/// the end. A suite derives from it and is instantiated with kEverySchedule:
///   INSTANTIATE_TEST_SUITE_P(, Suite, kEverySchedule, ::testing::PrintToStringParamName());
class NoRaces : public ::testing::TestWithParam<Schedule> {
 protected:
  void SetUp() override { set_schedule(GetParam()); }

  void TearDown() override { expect_no_races(); }
};

inline const auto kEverySchedule = ::testing::Values(Schedule::kEager, Schedule::kLazy,
                                                     Schedule::kSlowDefault, Schedule::kSlowSide);

}  // namespace farandole::sim
