# SPDX-License-Identifier: Apache-2.0
"""The mark of tests that take long: `make test-all` alone runs them."""

import pytest

from ranks import WHOLE_MATRIX

of_whole_matrix = pytest.mark.skipif(not WHOLE_MATRIX, reason="takes long: make test-all")
