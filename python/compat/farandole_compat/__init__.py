# SPDX-License-Identifier: Apache-2.0
"""The import names of other libraries, over Farandole: the modules are in names/."""
