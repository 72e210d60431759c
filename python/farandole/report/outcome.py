# SPDX-License-Identifier: Apache-2.0
"""How `farandole report` and `farandole top` end: the same from version to version."""

DONE = 0
"""The page was written or the table was shown; also of a folder where nothing can be read."""
USAGE = 2
"""The options are wrong, there is no such folder, no numpy, or the page cannot be written."""
