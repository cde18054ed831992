"""Access to the pack's own network modules, also where the pack is not installed, and checkpoint files."""

import importlib
import importlib.util
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[2]


def pack_module(name: str):
    """`pack_module("nodes.musetalk.model")`: a module of the pack, whose root package is this repository."""
    if "talkinghead" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "talkinghead", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)]
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules["talkinghead"] = module
        spec.loader.exec_module(module)
    return importlib.import_module(f"talkinghead.{name}")


def new_nets():
    """Freshly initialised networks of the embedded size, and their config."""
    config = pack_module("nodes.musetalk.config").EMBEDDED
    nets = pack_module("nodes.musetalk.model").MuseTalkNets(config)
    nn.init.normal_(nets.unet.conv_out.weight, std=0.01)
    nn.init.zeros_(nets.unet.conv_out.bias)
    return nets


class MouthHead(nn.Module):
    """Training aid: (open, width, round) straight from the audio states of a window; thrown away afterwards.

    States (B, rows, n_states, d) -> (B, rows - 9, 3); output k belongs to the window of rows k .. k + 9.
    """

    def __init__(self, n_states: int, dim: int, window: int):
        super().__init__()
        self.first = nn.Conv1d(n_states * dim, 256, window)
        self.last = nn.Conv1d(256, 3, 1)

    def forward(self, states: Tensor) -> Tensor:
        hidden = nn.functional.gelu(self.first(states.flatten(2).transpose(1, 2)))
        return self.last(hidden).transpose(1, 2)


def save(path: Path, modules: dict[str, nn.Module], half: bool) -> None:
    from safetensors.torch import save_file

    state = {
        f"{name}.{k}": v.detach().to("cpu", torch.float16 if half else torch.float32).contiguous()
        for name, module in modules.items() for k, v in module.state_dict().items()
    }
    save_file(state, str(path))


def load(path: Path, modules: dict[str, nn.Module]) -> list[str]:
    """Load what the file has of each module; returns the names loaded."""
    from safetensors.torch import load_file

    state = load_file(str(path))
    done = []
    for name, module in modules.items():
        part = {k.removeprefix(name + "."): v.float() for k, v in state.items() if k.startswith(name + ".")}
        if part:
            module.load_state_dict(part)
            done.append(name)
    return done
