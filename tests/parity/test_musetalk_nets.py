"""The model as a whole: latents of a crop, generated crops."""

from __future__ import annotations

import pytest
import torch
from parity.recipe import ATOL_FP32, face256, golden, max_error

pytestmark = pytest.mark.usefixtures("no_grad")


@pytest.fixture(scope="module")
def data():
    return golden("latents_for_unet_reduced")


@pytest.fixture(scope="module")
def latents(nets_reduced):
    return nets_reduced.encode_crops(face256(0)[None])


def test_network_inputs(nets_reduced, data):
    masked, whole = nets_reduced.network_inputs(face256(0)[None])
    assert max_error(masked[0, :, 120:136], data["pre_half_rows_120_135"]) <= 1e-6
    assert max_error(whole[0, :, 120:136], data["pre_full_rows_120_135"]) <= 1e-6
    assert (masked[:, :, 128:] == -1).all()


def test_latents_are_the_posterior_mode(latents, data):
    assert max_error(latents, data["latents_mode"]) <= ATOL_FP32


def test_reference_crop_fills_the_second_half(nets_reduced, latents):
    other = nets_reduced.encode_crops(face256(0)[None], face256(3)[None])
    assert max_error(other[:, :4], latents[:, :4]) <= ATOL_FP32
    expected = nets_reduced.encode_crops(face256(3)[None])[:, 4:]
    assert max_error(other[:, 4:], expected) <= ATOL_FP32
    assert max_error(other[:, 4:], latents[:, 4:]) > 0.01


def test_decoded_reference(nets_reduced, data):
    from talkinghead.nodes.musetalk.model import to_rgb_uint8

    picture = to_rgb_uint8(nets_reduced.vae.decode(data["latents_mode"][:, 4:] / 0.18215)).flip(-1)
    assert max_error(picture[:, ::4, ::4], data["decoded_mode_ref_bgr_u8_every4"]) <= 1


def test_predict_end_to_end(nets_reduced):
    data, audio = golden("e2e_reduced"), golden("audio_whisper")
    order = audio["chunk_fps25_index"].tolist()
    tokens = audio["chunk_fps25"][[order.index(40), order.index(79)]]
    latent = data["latent"].expand(2, -1, -1, -1)
    crops = nets_reduced.predict(latent, tokens)
    assert crops.shape == (2, 256, 256, 3)
    assert crops.dtype == torch.uint8
    assert crops.is_contiguous()
    assert max_error(crops.flip(-1)[:, ::2, ::2], data["recon_bgr_u8_every2"]) <= 1
