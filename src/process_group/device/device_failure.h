// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

namespace farandole {

/// `failure` if it is one of ours, else what a device has thrown in our terms. `who` names the
/// group and rank.
std::exception_ptr as_own_error(const std::exception_ptr& failure, const std::string& who);

/// Whether it is one of ours.
bool is_own_error(const std::exception_ptr& failure);

std::string text_of(const std::exception_ptr& failure);

}  // namespace farandole
