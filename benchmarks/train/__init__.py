# SPDX-License-Identifier: Apache-2.0
"""What `farandole bench train` has measured of its built-in models."""
