// SPDX-License-Identifier: Apache-2.0
#include "farandole/ddp/hooks/power_sgd_hook.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "ddp/hooks/average.h"
#include "ddp/hooks/orthonormalize.h"
#include "farandole/error.h"

namespace farandole {
namespace {

using Future = c10::ivalue::Future;
using FuturePointer = c10::intrusive_ptr<Future>;

[[noreturn]] void refuse(const char* option, const std::string& value, const char* takes) {
  throw InvalidArgument(
      "power-sgd-option", std::string("PowerSgdHook got ") + option + " = " + value + ".",
      std::string("it must be ") + takes + ".", "pass such a value, or leave the option out.");
}

PowerSgdOptions checked(const PowerSgdOptions& options) {
  if (options.matrix_approximation_rank < 1) {
    refuse("matrix_approximation_rank", std::to_string(options.matrix_approximation_rank),
           "a number of columns, at least 1");
  }
  if (options.start_iter < 0) {
    refuse("start_iter", std::to_string(options.start_iter), "a number of iterations, at least 0");
  }
  if (!(options.min_compression_rate > 0)) {
    refuse("min_compression_rate", std::to_string(options.min_compression_rate),
           "a factor above 0");
  }
  if (!(options.orthogonalization_epsilon >= 0)) {
    refuse("orthogonalization_epsilon", std::to_string(options.orthogonalization_epsilon),
           "a number of at least 0");
  }
  return options;
}

/// The dtype in which matrices are multiplied and kept.
at::ScalarType wide_type_of(const at::Tensor& gradient) {
  return gradient.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// Completes `result` when `last` completes, with the same value or error.
void forward(const FuturePointer& last, const FuturePointer& result) {
  last->addCallback([result](Future& done) {
    if (done.hasError()) {
      result->setError(done.exception_ptr());
    } else {
      result->markCompleted(done.value());
    }
  });
}

FuturePointer future_on(const at::Device& device) {
  std::vector<at::Device> devices;
  if (!device.is_cpu()) devices.push_back(device);
  return c10::make_intrusive<Future>(c10::TensorType::get(), std::move(devices));
}

}  // namespace

/// The state of a parameter that is kept from step to step.
struct PowerSgdHook::State {
  c10::weak_intrusive_ptr<c10::TensorImpl> parameter;
  at::Tensor error;  ///< n x m, or undefined without error feedback
  at::Tensor q;      ///< m x r, the same on all ranks; undefined before the first step
};

/// One compressed gradient in transfer.
struct PowerSgdHook::Matrix {
  State* state;
  at::Tensor gradient;  ///< n x m, a view of the bucket
  at::Tensor delta;     ///< n x m in the wide type: gradient and error, the error's own memory
  int64_t rank;
  at::Tensor p;  ///< n x r, a view of the exchange's, column by column: products are twice as fast
  at::Tensor q;  ///< m x r, likewise
};

/// One bucket in transfer.
struct PowerSgdHook::Exchange {
  at::Tensor buffer;
  FuturePointer result;
  std::vector<at::Tensor> plain_gradients;  ///< views of the bucket
  at::Tensor plain;                         ///< their copy, which travels
  Work plain_work;
  std::vector<Matrix> matrices;
  at::Tensor p, q;  ///< of all matrices, one after the other
  Work p_work;

  void unpack_plain() {
    int64_t offset = 0;
    for (const at::Tensor& gradient : plain_gradients) {
      gradient.copy_(plain.narrow(0, offset, gradient.numel()).view(gradient.sizes()));
      offset += gradient.numel();
    }
  }
  void unpack_matrices() {
    for (Matrix& matrix : matrices) {
      if (matrix.gradient.scalar_type() == matrix.p.scalar_type()) {
        at::mm_out(matrix.gradient, matrix.p, matrix.q.t());
      } else {
        matrix.gradient.copy_(at::mm(matrix.p, matrix.q.t()));
      }
    }
  }
  at::Tensor unpack() {
    if (plain_work) plain_work->wait();
    unpack_plain();
    unpack_matrices();
    return buffer;
  }
};

PowerSgdHook::PowerSgdHook(const Group& group, const PowerSgdOptions& options)
    : group_(group ? group : default_group()),
      options_(checked(options)),
      random_(at::make_generator<at::CPUGeneratorImpl>(options.random_seed)) {}
PowerSgdHook::~PowerSgdHook() = default;

void PowerSgdHook::begin_plan() {
  states_.clear();
  unfinished_ = nullptr;
}

FuturePointer PowerSgdHook::runHook(c10d::GradBucket& bucket) {
  if (bucket.getIndex() == 0) unfinished_ = nullptr;  // left by a backward that failed
  const bool is_plain = iteration_ < options_.start_iter;
  if (bucket.isLast()) ++iteration_;
  if (is_plain) return start_average(group_, bucket.getBuffer())->getFuture();
  const auto exchange = begin(bucket);
  if (unfinished_) reduce_q(std::exchange(unfinished_, nullptr));
  if (bucket.isLast()) {
    reduce_q(exchange);
  } else {
    unfinished_ = exchange;
  }
  return exchange->result;
}

/// Sorts the gradients and starts the first reduction of both kinds.
std::shared_ptr<PowerSgdHook::Exchange> PowerSgdHook::begin(const c10d::GradBucket& bucket) {
  auto exchange = std::make_shared<Exchange>();
  exchange->buffer = bucket.getBuffer();
  exchange->result = future_on(exchange->buffer.device());
  const std::vector<at::Tensor> gradients = bucket.getGradients();
  const std::vector<at::Tensor> parameters = bucket.getParameters();
  std::vector<at::Tensor> flat;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (rank_of(gradients[i]) > 0) {
      exchange->matrices.push_back(matrix_of(gradients[i], parameters.at(i)));
    } else {
      exchange->plain_gradients.push_back(gradients[i]);
      flat.push_back(gradients[i].reshape({-1}));
    }
  }
  if (!flat.empty()) {
    exchange->plain = at::cat(flat);
    exchange->plain_work = start_average(group_, exchange->plain);
  }
  if (!exchange->matrices.empty()) reduce_p(*exchange);
  return exchange;
}

/// The number of columns of P and Q; 0 if `gradient` is sent uncompressed.
int64_t PowerSgdHook::rank_of(const at::Tensor& gradient) const {
  if (gradient.dim() < 2 || gradient.numel() == 0 || !gradient.is_floating_point()) return 0;
  const int64_t rows = gradient.size(0);
  const int64_t columns = gradient.numel() / rows;
  const int64_t rank = std::min({rows, columns, options_.matrix_approximation_rank});
  const auto compressed = static_cast<double>((rows + columns) * rank);
  const auto whole = static_cast<double>(gradient.numel());
  return compressed * options_.min_compression_rate < whole ? rank : 0;
}

/// The state of this parameter, not of a former one that had the same address.
PowerSgdHook::State& PowerSgdHook::state_of(const at::Tensor& parameter) {
  const auto found = states_.find(parameter.unsafeGetTensorImpl());
  if (found != states_.end() && !found->second.parameter.expired()) return found->second;
  if (found != states_.end()) states_.erase(found);
  const c10::weak_intrusive_ptr<c10::TensorImpl> known(parameter.getIntrusivePtr());
  return states_.emplace(parameter.unsafeGetTensorImpl(), State{known, {}, {}}).first->second;
}

PowerSgdHook::Matrix PowerSgdHook::matrix_of(const at::Tensor& gradient,
                                             const at::Tensor& parameter) {
  State& state = state_of(parameter);
  Matrix matrix{&state, gradient.reshape({gradient.size(0), -1}), {}, rank_of(gradient), {}, {}};
  const at::ScalarType wide = wide_type_of(gradient);
  if (!options_.use_error_feedback) {
    matrix.delta = matrix.gradient.to(wide);
    return matrix;
  }
  if (!state.error.defined() || state.error.sizes() != matrix.gradient.sizes() ||
      state.error.scalar_type() != wide) {
    state.error = at::zeros(matrix.gradient.sizes(), gradient.options().dtype(wide));
    state.q = at::Tensor();
  }
  matrix.delta = state.error.add_(matrix.gradient);
  return matrix;
}

void PowerSgdHook::reduce_p(Exchange& exchange) {
  int64_t p_elements = 0;
  int64_t q_elements = 0;
  for (const Matrix& matrix : exchange.matrices) {
    p_elements += matrix.delta.size(0) * matrix.rank;
    q_elements += matrix.delta.size(1) * matrix.rank;
  }
  const at::TensorOptions options = exchange.matrices.front().delta.options();
  exchange.p = at::empty({p_elements}, options);
  exchange.q = at::empty({q_elements}, options);
  int64_t p_offset = 0;
  int64_t q_offset = 0;
  for (Matrix& matrix : exchange.matrices) {
    const int64_t rows = matrix.delta.size(0);
    const int64_t columns = matrix.delta.size(1);
    matrix.p = exchange.p.narrow(0, p_offset, rows * matrix.rank).view({matrix.rank, rows}).t();
    matrix.q =
        exchange.q.narrow(0, q_offset, columns * matrix.rank).view({matrix.rank, columns}).t();
    p_offset += matrix.p.numel();
    q_offset += matrix.q.numel();
    choose_q(matrix);
    at::mm_out(matrix.p, matrix.delta, matrix.q);
  }
  exchange.p_work = start_average(group_, exchange.p);
}

/// Q of the previous step, with random columns in place of unusable ones. All ranks decide in the
/// same way, because they have the same reduced Q.
void PowerSgdHook::choose_q(Matrix& matrix) {
  const at::Tensor& before = matrix.state->q;
  const bool is_warm =
      options_.warm_start && before.defined() && before.sizes() == matrix.q.sizes();
  at::Tensor usable;
  if (is_warm) {
    matrix.q.copy_(before);
    usable = at::isfinite(before).all(0).logical_and_((before != 0).any(0));
  }
  if (!is_warm || !usable.all().item<bool>()) {
    const at::Tensor numbers =
        at::randn(matrix.q.sizes(), random_, at::dtype(matrix.q.scalar_type()))
            .to(matrix.q.device());
    matrix.q.copy_(is_warm ? at::where(usable, matrix.q, numbers) : numbers);
  }
  orthonormalize(matrix.q, options_.orthogonalization_epsilon);
}

/// Waits for P and starts the reduction of Q, which completes the result. An error completes the
/// result too, because runHook() was called for another bucket.
void PowerSgdHook::reduce_q(const std::shared_ptr<Exchange>& exchange) try {
  if (exchange->p_work) exchange->p_work->wait();
  for (Matrix& matrix : exchange->matrices) {
    orthonormalize(matrix.p, options_.orthogonalization_epsilon);
    at::Tensor q_transposed = matrix.q.t();
    at::mm_out(q_transposed, matrix.p.t(), matrix.delta);
    if (options_.use_error_feedback) {
      matrix.delta.addmm_(matrix.p, matrix.q.t(), 1, -1);
      if (!at::isfinite(matrix.p).all().item<bool>()) matrix.delta.zero_();
    }
    matrix.state->q = matrix.q;  // the reduced Q
  }
  Work last = exchange->plain_work;
  if (!exchange->matrices.empty()) last = start_average(group_, exchange->q);
  if (!last) return exchange->result->markCompleted(exchange->buffer);
  const auto unpack = [exchange](Future& done) -> c10::IValue {
    done.value();  // throws its error
    return exchange->unpack();
  };
  forward(last->getFuture()->then(unpack, c10::TensorType::get()), exchange->result);
} catch (const std::exception&) {
  exchange->result->setErrorIfNeeded(std::current_exception());
}

}  // namespace farandole
