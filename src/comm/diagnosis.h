// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace farandole::comm {

/// Whether ranks compare what they called and record events. They do; only the twin of this library
/// that benchmarks/diagnosis measures their cost against is built without.
#ifdef FARANDOLE_WITHOUT_DIAGNOSIS
constexpr bool kDiagnosis = false;
#else
constexpr bool kDiagnosis = true;
#endif

}  // namespace farandole::comm
