# SPDX-License-Identifier: Apache-2.0
"""What the HTML pages of `farandole bench` and `farandole report` have in common.

Pure functions of text: no files, no libraries, and pages that need nothing else.
"""
