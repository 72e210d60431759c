// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_nccl/control.h"

#include <string>

#include "support/simulated_nccl/injection.h"
#include "support/simulated_nccl/misuse.h"

void ncclSimulatedInject(const ncclSimulatedInjection* injection) {
  farandole::sim::nccl::inject(*injection);
}

void ncclSimulatedDropInjections() { farandole::sim::nccl::drop_injections(); }

const char* ncclSimulatedTakeReports() {
  thread_local std::string reports;
  reports = farandole::sim::nccl::take_reports();
  return reports.c_str();
}
