# SPDX-License-Identifier: Apache-2.0
"""What hooks and trials are made of."""
