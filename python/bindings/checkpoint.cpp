// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bindings.h"
#include "farandole/checkpoint/checkpoint_reader.h"
#include "farandole/checkpoint/checkpoint_writer.h"
#include "farandole/checkpoint/slice_list.h"

namespace farandole::python {
namespace {

namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;

void bind_slice(py::module_& module) {
  py::class_<TensorSlice>(module, "TensorSlice", "What one rank has of a tensor.")
      .def_readonly("key", &TensorSlice::key)
      .def_readonly("shape", &TensorSlice::shape)
      .def_readonly("strides", &TensorSlice::strides)
      .def_readonly("offset", &TensorSlice::offset)
      .def_readonly("elements", &TensorSlice::elements);
  py::class_<SliceList>(module, "SliceList", "What one rank writes of tensors.")
      .def(py::init<int, int>(), py::arg("rank"), py::arg("world_size"))
      .def("add_shared", &SliceList::add_shared, py::arg("key"), py::arg("tensor"),
           "Of a tensor that is the same on all ranks, which all of them add.")
      .def("add_own", &SliceList::add_own, py::arg("key"), py::arg("tensor"),
           "A whole tensor that this rank alone writes.")
      .def("add_part", &SliceList::add_part, py::arg("key"), py::arg("parameter"),
           py::arg("offset"), py::arg("elements"),
           "Elements of what has the shape of a parameter, in the order of its memory.")
      .def("new_key", &SliceList::new_key, py::arg("wanted"),
           "One that no other tensor has, the same on all ranks.")
      .def_property_readonly("rank", &SliceList::rank)
      .def_property_readonly("own", &SliceList::own)
      .def_property_readonly("common", &SliceList::common,
                             "What all ranks must have alike but for values.");
  module.def("check_tensor", &check_tensor, py::arg("key"), py::arg("tensor"),
             "Raises InvalidArgument unless a tensor has elements, all of them and here.");
  module.def("check_apart", &check_apart, py::arg("key"), py::arg("tensor"),
             "Raises InvalidArgument if elements share memory.");
}

/// A text of Python in UTF-8. Lone surrogates, which names of files may have, become "\\udc80": a
/// rank that cannot send its error lets the others wait.
std::string well_formed(const py::str& text) {
  return py::bytes(text.attr("encode")("utf-8", "backslashreplace"));
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
          [](CheckpointWriter& writer, const SliceList& slices, const std::string& values,
             const std::string& name, int keep, bool asynchronous) {
            return writer.save(slices.own(), values, {name, keep, asynchronous});
          },
          py::arg("slices"), py::arg("values"), py::arg("name"), py::arg("keep"),
          py::arg("asynchronous"), NoGil(), "Saves slices of this rank. Collective.")
      .def("wait", &CheckpointWriter::wait, NoGil(), "Returns when the last save is done.")
      .def(
          "agree",
          [](CheckpointWriter& writer, const std::string& call, const py::str& error) {
            const std::string text = well_formed(error);
            const py::gil_scoped_release without_gil;
            writer.agree(call, text);
          },
          py::arg("call"), py::arg("error"),
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
      .def("read_into",
           py::overload_cast<const std::string&, int64_t, const at::Tensor&>(
               &CheckpointReader::read_into, py::const_),
           py::arg("key"), py::arg("offset"), py::arg("into"), NoGil(),
           "As read(), into the memory of a tensor of one dimension.")
      .def("read_whole_into",
           py::overload_cast<const std::string&, const at::Tensor&>(&CheckpointReader::read_into,
                                                                    py::const_),
           py::arg("key"), py::arg("into"), NoGil(), "A whole tensor, into one of its shape.")
      .def("check",
           py::overload_cast<const std::string&, int64_t, int64_t>(&CheckpointReader::check,
                                                                   py::const_),
           py::arg("key"), py::arg("offset"), py::arg("elements"), NoGil(),
           "Compare what read_into() will read with its checksums.")
      .def("check_share",
           py::overload_cast<const std::string&, int, int>(&CheckpointReader::check, py::const_),
           py::arg("key"), py::arg("rank"), py::arg("world_size"), NoGil(),
           "A rank's share of a whole tensor that all ranks will read.");
}

}  // namespace

void bind_checkpoint(py::module_& module) {
  bind_slice(module);
  bind_writer(module);
  bind_reader(module);
}

}  // namespace farandole::python
