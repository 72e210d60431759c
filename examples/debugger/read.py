# SPDX-License-Identifier: Apache-2.0
"""Reads what train.py has saved, and looks at it with a rule of its own.

python read.py FOLDER
"""

import sys

from farandole.debugger import Rule, create_trial, invoke_rule

if len(sys.argv) < 2:
    sys.exit(__doc__)
FOLDER = sys.argv[1]

trial = create_trial(FOLDER)
print(trial.steps(), trial.workers(), trial.tensor_names(collection="gradients"))
loss = trial.tensor("CrossEntropyLoss_output_0")
print({step: float(loss.value(step, worker="worker_1")) for step in loss.steps()})
gradient = trial.tensor("gradient/Sequential_0.weight")
print(gradient.reduction_value(10, "mean", abs=True), gradient.counts(10).nan)


class LargeWeight(Rule):
    """Fires if a weight is above a limit."""

    def invoke_at_step(self, step: int) -> bool:
        """Look at the largest weight of each layer."""
        for tensor, worker in self.each_worker(self.names(step, collections=["weights"]), step):
            if tensor.reduction_value(step, "max", worker=worker, abs=True) > 0.24:
                self.found(step, "has a weight above 0.24", tensor.name, worker)
        return self.has_found(step)


rule = LargeWeight(trial)
invoke_rule(rule, end_step=20)
for finding in rule.findings:
    print(finding.step, finding.tensor, finding.worker, finding.text)
