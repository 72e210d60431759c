// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "progress.h"

/// Rows of numbers by step: printed, and in log.csv. examples/python/plot_training.py draws them.
class TrainingLog {
 public:
  /// Writes into `folder`; into nothing if it is empty, as on all ranks but rank 0. Goes on after
  /// `step` of `steps`: rows of later steps, which will come again, are removed.
  TrainingLog(const std::filesystem::path& folder, std::vector<std::string> columns, int64_t step,
              int64_t steps, int64_t epoch_steps)
      : columns_(std::move(columns)),
        progress_(step, steps),
        epoch_steps_(std::max<int64_t>(epoch_steps, 1)),  // 0: less data than one batch
        epochs_(steps / epoch_steps_) {
    if (folder.empty()) return;
    std::filesystem::create_directories(folder);
    path_ = folder / "log.csv";
    std::vector<std::string> rows;
    std::ifstream before(path_);
    for (std::string row; step > 0 && std::getline(before, row);) {
      if (row.rfind("step", 0) != 0 && std::atoll(row.c_str()) <= step) rows.push_back(row);
    }
    before.close();
    std::ofstream file(path_);
    file << "step";
    for (const std::string& column : columns_) file << ',' << column;
    file << '\n';
    for (const std::string& row : rows) file << row << '\n';
  }

  /// A row; columns without a value stay empty.
  void write(int64_t step, const std::vector<std::pair<std::string, double>>& values) const {
    if (path_.empty()) return;
    std::string line = "step " + std::to_string(step) + ":", row = std::to_string(step);
    for (const auto& [name, value] : values) line += " " + name + " " + text(value) + ",";
    line.back() = ';';
    const int64_t epoch = (step + epoch_steps_ - 1) / epoch_steps_;
    line += " epoch " + std::to_string(epoch) + " of " + std::to_string(epochs_) + ", " +
            progress_.left(step) + " left";
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
    for (const std::string& column : columns_) {
      row += ',';
      for (const auto& [name, value] : values) {
        if (name == column) row += text(value);
      }
    }
    std::ofstream(path_, std::ios::app) << row << '\n';
  }

 private:
  static std::string text(double value) {
    char text[32];
    std::snprintf(text, sizeof(text), "%.9g", value);
    return text;
  }

  std::vector<std::string> columns_;
  const Progress progress_;
  const int64_t epoch_steps_;
  const int64_t epochs_;
  std::filesystem::path path_;
};
