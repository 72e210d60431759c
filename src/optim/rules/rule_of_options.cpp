// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/rule_of_options.h"

#include <tuple>

#include "farandole/optim/adam.h"
#include "farandole/optim/lamb.h"
#include "farandole/optim/lamb_options.h"
#include "farandole/optim/lars.h"
#include "farandole/optim/lars_options.h"
#include "farandole/optim/sgd.h"

namespace farandole {
namespace {

using Rule = std::shared_ptr<const UpdateRule>;

Rule rule_of(const SGDOptions& options) {
  SgdHyperparameters sgd;
  sgd.lr = options.lr();
  sgd.momentum = options.momentum();
  sgd.dampening = options.dampening();
  sgd.weight_decay = options.weight_decay();
  sgd.nesterov = options.nesterov();
  return std::make_shared<SgdRule>(sgd);
}

/// Of AdamOptions and AdamWOptions, which have the same members.
template <class Options>
Rule adam_rule_of(const Options& options, bool decoupled_weight_decay) {
  AdamHyperparameters adam;
  adam.lr = options.lr();
  std::tie(adam.beta1, adam.beta2) = options.betas();
  adam.eps = options.eps();
  adam.weight_decay = options.weight_decay();
  adam.amsgrad = options.amsgrad();
  adam.decoupled_weight_decay = decoupled_weight_decay;
  return std::make_shared<AdamRule>(adam);
}

Rule rule_of(const LambOptions& options) {
  LambHyperparameters lamb;
  lamb.lr = options.lr();
  std::tie(lamb.beta1, lamb.beta2) = options.betas();
  lamb.eps = options.eps();
  lamb.weight_decay = options.weight_decay();
  lamb.bias_correction = options.bias_correction();
  return std::make_shared<LambRule>(lamb);
}

Rule rule_of(const LarsOptions& options) {
  LarsHyperparameters lars;
  lars.lr = options.lr();
  lars.momentum = options.momentum();
  lars.dampening = options.dampening();
  lars.weight_decay = options.weight_decay();
  lars.nesterov = options.nesterov();
  lars.trust_coefficient = options.trust_coefficient();
  lars.eps = options.eps();
  return std::make_shared<LarsRule>(lars);
}

}  // namespace

Rule update_rule_of(const torch::optim::OptimizerOptions& options) {
  if (const auto* sgd = dynamic_cast<const SGDOptions*>(&options)) return rule_of(*sgd);
  if (const auto* adam = dynamic_cast<const AdamOptions*>(&options)) {
    return adam_rule_of(*adam, false);
  }
  if (const auto* adamw = dynamic_cast<const AdamWOptions*>(&options)) {
    return adam_rule_of(*adamw, true);
  }
  if (const auto* lamb = dynamic_cast<const LambOptions*>(&options)) return rule_of(*lamb);
  if (const auto* lars = dynamic_cast<const LarsOptions*>(&options)) return rule_of(*lars);
  return nullptr;
}

}  // namespace farandole
