# SPDX-License-Identifier: Apache-2.0
"""Groups of several hosts, which network namespaces emulate."""
