// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace farandole::comm {

/// Whether ranks compare their calls and record events. Always true, except in the copy of this
/// library that benchmarks/diagnosis builds to measure what both cost.
#ifdef FARANDOLE_WITHOUT_DIAGNOSIS
constexpr bool kDiagnosis = false;
#else
constexpr bool kDiagnosis = true;
#endif

}  // namespace farandole::comm
