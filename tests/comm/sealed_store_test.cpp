// SPDX-License-Identifier: Apache-2.0
#include "comm/sealed_store.h"

#include <gtest/gtest.h>

#include <thread>

#include "farandole/error.h"

namespace farandole::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kNone{0};
const char* const kSecret = "a secret that ranks share";

TEST(SealedStore, BringsWhatWasSetWithTheSameSecret) {
  for (const std::string secret : {"", kSecret}) {
    InProcessStore below;
    SealedStore one(below, secret);
    SealedStore other(below, secret);
    EXPECT_EQ(other.try_get("key"), std::nullopt);
    for (const std::string& value : {std::string(), std::string("a\0 b\n", 5)}) {
      one.set("key", value);
      EXPECT_EQ(other.get("key", kNone), value);
      EXPECT_EQ(other.try_get("key"), value);
    }
  }
}

TEST(SealedStore, WhatStrangersWriteIsNotThere) {
  InProcessStore below;
  SealedStore store(below, kSecret);
  store.set("one", "value");
  const std::string sealed = *below.get("one", kNone);
  EXPECT_EQ(sealed.find("value"), sealed.size() - 5);
  std::string changed = sealed;
  changed.back() = 'x';
  for (const std::string& record :
       {std::string(), std::string("plain"), changed, sealed + "x", sealed.substr(0, 30), sealed}) {
    below.set("other", record);  // the last one is another key's
    EXPECT_EQ(store.try_get("other"), std::nullopt) << record;
    EXPECT_EQ(store.get("other", milliseconds(1)), std::nullopt);
  }
  SealedStore(below, "another secret").set("other", "value");
  EXPECT_EQ(store.try_get("other"), std::nullopt);
}

TEST(SealedStore, ARecordThatReplacesAStrangersIsFound) {
  InProcessStore below;
  SealedStore store(below, kSecret);
  below.set("key", "a stranger's");
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(50));
    store.set("key", "a rank's");
  });
  EXPECT_EQ(store.get("key", milliseconds(60000)), "a rank's");
  later.join();
}

TEST(SealedStore, ARankWithoutTheSecretIsTold) {
  InProcessStore below;
  SealedStore(below, kSecret).set("key", "value");
  SealedStore store(below, "");
  EXPECT_THROW(store.try_get("key"), MismatchError);
}

}  // namespace
}  // namespace farandole::comm
