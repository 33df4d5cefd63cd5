"""The image store and the batch augmentation, against PIL and torchvision one image at a time."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as TF
from datasets import ClassLabel, Dataset, Features, Image, List, Value
from PIL import Image as PILImage
from torch.utils.data import DataLoader

from hf_softlabel.data.errors import VotesError
from hf_softlabel.data.images import ImageTransform, VotesImages
from hf_softlabel.hashing import below, hash64

NAMES = ["cat", "dog", "ship"]
MEAN, STD = (0.49, 0.48, 0.44), (0.24, 0.25, 0.26)


def encode(array: np.ndarray, kind: str = "PNG") -> dict:
    buffer = io.BytesIO()
    PILImage.fromarray(array).save(buffer, kind)
    return {"bytes": buffer.getvalue(), "path": None}


def arrays(n: int, height: int = 32, width: int = 32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, height, width, 3), dtype=np.uint8)


def dataset(files: list, column: str = "image", counts: bool = True) -> Dataset:
    n = len(files)
    features = Features(
        {
            column: Image(),
            "votes": List(Value("int32" if counts else "float64"), length=3),
            "example_id": Value("int64"),
            "label": ClassLabel(names=NAMES),
        }
    )
    votes = [[i % 4, 1, 2] if counts else [0.5, 0.25, 0.25] for i in range(n)]
    labels = [None if i % 3 == 2 else i % 3 for i in range(n)]
    columns = {column: files, "votes": votes, "example_id": [100 + i for i in range(n)], "label": labels}
    return Dataset.from_dict(columns, features=features)


@pytest.fixture(scope="module")
def store() -> VotesImages:
    return VotesImages.from_dataset(dataset([encode(a) for a in arrays(7)]))


def test_columns(store):
    assert len(store) == 7 and store.names == NAMES
    assert torch.equal(store.column("pixel_values"), torch.from_numpy(arrays(7)).permute(0, 3, 1, 2))
    assert store.column("votes").tolist() == [[i % 4, 1, 2] for i in range(7)]
    assert store.column("votes").dtype == store.column("gold_label").dtype == torch.int64
    assert store.column("example_id").tolist() == list(range(100, 107))
    assert store.column("gold_label").tolist() == [0, 1, -1, 0, 1, -1, 0]
    with pytest.raises(VotesError, match="no column `label` among: pixel_values, votes"):
        store.column("label")


def test_rows_follow_a_shuffled_and_selected_data_set():
    source = dataset([encode(a) for a in arrays(7)], column="img").select([5, 0, 3])
    store = VotesImages.from_dataset(source)
    assert store.column("example_id").tolist() == [105, 100, 103]
    assert torch.equal(store[0]["pixel_values"], torch.from_numpy(arrays(7)[5]).permute(2, 0, 1))


def test_loader_hands_over_whole_batches(store):
    """One dict for each batch, from torch's own DataLoader, with every tensor in the sampler's order."""
    batches = list(DataLoader(store, batch_size=3, sampler=[6, 1, 4, 0, 5], collate_fn=lambda batch: batch))
    assert [batch["example_id"].tolist() for batch in batches] == [[106, 101, 104], [100, 105]]
    for batch in batches:
        rows = [store[int(i) - 100] for i in batch["example_id"]]
        assert batch.keys() == rows[0].keys() == {"pixel_values", "votes", "example_id", "gold_label"}
        for key, tensor in batch.items():
            assert torch.equal(tensor, torch.stack([row[key] for row in rows]))


def test_with_votes_shares_the_images(store):
    votes = torch.full((7, 3), 1 / 3, dtype=torch.float64)
    other = store.with_votes(votes)
    assert other.column("pixel_values").data_ptr() == store.column("pixel_values").data_ptr()
    assert torch.equal(other[2]["votes"], votes[2]) and store.column("votes")[2].tolist() == [2, 1, 2]
    with pytest.raises(VotesError, match="6 rows of votes for 7 images"):
        store.with_votes(votes[:6])
    with pytest.raises(VotesError, match="sum to 1"):
        store.with_votes(votes * 2)


def test_probabilities_and_no_gold_labels():
    source = dataset([encode(a) for a in arrays(2)], counts=False).remove_columns("label")
    store = VotesImages.from_dataset(source)
    assert store.column("votes").dtype == torch.float64 and store.names == ["0", "1", "2"]
    assert store.column("gold_label").tolist() == [-1, -1]


def test_resize_and_colour_modes_are_pils():
    tall, grey = arrays(1, 40, 24)[0], arrays(1, 24, 40)[0, :, :, 0]
    store = VotesImages.from_dataset(dataset([encode(tall), encode(grey), encode(arrays(1)[0])]), image_size=32)
    for row, array in zip(store, [tall, grey, arrays(1)[0]], strict=True):
        expected = PILImage.fromarray(array).convert("RGB").resize((32, 32), PILImage.Resampling.BILINEAR)
        assert np.array_equal(row["pixel_values"].permute(1, 2, 0), np.asarray(expected))


def test_images_that_lie_in_files(tmp_path):
    path = tmp_path / "0.png"
    path.write_bytes(encode(arrays(1)[0])["bytes"])
    store = VotesImages.from_dataset(dataset([str(path)]))
    assert np.array_equal(store[0]["pixel_values"].permute(1, 2, 0), arrays(1)[0])


def test_oblong_images_keep_height_and_width_apart():
    store = VotesImages.from_dataset(dataset([encode(a) for a in arrays(2, 20, 30)]))
    assert store.column("pixel_values").shape == (2, 3, 20, 30)


def test_wrong_images_are_named():
    good, cut = encode(arrays(1)[0]), encode(arrays(1)[0])
    cut["bytes"] = cut["bytes"][: len(cut["bytes"]) // 2]
    with pytest.raises(VotesError, match=r"cannot be decoded in 3 row\(s\): 1, 3, 4"):
        VotesImages.from_dataset(dataset([good, cut, good, {"bytes": b"text", "path": None}, None]))
    other = encode(arrays(1, 24, 16)[0])
    with pytest.raises(VotesError, match=r"the first is 32 x 32, others are not: rows 1 \(16 x 24\).*image_size"):
        VotesImages.from_dataset(dataset([good, other]))
    with pytest.raises(VotesError, match=r"no image column `image` or `img` among: votes \(List\)"):
        VotesImages.from_dataset(dataset([good]).remove_columns("image"))
    with pytest.raises(VotesError, match=r"no image column `label`"):
        VotesImages.from_dataset(dataset([good]), column="label")
    with pytest.raises(VotesError, match="no column `votes`"):
        VotesImages.from_dataset(dataset([good]).remove_columns("votes"))


def test_constructor_refuses_what_does_not_fit(store):
    columns = [store.column(name) for name in ("pixel_values", "votes", "example_id", "gold_label")]
    with pytest.raises(VotesError, match="uint8"):
        VotesImages(columns[0].float(), *columns[1:], names=NAMES)
    with pytest.raises(VotesError, match="'votes': 6"):
        VotesImages(columns[0], columns[1][:6], *columns[2:], names=NAMES)
    with pytest.raises(VotesError, match="unique"):
        VotesImages(*columns[:2], columns[2] * 0, columns[3], names=NAMES)


def one_by_one(pixels, example_id, epoch, seed, padding, flip):
    """What torchvision makes of each image when it is told the same crop and flip."""
    places = 2 * padding + 1
    out = []
    for image, i in zip(pixels, example_id, strict=True):
        draw = int(below(hash64("augment", seed, epoch, i), 2 * places**2))
        top, left = draw // 2 // places, draw // 2 % places
        image = TF.crop(TF.pad(image, [padding] * 4, fill=0), top, left, *image.shape[1:])
        if flip and draw % 2:
            image = TF.hflip(image)
        out.append(TF.normalize(image.float() / 255, MEAN, STD))
    return torch.stack(out)


@pytest.mark.parametrize(("padding", "flip", "size"), [(4, True, (32, 32)), (2, False, (20, 28)), (0, True, (8, 9))])
def test_augmentation_is_torchvisions(padding, flip, size):
    pixels = torch.from_numpy(arrays(40, *size)).permute(0, 3, 1, 2)
    ids = torch.arange(40) * 977
    transform = ImageTransform(MEAN, STD, crop_padding=padding, flip=flip)
    batch = transform(pixels, ids, epoch=3, seed=5, train=True)
    assert batch.dtype == torch.float32 and batch.is_contiguous()
    assert torch.allclose(batch, one_by_one(pixels, ids, 3, 5, padding, flip), atol=1e-6)


def test_evaluation_only_normalises():
    pixels = torch.from_numpy(arrays(5)).permute(0, 3, 1, 2)
    expected = TF.normalize(pixels.float() / 255, MEAN, STD)
    before = pixels.clone()
    assert torch.allclose(ImageTransform(MEAN, STD)(pixels), expected, atol=1e-6)
    assert torch.equal(pixels, before)


def test_augmentation_depends_on_example_epoch_and_seed_only():
    pixels = torch.from_numpy(arrays(64)).permute(0, 3, 1, 2)
    ids = torch.arange(64)
    transform = ImageTransform(MEAN, STD)
    before = torch.random.get_rng_state()
    whole = transform(pixels, ids, epoch=1, seed=2, train=True)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    shards = torch.cat([transform(pixels[part], ids[part], 1, 2, True) for part in order.split(23)])
    assert torch.equal(shards, whole[order])
    assert torch.equal(torch.random.get_rng_state(), before)
    for epoch, seed in ((2, 2), (1, 3)):
        other = transform(pixels, ids, epoch=epoch, seed=seed, train=True)
        assert (other != whole).flatten(1).any(1).float().mean() > 0.9


def test_crops_and_flips_are_uniform():
    """Each of the 9 x 9 x 2 cases as often as the others: 16200 images, read off from a mark in the picture."""
    n = 16_200
    pixels = torch.zeros(n, 3, 12, 12, dtype=torch.uint8)
    pixels[:, :, 5, 4] = 255
    transform = ImageTransform((0.0,) * 3, (1.0,) * 3)
    place = transform(pixels, torch.arange(n), 0, 0, True)[:, 0].flatten(1).argmax(1)
    y, x = place // 12, place % 12
    # The mark at (5, 4) moves to row 9 - top, and to column 8 - left or, mirrored, 3 + left.
    assert (y.min(), y.max(), x.min(), x.max()) == (1, 9, 0, 11)
    expected = np.array([(i in range(9)) + (i in range(3, 12)) for i in range(12)]) * n / 162
    counts = np.zeros((9, 12))
    np.add.at(counts, (y.numpy() - 1, x.numpy()), 1)
    chi2 = ((counts - expected) ** 2 / expected).sum()
    assert chi2 < 107 + 5 * np.sqrt(2 * 107)


def test_misuse_of_the_transform():
    transform = ImageTransform(MEAN, STD)
    with pytest.raises(VotesError, match="uint8"):
        transform(torch.zeros(1, 3, 8, 8))
    with pytest.raises(VotesError, match="give example_id and epoch"):
        transform(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), train=True)
