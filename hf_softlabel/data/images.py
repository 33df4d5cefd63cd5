"""Images in memory, and augmentation of a whole batch as a pure function of (seed, epoch, example_id).

Decoding a CIFAR PNG takes about ten times as long as augmenting it, so it is done once; a batch is then one
`index_select` for each tensor.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO

import numpy as np
import PIL.Image
import torch
import torch.nn.functional as F
from datasets import Dataset, Image
from datasets import IterableDataset as StreamingDataset
from datasets.utils import tqdm
from torch import Tensor

from ..hashing import below, hash64
from .errors import VotesError, some
from .votes import check_example_ids, check_votes, class_names, gold_labels, validate_votes

IMAGE_COLUMNS = ("image", "img")
# Below this many images decoding takes a second or two, and a progress bar would only be noise.
_PROGRESS_FROM = 20_000


class VotesImages(torch.utils.data.Dataset):
    """N images with their votes, as tensors.

    Args:
        images: (N, 3, H, W) uint8.
        votes: (N, C), int64 counts or floating-point distributions.
        example_id: (N,) int64, unique.
        gold_label: (N,) int64, -1 where there is none.
        names: the C classes.
    """

    def __init__(self, images: Tensor, votes: Tensor, example_id: Tensor, gold_label: Tensor, names: Sequence[str]):
        if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] != 3:
            raise VotesError(f"images must be (N, 3, H, W) uint8, not {tuple(images.shape)} {images.dtype}.")
        lengths = {"images": len(images), "votes": len(votes), "example_id": len(example_id)}
        lengths["gold_label"] = len(gold_label)
        if len(set(lengths.values())) > 1:
            raise VotesError(f"All columns must have one entry for each image: {lengths}.")
        self.names = list(names)
        check_votes(votes.numpy(), len(self.names))
        check_example_ids(example_id.numpy())
        self._columns = {
            "pixel_values": images,
            "votes": votes,
            "example_id": example_id,
            "gold_label": gold_label,
        }

    @classmethod
    def from_dataset(cls, dataset: Dataset, image_size: int | None = None, column: str | None = None) -> VotesImages:
        """Decode a data set of votes once.

        Args:
            dataset: rows by the votes contract, with an `Image` column.
            image_size: resize to this height and width (bilinear); without it all images must have one size.
            column: the image column; by default `image` or `img`.
        """
        column = _image_column(dataset, column)
        votes = validate_votes(dataset)
        example_id, gold_label = np.asarray(dataset.with_format("numpy")["example_id"][:]), gold_labels(dataset)
        images = _decode(dataset, column, image_size)
        tensors = (torch.from_numpy(np.array(x)) for x in (votes, example_id, gold_label))
        return cls(images, *tensors, names=class_names(dataset))

    def __len__(self) -> int:
        return len(self._columns["example_id"])

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """One example: `pixel_values` (3, H, W) uint8, `votes` (C,), `example_id` () and `gold_label` ()."""
        return {name: tensor[index] for name, tensor in self._columns.items()}

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """A whole batch, already stacked: torch's DataLoader asks for it and hands it to the collator as it is."""
        index = torch.as_tensor(indices)
        return {name: tensor.index_select(0, index) for name, tensor in self._columns.items()}

    def column(self, name: str) -> Tensor:
        """The whole column: `pixel_values`, `votes`, `example_id` or `gold_label`."""
        if name not in self._columns:
            raise VotesError(f"There is no column `{name}` among: {', '.join(self._columns)}.")
        return self._columns[name]

    def with_votes(self, votes: Tensor) -> VotesImages:
        """The same images with other votes (N, C); the images are shared, not copied."""
        if len(votes) != len(self):
            raise VotesError(f"There are {len(votes)} rows of votes for {len(self)} images.")
        check_votes(votes.numpy(), len(self.names))
        other = copy.copy(self)
        other._columns = {**self._columns, "votes": votes}
        return other


def _image_column(dataset: Dataset, column: str | None) -> str:
    wanted = (column,) if column else IMAGE_COLUMNS
    for name in wanted:
        if isinstance(dataset.features.get(name), Image):
            return name
    found = ", ".join(f"{name} ({type(feature).__name__})" for name, feature in dataset.features.items())
    raise VotesError(
        f"There is no image column {' or '.join(f'`{name}`' for name in wanted)} among: {found}. "
        "Name the column, or cast it with dataset.cast_column(name, datasets.Image())."
    )


def _encoded(dataset: Dataset, column: str) -> Iterator[dict]:
    """The images' files as {"bytes", "path"}, straight from Arrow: `dataset[i]` takes half as long again."""
    raw = dataset.select_columns(column).cast_column(column, Image(decode=False)).with_format("arrow")
    for batch in raw.iter(batch_size=1000):
        yield from batch[column].to_pylist()


def _decode(dataset: Dataset, column: str, image_size: int | None) -> Tensor:
    """(N, 3, H, W) uint8."""
    out: np.ndarray | None = None
    shape = (image_size, image_size) if image_size else None
    broken, unequal = [], []
    files = tqdm(
        _encoded(dataset, column),
        total=len(dataset),
        desc="Decoding images",
        disable=True if len(dataset) < _PROGRESS_FROM else None,
    )
    for row, file in enumerate(files):
        try:
            image = PIL.Image.open(BytesIO(file["bytes"]) if file["bytes"] is not None else file["path"])
            image = image.convert("RGB")
        except (OSError, ValueError, TypeError, AttributeError, SyntaxError):
            # What PIL raises for damaged files; a missing image (None) is a TypeError, one without a path too.
            broken.append(row)
            continue
        if image_size and image.size != shape:
            image = image.resize(shape, PIL.Image.Resampling.BILINEAR)
        shape = shape or image.size
        if image.size != shape:
            unequal.append(f"{row} ({image.width} x {image.height})")
            continue
        if out is None:
            out = np.empty((len(dataset), 3, image.height, image.width), np.uint8)
        out[row] = np.asarray(image).transpose(2, 0, 1)
    if broken:
        raise VotesError(f"`{column}` cannot be decoded in {len(broken)} row(s): {some(broken)}. Remove or mend them.")
    if unequal:
        raise VotesError(
            f"The images differ in size: the first is {shape[0]} x {shape[1]}, others are not: rows {some(unequal)}. "
            "Give image_size to resize them all."
        )
    return torch.from_numpy(out)


def stream_images(dataset: StreamingDataset) -> StreamingDataset:
    """A stream whose images are called `pixel_values`; [`PixelCollator`] makes a batch of them."""
    column = _image_column(dataset, None)
    kept = [name for name in ("votes", "example_id", "label") if name in dataset.column_names]
    return dataset.select_columns([column, *kept]).rename_column(column, "pixel_values")


@dataclass
class PixelCollator:
    """Rows with an image in `pixel_values` -> (N, 3, size, size) uint8."""

    image_size: int

    def __call__(self, rows: list[dict]) -> dict[str, Tensor]:
        size = (self.image_size, self.image_size)
        images = [row["pixel_values"].convert("RGB") for row in rows]
        resized = [x if x.size == size else x.resize(size, PIL.Image.Resampling.BILINEAR) for x in images]
        return {"pixel_values": torch.from_numpy(np.stack(resized)).permute(0, 3, 1, 2).contiguous()}


@dataclass(frozen=True)
class ImageTransform:
    """Pixels (N, 3, H, W) uint8 -> network input (N, 3, H, W) float32, on the pixels' device.

    Args:
        mean, std: per channel, of pixels in [0, 1].
        crop_padding: in training, crop at random from the image with so many black pixels on each side.
        flip: in training, mirror every second image on average.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_padding: int = 4
    flip: bool = True

    def __call__(
        self,
        pixel_values: Tensor,
        example_id: Tensor | None = None,
        epoch: int | None = None,
        seed: int = 0,
        train: bool = False,
    ) -> Tensor:
        if pixel_values.dtype != torch.uint8:
            raise VotesError(f"ImageTransform takes uint8 pixels in 0..255, not {pixel_values.dtype}.")
        if train:
            if example_id is None or epoch is None:
                raise VotesError("Augmentation is a function of the example and the epoch: give example_id and epoch.")
            pixel_values = self._augment(pixel_values, hash64("augment", seed, epoch, example_id))
        mean, std = (
            torch.tensor(x, device=pixel_values.device, dtype=torch.float64).view(-1, 1, 1)
            for x in (self.mean, self.std)
        )
        # (x / 255 - mean) / std, in two passes over the floats instead of three.
        return pixel_values.float().mul_((1 / (255 * std)).float()).sub_((mean / std).float())

    def _augment(self, pixels: Tensor, bits: Tensor) -> Tensor:
        n, channels, height, width = pixels.shape
        padded = F.pad(pixels, (self.crop_padding,) * 4)
        places = 2 * self.crop_padding + 1
        draw = below(bits, 2 * places * places)
        mirrored = (draw % 2 == 1) & self.flip
        top, left = draw // 2 // places, draw // 2 % places
        y = torch.arange(height, device=pixels.device) + top[:, None]
        x = torch.arange(width, device=pixels.device)
        x = torch.where(mirrored[:, None], width - 1 - x, x) + left[:, None]
        # One gather does both: the place in the padded image from which each pixel of the result comes.
        source = (y[:, :, None] * padded.shape[-1] + x[:, None, :]).view(n, 1, -1)
        return padded.flatten(2).gather(2, source.expand(-1, channels, -1)).view(pixels.shape)
