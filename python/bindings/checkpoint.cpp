// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bindings.h"
#include "farandole/checkpoint/checkpoint_reader.h"
#include "farandole/checkpoint/checkpoint_writer.h"

namespace farandole::python {
namespace {

namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;

void bind_slice(py::module_& module) {
  py::class_<TensorSlice>(module, "TensorSlice", "What one rank has of a tensor.")
      .def(py::init([](std::string key, std::vector<int64_t> shape, std::vector<int64_t> strides,
                       int64_t offset, at::Tensor elements) {
             return TensorSlice{std::move(key), std::move(shape), std::move(strides), offset,
                                std::move(elements)};
           }),
           py::arg("key"), py::arg("shape"), py::arg("strides"), py::arg("offset"),
           py::arg("elements"))
      .def_readonly("key", &TensorSlice::key)
      .def_readonly("shape", &TensorSlice::shape)
      .def_readonly("strides", &TensorSlice::strides)
      .def_readonly("offset", &TensorSlice::offset)
      .def_readonly("elements", &TensorSlice::elements);
}

void bind_writer(py::module_& module) {
  py::class_<PendingCheckpoint>(module, "PendingCheckpoint", "A save that may be under way.")
      .def("wait", &PendingCheckpoint::wait, NoGil(), "The folder when it is on the disk. Local.")
      .def_property_readonly("is_done", &PendingCheckpoint::is_done);
  py::class_<CheckpointWriter>(module, "CheckpointWriter",
                               "Saves checkpoints of all ranks of a group into one folder.")
      .def(py::init<std::string, const Group&>(), py::arg("folder"), py::arg("process_group"),
           NoGil())
      .def(
          "save",
          [](CheckpointWriter& writer, const std::vector<TensorSlice>& slices,
             const std::string& values, const std::string& name, int keep, bool asynchronous) {
            return writer.save(slices, values, {name, keep, asynchronous});
          },
          py::arg("slices"), py::arg("values"), py::arg("name"), py::arg("keep"),
          py::arg("asynchronous"), NoGil(), "Saves slices of this rank. Collective.")
      .def("wait", &CheckpointWriter::wait, NoGil(), "Returns when the last save is done.")
      .def("agree", &CheckpointWriter::agree, py::arg("call"), py::arg("error"), NoGil(),
           "Raises CheckpointError on all ranks if one has an error. Collective.")
      .def("all_gather", &CheckpointWriter::all_gather, py::arg("text"), NoGil(),
           "A text of every rank. Collective.")
      .def_property_readonly("rank", &CheckpointWriter::rank)
      .def_property_readonly("world_size", &CheckpointWriter::world_size);
}

void bind_reader(py::module_& module) {
  using Entry = CheckpointReader::Entry;
  py::class_<Entry>(module, "CheckpointEntry", "A tensor of a checkpoint.")
      .def_property_readonly("dtype", [](const Entry& entry) { return entry.dtype; })
      .def_readonly("shape", &Entry::shape)
      .def_readonly("strides", &Entry::strides);
  py::class_<CheckpointReader>(module, "CheckpointReader",
                               "Reads any elements of any tensor of a checkpoint.")
      .def(py::init<const std::string&>(), py::arg("path"), NoGil())
      .def_property_readonly("folder", &CheckpointReader::folder)
      .def_property_readonly("entries", &CheckpointReader::entries)
      .def_property_readonly("values", &CheckpointReader::values)
      .def_property_readonly("world_size", &CheckpointReader::world_size)
      .def("read",
           py::overload_cast<const std::string&, int64_t, int64_t>(&CheckpointReader::read,
                                                                   py::const_),
           py::arg("key"), py::arg("offset"), py::arg("elements"), NoGil(),
           "Elements of a tensor, in one dimension.")
      .def("read_whole", py::overload_cast<const std::string&>(&CheckpointReader::read, py::const_),
           py::arg("key"), NoGil(), "A whole tensor.")
      .def("stage",
           py::overload_cast<const std::string&, int64_t, int64_t>(&CheckpointReader::stage,
                                                                   py::const_),
           py::arg("key"), py::arg("offset"), py::arg("elements"), NoGil(),
           "As read(), for what is copied on and then dropped.")
      .def("stage_whole",
           py::overload_cast<const std::string&>(&CheckpointReader::stage, py::const_),
           py::arg("key"), NoGil(), "As read_whole(), likewise.");
}

}  // namespace

void bind_checkpoint(py::module_& module) {
  bind_slice(module);
  bind_writer(module);
  bind_reader(module);
}

}  // namespace farandole::python
