"""AdamW with its moving averages in host memory: bit-identical steps, and 8 bytes less per
parameter on the GPU."""
import torch


class HostAdamW(torch.optim.AdamW):
    """torch.optim.AdamW with the two averages of each parameter in host memory. A step moves
    them to the GPU and back, one parameter at a time: 16 N bytes for N parameters."""

    @torch.no_grad()
    def step(self):
        groups = self.param_groups
        for group in groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.param_groups = [{**group, "params": [p]}]
                    self.move(p, p.device)
                    super().step()
                    self.move(p, "cpu")
        self.param_groups = groups

    def move(self, p, device):
        state = self.state[p]  # empty before the first step
        state.update({key: x.to(device) for key, x in state.items() if key != "step"})

    def load_state_dict(self, state_dict):
        """Load a state, keeping the averages in host memory. AdamW would move all of them to
        the GPU."""
        # keyed by the parameter's index, in the order of the groups
        saved = state_dict["state"]
        steps = {number: {"step": state["step"]} for number, state in saved.items()}
        super().load_state_dict({**state_dict, "state": steps})
        parameters = [p for group in self.param_groups for p in group["params"]]
        for number, state in saved.items():
            averages = {key: x.cpu() for key, x in state.items() if key != "step"}
            self.state[parameters[number]].update(averages)
