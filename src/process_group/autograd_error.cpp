// SPDX-License-Identifier: Apache-2.0
#include "farandole/process_group/autograd_error.h"

#include <atomic>

namespace farandole {
namespace {

std::atomic<AutogradErrorTranslator> translate{nullptr};

}  // namespace

void set_autograd_error_translator(AutogradErrorTranslator translator) {
  translate.store(translator);
}

std::exception_ptr as_autograd_error(const std::exception_ptr& error) {
  const AutogradErrorTranslator translator = translate.load();
  return translator == nullptr ? error : translator(error);
}

}  // namespace farandole
