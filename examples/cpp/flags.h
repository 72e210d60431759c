// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

/// Options of a command line, `--name value`, each with a default and a line of help.
class Flags {
 public:
  struct Flag {
    std::string name, value, help;
    std::vector<std::string> choices = {};  ///< none: any value
  };

  /// Prints help and ends the program if asked to, or if an argument is not one of `flags`.
  Flags(int argc, char** argv, const char* description, const std::vector<Flag>& flags) {
    for (const Flag& flag : flags) values_[flag.name] = flag.value;
    for (int i = 1; i < argc; i += 2) {
      const std::string name = argv[i];
      if (name == "--help") print_help(stdout, argv[0], description, flags, 0);
      if (name.rfind("--", 0) != 0 || values_.count(name.substr(2)) == 0 || i + 1 == argc) {
        std::fprintf(stderr, "%s is not an option, or has no value\n", name.c_str());
        print_help(stderr, argv[0], description, flags, 2);
      }
      values_[name.substr(2)] = argv[i + 1];
    }
    for (const auto& [name, value, help, choices] : flags) {
      const std::string& chosen = values_[name];
      if (choices.empty() || std::count(choices.begin(), choices.end(), chosen) > 0) continue;
      std::fprintf(stderr, "--%s %s: it is %s\n", name.c_str(), chosen.c_str(), help.c_str());
      std::exit(2);
    }
  }

  const std::string& text(const std::string& name) const { return values_.at(name); }
  int64_t integer(const std::string& name) const { return static_cast<int64_t>(number(name)); }
  double number(const std::string& name) const {
    char* end = nullptr;
    const double value = std::strtod(text(name).c_str(), &end);
    if (end == text(name).c_str() || *end != '\0') {
      std::fprintf(stderr, "--%s %s: it is a number\n", name.c_str(), text(name).c_str());
      std::exit(2);
    }
    return value;
  }

 private:
  [[noreturn]] static void print_help(std::FILE* file, const char* program, const char* description,
                                      const std::vector<Flag>& flags, int status) {
    std::fprintf(file, "usage: %s [--option value]...\n%s\n\n", program, description);
    for (const Flag& flag : flags) {
      std::fprintf(file, "  --%-14s %s (default: %s)\n", flag.name.c_str(), flag.help.c_str(),
                   flag.value.empty() ? "none" : flag.value.c_str());
    }
    std::exit(status);
  }

  std::map<std::string, std::string> values_;
};
