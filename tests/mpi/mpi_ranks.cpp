// SPDX-License-Identifier: Apache-2.0
#include "mpi/mpi_ranks.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "support/directory_store.h"

namespace farandole::test {
namespace {

std::string variable(std::initializer_list<const char*> names, const std::string& otherwise) {
  for (const char* name : names) {
    if (const char* const value = std::getenv(name)) return value;
  }
  return otherwise;
}

/// A folder that all processes of the job have; rank 0 removes it at its exit.
class JobFolder {
 public:
  JobFolder() {
    const std::string job = variable({"PMIX_NAMESPACE", "PMI_JOBID"}, std::to_string(::getppid()));
    path_ = (std::filesystem::temp_directory_path() / ("farandole-" + job)).string();
    std::filesystem::create_directories(path_);
  }
  ~JobFolder() {
    std::error_code ignored;
    if (MpiProcess::own().rank == 0) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// The same on all processes, which make the same groups.
std::string next_name() {
  static int groups = 0;
  return "test" + std::to_string(++groups);
}

}  // namespace

MpiProcess MpiProcess::own() {
  return {std::stoi(variable({"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}, "0")),
          std::stoi(variable({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}, "1"))};
}

comm::Store& job_store() {
  static const JobFolder folder;
  static DirectoryStore store(folder.path());
  return store;
}

comm::CommunicatorOptions options_of_job(const std::string& name) {
  comm::CommunicatorOptions options;
  options.name = name;
  options.rank = MpiProcess::own().rank;
  options.world_size = MpiProcess::own().world_size;
  options.config = Config();
  options.config.timeout = std::chrono::seconds(30);
  return options;
}

void run_on_mpi_ranks(const RankBody& body, const std::string& backend) {
  const auto options = options_of_job(next_name());
  const auto group = comm::make_communicator(backend, job_store(), options);
  body(*group);
}

void run_on_mpi_hosts(const std::vector<int>& hosts, const RankBody& body) {
  auto options = options_of_job(next_name());
  options.config.link = HostLinkChoice::kMpi;
  options.config.network_interface = "lo";
  options.config.host_id = "emulated-" + std::to_string(hosts[static_cast<size_t>(options.rank)]);
  const auto group = comm::make_communicator("tcp", job_store(), options);
  body(*group);
}

void sum(comm::Communicator& group, size_t count, std::chrono::milliseconds timeout) {
  std::vector<float> data(count, 1.0F);
  comm::CollectiveOptions options;
  options.timeout = timeout;
  group.all_reduce(data.data(), data.data(), count, comm::DataType::kFloat32, comm::ReduceOp::kSum,
                   options);
  for (const float each : data) ASSERT_EQ(each, static_cast<float>(group.world_size()));
}

void mix_sizes(comm::Communicator& group, int rounds, int stride, int most) {
  for (int round = 0; round < rounds; ++round) {
    const auto count = static_cast<size_t>(1 + (round * stride) % most);
    std::vector<float> data(count, static_cast<float>(round + group.rank()));
    group.all_reduce(data.data(), data.data(), count, comm::DataType::kFloat32,
                     comm::ReduceOp::kMax);
    const auto expected = static_cast<float>(round + group.world_size() - 1);
    ASSERT_EQ(data.front(), expected);
    ASSERT_EQ(data.back(), expected);
    if (round % 3 == 0) group.barrier();
    int64_t word = group.rank() == round % group.world_size() ? round : -1;
    group.broadcast(&word, 1, comm::DataType::kInt64, round % group.world_size());
    ASSERT_EQ(word, round);
  }
}

}  // namespace farandole::test
