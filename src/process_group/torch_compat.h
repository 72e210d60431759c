// SPDX-License-Identifier: Apache-2.0
#pragma once

// Where torch versions differ. Newer virtual functions of c10d::Backend are behind its own macros
// (C10D_BACKEND_HAS_...) where we override them; all else is here.

#include <string>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

namespace farandole {

/// The group that c10d knows by `name`, or the empty pointer. torch 2.11 can only be asked by trying.
inline c10::intrusive_ptr<c10d::ProcessGroup> registered_group(const std::string& name) {
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  if (!c10d::is_process_group_registered(name)) return {};
#endif
  try {
    return c10d::resolve_process_group(name);
  } catch (const c10::Error&) {
    return {};
  }
}

}  // namespace farandole
