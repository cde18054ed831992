"""Dials of an avatar: presets, ranges, the record in packets."""

import pytest

from talkinghead.nodes.musetalk.options import MASKS, AvatarOptions


def test_upstream_presets_are_the_spec():
    new, old = AvatarOptions.upstream("1.5"), AvatarOptions.upstream("1.0")
    assert (new.mask, new.extra_margin, new.cheeks, new.expand, new.upper_ratio) == (
        "jaw",
        10,
        (90, 90),
        1.5,
        0.5,
    )
    assert (old.mask, old.extra_margin, old.bbox_shift) == ("raw", 0, 0)
    with pytest.raises(ValueError, match="'2.0' is unknown; use one of 1.5, 1.0"):
        AvatarOptions.upstream("2.0")


def test_defaults_follow_the_model():
    assert AvatarOptions.default_for("1.5") == AvatarOptions()
    assert AvatarOptions.default_for("1.0").extra_margin == 0
    assert AvatarOptions.default_for("embedded").mask == "lower face"


def test_the_record_gives_the_options_back():
    options = AvatarOptions(mask="neck", bbox_shift=-7, blur=0.05, missing="hold")
    assert AvatarOptions.from_dict(options.to_dict()) == options
    with pytest.raises(ValueError, match="do not know colour; known: background, bbox_shift"):
        AvatarOptions.from_dict({"colour": 1})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mask": "nose"}, f"mask 'nose' is unknown; use one of {', '.join(MASKS)}"),
        ({"missing": "skip"}, "missing 'skip' is unknown"),
        ({"extra_margin": -1}, r"extra_margin -1 is outside 0\.\.200"),
        ({"cheek_left": 161}, r"cheek_left 161 is outside 20\.\.160"),
        ({"expand": 1.0}, r"expand 1.0 is outside 1.1\.\.3.0"),
        ({"blur": float("nan")}, "blur nan is outside"),
        ({"bbox_shift": "7"}, "bbox_shift '7' is outside"),
    ],
)
def test_values_outside_say_the_limit(values, message):
    with pytest.raises(ValueError, match=message):
        AvatarOptions(**values)


def test_only_upstreams_masks_need_a_parsed_face():
    assert [m for m in MASKS if AvatarOptions(mask=m).needs_parsing] == ["jaw", "raw", "neck"]
