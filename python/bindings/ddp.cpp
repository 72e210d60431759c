// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/python_comm_hook.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "ddp/arrival_counter.h"
#include "ddp/gradient_home.h"
#include "delete_without_gil.h"
#include "farandole/ddp/replica.h"
#include "farandole/ddp/sync_batch_norm.h"

namespace farandole::python {
namespace {

namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;

void bind_plan(py::module_& module) {
  py::class_<BucketPlan> plan(module, "BucketPlan", "Which gradient lies in which bucket.");
  py::class_<BucketPlan::Slot>(plan, "Slot", "The place of one gradient.")
      .def_readonly("parameter", &BucketPlan::Slot::parameter, "Index into the parameters.")
      .def_readonly("offset", &BucketPlan::Slot::offset, "Elements from the start of the bucket.")
      .def_readonly("elements", &BucketPlan::Slot::elements, "Elements of the gradient.");
  py::class_<BucketPlan::Bucket>(plan, "Bucket", "Gradients of one dtype and device.")
      .def_property_readonly(
          "bytes", [](const BucketPlan::Bucket& self) { return self.bytes(); }, "Of its gradients.")
      .def_readonly("elements", &BucketPlan::Bucket::elements, "Of its gradients.")
      .def_readonly("padded_elements", &BucketPlan::Bucket::padded_elements, "With padding.")
      .def_readonly("slots", &BucketPlan::Bucket::slots, "The gradients, in order.");
  plan.def_readonly("buckets", &BucketPlan::buckets, "In the order in which they are launched.");
}

void bind_stats(py::module_& module) {
  py::class_<BackwardStats> stats(module, "BackwardStats",
                                  "How the last synchronized backward went; nanoseconds.");
  py::class_<BackwardStats::Bucket>(stats, "Bucket", "One bucket on this rank.")
      .def_readonly("bytes", &BackwardStats::Bucket::bytes, "Of its gradients.")
      .def_readonly("parameters", &BackwardStats::Bucket::parameters, "How many.")
      .def_readonly("ready_ns", &BackwardStats::Bucket::ready_ns, "Its last gradient had come.")
      .def_readonly("complete_ns", &BackwardStats::Bucket::complete_ns,
                    "All ranks had launched it; 0 if that is not known.")
      .def_readonly("finish_ns", &BackwardStats::Bucket::finish_ns, "This rank's part was done.");
  py::class_<BackwardStats::Rank>(stats, "Rank", "What a rank told of itself.")
      .def_readonly("begin_ns", &BackwardStats::Rank::begin_ns, "Its backward began.")
      .def_readonly("end_ns", &BackwardStats::Rank::end_ns, "It had its last gradient.");
  stats.def_readonly("backward", &BackwardStats::backward, "Synchronized backward passes so far.")
      .def_readonly("plans", &BackwardStats::plans, "Of buckets, made so far.")
      .def_readonly("begin_ns", &BackwardStats::begin_ns, "Backward began.")
      .def_readonly("end_ns", &BackwardStats::end_ns, "The last gradient had come.")
      .def_readonly("finish_ns", &BackwardStats::finish_ns, "All gradients were averages.")
      .def_readonly("copied_bytes", &BackwardStats::copied_bytes,
                    "Of gradients that were not computed inside their buckets.")
      .def_readonly("latest_rank", &BackwardStats::latest_rank, "Which rank was last.")
      .def_readonly("buckets", &BackwardStats::buckets, "In the order of the plan.")
      .def_readonly("ranks", &BackwardStats::ranks, "By rank.");
}

/// torch's future of Python keeps what set_exception() got as its value.
class PythonHook final : public c10d::PythonCommHook {
 public:
  using PythonCommHook::PythonCommHook;

  at::Tensor parseHookResult(const c10::IValue& result) override {
    if (result.isPyObject()) {
      const py::gil_scoped_acquire gil;
      const auto value = py::reinterpret_borrow<py::object>(result.toPyObject());
      if (PyExceptionInstance_Check(value.ptr())) {
        PyErr_SetObject(py::type::handle_of(value).ptr(), value.ptr());
        throw py::error_already_set();
      }
    }
    return PythonCommHook::parseHookResult(result);
  }
};

void bind_options(py::module_& module) {
  py::class_<ReplicaOptions>(module, "ReplicaOptions", "How replicas are kept alike.")
      .def(py::init<>(), "The defaults.")
      .def_readwrite("broadcast_buffers", &ReplicaOptions::broadcast_buffers,
                     "Rank 0's buffers go to all before each synchronized forward.")
      .def_readwrite("init_sync", &ReplicaOptions::init_sync,
                     "Compare the modules and send rank 0's state to all at the start.")
      .def_readwrite("find_unused_parameters", &ReplicaOptions::find_unused_parameters,
                     "Missing gradients count as zeros.")
      .def_readwrite("static_graph", &ReplicaOptions::static_graph,
                     "Every backward is like the first.")
      .def_readwrite("skip_all_reduce_unused_params",
                     &ReplicaOptions::skip_all_reduce_unused_params,
                     "Buckets of unused parameters are not reduced.")
      .def_readwrite("bucket_cap_mb", &ReplicaOptions::bucket_cap_mb, "MiB; None: the group's.")
      .def_readwrite("bucket_cap_mb_list", &ReplicaOptions::bucket_cap_mb_list,
                     "MiB of the first buckets.")
      .def_readwrite("report_nonfinite", &ReplicaOptions::report_nonfinite,
                     "What becomes of gradients with Inf or NaN; None: FARANDOLE_CHECK_FINITE.")
      .def_readwrite(
          "wire_dtype", &ReplicaOptions::wire_dtype,
          "What gradients travel as, torch.bfloat16 or torch.float16; None: as they are.")
      .def_readwrite("ignored", &ReplicaOptions::ignored, "Names that stay as they are.")
      .def_readwrite("sparse", &ReplicaOptions::sparse, "Names with sparse gradients.");
}

using ReplicaClass = py::class_<Replica, std::unique_ptr<Replica, DeleteWithoutGil>>;

/// What a training loop calls, by way of forward() and backward().
ReplicaClass bind_passes(py::module_& module) {
  return ReplicaClass(module, "Replica", "One rank's copy of a model.")
      .def(py::init<NamedTensors, NamedTensors, const Group&, ReplicaOptions>(),
           py::arg("parameters"), py::arg("buffers"), py::arg("group"), py::arg("options"), NoGil(),
           "Compare and send the state. Collective.")
      .def("before_forward", &Replica::before_forward, NoGil(), "Tell that a forward begins.")
      .def("after_forward", &Replica::after_forward, py::arg("outputs"), NoGil(),
           "Tell what it returned.")
      .def("forward_failed", &Replica::forward_failed, NoGil(), "Tell that it raised.")
      .def_property("synchronize", &Replica::synchronizes, &Replica::set_synchronize,
                    "Whether the next forward passes are synchronized.")
      .def("passes", &Replica::passes, NoGil(),
           "Forward passes so far whose backward has reached a parameter.")
      .def("set_loss_weight", &Replica::set_loss_weight, py::arg("weight"), NoGil(),
           "What the loss is a mean over; None: nothing.")
      .def("pass_weight", &Replica::pass_weight, "That weight, as it is at any time.")
      .def(
          "set_python_hook",
          [](Replica& self, py::object state, py::object hook) {
            auto given = std::make_shared<PythonHook>(std::move(state), std::move(hook));
            const py::gil_scoped_release no_gil;
            self.set_hook(std::move(given));
          },
          py::arg("state"), py::arg("hook"), "Give full buckets to ``hook(state, bucket)``.")
      .def("await_parameters", &Replica::await_parameters, NoGil(),
           "Wait for what an optimizer still sends.");
}

/// What replicas do apart from passes.
void bind_replica(ReplicaClass& replica) {
  replica
      .def("broadcast", &Replica::broadcast, py::arg("root") = 0, NoGil(),
           "Send parameters and buffers of ``root`` to all. Collective.")
      .def("broadcast_buffers", &Replica::broadcast_buffers, py::arg("root") = 0, NoGil(),
           "Send the buffers of ``root`` to all. Collective.")
      .def("will_send_buffers", &Replica::will_send_buffers, "Whether the next forward does.")
      .def("join_backward", &Replica::join_backward, py::arg("weight") = 0, NoGil(),
           "Take part in one backward of the others; whether one had inputs. Collective.")
      .def("end_abandoned", &Replica::end_abandoned, NoGil(),
           "Tell peers of a backward that an exception has left. Collective if there is one.")
      .def("end_join", &Replica::end_join,
           "Drop p.grad if it has the averages of backwards in which only others had inputs.")
      .def("set_group", &Replica::set_group, py::arg("group"), NoGil(),
           "Go on with other ranks. Collective.")
      .def("set_tensors", &Replica::set_tensors, py::arg("parameters"), py::arg("buffers"), NoGil(),
           "Go on with other tensors by the same names.")
      .def_property_readonly(
          "group", [](const Replica& self) { return self.group().group(); },
          "What the replicas talk through.")
      .def("stats", &Replica::stats, NoGil(), "How the last synchronized backward went.")
      .def("plan", &Replica::plan, NoGil(), "The buckets; empty before the first backward.");
}

void bind_normalization(py::module_& module) {
  using Optional = std::optional<at::Tensor>;
  py::class_<PassWeight, std::shared_ptr<PassWeight>>(
      module, "PassWeight", "What the loss of a wrapper's passes counts for on this rank.");
  module.def(
      "sync_batch_norm",
      [](const at::Tensor& input, const Optional& weight, const Optional& bias, double eps,
         const Group& group, const std::optional<std::shared_ptr<PassWeight>>& pass_weight) {
        const NormalizedBatch all =
            sync_batch_norm(input, weight.value_or(at::Tensor()), bias.value_or(at::Tensor()), eps,
                            group, pass_weight.value_or(nullptr));
        return std::tuple(all.output, all.mean, all.variance, all.count);
      },
      py::arg("input"), py::arg("weight"), py::arg("bias"), py::arg("eps"), py::arg("group"),
      py::arg("pass_weight"), NoGil(),
      "A normalized batch of all ranks: output, mean, variance, count. Collective.");
}

/// Copies of a std::function are made without the GIL, so they share one reference.
ArrivalCounter::Callback callback_of(py::object function) {
  const auto drop = [](py::object* last) {
    const py::gil_scoped_acquire gil;
    delete last;
  };
  const std::shared_ptr<py::object> shared(new py::object(std::move(function)), drop);
  return [shared](std::optional<size_t> excess) {
    const py::gil_scoped_acquire gil;
    (*shared)(excess);
  };
}

void bind_arrivals(py::module_& module) {
  py::class_<ArrivalCounter, std::shared_ptr<ArrivalCounter>>(
      module, "ArrivalCounter", "Counts gradients of parameters until a step has all.")
      .def(py::init([](const std::vector<at::Tensor>& parameters, py::object callback) {
             return ArrivalCounter::make(parameters, callback_of(std::move(callback)));
           }),
           py::arg("parameters"), py::arg("callback"),
           "Call ``callback(None)`` then, and ``callback(index)`` of a parameter with one more.")
      .def("reset", &ArrivalCounter::reset, py::arg("passes"), NoGil(),
           "Begin a step in which each gets so many.")
      .def("has_arrivals", &ArrivalCounter::has_arrivals, NoGil(), "Whether some came since.");
}

void bind_home(py::module_& module) {
  py::class_<GradientHome, std::shared_ptr<GradientHome>>(
      module, "GradientHome", "Keeps p.grad of parameters in memory that ranks share.")
      .def(py::init(&GradientHome::make), py::arg("parameters"), "Hook the parameters.")
      .def("assign", &GradientHome::assign, py::arg("first"), py::arg("memory"), NoGil(),
           "Let parameters from ``first`` on have their slots in ``memory``, which they fill.")
      .def(
          "gather",
          [](GradientHome& self, size_t first) -> std::optional<at::Tensor> {
            const at::Tensor memory = self.gather(first);
            return memory.defined() ? std::optional(memory) : std::nullopt;
          },
          py::arg("first"), NoGil(),
          "Move these gradients into their slots and return the memory; None if that cannot be.")
      .def("settle", &GradientHome::settle, py::arg("first"), NoGil(),
           "Let p.grad be the slot, whatever was put there since gather().");
}

}  // namespace

void bind_ddp(py::module_& module) {
  bind_normalization(module);
  bind_plan(module);
  bind_stats(module);
  bind_options(module);
  ReplicaClass replica = bind_passes(module);
  bind_replica(replica);
  bind_arrivals(module);
  bind_home(module);
}

}  // namespace farandole::python
