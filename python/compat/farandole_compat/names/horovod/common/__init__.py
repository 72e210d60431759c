# SPDX-License-Identifier: Apache-2.0
"""What Horovod's frameworks share."""
