# SPDX-License-Identifier: Apache-2.0
"""What is measured, by the names in the results. Needs no torch."""

LANES = {
    "off": "nobody records",
    "recorder": "the recorder",
    "everything": "recorder, monitor every 500 ms, reductions of gradients every 100 steps",
}
HOOK_INTERVAL = 100
