# SPDX-License-Identifier: Apache-2.0
"""For torch: `distributed` and `parallel` of version 1, `torch_smddp` of version 2."""
