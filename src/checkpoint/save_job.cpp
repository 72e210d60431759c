// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/save_job.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <stdexcept>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/slice_file.h"
#include "farandole/error.h"

namespace farandole::checkpoint {
namespace {

/// Texts between ranks begin with one of these.
constexpr char kDone = '+';
constexpr char kFailed = '-';
constexpr char kFailedInPlace = '!';  ///< after the checkpoint was put in place

std::string file_name(int rank, int world_size) {
  char name[64];
  std::snprintf(name, sizeof(name), "rank-%05d-of-%05d.safetensors", rank, world_size);
  return name;
}

/// What `body` returns, or the error that it met.
template <class Body>
std::string attempted(const Body& body) {
  try {
    return kDone + body();
  } catch (const std::exception& error) {
    return kFailed + std::string(error.what());
  }
}

std::vector<std::string> errors_in(const std::vector<std::string>& texts) {
  std::vector<std::string> errors;
  for (const std::string& text : texts) {
    errors.push_back(!text.empty() && text[0] == kDone ? "" : text.substr(text.empty() ? 0 : 1));
    if (text.empty()) errors.back() = "it sent nothing";
  }
  return errors;
}

/// What an error of another rank says, in one line, without its fix.
std::string in_one_line(const std::string& text) {
  std::string line = text.substr(0, text.find("\nfix: "));
  const size_t why = line.find("\nwhy: ");
  if (why != std::string::npos) line.replace(why, 6, " Why: ");
  return line;
}

}  // namespace

void throw_first(const std::vector<std::string>& errors, int rank, const std::string& call,
                 bool is_in_place) {
  const auto failed = std::find_if(errors.begin(), errors.end(),
                                   [](const std::string& each) { return !each.empty(); });
  if (failed == errors.end()) return;
  const auto first = static_cast<int>(failed - errors.begin());
  const std::string& own = errors[static_cast<size_t>(rank)];
  const int of = own.empty() ? first : rank;
  throw CheckpointError(
      "checkpoint-failed", call + " failed on rank " + std::to_string(of) + ".",
      "it met: " +
          (own.empty() || is_in_place ? in_one_line(errors[static_cast<size_t>(of)]) : own),
      is_in_place
          ? "fix the cause there; the checkpoint is complete and can be loaded by its name, "
            "but the 'latest' file may name the one before, older ones may not have been "
            "removed, and a crash of the host may undo it."
          : "fix the cause there, and call it again on every rank; nothing was changed.",
      {{of}, ""});
}

void SaveJob::run(const Exchange& exchange) const {
  const auto written = exchange(attempted([&] {
    if (!failed.empty()) throw std::runtime_error(failed);
    return write_slices(temporary, file_name(rank, world_size), slices).to_json().dump();
  }));
  const std::vector<std::string> errors = errors_in(written);
  const bool all_written = std::all_of(errors.begin(), errors.end(),
                                       [](const std::string& each) { return each.empty(); });
  std::string outcome(1, kDone);
  bool is_in_place = false;
  if (rank == 0 && all_written) {
    outcome = attempted([&] {
      CheckpointIndex index;
      index.number = number;
      index.name = name;
      index.world_size = world_size;
      index.values = values;
      for (const std::string& text : written) {
        index.files.push_back(FileRecord::from_json(Json::parse(text.substr(1))));
      }
      lock->put_in_place(number, [&](bool is_newest) {
        commit(root, temporary, name, index, is_newest, is_in_place);
      });
      if (keep > 0) remove_old(root, keep);
      return std::string();
    });
  }
  if (rank == 0 && (!all_written || outcome[0] == kFailed)) remove_folder(temporary);
  if (is_in_place && outcome[0] == kFailed) outcome[0] = kFailedInPlace;
  throw_first(errors, rank, "save_checkpoint()");
  const std::vector<std::string> outcomes = exchange(outcome);
  throw_first(errors_in(outcomes), rank, "save_checkpoint()",
              !outcomes[0].empty() && outcomes[0][0] == kFailedInPlace);
}

}  // namespace farandole::checkpoint
