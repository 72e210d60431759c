# SPDX-License-Identifier: Apache-2.0
"""Has the callback for Keras alone."""
