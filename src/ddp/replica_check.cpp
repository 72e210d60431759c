// SPDX-License-Identifier: Apache-2.0
#include "farandole/ddp/replica_check.h"

#include <algorithm>
#include <sstream>
#include <string_view>

#include "ddp/fingerprint_check.h"
#include "farandole/error.h"

namespace farandole {
namespace {

/// One line each: "parameter 'fc.weight' float32[10, 4]".
std::vector<std::string> description(const NamedTensors& parameters, const NamedTensors& buffers) {
  std::vector<std::string> lines;
  const auto add = [&](const char* kind, const std::string& name, const at::Tensor& tensor) {
    std::ostringstream line;
    line << kind << " '" << name << "' " << c10::toString(tensor.scalar_type()) << tensor.sizes();
    if (std::string_view(kind) == "parameter" && !tensor.requires_grad()) line << " (frozen)";
    lines.push_back(line.str());
  };
  for (const auto& [name, tensor] : parameters) add("parameter", name, tensor);
  for (const auto& [name, tensor] : buffers) add("buffer", name, tensor);
  return lines;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// "rank 1 has parameter 'b' ..., rank 0 parameter 'a' ...".
std::string first_difference(const std::vector<std::string>& texts) {
  const std::vector<std::string> reference = lines_of(texts[0]);
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    const std::vector<std::string> other = lines_of(texts[rank]);
    for (size_t i = 0; i < std::max(reference.size(), other.size()); ++i) {
      const std::string left = i < reference.size() ? reference[i] : "nothing more";
      const std::string right = i < other.size() ? other[i] : "nothing more";
      if (left == right) continue;
      return "rank 0 has " + left + ", where rank " + std::to_string(rank) + " has " + right;
    }
  }
  return "their descriptions differ";
}

}  // namespace

void check_same_replicas(const NamedTensors& parameters, const NamedTensors& buffers,
                         const ReplicaGroup& group) {
  if (group.world_size() == 1) return;
  const std::string own = joined(description(parameters, buffers));
  if (!find_rank_that_differs(group, comm::fingerprint_of(own))) return;
  throw InvalidArgument("different-modules",
                        "the ranks of group '" + group.name() + "' have different modules: " +
                            first_difference(group.all_gather(own)) + ".",
                        "only the gradients of equal modules can be averaged.",
                        "build the module from the same code and configuration on every rank.");
}

}  // namespace farandole
