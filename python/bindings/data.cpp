// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include <utility>
#include <vector>

#include "bindings.h"
#include "farandole/data/distributed_bucket_batch_sampler.h"
#include "farandole/data/distributed_sampler.h"
#include "farandole/data/distributed_weighted_random_sampler.h"
#include "farandole/data/epoch_share.h"

namespace farandole::python {
namespace {

namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;

template <class Options = SamplerOptions>
Options sampler_options(int64_t num_replicas, int64_t rank, int64_t seed, bool drop_last,
                        bool even_divisible) {
  Options options;
  options.num_replicas = num_replicas;
  options.rank = rank;
  options.seed = seed;
  options.drop_last = drop_last;
  options.even_divisible = even_divisible;
  return options;
}

using ShareClass = py::class_<EpochShare>;

void bind_shares(ShareClass& share) {
  share.def_static(
      "of_samples",
      [](int64_t size, bool shuffle, int64_t num_replicas, int64_t rank, int64_t seed,
         bool drop_last, bool even_divisible) {
        auto options = sampler_options<DistributedSamplerOptions>(num_replicas, rank, seed,
                                                                  drop_last, even_divisible);
        options.shuffle = shuffle;
        return DistributedSampler::share(size, options);
      },
      py::arg("size"), py::arg("shuffle"), py::arg("num_replicas"), py::arg("rank"),
      py::arg("seed"), py::arg("drop_last"), py::arg("even_divisible"),
      "That of a DistributedSampler.");
  share.def_static(
      "of_weights",
      [](const at::Tensor& weights, int64_t num_samples, bool replacement, int64_t num_replicas,
         int64_t rank, int64_t seed, bool drop_last, bool even_divisible) {
        return DistributedWeightedRandomSampler::share(
            weights, num_samples, replacement,
            sampler_options(num_replicas, rank, seed, drop_last, even_divisible));
      },
      py::arg("weights"), py::arg("num_samples"), py::arg("replacement"), py::arg("num_replicas"),
      py::arg("rank"), py::arg("seed"), py::arg("drop_last"), py::arg("even_divisible"),
      "That of a DistributedWeightedRandomSampler.");
  share.def_static(
      "of_lengths",
      [](std::vector<int64_t> lengths, int64_t batch_size, int64_t bucket_batches, bool shuffle,
         int64_t num_replicas, int64_t rank, int64_t seed, bool drop_last, bool even_divisible) {
        auto options =
            sampler_options<BucketOptions>(num_replicas, rank, seed, drop_last, even_divisible);
        options.shuffle = shuffle;
        options.bucket_batches = bucket_batches;
        return DistributedBucketBatchSampler::share(std::move(lengths), batch_size, options);
      },
      py::arg("lengths"), py::arg("batch_size"), py::arg("bucket_batches"), py::arg("shuffle"),
      py::arg("num_replicas"), py::arg("rank"), py::arg("seed"), py::arg("drop_last"),
      py::arg("even_divisible"), "That of a DistributedBucketBatchSampler.");
}

void bind_passes(ShareClass& share) {
  share.def_property_readonly("seed", &EpochShare::seed, "That of epoch 0.")
      .def_property_readonly("epoch", &EpochShare::epoch, "That of the next pass.")
      .def_property_readonly("length", &EpochShare::length, "Samples, or batches, of this rank.")
      .def_property_readonly("total_length", &EpochShare::total_length, "Those of all ranks.")
      .def_property_readonly("next_position", &EpochShare::next_position,
                             "Where the next pass begins.")
      .def("set_epoch", &EpochShare::set_epoch, py::arg("epoch"), "Another begins anew.")
      .def("begin_pass", &EpochShare::begin_pass, NoGil(), "The samples of this rank.")
      .def("begin_batches", &EpochShare::begin_batches, NoGil(), "The batches of this rank.")
      .def("state", &EpochShare::state, py::arg("consumed"), "For a checkpoint.")
      .def("load_state", &EpochShare::load_state, py::arg("state"), "Begin there.")
      .def("check_state", &EpochShare::check_state, py::arg("state"), "Fail if that would.");
}

}  // namespace

void bind_data(py::module_& module) {
  ShareClass share(module, "EpochShare", "The samples of one rank in each epoch.");
  bind_shares(share);
  bind_passes(share);
}

}  // namespace farandole::python
