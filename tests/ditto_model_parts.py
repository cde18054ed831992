"""A whole Ditto model of toy size with seeded weights: the real code in milliseconds."""

from __future__ import annotations

import torch
from ditto_parts import TINY, tiny_nets

from talkinghead.nodes.ditto.lmdm import LMDM, LMDMConfig
from talkinghead.nodes.ditto.model import DittoModelConfig, DittoModules, build_modules
from talkinghead.nodes.ditto.speech_encoder import SpeechEncoder, SpeechEncoderConfig

_SPEECH = SpeechEncoderConfig(width=12)
TINY_MODEL = DittoModelConfig(
    "tiny",
    TINY,
    LMDMConfig(
        motion_dim=1 + 3 * 66 + 3 + 3 * TINY.motion.n_keypoints,
        cond_dim=12 + 16 + 3 * TINY.motion.n_keypoints,
        latent_dim=16,
        n_heads=2,
        ff_dim=16,
        n_layers=1,
        n_cond_layers=1,
    ),
    _SPEECH,
)


def tiny_modules(dtype: torch.dtype = torch.float32) -> DittoModules:
    """Return the model, ready for inference."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(8)
        lmdm, speech = LMDM(TINY_MODEL.lmdm), SpeechEncoder(_SPEECH)
    parts = {"nets": tiny_nets(), "lmdm": lmdm, "speech": speech}
    state = {f"{name}.{k}": v for name, part in parts.items() for k, v in part.state_dict().items()}
    return build_modules(TINY_MODEL, state, "seeded", dtype)
