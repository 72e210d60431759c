// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Marks what the shared libraries export; everything else is hidden.
#define FARANDOLE_API __attribute__((visibility("default")))
