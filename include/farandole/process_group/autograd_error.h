// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>

#include "farandole/export.h"

namespace farandole {

/// Turns an error into the one that autograd's engine gets to see.
using AutogradErrorTranslator = std::exception_ptr (*)(const std::exception_ptr&);

/// For bindings to other languages, whose engine keeps errors of that language as they are and
/// loses the type of all others: what Futures hold, and what hooks throw in backward, goes through
/// `translator`. Any thread; nullptr restores the plain error.
FARANDOLE_API void set_autograd_error_translator(AutogradErrorTranslator translator);

/// `error` as the translator makes it; itself if there is none.
std::exception_ptr as_autograd_error(const std::exception_ptr& error);

}  // namespace farandole
