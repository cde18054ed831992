"""Legacy avatars: every form read back bit for bit, hostile pickles refused by name, misfits named."""

import json
import os
from fractions import Fraction

import cv2
import numpy as np
import pytest
import torch
from legacy_packets import HEIGHT, WIDTH, WRITERS, Made, dump, write_four, write_realtime, write_seven

from talkinghead.nodes.core.blend import crop_geometry
from talkinghead.nodes.core.frames import RunCancelled, RunContext, TensorStream
from talkinghead.nodes.core.legacy_read import legacy_form, legacy_source, load_pt
from talkinghead.nodes.core.packet import PacketError, verify_packet, write_packet
from talkinghead.nodes.core.packet_import import import_legacy
from talkinghead.nodes.core.unpickle import UnsafePickle


def bring(folder, made, tmp_path, form, **kinds):
    frames = made.stream() if form == "four files" else None
    return import_legacy(folder, tmp_path / "root", "anna", **{"frames": frames, **kinds})


def assert_holds(packet, made, n):
    verify_packet(packet.path)
    assert packet.info.n_frames == n
    assert packet.info.size == (WIDTH, HEIGHT)
    with packet.open() as reader:
        assert reader.found.all()
        assert torch.equal(reader.latents, made.latents[:n])
        assert reader.boxes.tolist() == [list(b) for b in made.boxes[:n]]
        assert reader.crops.tolist() == [list(c) for c in made.crops[:n]]
        for i in range(n):
            assert np.array_equal(reader.frame(i).numpy(), made.frames[i])
            assert np.array_equal(reader.mask(i).numpy(), made.masks[i])


@pytest.mark.parametrize("form", WRITERS)
def test_every_form_is_read_back_bit_for_bit(tmp_path, form):
    made = Made()
    folder = WRITERS[form](tmp_path / "caña 日本", made)
    assert legacy_form(folder) == form
    assert legacy_source(folder) == "/videos/clip.mp4"
    got = bring(folder, made, tmp_path, form)
    assert (got.form, got.packet.info.cycle, got.packet.info.fps) == (form, "loop", 25)
    assert_holds(got.packet, made, 4)
    assert got.packet.info.source["name"] == "caña 日本"
    assert got.packet.info.source["form"] == form
    assert got.packet.info.model == {"name": "legacy import", "sha256": "official-vae"}
    assert sorted(p.name for p in (tmp_path / "root").iterdir()) == ["anna"]
    assert (got.packet.path / "preview.jpg").is_file()
    assert bring(folder, made, tmp_path, form).packet.digest == got.packet.digest


@pytest.mark.parametrize("form", WRITERS)
def test_a_list_that_runs_forward_and_back_is_stored_once(tmp_path, form):
    made = Made(3)
    folder = WRITERS[form](tmp_path / "a", made.listed([0, 1, 2, 2, 1, 0]))
    got = bring(folder, made, tmp_path, form)
    assert got.packet.info.cycle == "pingpong"
    assert_holds(got.packet, made, 3)
    assert any("6 entries are stored as 3" in n for n in got.notes)
    assert got.packet.avatar_indices(0, 6, Fraction(25)).tolist() == [0, 1, 2, 2, 1, 0]


@pytest.mark.parametrize("form", WRITERS)
def test_a_still_repeated_for_a_cycle_is_stored_once(tmp_path, form):
    made = Made(1)
    folder = WRITERS[form](tmp_path / "a", made.listed([0] * 25))
    got = bring(folder, made, tmp_path, form)
    assert got.packet.info.cycle == "still"
    assert_holds(got.packet, made, 1)


def test_what_is_nearly_mirrored_stays_a_loop(tmp_path):
    made = Made(3).listed([0, 1, 2, 2, 1, 0])
    made.frames = made.frames.copy()
    made.frames[5, 0, 0, 0] ^= 1
    for form in ("seven files", "realtime"):
        got = bring(WRITERS[form](tmp_path / form, made), made, tmp_path, form)
        assert got.packet.info.cycle == "loop"
        assert_holds(got.packet, made, 6)


def test_rate_and_model_come_from_who_knows_them(tmp_path):
    made = Made()
    folder = write_seven(tmp_path / "a", made)
    got = bring(folder, made, tmp_path, "seven files")
    assert any("says no rate" in n for n in got.notes)
    told = {"name": "unet.pth", "sha256": "abc"}
    assert dict(bring(folder, made, tmp_path, "seven files", model=told).packet.info.model) == told
    (folder / "avator_info.json").write_text(json.dumps({"fps": 29.97}))
    assert bring(folder, made, tmp_path, "seven files").packet.info.fps == Fraction(30000, 1001)
    assert bring(folder, made, tmp_path, "seven files", fps=Fraction(24)).packet.info.fps == 24
    (folder / "avator_info.json").write_text(json.dumps({"fps": "fast"}))
    assert any("'fast'" in n for n in bring(folder, made, tmp_path, "seven files").notes)
    four = write_four(tmp_path / "b", made)
    stream = TensorStream(torch.from_numpy(made.frames), Fraction(30))
    assert bring(four, made, tmp_path, "four files", frames=stream).packet.info.fps == 30


def test_four_files_need_pictures_and_say_which(tmp_path):
    made = Made()
    folder = write_four(tmp_path / "a", made)
    with pytest.raises(PacketError, match=r"no pictures.*'/videos/clip\.mp4'.*give"):
        import_legacy(folder, tmp_path / "root", "anna")
    with pytest.raises(PacketError, match="4 entries, the pictures given are 3"):
        bring(folder, made, tmp_path, "four files", frames=made.listed([0, 1, 2]).stream())
    more = Made()
    got = bring(folder, more, tmp_path, "four files", frames=more.listed([0, 1, 2, 3, 0]).stream())
    assert any("first 4 of the 5" in n for n in got.notes)
    assert_holds(got.packet, made, 4)


@pytest.mark.parametrize("expand", [1.5, 1.2, None])
def test_four_files_masks_tell_their_square(tmp_path, expand):
    """None: a mask of the face box alone."""
    made = Made()
    squares = [crop_geometry(b, expand)[:4] if expand else b for b in made.boxes]
    made.masks = [np.full((s[3] - s[1], s[2] - s[0]), 9, np.uint8) for s in squares]
    got = bring(write_four(tmp_path / "a", made), made, tmp_path, "four files")
    with got.packet.open() as reader:
        assert [tuple(c[:4]) for c in reader.crops.tolist()] == squares


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch '{self.path}'",)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize(
    ("form", "file"),
    [(f, n) for f, names in {
        "seven files": ("frames.pt", "latents.pt", "masks.pt", "geometry.pkl", "coords.pkl", "mask_coords.pkl"),
        "four files": ("latents.pt", "masks.pkl", "coords.pkl"),
        "realtime": ("latents.pt", "mask_coords.pkl"),
    }.items() for n in names],
)  # fmt: skip
def test_a_malicious_pickle_is_refused_by_name_and_nothing_is_written(tmp_path, form, file):
    made = Made()
    folder = WRITERS[form](tmp_path / "a", made)
    evil = [Evil(tmp_path / "pwned")]
    before = sorted(p.name for p in folder.rglob("*"))
    kinds = [lambda p: dump(p, evil)]
    if file.endswith(".pt"):
        kinds.append(lambda p: torch.save(evil, p))
        kinds.append(lambda p: torch.save([torch.zeros(2), evil], p, pickle_protocol=4))
        kinds.append(lambda p: torch.save(evil, p, _use_new_zipfile_serialization=False))
    for write in kinds:
        write(folder / file)
        with pytest.raises(UnsafePickle, match=rf"{file} .*{os.system.__module__}\.system"):
            bring(folder, made, tmp_path, form)
        assert not (tmp_path / "pwned").exists()
        assert not (tmp_path / "root").exists() or list((tmp_path / "root").iterdir()) == []
    assert sorted(p.name for p in folder.rglob("*")) == before


def test_a_refusal_keeps_the_packet_of_that_name(tmp_path):
    made = Made()
    folder = write_seven(tmp_path / "a", made)
    old = bring(folder, made, tmp_path, "seven files").packet
    dump(folder / "coords.pkl", [Evil(tmp_path / "pwned")])
    with pytest.raises(UnsafePickle):
        bring(folder, made, tmp_path, "seven files")
    assert verify_packet(old.path) == old


@pytest.mark.parametrize(
    ("file", "value", "message"),
    [
        ("latents.pt", torch.zeros(4, 4, 32, 32), "4 channels.*8.*beige"),
        ("latents.pt", torch.zeros(4, 8, 32), "must be"),
        ("latents.pt", torch.zeros(4, 8, 32, 32).int(), "float tensor"),
        ("latents.pt", torch.zeros(1, 1, 1, 1).expand(1 << 20, 8, 1024, 1024), "latents.pt: a tensor claims"),
        ("masks.pt", [torch.zeros(1, 1, 1).expand(1, 1 << 20, 1 << 20)] * 4, "masks.pt: a tensor claims"),
        ("latents.pt", torch.zeros(4, 8, 2, 2).to_sparse(), "not a plain one"),
        ("latents.pt", torch.zeros(4, 8, 2, 2, device="meta"), "not a plain one"),
        ("latents.pt", {"a": 1}, "is dict"),
        ("latents.pt", torch.full((4, 8, 32, 32), float("nan")), "entry 0 is not finite"),
        ("latents.pt", torch.full((4, 8, 32, 32), 1e9), "entry 0 is not finite in fp16"),
        ("latents.pt", [torch.zeros(1, 8, 32, 32), torch.zeros(1, 8, 16, 16)], "shapes"),
        ("latents.pt", torch.zeros(3, 8, 32, 32), "latents.pt 3.*cannot be paired"),
        ("frames.pt", torch.zeros(4, 3, HEIGHT, WIDTH), "uint8"),
        ("frames.pt", torch.zeros(4, HEIGHT, WIDTH, 3, dtype=torch.uint8), "N,3,H,W"),
        ("frames.pt", torch.zeros(5, 3, HEIGHT, WIDTH, dtype=torch.uint8), "frames 5"),
        ("masks.pt", 5, "masks.pt: must be a list"),
        ("masks.pt", [torch.zeros(1, 3, 4)] * 4, "entry 0: mask of 4x3.* crop "),
        ("masks.pt", [torch.zeros(2, 3, 4)] * 4, "masks.pt, mask 0: must be"),
        ("masks.pt", [torch.full((1, 50, 50), float("nan"))] * 4, "mask 0: values"),
        ("masks.pt", [torch.full((1, 50, 50), 300.0)] * 4, "mask 0: values"),
        ("masks.pt", [torch.full((1, 50, 50), -1.0)] * 4, "mask 0: values"),
        (
            "masks.pt",
            [[[0.5] * 50] * 50] * 4,
            "mask 0: must be an array .* is a list of 50, the first a list of 50",
        ),
        ("coords.pkl", [[1, 2, 3]] * 4, "coords.pkl, entry 0: must be 4 pixel .* is a list of 3"),
        ("coords.pkl", [[1, 2, 3, 4], [1, 2, 3, "x"]] * 2, "coords.pkl, entry 1: must be"),
        ("coords.pkl", [[1, 2, 3, float("inf")]] * 4, "coords.pkl, entry 0: must be"),
        ("coords.pkl", [[1, 2, 3, float("nan")]] * 4, "coords.pkl, entry 0: must be"),
        ("coords.pkl", [[1, 2, 3, True]] * 4, "coords.pkl, entry 0: must be"),
        ("coords.pkl", [[0, 0, 10**9, 9]] * 4, "coords.pkl, entry 0: must be"),
        ("coords.pkl", [[0, 0, np.int64(-(2**63)), 9]] * 4, "coords.pkl, entry 0: must be"),
        ("coords.pkl", [[0, 0, 10**400, 9]] * 4, "coords.pkl, entry 0: must be"),
        ("coords.pkl", [[[1, 2], [3, 4]]] * 4, "coords.pkl, entry 0: must be"),
        ("coords.pkl", {0: [1, 2, 3, 4]}, "coords.pkl: must be a list of 4 .* is dict"),
        ("coords.pkl", np.zeros((4, 2, 2)), "coords.pkl: must be a list of 4"),
        ("coords.pkl", 7, "coords.pkl: must be"),
        ("coords.pkl", [], "coords.pkl: must be"),
        ("coords.pkl", [[500, 500, 600, 600]] * 4, "no box lies inside the pictures of 96x80"),
        ("coords.pkl", [[0, 0, 90, 70]] * 4, "entry 0: .*do not fit each other"),
        ("geometry.pkl", [[1, 2, 3, 4]] * 4, "geometry.pkl, entry 0: must be 8"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_written(tmp_path, file, value, message):
    made = Made()
    folder = write_seven(tmp_path / "a", made)
    if file.endswith(".pt"):
        torch.save(value, folder / file)
    else:
        dump(folder / file, value)
    with pytest.raises(PacketError, match=message):
        bring(folder, made, tmp_path, "seven files")
    assert not (tmp_path / "root").exists()


_ITSELF = b"\x80\x04]\x94(h\x00h\x00e."
"""A list that holds itself twice: taken for rows of numbers, it unfolds without end."""


def nested(depth):
    """Lists in lists: a few bytes on disk, 10 ** depth rows unfolded."""
    value = [1, 2, 3, 4]
    for _ in range(depth):
        value = [value] * 10
    return value


@pytest.mark.parametrize(("form", "file"), [
    ("seven files", "coords.pkl"), ("seven files", "mask_coords.pkl"), ("seven files", "geometry.pkl"),
    ("four files", "masks.pkl"), ("realtime", "coords.pkl"),
])  # fmt: skip
def test_lists_that_unfold_without_end_are_refused_before_they_do(tmp_path, form, file):
    made = Made()
    folder = WRITERS[form](tmp_path / "a", made)
    (folder / file).write_bytes(_ITSELF)
    with pytest.raises(UnsafePickle, match=rf"{file}: a list in a pickle holds itself"):
        bring(folder, made, tmp_path, form)
    dump(folder / file, nested(30))
    with pytest.raises(PacketError, match=rf"{file}, (entry|mask) 0: must be"):
        bring(folder, made, tmp_path, form)


def test_nested_lists_beside_tensors_are_named(tmp_path):
    made = Made()
    folder = write_seven(tmp_path / "a", made)
    for file in ("latents.pt", "masks.pt", "frames.pt"):
        whole = (folder / file).read_bytes()
        torch.save(nested(30), folder / file)
        with pytest.raises(PacketError, match=rf"{file}.* must be"):
            bring(folder, made, tmp_path, "seven files")
        (folder / file).write_bytes(whole)
    loop = []
    loop.append(loop)
    torch.save(loop, folder / "latents.pt")
    with pytest.raises(PacketError, match=r"latents\.pt: must be a float tensor"):
        bring(folder, made, tmp_path, "seven files")


@pytest.mark.parametrize("content", [b"", b"junk", b"PK\x03\x04junk"])
def test_damaged_files_are_named(tmp_path, content):
    made = Made()
    folder = write_seven(tmp_path / "a", made)
    (folder / "latents.pt").write_bytes(content)
    with pytest.raises(PacketError, match=r"latents\.pt is damaged"):
        bring(folder, made, tmp_path, "seven files")
    with pytest.raises(PacketError, match="damaged"):
        load_pt(folder / "latents.pt")
    other = write_seven(tmp_path / "b", made)
    (other / "coords.pkl").write_bytes(content)
    with pytest.raises(UnsafePickle, match=r"coords\.pkl"):
        bring(other, made, tmp_path, "seven files")
    (other / "avator_info.json").write_bytes(content)
    with pytest.raises(PacketError, match=r"avator_info\.json: not valid JSON"):
        bring(other, made, tmp_path, "seven files")


def test_a_folder_of_no_form_says_what_it_lacks(tmp_path):
    folder = write_seven(tmp_path / "a", Made())
    (folder / "masks.pt").unlink()
    with pytest.raises(PacketError, match=r"'seven files' it lacks masks\.pt"):
        import_legacy(folder, tmp_path / "root", "anna")
    with pytest.raises(PacketError, match="no folder"):
        legacy_form(tmp_path / "absent")


def test_names_and_places_are_checked_first(tmp_path):
    folder = write_seven(tmp_path / "a", Made())
    with pytest.raises(ValueError, match="avatar name"):
        import_legacy(folder, tmp_path / "root", "../up")
    (tmp_path / "root" / "mine").mkdir(parents=True)
    with pytest.raises(PacketError, match="no avatar packet"):
        import_legacy(folder, tmp_path / "root", "mine")


def test_boxes_that_leave_the_picture_are_cut_and_said(tmp_path):
    """Row 1: below, right and above; the crop may leave the picture, the box may not."""
    made = Made(3)
    made.boxes = [(70, 50, 99, 90), (-6, -4, 30, 30), (40, 30, 70, 60)]
    made.crops = [crop_geometry(b) for b in made.boxes]
    made.masks = [np.full((c[3] - c[1], c[2] - c[0]), 40 + i, np.uint8) for i, c in enumerate(made.crops)]
    got = bring(write_realtime(tmp_path / "a", made), made, tmp_path, "realtime")
    with got.packet.open() as reader:
        assert reader.boxes.tolist() == [[70, 50, 96, 80], [0, 0, 30, 30], [40, 30, 70, 60]]
        assert reader.found.tolist() == [True] * 3
        assert reader.crops[:, :4].tolist() == [list(c[:4]) for c in made.crops]
        assert reader.crops[0, 4:].tolist() == [70 - made.crops[0][0], 50 - made.crops[0][1], 26, 30]
    assert any("entries 0-1 left the picture" in n for n in got.notes)


def test_entries_without_a_face_keep_their_place(tmp_path):
    """Row 2: upstream's placeholder is four zeros."""
    made = Made(5)
    gone = [0, 3]
    for i in gone:
        made.boxes[i], made.crops[i] = (0.0, 0.0, 0.0, 0.0), (0,) * 8
        made.masks[i] = np.zeros((0, 0), np.uint8)
    got = bring(write_seven(tmp_path / "a", made), made, tmp_path, "seven files")
    with got.packet.open() as reader:
        assert reader.found.tolist() == [False, True, True, False, True]
        assert reader.boxes.tolist() == [list(made.boxes[i]) for i in (1, 1, 2, 2, 4)]
        assert np.array_equal(reader.frame(3).numpy(), made.frames[3])
        assert np.array_equal(reader.mask(0).numpy(), made.masks[1])
    assert any("entries 0, 3 have no usable box" in n for n in got.notes)


def test_the_folder_upstream_itself_wrote(tmp_path):
    """Lists of tests/golden: 3 frames forward and back, one crop above the picture's edge."""
    from support import TESTS

    golden = json.loads((TESTS / "golden" / "musetalk" / "avatar_material.json").read_text())
    n = golden["latents_pt"]["length"]
    made = Made(n)
    rng = np.random.default_rng(1)
    one = rng.integers(0, 256, (3, 480, 640, 3), dtype=np.uint8)
    made.frames = one[golden["frame_source_index"]]
    made.latents = made.latents[golden["frame_source_index"]]
    made.boxes, made.crops = golden["coords_pkl"], golden["mask_coords_pkl"]
    made.masks = [np.full(shape, 7, np.uint8) for shape in golden["mask_shapes"]]
    made.facts = golden["avator_info"]
    got = bring(write_realtime(tmp_path / "a", made), made, tmp_path, "realtime")
    assert (got.packet.info.n_frames, got.packet.info.cycle) == (3, "pingpong")
    with got.packet.open() as reader:
        assert reader.boxes.tolist() == golden["coords_pkl"][:3]
        assert reader.crops[:, :4].tolist() == golden["mask_coords_pkl"][:3]
        assert reader.crops.tolist() == [list(crop_geometry(tuple(b))) for b in golden["coords_pkl"][:3]]
    indices = got.packet.avatar_indices(0, n, Fraction(25)).tolist()
    assert indices == golden["frame_source_index"]


def test_originals_that_upstream_leaves_beside_its_frames_are_left_out(tmp_path):
    made = Made(3)
    folder = write_realtime(tmp_path / "a", made)
    (folder / "full_imgs" / "IMG_0001.png").write_bytes(b"x")
    got = bring(folder, made, tmp_path, "realtime")
    assert_holds(got.packet, made, 3)
    assert any("1 files" in n for n in got.notes)


def test_pictures_of_another_size_leave_nothing(tmp_path):
    made = Made(3)
    folder = write_realtime(tmp_path / "a", made)
    (folder / "full_imgs" / "00000002.png").write_bytes(
        cv2.imencode(".png", made.frames[2][:70])[1].tobytes()
    )
    with pytest.raises(PacketError, match=r"00000002\.png is 96x70"):
        bring(folder, made, tmp_path, "realtime")
    assert list((tmp_path / "root").iterdir()) == []


def test_a_cancel_leaves_nothing(tmp_path):
    made = Made(3)
    folder = write_seven(tmp_path / "a", made)
    with pytest.raises(RunCancelled):
        bring(folder, made, tmp_path, "seven files", ctx=RunContext(is_cancelled=lambda: True))
    assert list((tmp_path / "root").iterdir()) == []


def test_notes_are_also_warnings_of_the_run(tmp_path):
    made, ctx = Made(), RunContext()
    got = bring(write_seven(tmp_path / "a", made), made, tmp_path, "seven files", ctx=ctx)
    assert list(got.notes) == list(ctx.report.warnings)


def test_an_export_of_our_own_packet_comes_back_the_same(tmp_path):
    """Our packet -> seven files -> our packet: every tensor bit for bit."""
    from packet_parts import info

    made = Made(3)
    tensors = {
        "frames.safetensors": {"frames": torch.from_numpy(made.frames)},
        "latents.safetensors": {"latents": made.latents},
        "geometry.safetensors": {
            "boxes": torch.tensor(made.boxes, dtype=torch.int32),
            "crops": torch.tensor(made.crops, dtype=torch.int32),
            "found": torch.ones(3, dtype=torch.bool),
            "mask": torch.from_numpy(np.concatenate([m.ravel() for m in made.masks])),
            "mask_offsets": torch.tensor(np.cumsum([0] + [m.size for m in made.masks])),
            "mask_shapes": torch.tensor([m.shape for m in made.masks], dtype=torch.int32),
        },
    }
    ours = write_packet(tmp_path / "ours", info(n=3, size=(WIDTH, HEIGHT)), tensors)
    with ours.open() as reader:
        made.frames = np.stack([reader.frame(i).numpy() for i in range(3)])
        made.masks = [reader.mask(i).numpy().copy() for i in range(3)]
    back = bring(write_seven(tmp_path / "a", made), made, tmp_path, "seven files").packet
    for name in tensors:
        assert back.files[name]["sha256"] == ours.files[name]["sha256"], name
