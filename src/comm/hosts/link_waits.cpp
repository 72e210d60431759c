// SPDX-License-Identifier: Apache-2.0
#include "comm/hosts/link_waits.h"

#include <cstring>

#include "comm/hosts/parts.h"

namespace farandole::comm::hosts {
namespace {

/// Shorter waits are told to nobody.
constexpr int kLooksBeforeNews = 5;

void post(shm::RankBlock& block, uint64_t sequence, const shm::Signature& call) {
  shm::Header& header = block.headers[sequence % 2];
  shm::put_call(header, call);
  header.sequence.store(sequence, std::memory_order_seq_cst);
}

}  // namespace

LinkWaits::LinkWaits(const std::string& group, const Topology& topology)
    : rank_(topology.rank),
      world_size_(topology.world_size),
      blocks_(std::make_unique<shm::RankBlock[]>(index_of(topology.world_size))),
      waits_(group, topology, blocks_.get()) {}

void LinkWaits::enter(uint64_t sequence, const shm::Signature& call) {
  looks_ = 0;
  told_.clear();
  waits_.note_call();
  post(blocks_[index_of(rank_)], sequence, call);
}

std::optional<shm::CrossedWaits::Crossing> LinkWaits::look(
    const std::function<bool(int rank)>& is_missing) {
  ++looks_;
  return waits_.look(is_missing);
}

LinkWaits::News LinkWaits::own_news() const {
  const shm::RankBlock& own = blocks_[index_of(rank_)];
  News news{};
  news.sequence = shm::entered(own);
  news.call = shm::call_in(own.headers[news.sequence % 2]);
  news.alone = own.alone.load();
  news.thread = own.thread.load();
  news.crossed = own.crossed.load();
  news.forming = own.forming.load();
  return news;
}

std::string LinkWaits::text_of(const News& news) {
  return {reinterpret_cast<const char*>(&news), sizeof(news)};
}

std::string LinkWaits::news() {
  const News own = own_news();
  if (looks_ < kLooksBeforeNews && own.crossed == 0) return {};
  std::string text = text_of(own);
  if (text == told_) return {};
  told_ = text;
  return text;
}

std::string LinkWaits::news_of_formation() {
  const News own = own_news();
  const uint64_t told = uint64_t{own.forming} << 32 | own.crossed;
  return told_of_formation_.exchange(told) == told ? std::string() : text_of(own);
}

void LinkWaits::hear(int peer, const std::string& text) {
  News news{};
  if (text.size() != sizeof(news) || peer < 0 || peer >= world_size_) return;
  std::memcpy(&news, text.data(), sizeof(news));
  shm::RankBlock& block = blocks_[index_of(peer)];
  // Older than what a collective has told meanwhile, which comes over another connection.
  if (news.sequence < shm::entered(block)) return;
  if (block.thread.load() != shm::CrossedWaits::kSeveralThreads) block.thread.store(news.thread);
  post(block, news.sequence, news.call);
  block.alone.store(news.alone);
  block.forming.store(news.forming);
  block.crossed.store(news.crossed);
}

void LinkWaits::end() {
  for (int rank = 0; rank < world_size_; ++rank) {
    blocks_[index_of(rank)].state.store(shm::RankState::kAborted);
  }
}

}  // namespace farandole::comm::hosts
