# SPDX-License-Identifier: Apache-2.0
"""Rules that judge a profile: SageMaker's eleven, and ours. One rule a file."""
