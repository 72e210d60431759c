# SPDX-License-Identifier: Apache-2.0
"""The tables of the pages on other libraries, which `farandole migrate check` reads too.

Horovod's variables and the flags of horovodrun are not in them: farandole.horovod knows those. A
test compares the tables with docs/horovod.md, smddp.md, smdebug.md and migrate.md.
"""

from farandole.migrate.pages import horovod, smddp, smdebug, torch_names

ROWS = (*horovod.ROWS, *smddp.ROWS, *smdebug.ROWS, *torch_names.ROWS)
