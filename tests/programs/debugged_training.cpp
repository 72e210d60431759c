// SPDX-License-Identifier: Apache-2.0
// A training for tests/python/test_debugger_cpp.py: debugged_training FOLDER STEPS [HOW].
// HOW: "killed" ends it by SIGKILL; "broken" saves what no hook takes, and prints the errors.
#include <farandole/farandole.h>
#include <torch/torch.h>

#include <csignal>
#include <cstdio>
#include <functional>
#include <limits>
#include <string>

namespace {

struct NetImpl : torch::nn::Module {
  torch::nn::Linear fc{nullptr};

  NetImpl() { fc = register_module("fc", torch::nn::Linear(3, 2)); }
  torch::Tensor forward(const torch::Tensor& x) { return fc(x); }
};
TORCH_MODULE(Net);

using farandole::debugger::Hook;
using farandole::debugger::HookOptions;

void expect_error(const std::function<void()>& body) {
  try {
    body();
    std::printf("no error\n");
  } catch (const farandole::Error& error) {
    std::printf("%s\n", error.what());
  }
}

void break_it(const std::string& folder) {
  const auto with = [&](const std::function<void(HookOptions&)>& change) {
    HookOptions options;
    options.folder = folder;
    change(options);
    expect_error([&] { const Hook hook(options); });
  };
  with([](HookOptions& options) { options.save_interval = 0; });
  with([](HookOptions& options) { options.collections = {"moments"}; });
  with([](HookOptions& options) { options.reductions = {"median"}; });
  HookOptions options;
  options.folder = folder;
  Hook hook(options);
  expect_error([&] { hook.set_mode("REST"); });
  HookOptions nowhere;
  nowhere.folder = "/proc/nowhere";
  Hook of_nowhere(nowhere);
  expect_error([&] { of_nowhere.save_scalar("number", 1); });
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = argv[1];
  const std::string how = argc > 3 ? argv[3] : "";
  if (how == "broken") {
    break_it(folder);
    return 0;
  }
  const auto world = farandole::init_process_group();
  Net net;
  {
    const torch::NoGradGuard no_grad;
    net->fc->weight.copy_(torch::arange(6).view({2, 3}));
    net->fc->bias.copy_(torch::arange(2));
  }
  farandole::DistributedDataParallel model(net, world);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(1));

  HookOptions options;
  options.folder = folder;
  options.collections = {"weights", "biases", "gradients"};
  options.save_interval = 2;
  options.all_workers = true;
  Hook hook(options);
  hook.register_module(*net);
  hook.set_mode("TRAIN");
  for (int64_t step = 0; step < std::stoll(argv[2]); ++step) {
    hook.begin_step();
    optimizer.zero_grad();
    const auto x = torch::full({4, 3}, static_cast<double>(farandole::rank()));
    const auto loss = model.forward(x).sum();
    hook.save_loss("Sum", loss);
    loss.backward();
    hook.after_backward();
    optimizer.step();
    hook.save_scalar("half", static_cast<double>(step) / 2);
    hook.save_tensor("odd", torch::tensor({0.0, 1.0, std::numeric_limits<double>::infinity()}));
    hook.save_tensor("batch", x, "inputs");
  }
  if (how == "killed") std::raise(SIGKILL);
  return 0;
}
