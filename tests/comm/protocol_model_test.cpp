// SPDX-License-Identifier: Apache-2.0
// The flag protocols of lockstep.h and staging.h as small models, explored exhaustively. Each model
// can be broken on purpose; the explorer must notice.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <tuple>
#include <vector>

#include "support/explorer.h"

namespace farandole::test {
namespace {

constexpr int kMaxRanks = 3;

/// lockstep.h: post, look, count oneself asleep, read the epoch, look again, sleep on the epoch.
struct LockstepModel {
  enum class Fault { kNone, kEpochReadLate, kNoSecondLook, kOneHeader };

  enum Pc : uint8_t {
    kWrite,
    kPost,
    kFirstLook,
    kCheckSleepers,
    kCountEpoch,
    kWake,
    kCountIn,
    kReadEpoch,
    kSecondLook,
    kFutex,
    kAsleep,
    kCountOut,
    kRead,
    kDone
  };

  struct Rank {
    uint8_t pc = kWrite;
    uint8_t sequence = 1;
    uint8_t next = 0;  ///< which peer is looked at or read next
    uint8_t epoch = 0;
    uint8_t there = 0;
    uint8_t posted = 0;
    std::array<uint8_t, 2> header{};
    bool operator<(const Rank& o) const {
      return std::tie(pc, sequence, next, epoch, there, posted, header) <
             std::tie(o.pc, o.sequence, o.next, o.epoch, o.there, o.posted, o.header);
    }
  };
  struct State {
    std::array<Rank, kMaxRanks> rank{};
    uint8_t epoch = 0;
    uint8_t sleepers = 0;
    bool operator<(const State& o) const {
      return std::tie(rank, epoch, sleepers) < std::tie(o.rank, o.epoch, o.sleepers);
    }
  };

  int world;
  int rounds;
  Fault fault = Fault::kNone;

  int ranks() const { return world; }
  State initial() const { return {}; }
  bool finished(const State& s) const {
    for (int r = 0; r < world; ++r) {
      if (s.rank[static_cast<size_t>(r)].pc != kDone) return false;
    }
    return true;
  }
  size_t header_of(uint8_t sequence) const {
    return fault == Fault::kOneHeader ? 0 : sequence % size_t{2};
  }

  /// Looks at one peer; true once the look is over, `there` telling whether all had posted.
  bool look(State* s, Rank* me) const {
    if (s->rank[me->next].posted < me->sequence) {
      me->there = 0;
      me->next = 0;
      return true;
    }
    if (++me->next < world) return false;
    me->there = 1;
    me->next = 0;
    return true;
  }

  bool step(State* s, int r, std::string* violation) const {
    Rank& me = s->rank[static_cast<size_t>(r)];
    switch (me.pc) {
      case kWrite:
        me.header[header_of(me.sequence)] = me.sequence;
        me.pc = kPost;
        return true;
      case kPost:
        me.posted = me.sequence;
        me.pc = kFirstLook;
        return true;
      case kFirstLook:
        if (look(s, &me)) me.pc = me.there != 0 ? kCheckSleepers : kCountIn;
        return true;
      case kCheckSleepers:
        me.pc = s->sleepers != 0 ? kCountEpoch : kRead;
        return true;
      case kCountEpoch:
        ++s->epoch;
        me.pc = kWake;
        return true;
      case kWake:
        for (Rank& other : s->rank) {
          if (other.pc == kAsleep) other.pc = kCountOut;
        }
        me.pc = kRead;
        return true;
      case kCountIn:
        ++s->sleepers;
        me.pc = kReadEpoch;
        if (fault == Fault::kEpochReadLate || fault == Fault::kNoSecondLook) me.pc = kSecondLook;
        if (fault == Fault::kNoSecondLook) {
          me.there = 0;
          me.epoch = s->epoch;
          me.pc = kFutex;
        }
        return true;
      case kReadEpoch:
        me.epoch = s->epoch;
        me.pc = fault == Fault::kEpochReadLate ? kFutex : kSecondLook;
        return true;
      case kSecondLook:
        if (!look(s, &me)) return true;
        if (me.there != 0) {
          me.pc = kCountOut;
        } else {
          me.pc = fault == Fault::kEpochReadLate ? kReadEpoch : kFutex;
        }
        return true;
      case kFutex:
        me.pc = s->epoch == me.epoch ? kAsleep : kCountOut;
        return true;
      case kAsleep:
        return false;
      case kCountOut:
        --s->sleepers;
        me.pc = me.there != 0 ? kRead : kCountIn;
        return true;
      case kRead:
        if (s->rank[me.next].header[header_of(me.sequence)] != me.sequence) {
          *violation = "a header was overwritten before it was read";
        }
        if (++me.next < world) return true;
        me.next = 0;
        me.there = 0;
        me.pc = me.sequence == rounds ? kDone : kWrite;
        if (me.pc == kWrite) ++me.sequence;
        return true;
      default:
        return false;
    }
  }
};

TEST(ProtocolModel, LockstepNeverLosesAWakeUpNorAHeader) {
  for (const auto& [world, rounds] : {std::pair{2, 4}, std::pair{3, 2}}) {
    const Exploration found = explore(LockstepModel{world, rounds});
    EXPECT_EQ(found.violation, "");
    EXPECT_GT(found.states, 500U);
  }
}

TEST(ProtocolModel, TheExplorerSeesBrokenLocksteps) {
  using Fault = LockstepModel::Fault;
  for (const Fault fault : {Fault::kEpochReadLate, Fault::kNoSecondLook, Fault::kOneHeader}) {
    EXPECT_NE(explore(LockstepModel{2, 3, fault}).violation, "") << static_cast<int>(fault);
  }
}

/// staging.h and all_reduce.cpp: slots in turns, one barrier a turn, holes drained one barrier
/// later. A program is a list of collectives; barriers are one atomic step (the model above covers
/// them).
struct StagingModel {
  enum class Fault { kNone, kOneSlot, kHolesFilled };
  enum class Kind : uint8_t { kExchange, kAllReduce };
  enum Action : uint8_t { kFill, kBarrier, kDrainBody, kReduce, kDrainHole };

  struct Step {
    Action action;
    uint8_t turn;
  };
  struct Slot {
    uint8_t body = 0;
    uint8_t hole = 0;
    bool operator<(const Slot& o) const { return std::tie(body, hole) < std::tie(o.body, o.hole); }
  };
  struct Rank {
    uint8_t at = 0;    ///< index into the program
    uint8_t next = 0;  ///< which peer is read next
    uint8_t barriers = 0;
    std::array<Slot, 2> slots{};
    bool operator<(const Rank& o) const {
      return std::tie(at, next, barriers, slots) < std::tie(o.at, o.next, o.barriers, o.slots);
    }
  };
  struct State {
    std::array<Rank, kMaxRanks> rank{};
    bool operator<(const State& o) const { return rank < o.rank; }
  };

  int world = 2;
  Fault fault = Fault::kNone;
  std::vector<Step> program;

  void add(Kind kind, int chunks) {
    uint8_t turn = program.empty() ? 0 : last_turn_;
    program.push_back({kFill, ++turn});
    program.push_back({kBarrier, turn});
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const uint8_t current = turn;
      const bool last = chunk + 1 == chunks;
      program.push_back({kind == Kind::kAllReduce ? kReduce : kDrainBody, current});
      if (!last) program.push_back({kFill, ++turn});
      if (!last || kind == Kind::kAllReduce) program.push_back({kBarrier, turn});
      if (kind == Kind::kAllReduce) program.push_back({kDrainHole, current});
    }
    last_turn_ = turn;
  }

  int ranks() const { return world; }
  State initial() const { return {}; }
  bool finished(const State& s) const {
    for (int r = 0; r < world; ++r) {
      if (s.rank[static_cast<size_t>(r)].at != program.size()) return false;
    }
    return true;
  }
  size_t slot_of(uint8_t turn) const { return fault == Fault::kOneSlot ? 0 : turn % size_t{2}; }

  /// Reads one peer's slot; true when all peers are read.
  bool read(const State& s, Rank* me, const Step& step, std::string* violation) const {
    const Slot& slot = s.rank[me->next].slots[slot_of(step.turn)];
    const uint8_t found = step.action == kDrainHole ? slot.hole : slot.body;
    if (found != step.turn) *violation = "a slot was overwritten before it was read";
    if (++me->next < world) return false;
    me->next = 0;
    return true;
  }

  bool step(State* s, int r, std::string* violation) const {
    Rank& me = s->rank[static_cast<size_t>(r)];
    if (me.at == program.size()) return false;
    const Step step = program[me.at];
    Slot& own = me.slots[slot_of(step.turn)];
    switch (step.action) {
      case kFill:
        own.body = step.turn;
        if (fault == Fault::kHolesFilled) own.hole = 0;
        break;
      case kBarrier: {
        if (me.next == 0) {  // post, then wait
          ++me.barriers;
          me.next = 1;
          return true;
        }
        for (int peer = 0; peer < world; ++peer) {
          if (s->rank[static_cast<size_t>(peer)].barriers < me.barriers) return false;
        }
        me.next = 0;
        break;
      }
      case kReduce:
        if (!read(*s, &me, step, violation)) return true;
        own.hole = step.turn;
        break;
      case kDrainBody:
      case kDrainHole:
        if (!read(*s, &me, step, violation)) return true;
        break;
    }
    ++me.at;
    return true;
  }

 private:
  uint8_t last_turn_ = 0;
};

StagingModel staging_model(int world, StagingModel::Fault fault) {
  using Kind = StagingModel::Kind;
  StagingModel model;
  model.world = world;
  model.fault = fault;
  model.add(Kind::kAllReduce, 3);
  model.add(Kind::kExchange, 2);
  model.add(Kind::kAllReduce, 1);
  model.add(Kind::kExchange, 1);
  model.add(Kind::kAllReduce, 2);
  return model;
}

TEST(ProtocolModel, StagingNeverOverwritesASlotThatIsStillRead) {
  for (const int world : {2, 3}) {
    const Exploration found = explore(staging_model(world, StagingModel::Fault::kNone));
    EXPECT_EQ(found.violation, "");
    EXPECT_GT(found.states, 100U);
  }
}

TEST(ProtocolModel, TheExplorerSeesBrokenStaging) {
  using Fault = StagingModel::Fault;
  for (const Fault fault : {Fault::kOneSlot, Fault::kHolesFilled}) {
    EXPECT_NE(explore(staging_model(2, fault)).violation, "") << static_cast<int>(fault);
  }
}

}  // namespace
}  // namespace farandole::test
