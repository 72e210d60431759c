// SPDX-License-Identifier: Apache-2.0
// The flag protocols of lockstep.h, bell.h, point_to_point.h, staging.h and
// shared_bucket_reduction.h as small models, explored exhaustively. Each model can be broken on
// purpose; the explorer must notice.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <tuple>
#include <vector>

#include "comm/shm/staging.h"
#include "support/explorer.h"
#include "support/ranks.h"

namespace farandole::test {
namespace {

constexpr int kMaxRanks = 3;

/// bell.h: threads store and ring, others count what was stored and sleep where there is nothing.
struct BellModel {
  enum class Fault { kNone, kRingsReadLate, kCountedLate, kRingBeforeStore };
  enum Pc : uint8_t {
    kStore,
    kCheckSleepers,
    kCountRing,
    kWake,
    kCountIn,
    kReadRings,
    kLook,
    kFutex,
    kAsleep,
    kCountOut,
    kDone
  };
  static constexpr size_t kRingers = 2;  ///< threads 0 and 1; 2 and 3 sleep
  static constexpr uint8_t kRounds = 2;  ///< of each thread

  struct Thread {
    uint8_t pc = kDone;
    uint8_t round = 0;
    uint8_t rings = 0;  ///< as read before it sleeps
    bool has_taken = false;
    bool operator<(const Thread& o) const {
      return std::tie(pc, round, rings, has_taken) < std::tie(o.pc, o.round, o.rings, o.has_taken);
    }
  };
  struct State {
    std::array<Thread, 2 * kRingers> thread{};
    uint8_t stored = 0;
    uint8_t taken = 0;
    uint8_t rings = 0;
    uint8_t sleepers = 0;
    bool operator<(const State& o) const {
      return std::tie(thread, stored, taken, rings, sleepers) <
             std::tie(o.thread, o.stored, o.taken, o.rings, o.sleepers);
    }
  };

  Fault fault = Fault::kNone;

  int ranks() const { return static_cast<int>(2 * kRingers); }
  State initial() const {
    State state;
    for (size_t i = 0; i < state.thread.size(); ++i) state.thread[i].pc = first(i < kRingers);
    return state;
  }
  bool finished(const State& s) const {
    return std::all_of(s.thread.begin(), s.thread.end(),
                       [](const Thread& each) { return each.pc == kDone; });
  }
  bool step(State* s, int r, std::string* /*violation*/) const {
    const auto index = static_cast<size_t>(r);
    Thread& me = s->thread[index];
    return index < kRingers ? step_of_ringer(s, &me) : step_of_sleeper(s, &me);
  }

 private:
  Pc first(bool rings) const {
    if (rings) return fault == Fault::kRingBeforeStore ? kCheckSleepers : kStore;
    return fault == Fault::kCountedLate ? kReadRings : kCountIn;
  }
  /// The last line of a round.
  uint8_t next_round(Thread* me, bool rings) const {
    return ++me->round == kRounds ? uint8_t{kDone} : uint8_t{first(rings)};
  }

  bool step_of_ringer(State* s, Thread* me) const {
    const bool rings_first = fault == Fault::kRingBeforeStore;
    const auto end_ring = [&] { return rings_first ? uint8_t{kStore} : next_round(me, true); };
    switch (me->pc) {
      case kStore:
        ++s->stored;
        me->pc = rings_first ? next_round(me, true) : uint8_t{kCheckSleepers};
        return true;
      case kCheckSleepers:
        me->pc = s->sleepers != 0 ? uint8_t{kCountRing} : end_ring();
        return true;
      case kCountRing:
        ++s->rings;
        me->pc = kWake;
        return true;
      case kWake:
        for (Thread& other : s->thread) {
          if (other.pc == kAsleep) other.pc = kCountOut;
        }
        me->pc = end_ring();
        return true;
      default:
        return false;
    }
  }

  bool step_of_sleeper(State* s, Thread* me) const {
    switch (me->pc) {
      case kCountIn:
        ++s->sleepers;
        me->pc = fault == Fault::kNone || fault == Fault::kRingBeforeStore ? kReadRings
                 : fault == Fault::kCountedLate                            ? kFutex
                                                                           : kLook;
        if (me->has_taken) me->pc = kCountOut;
        return true;
      case kReadRings:
        me->rings = s->rings;
        me->pc = fault == Fault::kRingsReadLate ? kFutex : kLook;
        return true;
      case kLook:
        me->has_taken = s->taken < s->stored;
        if (me->has_taken) ++s->taken;
        me->pc = fault == Fault::kCountedLate     ? kCountIn
                 : me->has_taken                  ? kCountOut
                 : fault == Fault::kRingsReadLate ? kReadRings
                                                  : kFutex;
        return true;
      case kFutex:
        me->pc = s->rings == me->rings ? kAsleep : kCountOut;
        return true;
      case kCountOut:
        --s->sleepers;
        me->pc = me->has_taken ? next_round(me, false) : uint8_t{first(false)};
        me->has_taken = false;
        return true;
      default:
        return false;
    }
  }
};

TEST(ProtocolModel, BellsWakeEverySleeper) {
  const Exploration found = explore(BellModel{});
  EXPECT_EQ(found.violation, "");
  EXPECT_GT(found.states, 500U);
}

TEST(ProtocolModel, TheExplorerSeesBrokenBells) {
  using Fault = BellModel::Fault;
  for (const Fault fault : {Fault::kRingsReadLate, Fault::kCountedLate, Fault::kRingBeforeStore}) {
    EXPECT_NE(explore(BellModel{fault}).violation, "") << static_cast<int>(fault);
  }
}

/// lockstep.h over bell.h: post, look, count oneself asleep, read the rings, look again, sleep.
struct LockstepModel {
  enum class Fault { kNone, kRingsReadLate, kNoSecondLook, kOneHeader };

  enum Pc : uint8_t {
    kWrite,
    kPost,
    kFirstLook,
    kCheckSleepers,
    kCountRing,
    kWake,
    kCountIn,
    kReadRings,
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
    uint8_t rings = 0;
    uint8_t there = 0;
    uint8_t posted = 0;
    std::array<uint8_t, 2> header{};
    bool operator<(const Rank& o) const {
      return std::tie(pc, sequence, next, rings, there, posted, header) <
             std::tie(o.pc, o.sequence, o.next, o.rings, o.there, o.posted, o.header);
    }
  };
  struct State {
    std::array<Rank, kMaxRanks> rank{};
    uint8_t rings = 0;
    uint8_t sleepers = 0;
    bool operator<(const State& o) const {
      return std::tie(rank, rings, sleepers) < std::tie(o.rank, o.rings, o.sleepers);
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
        me.pc = s->sleepers != 0 ? kCountRing : kRead;
        return true;
      case kCountRing:
        ++s->rings;
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
        me.pc = kReadRings;
        if (fault == Fault::kRingsReadLate || fault == Fault::kNoSecondLook) me.pc = kSecondLook;
        if (fault == Fault::kNoSecondLook) {
          me.there = 0;
          me.rings = s->rings;
          me.pc = kFutex;
        }
        return true;
      case kReadRings:
        me.rings = s->rings;
        me.pc = fault == Fault::kRingsReadLate ? kFutex : kSecondLook;
        return true;
      case kSecondLook:
        if (!look(s, &me)) return true;
        if (me.there != 0) {
          me.pc = kCountOut;
        } else {
          me.pc = fault == Fault::kRingsReadLate ? kReadRings : kFutex;
        }
        return true;
      case kFutex:
        me.pc = s->rings == me.rings ? kAsleep : kCountOut;
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
  for (const Fault fault : {Fault::kRingsReadLate, Fault::kNoSecondLook, Fault::kOneHeader}) {
    EXPECT_NE(explore(LockstepModel{2, 3, fault}).violation, "") << static_cast<int>(fault);
  }
}

/// point_to_point.h: a peer moves messages and rings; a waiter, which spins before it sleeps, stays
/// for the first of them, the helper for all. Both share a mutex and what the doorbell says. Who
/// sleeps goes on when its count of rings has changed, as a futex does.
struct DoorbellModel {
  enum class Fault { kNone, kNoAdvanceAfterSaying, kRingsReadLate, kSpinnerLeavesSilently };
  enum Who : uint8_t { kNobody, kWaiter, kHelper };
  enum Pc : uint8_t {
    kMove,
    kLook,
    kRing,
    kLock,
    kSpin,
    kStopSpinning,
    kAdvanceAfterSpin,
    kReadRings,
    kSayWanted,
    kAdvanceAgain,
    kReadRingsLate,
    kUnlock,
    kAsleep,
    kWakeUp,
    kDone
  };

  struct Thread {
    uint8_t pc = kLock;
    uint8_t rings = 0;  ///< as read before it sleeps; of the peer: whom it rings
    bool operator<(const Thread& o) const { return std::tie(pc, rings) < std::tie(o.pc, o.rings); }
  };
  struct State {
    std::array<Thread, 3> thread{};  ///< the peer, then as Who
    std::array<uint8_t, 3> rings{};  ///< as Who
    uint8_t written = 0;
    uint8_t read = 0;
    uint8_t wanted = kNobody;
    uint8_t owner = kNobody;  ///< of the mutex
    bool spins = false;
    std::array<bool, 3> sleeps{};  ///< as Who
    bool operator<(const State& o) const {
      return std::tie(thread, rings, written, read, wanted, owner, spins, sleeps) <
             std::tie(o.thread, o.rings, o.written, o.read, o.wanted, o.owner, o.spins, o.sleeps);
    }
  };

  int messages = 2;
  Fault fault = Fault::kNone;

  int ranks() const { return 3; }
  State initial() const {
    State state;
    state.thread[0].pc = kMove;
    return state;
  }
  bool finished(const State& s) const {
    const bool helper = s.thread[kHelper].pc == kDone || s.thread[kHelper].pc == kAsleep;
    return s.thread[0].pc == kDone && s.thread[kWaiter].pc == kDone && helper && s.read == messages;
  }

  bool step(State* s, int r, std::string* /*violation*/) const {
    return r == 0 ? step_of_peer(s) : step_of_receiver(s, static_cast<uint8_t>(r));
  }

 private:
  bool step_of_peer(State* s) const {
    Thread& me = s->thread[0];
    const uint8_t next = s->written == messages ? kDone : kMove;
    switch (me.pc) {
      case kMove:
        ++s->written;
        me.pc = kLook;
        return true;
      case kLook:
        me.rings = s->wanted;
        me.pc = s->wanted != kNobody ? uint8_t{kRing} : next;
        return true;
      case kRing:
        ++s->rings[me.rings];
        me.pc = next;
        return true;
      default:
        return false;
    }
  }

  bool is_over(const State& s, uint8_t who) const {
    return s.read >= (who == kWaiter ? 1 : messages);
  }

  /// finish() rings a waiter that sleeps.
  static void advance(State* s) {
    if (s->read != s->written && s->sleeps[kWaiter]) ++s->rings[kWaiter];
    s->read = s->written;
  }

  /// say_who_is_wanted() without its advance().
  static void say_wanted(State* s) {
    s->wanted = s->spins             ? kNobody
                : s->sleeps[kWaiter] ? kWaiter
                : s->sleeps[kHelper] ? kHelper
                                     : kNobody;
  }

  /// spin(), sleep() and the loops around them.
  bool step_of_receiver(State* s, uint8_t who) const {
    Thread& me = s->thread[who];
    const bool late = fault == Fault::kRingsReadLate;
    switch (me.pc) {
      case kLock:
        if (s->owner != kNobody) return false;
        s->owner = who;
        me.pc = kReadRings;
        if (who == kHelper) return true;
        s->spins = true;
        say_wanted(s);
        me.pc = kSpin;
        return true;
      case kSpin:
        advance(s);
        me.pc = kStopSpinning;
        return true;
      case kStopSpinning:
        s->spins = false;
        if (fault != Fault::kSpinnerLeavesSilently) say_wanted(s);
        me.pc = kAdvanceAfterSpin;
        return true;
      case kAdvanceAfterSpin:
        if (s->wanted != kNobody) advance(s);
        me.pc = kReadRings;
        return true;
      case kReadRings:
        if (is_over(*s, who)) {
          s->owner = kNobody;
          me.pc = kDone;
          return true;
        }
        if (!late) me.rings = s->rings[who];
        me.pc = kSayWanted;
        return true;
      case kSayWanted:
        s->sleeps[who] = true;
        say_wanted(s);
        me.pc = fault == Fault::kNoAdvanceAfterSaying ? kUnlock : kAdvanceAgain;
        return true;
      case kAdvanceAgain: {
        const bool moved = s->read != s->written;
        advance(s);
        me.pc = moved ? kWakeUp : late ? kReadRingsLate : kUnlock;
        return true;
      }
      case kReadRingsLate:
        me.rings = s->rings[who];
        me.pc = kUnlock;
        return true;
      case kUnlock:
        s->owner = kNobody;
        me.pc = kAsleep;
        return true;
      case kAsleep:
        if (s->rings[who] == me.rings || s->owner != kNobody) return false;
        s->owner = who;
        me.pc = kWakeUp;
        return true;
      case kWakeUp:
        s->sleeps[who] = false;
        say_wanted(s);
        advance(s);
        me.pc = kReadRings;
        return true;
      default:
        return false;
    }
  }
};

TEST(ProtocolModel, DoorbellsNeverLeaveAMessageLying) {
  const Exploration found = explore(DoorbellModel{3});
  EXPECT_EQ(found.violation, "");
  EXPECT_GT(found.states, 500U);
}

TEST(ProtocolModel, TheExplorerSeesBrokenDoorbells) {
  using Fault = DoorbellModel::Fault;
  for (const Fault fault :
       {Fault::kNoAdvanceAfterSaying, Fault::kRingsReadLate, Fault::kSpinnerLeavesSilently}) {
    EXPECT_NE(explore(DoorbellModel{3, fault}).violation, "") << static_cast<int>(fault);
  }
}

/// staging.h and all_reduce.cpp: slots in turns, one barrier a turn, holes drained one barrier
/// later. A program is a list of collectives, whose turns lie where Staging puts them; barriers are
/// one atomic step (the model above covers them).
struct StagingModel {
  enum class Fault { kNone, kOnePlace, kHalfRing };
  enum class Kind : uint8_t { kExchange, kAllReduce };
  enum Action : uint8_t { kFill, kBarrier, kDrainBody, kReduce, kDrainHole };

  // Four places for tiny slots, then eight cells, of which a chunk takes a quarter at most.
  static constexpr size_t kTinyBytes = 1024;
  static constexpr size_t kCellBytes = 2 * kTinyBytes;
  static constexpr size_t kTiny = 4;
  static constexpr size_t kCells = 8;

  struct Turn {
    size_t begin = 0;
    size_t cells = 0;
  };
  struct Step {
    Action action;
    uint8_t turn;
  };
  struct Cell {
    uint8_t body = 0;
    uint8_t hole = 0;
    bool operator<(const Cell& o) const { return std::tie(body, hole) < std::tie(o.body, o.hole); }
  };
  struct Rank {
    uint8_t at = 0;    ///< index into the program
    uint8_t next = 0;  ///< which peer is read next
    uint8_t barriers = 0;
    std::array<Cell, kTiny + kCells> ring{};
    bool operator<(const Rank& o) const {
      return std::tie(at, next, barriers, ring) < std::tie(o.at, o.next, o.barriers, o.ring);
    }
  };
  struct State {
    std::array<Rank, kMaxRanks> rank{};
    bool operator<(const State& o) const { return rank < o.rank; }
  };

  int world = 2;
  Fault fault = Fault::kNone;
  std::vector<Step> program;
  std::vector<Turn> turns{{}};  // they count from 1

  void add(Kind kind, int chunks, size_t cells) {
    uint8_t turn = next_turn(cells);
    program.push_back({kFill, turn});
    program.push_back({kBarrier, turn});
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const uint8_t current = turn;
      const bool last = chunk + 1 == chunks;
      program.push_back({kind == Kind::kAllReduce ? kReduce : kDrainBody, current});
      if (!last) program.push_back({kFill, turn = next_turn(cells)});
      if (!last || kind == Kind::kAllReduce) program.push_back({kBarrier, turn});
      if (kind == Kind::kAllReduce) program.push_back({kDrainHole, current});
    }
  }

  int ranks() const { return world; }
  State initial() const { return {}; }
  bool finished(const State& s) const {
    for (int r = 0; r < world; ++r) {
      if (s.rank[static_cast<size_t>(r)].at != program.size()) return false;
    }
    return true;
  }
  /// Reads one peer's slot; true when all peers are read.
  bool read(const State& s, Rank* me, const Step& step, std::string* violation) const {
    const Turn& turn = turns[step.turn];
    for (size_t i = turn.begin; i < turn.begin + turn.cells; ++i) {
      const Cell& cell = s.rank[me->next].ring[i];
      const uint8_t found = step.action == kDrainHole ? cell.hole : cell.body;
      if (found != step.turn) *violation = "a slot was overwritten before it was read";
    }
    if (++me->next < world) return false;
    me->next = 0;
    return true;
  }

  bool step(State* s, int r, std::string* violation) const {
    Rank& me = s->rank[static_cast<size_t>(r)];
    if (me.at == program.size()) return false;
    const Step step = program[me.at];
    const Turn& turn = turns[step.turn];
    const auto own = [&](size_t i) -> Cell& { return me.ring[turn.begin + i]; };
    switch (step.action) {
      case kFill:
        for (size_t i = 0; i < turn.cells; ++i) own(i) = {step.turn, 0};
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
        for (size_t i = 0; i < turn.cells; ++i) own(i).hole = step.turn;
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
  uint8_t next_turn(size_t cells) {
    if (fault == Fault::kHalfRing) cells = kCells / 2;
    staging_.next_turn(cells == 0 ? kTinyBytes : cells * kCellBytes);
    const size_t place = staging_.place();
    const size_t cell =
        cells == 0 ? place / kTinyBytes : kTiny + (place - kTiny * kTinyBytes) / kCellBytes;
    turns.push_back({fault == Fault::kOnePlace ? 0 : cell, std::max<size_t>(cells, 1)});
    return static_cast<uint8_t>(turns.size() - 1);
  }

  comm::shm::Staging staging_{nullptr, kCells* kCellBytes};
};

StagingModel staging_model(int world, StagingModel::Fault fault) {
  using Kind = StagingModel::Kind;
  StagingModel model;
  model.world = world;
  model.fault = fault;
  model.add(Kind::kAllReduce, 3, 2);
  model.add(Kind::kExchange, 2, 2);
  model.add(Kind::kAllReduce, 1, 1);
  model.add(Kind::kExchange, 1, 0);
  model.add(Kind::kAllReduce, 1, 0);
  model.add(Kind::kExchange, 1, 2);
  model.add(Kind::kAllReduce, 3, 2);
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
  for (const Fault fault : {Fault::kOnePlace, Fault::kHalfRing}) {
    EXPECT_NE(explore(staging_model(2, fault)).violation, "") << static_cast<int>(fault);
  }
}

/// shared_bucket_reduction.h: fill, list, count; look, read, store; enter, step. Rank r publishes
/// bucket r % 2 first. Entering and stepping are one atomic step each (the model above covers
/// them). In a round that is incomplete the last rank publishes one bucket; in a mismatch it
/// publishes both and enters another collective.
struct BucketModel {
  enum class Fault {
    kNone,
    kPublishBeforeFill,
    kCountBeforeIndex,
    kNewsOfAnyRound,
    kNoFinalStep,
    kNoStepWhenIncomplete,
    kMismatchesNotCounted
  };
  enum class Round : uint8_t { kComplete, kIncomplete, kMismatch };
  enum Pc : uint8_t { kPublish, kLook, kRead, kStore, kEnter, kWait, kStep, kEnd, kDone };
  enum class Write : uint8_t { kBucket, kIndex, kCount };
  static constexpr uint8_t kBuckets = 2;

  /// What a shard holds: nothing, what its rank filled in a round, or the average.
  static uint8_t filled(uint8_t round) { return static_cast<uint8_t>(2 * round + 1); }
  static uint8_t averaged(uint8_t round) { return static_cast<uint8_t>(2 * round + 2); }

  struct Rank {
    uint8_t pc = kPublish;
    uint8_t after = kPublish;  ///< where progress returns to
    uint8_t round = 0;
    uint8_t publication = 0;  ///< of this round, being made
    uint8_t writes = 0;       ///< that were made for it
    uint8_t peer = 0;         ///< that is looked at or stored to next
    uint8_t bucket = 0;       ///< that is being reduced
    uint8_t reduced = 0;      ///< buckets, a bit each
    uint8_t entered = 0;
    uint8_t steps = 0;
    uint8_t news_round = 0xff;
    uint8_t news_count = 0;
    std::array<uint8_t, kBuckets> list{};
    std::array<uint8_t, kMaxRanks> known{};  ///< published buckets of each rank, a bit each
    std::array<std::array<uint8_t, kMaxRanks>, kBuckets> shards{};
    bool operator<(const Rank& o) const {
      return std::tie(pc, after, round, publication, writes, peer, bucket, reduced, entered, steps,
                      news_round, news_count, list, known, shards) <
             std::tie(o.pc, o.after, o.round, o.publication, o.writes, o.peer, o.bucket, o.reduced,
                      o.entered, o.steps, o.news_round, o.news_count, o.list, o.known, o.shards);
    }
  };
  struct State {
    std::array<Rank, kMaxRanks> rank{};
    bool operator<(const State& o) const { return rank < o.rank; }
  };

  int world;
  std::vector<Round> rounds;
  Fault fault = Fault::kNone;

  int ranks() const { return world; }
  State initial() const { return {}; }
  bool finished(const State& s) const {
    return std::all_of(s.rank.begin(), s.rank.begin() + world,
                       [](const Rank& rank) { return rank.pc == kDone; });
  }

  bool step(State* s, int r, std::string* violation) const {
    Rank& me = s->rank[static_cast<size_t>(r)];
    switch (me.pc) {
      case kPublish:
        write(&me, next_bucket(me, r), order()[me.writes]);
        if (++me.writes == order().size()) published(&me, r);
        return true;
      case kLook:
        look(*s, &me, r);
        return true;
      case kRead:
        for (int peer = 0; peer < world; ++peer) {
          if (shard(s, peer, me.bucket, r) == filled(me.round)) continue;
          *violation = "a shard was read that was not as its rank had filled it";
        }
        me.pc = kStore;
        return true;
      case kStore:
        shard(s, me.peer, me.bucket, r) = averaged(me.round);
        if (++me.peer < world) return true;
        me.reduced = static_cast<uint8_t>(me.reduced | 1 << me.bucket);
        choose(&me);
        return true;
      case kEnter:
        ++me.entered;
        me.pc = kWait;
        return true;
      case kWait:
        return wait(*s, &me, r);
      case kStep:
        ++me.steps;
        me.pc = kEnd;
        return true;
      case kEnd:
        return end(*s, &me, violation);
      default:
        return false;
    }
  }

 private:
  static uint8_t next_bucket(const Rank& me, int r) {
    return static_cast<uint8_t>((me.publication + r) % kBuckets);
  }
  bool is_last(int r) const { return r == world - 1; }
  Round round_of(const Rank& me) const { return rounds[me.round]; }
  static uint8_t& shard(State* s, int rank, uint8_t bucket, int index) {
    return s->rank[static_cast<size_t>(rank)].shards[bucket][static_cast<size_t>(index)];
  }

  /// The number under which a round is known to the ranks.
  uint8_t number_of(uint8_t round) const {
    if (fault != Fault::kMismatchesNotCounted) return round;
    const auto begin = rounds.begin();
    return static_cast<uint8_t>(round - std::count(begin, begin + round, Round::kMismatch));
  }

  std::array<Write, 3> order() const {
    if (fault == Fault::kPublishBeforeFill) return {Write::kIndex, Write::kCount, Write::kBucket};
    if (fault == Fault::kCountBeforeIndex) return {Write::kBucket, Write::kCount, Write::kIndex};
    return {Write::kBucket, Write::kIndex, Write::kCount};
  }

  void write(Rank* me, uint8_t bucket, Write what) const {
    if (what == Write::kBucket) me->shards[bucket].fill(filled(me->round));
    if (what == Write::kIndex) me->list[me->publication] = bucket;
    if (what != Write::kCount) return;
    me->news_round = number_of(me->round);
    me->news_count = static_cast<uint8_t>(me->publication + 1);
  }

  /// After a publication: progress, then the next one or the end.
  void published(Rank* me, int r) const {
    uint8_t& own = me->known[static_cast<size_t>(r)];
    own = static_cast<uint8_t>(own | 1 << next_bucket(*me, r));
    me->writes = 0;
    ++me->publication;
    const bool gives_up = is_last(r) && round_of(*me) == Round::kIncomplete;
    progress(me, me->publication == kBuckets || gives_up ? kEnter : kPublish);
  }

  static void progress(Rank* me, uint8_t after) {
    me->after = after;
    me->peer = 0;
    me->pc = kLook;
  }

  void look(const State& s, Rank* me, int r) const {
    if (me->peer == r) ++me->peer;
    if (me->peer == world) return choose(me);
    const Rank& peer = s.rank[me->peer];
    const bool is_news = peer.news_round == number_of(me->round) && peer.news_round != 0xff;
    for (uint8_t i = 0; (is_news || fault == Fault::kNewsOfAnyRound) && i < peer.news_count; ++i) {
      me->known[me->peer] = static_cast<uint8_t>(me->known[me->peer] | 1 << peer.list[i]);
    }
    if (++me->peer == world) choose(me);
  }

  /// Goes to the next bucket that is ready, or back.
  void choose(Rank* me) const {
    me->peer = 0;
    uint8_t ready = static_cast<uint8_t>(~me->reduced);
    for (int peer = 0; peer < world; ++peer) {
      ready = static_cast<uint8_t>(ready & me->known[static_cast<size_t>(peer)]);
    }
    me->bucket = (ready & 1) != 0 ? 0 : 1;
    me->pc = ready != 0 ? uint8_t{kRead} : me->after;
  }

  /// For all to enter, with progress meanwhile; then for the last of it, if all are complete.
  bool wait(const State& s, Rank* me, int r) const {
    const bool complete = round_of(*me) == Round::kComplete;
    for (int peer = 0; peer < world; ++peer) {
      if (s.rank[static_cast<size_t>(peer)].entered >= me->entered) continue;
      if (!complete && is_last(r)) return false;
      progress(me, kWait);
      return true;
    }
    const Fault without = complete ? Fault::kNoFinalStep : Fault::kNoStepWhenIncomplete;
    const uint8_t next = fault == without ? kEnd : kStep;
    complete ? progress(me, next) : void(me->pc = next);
    return true;
  }

  /// Once all have stepped, the buffer is the rank's own.
  bool end(const State& s, Rank* me, std::string* violation) const {
    for (int peer = 0; peer < world; ++peer) {
      if (s.rank[static_cast<size_t>(peer)].steps < me->steps) return false;
    }
    for (const auto& bucket : me->shards) {
      for (int i = 0; i < world && round_of(*me) == Round::kComplete; ++i) {
        if (bucket[static_cast<size_t>(i)] == averaged(me->round)) continue;
        *violation = "a round ended before a shard was averaged";
      }
    }
    ++me->round;
    me->publication = me->reduced = 0;
    me->known.fill(0);
    me->pc = me->round == rounds.size() ? kDone : kPublish;
    return true;
  }
};

using Round = BucketModel::Round;

TEST(ProtocolModel, BucketsAreAveragedOnceAndOnlyWhileTheyBelongToTheReduction) {
  std::vector<BucketModel> models{
      {2, {Round::kComplete, Round::kComplete, Round::kComplete}},
      {2, {Round::kIncomplete, Round::kComplete}},
      {2, {Round::kMismatch, Round::kComplete}},
      {2, {Round::kComplete, Round::kMismatch, Round::kIncomplete, Round::kComplete}}};
  if (!thin_matrix()) models.push_back({3, {Round::kComplete}});  // 600,000 states
  for (const BucketModel& model : models) {
    const Exploration found = explore(model);
    EXPECT_EQ(found.violation, "");
    EXPECT_GT(found.states, 500U);
  }
}

TEST(ProtocolModel, TheExplorerSeesBrokenBuckets) {
  using Fault = BucketModel::Fault;
  for (const Fault fault :
       {Fault::kPublishBeforeFill, Fault::kCountBeforeIndex, Fault::kNewsOfAnyRound,
        Fault::kNoFinalStep, Fault::kNoStepWhenIncomplete, Fault::kMismatchesNotCounted}) {
    const BucketModel model{
        2, {Round::kComplete, Round::kIncomplete, Round::kMismatch, Round::kComplete}, fault};
    EXPECT_NE(explore(model).violation, "") << static_cast<int>(fault);
  }
}

}  // namespace
}  // namespace farandole::test
