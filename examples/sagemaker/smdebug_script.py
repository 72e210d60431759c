# SPDX-License-Identifier: Apache-2.0
"""A training that SageMaker Debugger looks at: a hook of a JSON configuration, and a rule.

    SMDEBUG_CONFIG_FILE_PATH=hook.json farandole run -n 2 examples/sagemaker/smdebug_script.py

It imports nothing of Farandole: the package farandole-compat provides the names.
"""

import sys

import smdebug.pytorch as smd
import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 (registers the backend)
import torch
import torch.distributed as dist
from smdebug.exceptions import NoMoreData
from smdebug.rules import Rule, invoke_rule
from smdebug.trials import create_trial
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    """Two layers."""

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 8)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(8, 2)

    def forward(self, x):
        """Two numbers for each row."""
        return self.fc2(self.relu(self.fc1(x)))


class LargeGradient(Rule):
    """Fires if the mean of a gradient's absolute values is above a limit."""

    def __init__(self, base_trial, threshold=0.05, action_str=""):
        super().__init__(base_trial, action_str)
        self.threshold = float(threshold)

    def set_required_tensors(self, step):
        """All gradients."""
        for name in self.base_trial.tensor_names(collection="gradients"):
            self.req_tensors.add(name=name, steps=[step])

    def invoke_at_step(self, step):
        """Compare each."""
        for tensor in self.req_tensors.get():
            mean = tensor.reduction_value(step, "mean", abs=True)
            if mean > self.threshold:
                self.logger.info(
                    "%s: %s is %.3f at step %d", self.rule_name, tensor.name, mean, step
                )
                self.report["Violations"] += 1
                return True
        return False


def train(rank, world_size):
    """Eight steps; every rank has its rows of each batch."""
    torch.manual_seed(0)
    model = Net()
    criterion = nn.CrossEntropyLoss()
    hook = smd.get_hook(create_if_not_exists=True)
    model = DistributedDataParallel(model)
    hook.register_module(model)
    hook.register_loss(criterion)
    hook.set_mode(smd.modes.TRAIN)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    for step in range(8):
        x = torch.randn(16, 4, generator=generator)
        target = (x[:, 0] > 0).long()
        loss = criterion(model(x[rank::world_size]), target[rank::world_size])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hook.save_scalar("learning_rate", 0.1 / (step + 1), sm_metric=True)
    hook.close()
    return hook.out_dir


def main():
    """Train; rank 0 reads what was saved."""
    dist.init_process_group(backend="smddp")
    rank = dist.get_rank()
    out_dir = train(rank, dist.get_world_size())
    dist.barrier()
    if rank == 0:
        trial = create_trial(str(out_dir))
        weight = trial.tensor("Net_fc1.weight")
        print("steps", weight.steps(mode=smd.modes.TRAIN), "shape", weight.value(0).shape)
        for name in trial.tensor_names(collection="gradients"):
            tensor = trial.tensor(name)
            means = [f"{tensor.reduction_value(step, 'mean', abs=True):.4f}"
                     for step in tensor.steps()]  # fmt: skip
            print(name, *means)
        rule = LargeGradient(trial, *sys.argv[1:])
        try:
            invoke_rule(rule)
        except NoMoreData:
            print("violations", rule.report["Violations"])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
