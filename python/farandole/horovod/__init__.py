# SPDX-License-Identifier: Apache-2.0
"""What `horovodrun`, `horovod.run()` and Horovod's variables mean here: docs/horovod.md."""
