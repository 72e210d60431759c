# SPDX-License-Identifier: Apache-2.0
"""How `farandole bench` ends: the exit statuses, which stay the same from version to version."""

RIGHT = 0
"""All was measured, and what was verified is right."""
WRONG = 1
"""A result is wrong, or something failed."""
USAGE = 2
"""The options are wrong; nothing was measured."""
