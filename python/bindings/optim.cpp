// SPDX-License-Identifier: Apache-2.0
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "delete_without_gil.h"
#include "farandole/error.h"
#include "farandole/optim/adam.h"
#include "farandole/optim/lamb.h"
#include "farandole/optim/lars.h"
#include "farandole/optim/linear_scaled_lr.h"
#include "farandole/optim/sgd.h"
#include "farandole/optim/sharded_optimizer.h"
#include "farandole/optim/update_parameters.h"

namespace farandole::python {
namespace {

namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;

/// What Python does in a change that all ranks make together.
using Completion = std::optional<std::function<void()>>;

/// pybind11 has no holder of const objects; nobody changes a rule.
using Rule = std::shared_ptr<UpdateRule>;

template <class Type, class Hyperparameters>
Rule make_rule(const Hyperparameters& hyperparameters) {
  return std::make_shared<Type>(hyperparameters);
}

UpdateRules as_rules(const std::vector<Rule>& rules) { return {rules.begin(), rules.end()}; }

void bind_rule_class(py::module_& module) {
  py::class_<UpdateRule, Rule>(module, "UpdateRule", "How one step changes a parameter.")
      .def_property_readonly("description", &UpdateRule::description, "Name and hyperparameters.")
      .def_property_readonly("state_names", &UpdateRule::state_names,
                             "The arrays that each parameter needs.");
}

void bind_sgd_rule(py::module_& module) {
  const SgdHyperparameters sgd;
  module.def(
      "sgd_rule",
      [](double lr, double momentum, double dampening, double weight_decay, bool nesterov,
         bool maximize) {
        return make_rule<SgdRule>(
            SgdHyperparameters{lr, momentum, dampening, weight_decay, nesterov, maximize});
      },
      py::arg("lr"), py::arg("momentum") = sgd.momentum, py::arg("dampening") = sgd.dampening,
      py::arg("weight_decay") = sgd.weight_decay, py::arg("nesterov") = sgd.nesterov,
      py::arg("maximize") = sgd.maximize, "That of torch.optim.SGD.");
}

void bind_adam_rule(py::module_& module) {
  const AdamHyperparameters adam;
  module.def(
      "adam_rule",
      [](double lr, double beta1, double beta2, double eps, double weight_decay, bool amsgrad,
         bool maximize, bool decoupled_weight_decay) {
        return make_rule<AdamRule>(AdamHyperparameters{lr, beta1, beta2, eps, weight_decay, amsgrad,
                                                       maximize, decoupled_weight_decay});
      },
      py::arg("lr") = adam.lr, py::arg("beta1") = adam.beta1, py::arg("beta2") = adam.beta2,
      py::arg("eps") = adam.eps, py::arg("weight_decay") = adam.weight_decay,
      py::arg("amsgrad") = adam.amsgrad, py::arg("maximize") = adam.maximize,
      py::arg("decoupled_weight_decay") = adam.decoupled_weight_decay,
      "That of torch.optim.Adam; of AdamW with decoupled_weight_decay.");
}

void bind_lamb_rule(py::module_& module) {
  const LambHyperparameters lamb;
  module.def(
      "lamb_rule",
      [](double lr, double beta1, double beta2, double eps, double weight_decay,
         bool bias_correction, bool maximize) {
        return make_rule<LambRule>(
            LambHyperparameters{lr, beta1, beta2, eps, weight_decay, bias_correction, maximize});
      },
      py::arg("lr") = lamb.lr, py::arg("beta1") = lamb.beta1, py::arg("beta2") = lamb.beta2,
      py::arg("eps") = lamb.eps, py::arg("weight_decay") = lamb.weight_decay,
      py::arg("bias_correction") = lamb.bias_correction, py::arg("maximize") = lamb.maximize,
      "That of LAMB.");
}

void bind_lars_rule(py::module_& module) {
  const LarsHyperparameters lars;
  module.def(
      "lars_rule",
      [](double lr, double momentum, double dampening, double weight_decay, bool nesterov,
         double trust_coefficient, double eps, bool maximize) {
        return make_rule<LarsRule>(LarsHyperparameters{lr, momentum, dampening, weight_decay,
                                                       nesterov, trust_coefficient, eps, maximize});
      },
      py::arg("lr"), py::arg("momentum") = lars.momentum, py::arg("dampening") = lars.dampening,
      py::arg("weight_decay") = lars.weight_decay, py::arg("nesterov") = lars.nesterov,
      py::arg("trust_coefficient") = lars.trust_coefficient, py::arg("eps") = lars.eps,
      py::arg("maximize") = lars.maximize, "That of LARS.");
}

void bind_update_parameters(py::module_& module) {
  module.def(
      "update_parameters",
      [](const Rule& rule, const std::vector<at::Tensor>& parameters,
         const std::vector<at::Tensor>& gradients,
         const std::vector<std::vector<at::Tensor>>& states, const std::vector<int64_t>& steps) {
        update_parameters(*rule, parameters, gradients, states, steps);
      },
      py::arg("rule"), py::arg("parameters"), py::arg("gradients"), py::arg("states"),
      py::arg("steps"), NoGil(), "One step in one process, in place.");
}

void bind_linear_scaled_lr(py::module_& module) {
  module.def("linear_scaled_lr", &linear_scaled_lr, py::arg("base_lr"),
             py::arg("global_batch_size"), py::arg("reference_batch_size"),
             "The linear scaling rule, arXiv:1706.02677.");
}

GradientMode mode_of(const std::string& gradients) {
  if (gradients == "full") return GradientMode::kFull;
  if (gradients == "shard") return GradientMode::kShard;
  throw InvalidArgument("gradients-option", "gradients was \"" + gradients + "\".",
                        "it says what p.grad is between backward and step().",
                        "pass \"full\" (averages on every rank) or \"shard\" (each rank's own).");
}

Partition partition_of(const std::string& partition) {
  if (partition == "elements") return Partition::kElements;
  if (partition == "parameters") return Partition::kParameters;
  throw InvalidArgument(
      "partition-option", "partition was \"" + partition + "\".",
      "it says how parameters are divided among the ranks.",
      "pass \"elements\" (shards of equal size) or \"parameters\" (whole parameters).");
}

ShardedOptimizer::ParameterGroup group_of(std::vector<at::Tensor> parameters,
                                          std::vector<std::string> names) {
  return {std::move(parameters), std::move(names)};
}

using Optimizer = ShardedOptimizer;
using OptimizerClass = py::class_<Optimizer, std::unique_ptr<Optimizer, DeleteWithoutGil>>;

void bind_piece(py::module_& module) {
  py::class_<Optimizer::Piece>(module, "Piece", "A part of a parameter that this rank owns.")
      .def_readonly("parameter", &Optimizer::Piece::parameter, "Index in its group.")
      .def_readonly("offset", &Optimizer::Piece::offset, "Elements, in the order of its memory.")
      .def_readonly("elements", &Optimizer::Piece::elements, "How many.");
}

OptimizerClass bind_construction(py::module_& module) {
  const MasterWeightOptions defaults;
  return OptimizerClass(module, "ShardedOptimizer",
                        "Steps the shards of parameters that this rank owns, for all.")
      .def(py::init([](std::vector<std::vector<at::Tensor>> parameters,
                       std::vector<std::vector<std::string>> names,
                       const std::optional<Group>& group, const std::string& gradients,
                       bool master_weights, bool stochastic_rounding, uint64_t rounding_seed,
                       const std::string& partition, const std::string& shard_over) {
             const GradientMode mode = mode_of(gradients);
             const Partition division = partition_of(partition);
             const MasterWeightOptions masters{master_weights, stochastic_rounding, rounding_seed};
             std::vector<Optimizer::ParameterGroup> groups;
             for (size_t i = 0; i < parameters.size(); ++i) {
               groups.push_back(group_of(std::move(parameters[i]), std::move(names.at(i))));
             }
             return std::unique_ptr<Optimizer, DeleteWithoutGil>(
                 new Optimizer(std::move(groups), group.value_or(Group()), mode, masters, division,
                               shard_over == "host" ? ShardOver::kHost : ShardOver::kWorld));
           }),
           py::arg("groups"), py::arg("names"), py::arg("group"), py::arg("gradients"),
           py::arg("master_weights") = defaults.keep,
           py::arg("stochastic_rounding") = defaults.stochastic_rounding,
           py::arg("rounding_seed") = defaults.rounding_seed, py::arg("partition") = "elements",
           py::arg("shard_over") = "world", NoGil(),
           "Make the parameters views of flat buffers. Collective.");
}

void bind_description(OptimizerClass& optimizer) {
  optimizer.def_property_readonly("rank", &Optimizer::rank, "Of this process.")
      .def_property_readonly("world_size", &Optimizer::world_size, "How many ranks.")
      .def_property_readonly("shard_rank", &Optimizer::shard_rank,
                             "Of this process among those that share shards with it.")
      .def("shard_rank_of", &Optimizer::shard_rank_of, py::arg("rank"),
           "That of a rank; None if it shares no shards with this one.")
      .def_property_readonly("group", &Optimizer::group, "The one that the program gave.")
      .def_property_readonly(
          "has_whole_parameters",
          [](const Optimizer& self) { return self.partition() == Partition::kParameters; },
          "Whether each piece is a whole parameter.")
      .def_property_readonly(
          "master_weights", [](const Optimizer& self) { return self.master_weights().keep; },
          "Whether half parameters have float32 values.")
      .def_property_readonly(
          "stochastic_rounding",
          [](const Optimizer& self) { return self.master_weights().stochastic_rounding; },
          "Whether those of bfloat16 are rounded by chance.");
}

void bind_changes(OptimizerClass& optimizer) {
  optimizer
      .def(
          "add_group",
          [](Optimizer& self, std::vector<at::Tensor> parameters, std::vector<std::string> names,
             const Completion& then) {
            self.add_group(group_of(std::move(parameters), std::move(names)),
                           then.value_or(nullptr));
          },
          py::arg("parameters"), py::arg("names"), py::arg("then") = py::none(), NoGil(),
          "One more group, in which ``then`` takes part, on all ranks or on none. Collective.")
      .def(
          "begin_rebuild",
          [](Optimizer& self, const std::optional<Group>& group) {
            self.begin_rebuild(group.value_or(Group()));
          },
          py::arg("group"), NoGil(), "Gather over these ranks from now on. Collective.")
      .def(
          "finish_rebuild",
          [](Optimizer& self, const Completion& then) {
            self.finish_rebuild(then.value_or(nullptr));
          },
          py::arg("then") = py::none(), NoGil(),
          "Plan anew, with the part of ``then``, on all ranks or on none. Collective.");
}

void bind_steps(OptimizerClass& optimizer) {
  optimizer
      .def(
          "step",
          [](Optimizer& self, const std::vector<Rule>& rules) { self.step(as_rules(rules)); },
          py::arg("rules"), NoGil(), "One step, with a rule for each group. Collective.")
      .def("pieces", &Optimizer::pieces, py::arg("group"), "This rank's, of a group.")
      .def("shards", &Optimizer::shards, py::arg("group"), NoGil(),
           "The same as tensors of one dimension, or as whole parameters.")
      .def("begin_step", &Optimizer::begin_step, py::arg("description"), NoGil(),
           "Wait for all and set the gradients of shards; whether there are others. Collective.")
      .def("end_step", &Optimizer::end_step, NoGil(), "Store shards into all ranks. Collective.")
      .def("fail_step", &Optimizer::fail_step, py::arg("text"), NoGil(),
           "Tell the others that this rank raised. Collective.")
      .def_property_readonly("was_left_out", &Optimizer::was_left_out,
                             "Whether the last step was, for an Inf or NaN under a GradScaler.")
      .def_property_readonly("join_failed", &Optimizer::join_failed,
                             "Whether the others got an error in the last backward after a join.")
      .def_property_readonly("sends_parameters", &Optimizer::sends_parameters,
                             "Whether steps send parameters to ranks that share no memory.")
      .def(
          "overlap", [](Optimizer& self) { self.set_arrival(ParameterArrival::kCaller); },
          "Let steps return while parameters are sent; who reads them calls wait_for().")
      .def("wait", &Optimizer::wait, NoGil(), "Until the last step's parameters have come.")
      .def("wait_for", &Optimizer::wait_for, py::arg("parameters"), NoGil(),
           "Until these have come.")
      .def_property_readonly("is_sending", &Optimizer::is_sending,
                             "Whether parameters are on their way.");
}

void bind_clipping(OptimizerClass& optimizer) {
  optimizer
      .def("clip_grad_norm", &Optimizer::clip_grad_norm_tensor, py::arg("max_norm"),
           py::arg("norm_type"), py::arg("error_if_nonfinite"), NoGil(),
           "The norm before, on the parameters' device. Collective.")
      .def("clip_grad_value", &Optimizer::clip_grad_value, py::arg("clip_value"), NoGil(),
           "Bring elements of gradients into [-clip_value, clip_value].");
}

void bind_state(OptimizerClass& optimizer) {
  optimizer
      .def(
          "make_state",
          [](Optimizer& self, const std::vector<Rule>& rules) { self.make_state(as_rules(rules)); },
          py::arg("rules"), NoGil(), "Make the arrays that step() needs.")
      .def("state", &Optimizer::state, py::arg("group"), py::arg("name"),
           "One of those arrays, by piece; empty if it was not made.")
      .def("steps", &Optimizer::steps, py::arg("group"), "Steps taken, by parameter.")
      .def("set_steps", &Optimizer::set_steps, py::arg("group"), py::arg("steps"),
           py::arg("has_state") = std::vector<bool>(),
           "Steps taken, by parameter; whether they have written to its arrays.")
      .def("state_bytes", &Optimizer::state_bytes, "Of this rank's arrays.");
}

void bind_exchange(OptimizerClass& optimizer) {
  optimizer
      .def("gather", &Optimizer::gather, py::arg("group"), py::arg("pieces"), py::arg("to"),
           NoGil(), "Whole tensors of pieces, on one rank or (-1) on all. Collective.")
      .def("broadcast", &Optimizer::broadcast, py::arg("tensor"), py::arg("root"), NoGil(),
           "From one rank, in place. Collective.")
      .def(
          "all_gather",
          [](const Optimizer& self, const py::bytes& data) {
            std::vector<std::string> all;
            {
              const std::string own = data;
              const py::gil_scoped_release no_gil;
              all = self.all_gather(own);
            }
            std::vector<py::bytes> result(all.begin(), all.end());
            return result;
          },
          py::arg("data"), "Bytes of every rank, of any lengths. Collective.")
      .def("bytes_moved", &Optimizer::bytes_moved,
           "Stored into other ranks or sent, in one backward and step.");
}

}  // namespace

void bind_optim(py::module_& module) {
  bind_rule_class(module);
  bind_sgd_rule(module);
  bind_adam_rule(module);
  bind_lamb_rule(module);
  bind_lars_rule(module);
  bind_update_parameters(module);
  bind_linear_scaled_lr(module);
  bind_piece(module);
  OptimizerClass optimizer = bind_construction(module);
  bind_description(optimizer);
  bind_steps(optimizer);
  bind_clipping(optimizer);
  bind_state(optimizer);
  bind_exchange(optimizer);
  bind_changes(optimizer);
}

}  // namespace farandole::python
