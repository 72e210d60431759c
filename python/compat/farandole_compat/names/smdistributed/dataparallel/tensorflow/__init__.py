# SPDX-License-Identifier: Apache-2.0
"""Not offered: Farandole is for torch."""

from farandole.sagemaker.absent import absent

raise absent(
    "smdistributed.dataparallel.tensorflow",
    "Farandole is for torch",
    "use tf.distribute.MultiWorkerMirroredStrategy",
)
