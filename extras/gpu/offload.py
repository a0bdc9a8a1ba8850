"""AdamW with its averages in host memory: 8 bytes a parameter less on the GPU, and the
same steps, bit by bit."""
import torch


class HostAdamW(torch.optim.AdamW):
    """torch.optim.AdamW, but that its two averages of each parameter rest in host memory.
    A step brings those of one parameter after the other to the GPU and back: of N
    parameters, 16 N bytes."""

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
        """AdamW's own would bring all averages to the GPU. Here they stay in host
        memory."""
        # of parameters by their numbers, in the order of the groups
        saved = state_dict["state"]
        steps = {number: {"step": state["step"]} for number, state in saved.items()}
        super().load_state_dict({**state_dict, "state": steps})
        parameters = [p for group in self.param_groups for p in group["params"]]
        for number, state in saved.items():
            averages = {key: x.cpu() for key, x in state.items() if key != "step"}
            self.state[parameters[number]].update(averages)
