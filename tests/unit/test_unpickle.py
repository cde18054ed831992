"""The restricted unpickler: what plain data gives back, and what hostile data gets."""

from __future__ import annotations

import collections
import io
import os
import pickle
import pickletools
import struct
import sys

import numpy as np
import pytest

from talkinghead.nodes.core.unpickle import UnsafePickle, load_first, restricted_load

PLAIN = [
    None, 1, 2**70, -1.5, 1j, "ä", b"", b"\xff", bytearray(b"ab"), [], {1, 2}, frozenset({3}), (1, (2, [3])),
    {"a": [(1, 2), {"b": (3,)}]}, collections.OrderedDict([("z", 1), ("a", 2)]),
    np.float32(3), np.int64(-4), np.bool_(True), np.dtype("f4"),
]  # fmt: skip
ARRAYS = [
    np.arange(6).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.array(5, np.uint8),
    np.zeros((0, 4), np.float16), np.array(["ab", "c"]), np.array([b"x"]), np.arange(3, dtype=">i4"),
    np.arange(12)[::2],
]  # fmt: skip


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_data_comes_back(value, protocol):
    loaded = restricted_load(pickle.dumps(value, protocol), "x.pkl")
    assert loaded == value
    assert type(loaded) is type(value)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_what_holds_itself_is_refused(protocol):
    a, b, c = [], {}, ([],)
    a.append(a)
    b["b"] = [b]
    c[0].append(c)
    for value, kind in ((a, "list"), (b, "dict"), (c, "tuple|list")):
        with pytest.raises(UnsafePickle, match=f"x.pkl: a ({kind}) in a pickle holds itself"):
            restricted_load(pickle.dumps(value, protocol), "x.pkl")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("value", ARRAYS, ids=lambda v: f"{v.dtype}{v.shape}")
def test_arrays_come_back_as_plain_arrays_of_their_own(value, protocol):
    for loaded in (
        restricted_load(pickle.dumps(value, protocol), "x.pkl"),
        restricted_load(pickle.dumps({"k": [(value, 1)]}, protocol), "x.pkl")["k"][0][0],
    ):
        assert type(loaded) is np.ndarray
        assert loaded.dtype == pickle.loads(pickle.dumps(value, protocol)).dtype  # numpy swaps foreign orders
        np.testing.assert_array_equal(loaded, value)
        loaded.flags.writeable = True  # of its own: a view into the data could not be written


def test_both_spellings_of_numpy_are_read():
    data = pickle.dumps(np.arange(3), 2)
    assert b"numpy._core.multiarray" in data
    old = data.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    np.testing.assert_array_equal(restricted_load(old, "x.pkl"), [0, 1, 2])


def test_shared_containers_keep_their_shape():
    shared = [np.arange(2)]
    loaded = restricted_load(pickle.dumps([shared, shared, (shared,)]), "x.pkl")
    assert loaded[0] is loaded[1] is loaded[2][0]
    assert type(loaded[0][0]) is np.ndarray


class _Runs:
    def __init__(self, function, *args):
        self.call = (function, args)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    ("payload", "name"),
    [
        (_Runs(os.system, "touch pwned"), f"{os.system.__module__}.system"),
        (_Runs(eval, "1"), "builtins.eval"),
        (_Runs(getattr, "a", "upper"), "builtins.getattr"),
        ([1, {"deep": (_Runs(os.remove, "x"),)}], f"{os.remove.__module__}.remove"),
        (np.random.default_rng, "numpy.random"),
        (np.array([1, None], dtype=object), "dtype 'O8'"),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_what_is_not_on_the_list_is_named_and_not_run(payload, name, protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = name.replace("builtins", "__builtin__") if protocol < 3 else name
    with pytest.raises(UnsafePickle, match=name.replace(".", r"\.")) as caught:
        restricted_load(pickle.dumps(payload, protocol), "evil.pkl")
    assert not list(tmp_path.iterdir())
    assert isinstance(caught.value, ValueError)


def _array(shape: tuple, start: tuple = (0,), dtype: bytes = b"u1", raw: bytes = b"ab") -> bytes:
    """A hand-written pickle of an array, with the parts as given."""
    out = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
    out += pickle.dumps(start, 2)[2:-1] + b"U\x01b\x87R("
    out += b"K\x01" + pickle.dumps(shape, 2)[2:-1]
    out += b"cnumpy\ndtype\nX" + struct.pack("<I", len(dtype)) + dtype + b"\x85R\x89"
    return out + b"B" + struct.pack("<I", len(raw)) + raw + b"tb."


def test_hand_written_array_is_read():
    np.testing.assert_array_equal(restricted_load(_array((2,)), "x"), [97, 98])


HOSTILE = {
    "array larger than its bytes": (_array((1 << 40,)), "claims shape"),
    "negative shape": (_array((-2,)), "no plain bytes"),
    "array that starts large": (_array((2,), start=(1 << 40,)), "starts with shape"),
    "wide string dtype": (_array((1,), dtype=b"V2"), "dtype 'V2'"),
    "ndarray called": (b"cnumpy\nndarray\n(J\xff\xff\xff\x7f\x85tR.", "numpy.ndarray"),
    "bytearray of a size": (b"cbuiltins\nbytearray\n(J\xff\xff\xff\x7ftR.", "bytearray"),
    "bytes of a size": (b"cbuiltins\nbytes\n(J\xff\xff\xff\x7ftR.", "readable"),
    "memo index": (b"]r\xff\xff\xff\x7f.", "memo index"),
    "length beyond the data": (b"\x8e" + struct.pack("<Q", 1 << 45) + b"ab.", "readable"),
    "extension code": (b"\x82\x01.", "EXT1"),
    "persistent id": (b"K\x01Q.", "BINPERSID"),
    "changed function": (b"c_codecs\nencode\n}X\x01\x00\x00\x00aK\x01sb.", "changes a function"),
    "a function as data": (b"(c_codecs\nencode\nl.", "whose data is a function"),
    "made by NEWOBJ": (b"\x80\x02ccollections\nOrderedDict\n)\x81.", "readable"),
    "deep nesting": (b"]" * 100_000 + b"a" * 99_999 + b".", "readable"),
    "empty": (b"", "readable"),
    "cut short": (pickle.dumps(list(range(100)))[:-40], "readable"),
    "text": (b"<html>not found</html>", "readable"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_and_damaged_data_is_refused(name):
    data, message = HOSTILE[name]
    with pytest.raises(UnsafePickle, match=message):
        restricted_load(data, "evil.pkl")


@pytest.mark.skipif(sys.platform == "win32", reason="no resource limits")
def test_a_small_file_cannot_reserve_much_memory():
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for data, _ in HOSTILE.values():
        with pytest.raises(UnsafePickle):
            restricted_load(data, "evil.pkl")
    assert (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000
    )  # KB; the refused ask for 2 GB and more


def test_any_cut_or_flipped_byte_gives_data_or_unsafe_pickle():
    good = pickle.dumps({"boxes": [(1, 2, np.int64(3))], "a": np.arange(4.0)}, 4)
    for at in range(len(good)):
        for bad in (good[:at], good[:at] + bytes([good[at] ^ 0x41]) + good[at + 1 :]):
            try:
                restricted_load(bad, "x")
            except UnsafePickle:
                pass


def test_several_pickles_in_a_row():
    data = pickle.dumps([1, 2], 2) + pickle.dumps("b", 2) + b"rest"
    first, end = load_first(data, "x")
    second, more = load_first(data[end:], "x")
    assert (first, second, data[end + more :]) == ([1, 2], "b", b"rest")


def test_extra_names_and_persistent_ids():
    class Ids(pickle.Pickler):
        def persistent_id(self, value):
            return 7 if value == "storage" else None

    out = io.BytesIO()
    Ids(out, 2).dump(["storage"])
    assert restricted_load(out.getvalue(), "x", persistent_load=lambda pid: f"got {pid}") == ["got 7"]
    data = pickle.dumps(_Runs(os.getcwd), 2)
    module = next(arg for op, arg, _ in pickletools.genops(data) if op.name == "GLOBAL").split()[0]
    assert restricted_load(data, "x", {(module, "getcwd"): lambda: "mine"}) == "mine"
