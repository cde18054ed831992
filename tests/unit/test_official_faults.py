"""What is wrong with official weights, their configs and their folders is named with the file."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import torch
from official_parts import SMALL, assert_weights, make_state, part, save, write_json, write_model

from talkinghead.nodes.musetalk.handle import MuseTalkModel, available
from talkinghead.nodes.musetalk.official import find_official, fine_tunes, load_official


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    return make_state()


@pytest.fixture
def root(tmp_path, state) -> Path:
    write_model(tmp_path, state)
    return tmp_path


def _first_weight(tensors: dict) -> str:
    return next(k for k, v in tensors.items() if v.ndim == 4 or v.ndim == 2)


_FILES = {
    "unet": "musetalk/musetalkV15/unet.pth",
    "vae": "musetalk/sd-vae/diffusion_pytorch_model.bin",
    "whisper": "musetalk/whisper/pytorch_model.bin",
}


@pytest.mark.parametrize("which", _FILES)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.long(), r"1 of another type \({key} int64\)"),
        (lambda t: t > 0, r"1 of another type \({key} bool\)"),
        (lambda t: t.to(torch.complex64), r"1 of another type \({key} complex64\)"),
        (lambda t: t * float("nan"), r"not finite in 1 tensors \({key} float32\)"),
        (
            lambda t: t.flatten().index_fill(0, torch.tensor([3]), float("inf")).view_as(t),
            "not finite in 1 tensors",
        ),
        (lambda t: t.double() * float("-inf"), "not finite in 1 tensors"),
        (lambda t: t.to_sparse(), "not plain ones: .* \\(sparse_coo, cpu\\)"),
    ],
    ids=["int", "bool", "complex", "nan", "inf", "double -inf", "sparse"],
)
def test_weights_that_are_no_weights_are_named(which, change, said, root, state):
    path = root / _FILES[which]
    tensors = part(state, which)
    key = _first_weight(tensors)
    tensors[key] = change(tensors[key])
    (path.parent / "diffusion_pytorch_model.safetensors").unlink(missing_ok=True)
    (path.parent / "model.safetensors").unlink(missing_ok=True)
    if which == "vae":
        assert path.parent.name == "sd-vae"
    save(path, tensors)
    with pytest.raises(ValueError, match=rf"{re.escape(path.name)}.*{said.replace('{key}', re.escape(key))}"):
        load_official(find_official("musetalk-1.5", (root,)), base=SMALL)


def test_numbers_too_large_for_fp16_are_named_and_load_as_fp32(root, state):
    path = root / _FILES["unet"]
    tensors = part(state, "unet")
    tensors["conv_in.weight"] = tensors["conv_in.weight"] * 0 + 1e6
    save(path, tensors)
    files = find_official("musetalk-1.5", (root,))
    with pytest.raises(ValueError, match=r"unet\.pth has values .*conv_in\.weight float16.*need fp32"):
        load_official(files, torch.float16, SMALL)
    assert float(load_official(files, base=SMALL).unet.conv_in.weight[0, 0, 0, 0]) == 1e6


def test_half_files_whose_sum_is_beyond_half_are_finite(root, state):
    tensors = {k: v.half() for k, v in part(state, "unet").items()}
    tensors["conv_in.weight"] = torch.full_like(tensors["conv_in.weight"], 60000.0)
    save(root / _FILES["unet"], tensors)
    nets = load_official(find_official("musetalk-1.5", (root,)), torch.float16, SMALL)
    assert torch.equal(nets.unet.conv_in.weight, tensors["conv_in.weight"])


@pytest.mark.parametrize(
    ("file", "values", "said"),
    [
        (
            "musetalkV15/musetalk.json",
            {"layers_per_block": 10**6},
            "layers_per_block is 1000000: .* at most 64",
        ),
        ("musetalkV15/musetalk.json", {"block_out_channels": [8] * 17}, "at most 16 levels"),
        ("musetalkV15/musetalk.json", {"freq_shift": "x"}, "freq_shift is 'x'"),
        (
            "musetalkV15/musetalk.json",
            {"cross_attention_dim": 384},
            r"config\.json.*cross_attention_dim is 384",
        ),
        ("sd-vae/config.json", {"norm_num_groups": 3}, "not a multiple of norm_num_groups 3"),
        ("sd-vae/config.json", {"scaling_factor": "x"}, "scaling_factor is 'x'"),
        ("sd-vae/config.json", {"layers_per_block": 10**6}, "layers_per_block is 1000000"),
        ("whisper/config.json", {"encoder_layers": 10**6}, "encoder_layers is 1000000"),
        ("whisper/config.json", {"d_model": "32"}, "d_model is '32'"),
        ("whisper/config.json", {"d_model": 65536, "encoder_layers": 64}, "too many"),
    ],
)
def test_values_of_a_config_are_named_with_its_file(file, values, said, root):
    path = root / "musetalk" / file
    write_json(path, {**json.loads(path.read_text()), **values})
    with pytest.raises(ValueError, match=rf"{re.escape(str(path))}.*{said}"):
        load_official(find_official("musetalk-1.5", (root,)), base=SMALL)


@pytest.mark.parametrize("file", ["musetalkV15/musetalk.json", "sd-vae/config.json", "whisper/config.json"])
def test_a_config_that_is_none_is_named_and_a_byte_order_mark_is_not_minded(file, root, state):
    path = root / "musetalk" / file
    whole = path.read_bytes()
    for content in (b"[" * 100_000, b"\xff\xfe{}", b"", b"<html>"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"{re.escape(file)} is not valid JSON"):
            load_official(find_official("musetalk-1.5", (root,)), base=SMALL)
    path.write_bytes(b"\xef\xbb\xbf" + whole)
    assert_weights(load_official(find_official("musetalk-1.5", (root,)), base=SMALL), state)


@pytest.mark.skipif(os.name == "nt", reason="such names cannot be made")
def test_folders_that_cannot_be_named_do_not_stop_the_list(root, state):
    for name in ("a:b", "back\\slash", "embedded", "musetalk-1.5", "ünï 日本", "[x]*"):
        write_model(root, state, name)
    os.rename(root / "musetalk/a:b", os.fsencode(root / "musetalk") + b"/\xff")
    write_model(root, state, "a:b")
    assert fine_tunes((root,)) == sorted(["ünï 日本", "[x]*"])
    assert [s.name for s in available((root,))].count("embedded") == 1
    for name in fine_tunes((root,)):
        assert_weights(MuseTalkModel(name, roots=(root,)).build(), state)
