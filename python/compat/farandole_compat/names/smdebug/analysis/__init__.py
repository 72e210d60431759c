# SPDX-License-Identifier: Apache-2.0
"""Reading what hooks have saved."""
