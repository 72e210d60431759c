# SPDX-License-Identifier: Apache-2.0
"""`farandole run --from-sagemaker FILE`: what a job of SageMaker asks for, in options of ours.

The file is a JSON object with the arguments of SageMaker's estimator, and beside them any of the
variables SM_... that its containers have. What the file leaves out is taken from the environment.
"""

from farandole.run.sagemaker.container import set_container_variables
from farandole.run.sagemaker.description import KEYS, KEYS_WITHOUT_EFFECT, read_job
from farandole.run.sagemaker.distribution import DISTRIBUTIONS, take_distribution
from farandole.run.sagemaker.job import SageMakerJob
from farandole.run.sagemaker.options import apply_job

__all__ = [
    "DISTRIBUTIONS",
    "KEYS",
    "KEYS_WITHOUT_EFFECT",
    "SageMakerJob",
    "apply_job",
    "read_job",
    "set_container_variables",
    "take_distribution",
]
