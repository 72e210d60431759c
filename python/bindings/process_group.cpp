// SPDX-License-Identifier: Apache-2.0
#include "farandole/process_group/process_group.h"

#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include <chrono>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "comm/tcp/network_address.h"
#include "farandole/config.h"
#include "farandole/process_group/collectives.h"
#include "farandole/process_group/symmetric_tensor.h"
#include "farandole/process_group/work.h"
#include "process_group/default_group_finder.h"
#include "process_group/launch.h"
#include "process_group/live_groups.h"
#include "process_group/rendezvous.h"

namespace farandole::python {
namespace {

namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;
using Milliseconds = std::chrono::milliseconds;

void bind_backend(py::module_& module) {
  using Options = ProcessGroupFarandole::Options;
  py::class_<ProcessGroupFarandole, c10d::Backend, c10::intrusive_ptr<ProcessGroupFarandole>>
      backend(module, "ProcessGroupFarandole", "The backend \"farandole\" of torch.distributed.");
  py::class_<Options, c10d::Backend::Options, c10::intrusive_ptr<Options>>(
      backend, "Options", "What a group is made with.")
      .def(py::init<Milliseconds>(), py::arg("timeout") = Milliseconds(kBackendDefaultTimeout),
           "Options with the timeout of every collective.")
      .def_readwrite("timeout", &Options::timeout, "How long a collective waits for a late rank.")
      .def_readwrite("is_default", &Options::is_default,
                     "Whether it is the default group, in which ranks of others are counted.");
  backend
      .def(py::init<const c10::intrusive_ptr<c10d::Store>&, int, int,
                    const c10::intrusive_ptr<Options>&>(),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options"), NoGil(),
           "Meet the other ranks in ``store``. Collective.")
      .def_static(
          "of", [](c10d::ProcessGroup& group) { return ProcessGroupFarandole::of(group); },
          py::arg("group"), NoGil(),
          "The farandole backend of a group, also under TORCH_DISTRIBUTED_DEBUG=DETAIL; None "
          "if it has another.")
      .def_property_readonly(
          "local_rank",
          [](const ProcessGroupFarandole& self) { return self.topology().local_rank; },
          "This rank among those on its host.")
      .def_property_readonly(
          "local_world_size",
          [](const ProcessGroupFarandole& self) { return self.topology().local_world_size; },
          "How many ranks are on this host.")
      .def_property_readonly(
          "host",
          [](const ProcessGroupFarandole& self) {
            const comm::Topology& topology = self.topology();
            return topology.host_of_rank.at(static_cast<size_t>(topology.rank));
          },
          "This host, from 0; hosts are counted by their first ranks.")
      // torch 2.11 calls them, but binds its own for ProcessGroupNCCL alone.
      .def("_start_time_estimate", &ProcessGroupFarandole::startTimeEstimate, NoGil(),
           "Estimate collectives from now on instead of running them. Collective at first.")
      .def("_end_time_estimate", &ProcessGroupFarandole::endTimeEstimate, NoGil(),
           "How many microseconds they would have taken.")
      .def(
          "perform_nocolor_split", [](const ProcessGroupFarandole&, const at::Device&) {},
          py::arg("device"), "Do nothing: ranks outside of a new group have no part in it.");
  py::class_<WorkFarandole, c10d::Work, c10::intrusive_ptr<WorkFarandole>>(
      module, "WorkFarandole", "One collective of a ProcessGroupFarandole.")
      .def_property_readonly(
          "sequence", &WorkFarandole::getSequencenumber,
          "The number of the collective in its group, from 1; 0 for a transfer.");
}

/// Its name is no sure sign: torch counts groups, and those too that did not form.
Group default_group_of_torch() {
  const py::gil_scoped_acquire gil;
  const py::object world = py::module_::import("torch.distributed").attr("group").attr("WORLD");
  return world.is_none() ? Group() : world.cast<Group>();
}

void bind_launch(py::module_& module) {
  py::class_<Launch>(module, "Launch", "How this process was started.")
      .def_readonly("launcher", &Launch::launcher,
                    "\"torchrun\", \"mpirun\", \"srun\" or \"alone\".")
      .def_readonly("rank", &Launch::rank, "This process.")
      .def_readonly("world_size", &Launch::world_size, "All processes.")
      .def_readonly("local_rank", &Launch::local_rank, "This process on its host.")
      .def_readonly("local_world_size", &Launch::local_world_size, "All processes on its host.")
      .def_readonly("master_address", &Launch::master_address, "Where the store is, or \"\".")
      .def_readonly("master_port", &Launch::master_port, "Its port.")
      .def_property_readonly("has_meeting_place", &Launch::has_meeting_place,
                             "Whether the environment tells where the ranks meet.");
  module.def("find_launch", &find_launch,
             "Read the launcher's variables; raise InvalidArgument if they are set in part.");
  module.def("go_alone", &go_alone, "Tell the user that this process runs alone.");
  module.def(
      "meet",
      [](std::optional<Milliseconds> timeout) {
        InitOptions options;
        if (timeout) options.timeout = *timeout;
        const Rendezvous place = meet(options);
        return std::make_tuple(place.store, place.rank, place.world_size);
      },
      py::arg("timeout"), NoGil(),
      "The store, the rank and the world size that the launcher tells.");
  module.def(
      "address_of_this_host",
      [] {
        return comm::tcp::address_of_this_host(Config::from_environment().network_interface).host();
      },
      NoGil(), "Where other hosts reach this one: FARANDOLE_NETWORK_INTERFACE, or a guess.");
  module.def("shut_down_all_groups", &shut_down_all_groups, NoGil(),
             "Shut every group of this process down.");
}

void bind_ranks(py::module_& module) {
  const py::arg group("group");
  module.def("rank", &rank, group, "The rank of this process in the group.");
  module.def("world_size", &world_size, group, "How many ranks the group has.");
  module.def("local_rank", &local_rank, group, "This rank among those on its host.");
  module.def("local_world_size", &local_world_size, group, "How many ranks are on this host.");
  module.def("abort", &abort, group, NoGil(),
             "Fail every collective of the group, here and on its peers.");
}

void bind_reductions(py::module_& module) {
  module.def(
      "all_reduce",
      [](const at::Tensor& tensor, const c10d::ReduceOp& op, const Group& group, bool async_op) {
        return all_reduce(tensor, {op, group, async_op});
      },
      py::arg("tensor"), py::arg("op"), py::arg("group"), py::arg("async_op"), NoGil(),
      "Reduce ``tensor`` in place over the ranks.");
  module.def(
      "reduce_scatter",
      [](const at::Tensor& output, const at::Tensor& input, const c10d::ReduceOp& op,
         const Group& group, bool async_op) {
        return reduce_scatter(output, input, {op, group, async_op});
      },
      py::arg("output"), py::arg("input"), py::arg("op"), py::arg("group"), py::arg("async_op"),
      NoGil(), "Fill ``output`` with this rank's part of the reduction of ``input``.");
  module.def(
      "reduce",
      [](const at::Tensor& tensor, int root, const c10d::ReduceOp& op, const Group& group,
         bool async_op) {
        return reduce(tensor, root, {op, group, async_op});
      },
      py::arg("tensor"), py::arg("root"), py::arg("op"), py::arg("group"), py::arg("async_op"),
      NoGil(), "Reduce over the ranks into the ``tensor`` of ``root``.");
}

void bind_moves(py::module_& module) {
  module.def(
      "all_gather",
      [](const at::Tensor& output, const at::Tensor& input, const Group& group, bool async_op) {
        return all_gather(output, input, {group, async_op});
      },
      py::arg("output"), py::arg("input"), py::arg("group"), py::arg("async_op"), NoGil(),
      "Fill ``output`` with the ranks' inputs in rank order.");
  module.def(
      "broadcast",
      [](const at::Tensor& tensor, int root, const Group& group, bool async_op) {
        return broadcast(tensor, root, {group, async_op});
      },
      py::arg("tensor"), py::arg("root"), py::arg("group"), py::arg("async_op"), NoGil(),
      "Fill ``tensor`` with that of ``root``.");
  module.def(
      "all_to_all",
      [](const at::Tensor& output, const at::Tensor& input, std::vector<int64_t> output_splits,
         std::vector<int64_t> input_splits, const Group& group, bool async_op) {
        return all_to_all(output, input,
                          {group, async_op, std::move(output_splits), std::move(input_splits)});
      },
      py::arg("output"), py::arg("input"), py::arg("output_splits"), py::arg("input_splits"),
      py::arg("group"), py::arg("async_op"), NoGil(),
      "Fill part p of ``output`` with this rank's part of rank p's ``input``.");
}

void bind_moves_of_root(py::module_& module) {
  module.def(
      "gather",
      [](const std::optional<at::Tensor>& output, const at::Tensor& input, int root,
         const Group& group, bool async_op) {
        return gather(output.value_or(at::Tensor()), input, root, {group, async_op});
      },
      py::arg("output"), py::arg("input"), py::arg("root"), py::arg("group"), py::arg("async_op"),
      NoGil(), "As all_gather, on ``root`` alone.");
  module.def(
      "scatter",
      [](const at::Tensor& output, const std::optional<at::Tensor>& input, int root,
         const Group& group, bool async_op) {
        return scatter(output, input.value_or(at::Tensor()), root, {group, async_op});
      },
      py::arg("output"), py::arg("input"), py::arg("root"), py::arg("group"), py::arg("async_op"),
      NoGil(), "Fill ``output`` with this rank's part of root's ``input``.");
}

void bind_barriers(py::module_& module) {
  module.def(
      "barrier",
      [](const Group& group, bool async_op) {
        return barrier({group, async_op});
      },
      py::arg("group"), py::arg("async_op"), NoGil(), "Return when every rank has entered.");
  module.def(
      "monitored_barrier",
      [](std::optional<Milliseconds> timeout, bool wait_all_ranks, const Group& group) {
        monitored_barrier(timeout.value_or(kNoTimeout), wait_all_ranks, group);
      },
      py::arg("timeout"), py::arg("wait_all_ranks"), py::arg("group"), NoGil(),
      "Return when every rank has entered; name those that do not come in time.");
}

void bind_transfers(py::module_& module) {
  module.def(
      "send",
      [](const at::Tensor& tensor, int destination, int tag, const Group& group, bool async_op) {
        return send(tensor, destination, {group, async_op, tag});
      },
      py::arg("tensor"), py::arg("destination"), py::arg("tag"), py::arg("group"),
      py::arg("async_op"), NoGil(), "Send ``tensor`` to rank ``destination``.");
  module.def(
      "recv",
      [](const at::Tensor& tensor, std::optional<int> source, int tag, const Group& group,
         bool async_op) {
        return recv(tensor, source.value_or(kAnySource), {group, async_op, tag});
      },
      py::arg("tensor"), py::arg("source"), py::arg("tag"), py::arg("group"), py::arg("async_op"),
      NoGil(), "Fill ``tensor`` with a message from rank ``source``; from any rank if None.");
  module.def(
      "source_rank", [](const Work& work) { return work->sourceRank(); }, py::arg("work"),
      "The rank at the other side of a send or receive.");
}

void bind_memory(py::module_& module) {
  module.def(
      "symmetric_empty",
      [](const std::vector<int64_t>& sizes, at::ScalarType dtype, const Group& group) {
        return symmetric_empty(sizes, dtype, group);
      },
      py::arg("sizes"), py::arg("dtype"), py::arg("group"), NoGil(),
      "A tensor in memory that all ranks map.");
}

}  // namespace

void bind_process_group(py::module_& module) {
  set_default_group_finder(default_group_of_torch);
  bind_backend(module);
  bind_launch(module);
  bind_ranks(module);
  bind_reductions(module);
  bind_moves(module);
  bind_moves_of_root(module);
  bind_barriers(module);
  bind_transfers(module);
  bind_memory(module);
}

}  // namespace farandole::python
