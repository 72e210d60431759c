# SPDX-License-Identifier: Apache-2.0
"""Looks at a training, while it runs or afterwards, and stops it at the first fault.

python watch.py FOLDER
"""

import sys

from farandole.debugger import (
    Log,
    NoMoreData,
    RuleEvaluationConditionMet,
    StopTraining,
    create_trial,
    invoke_rule,
    rules,
)

if len(sys.argv) < 2:
    sys.exit(__doc__)
FOLDER = sys.argv[1]

trial = create_trial(FOLDER)
rule = rules.VanishingGradient(trial, actions=[Log(), StopTraining()])
try:
    invoke_rule(rule, raise_eval_cond=True)
except RuleEvaluationConditionMet as found:
    print(f"stopped: {found}")
except NoMoreData:
    print("the training has ended; no gradient has vanished")
