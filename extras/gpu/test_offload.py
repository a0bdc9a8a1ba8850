import torch

from extras.gpu.offload import HostAdamW


def trained(optimizer_class):
    """Train a network for some steps; halfway, save and load the optimizer."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.Linear(40, 5))
    model[1].bias.requires_grad_(False)  # some parameters never get a gradient
    saved = None
    for _ in range(2):
        optimizer = optimizer_class(model.parameters(), 1e-3, betas=(0.9, 0.99), weight_decay=0,
                                    fused=True)
        if saved:
            optimizer.load_state_dict(saved)
        for _ in range(3):
            model(torch.randn(7, 30)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        saved = optimizer.state_dict()
    return torch.cat([p.flatten() for p in model.parameters()]), optimizer


def test_steps_are_bit_identical_to_adamw():
    assert torch.equal(trained(HostAdamW)[0], trained(torch.optim.AdamW)[0])


def test_averages_move_one_parameter_at_a_time(monkeypatch):
    _, optimizer = trained(HostAdamW)
    parameters = [p for p in optimizer.param_groups[0]["params"] if p.requires_grad]
    for p in parameters:
        p.grad = torch.ones_like(p)
    moves = []

    def move(self, p, device):
        moves.append((id(p), str(device)))
    monkeypatch.setattr(HostAdamW, "move", move)
    optimizer.step()
    assert moves == [(id(p), "cpu") for p in parameters for _ in range(2)]


def test_a_resume_moves_no_averages_to_the_device():
    """Use the device "meta", which loses anything moved there."""
    saved = trained(torch.optim.AdamW)[1].state_dict()
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.Linear(40, 5))
    optimizer = HostAdamW(model.parameters(), 1e-3)
    optimizer.load_state_dict(saved)
    loaded = optimizer.state_dict()["state"]
    assert loaded.keys() == saved["state"].keys() and len(loaded) == 3
    for number, state in saved["state"].items():
        assert state.keys() == loaded[number].keys()
        assert torch.equal(loaded[number]["exp_avg"], state["exp_avg"])
        assert torch.equal(loaded[number]["exp_avg_sq"], state["exp_avg_sq"])
