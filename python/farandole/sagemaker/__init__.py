# SPDX-License-Identifier: Apache-2.0
"""What scripts of SageMaker's libraries expect: their files, variables, defaults and classes.

The package farandole-compat gives it their import names: ``smdistributed``, ``smdebug``, ``smppy``.
"""
