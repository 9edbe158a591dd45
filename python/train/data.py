"""Source text to token pieces.

    python3 -m train.data TOKENIZER.json OUT FILE...     writes OUT.tokens.npy (uint16) and OUT.starts.npy

Every document becomes [BOS] text [EOS]. Filter, deduplicate and strip licence heads before; see README.md.
"""

import pathlib
import sys

import numpy as np
import torch

BOS, EOS = "[BOS]", "[EOS]"


def encode_files(tokenizer_path, out, files):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(tokenizer_path)
    bos, eos = tokenizer.token_to_id(BOS), tokenizer.token_to_id(EOS)
    documents = []
    for file in files:
        text = pathlib.Path(file).read_text(encoding="utf-8", errors="ignore").replace("\r\n", "\n")
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        documents.append(np.array([bos, *ids, eos], np.uint16))
    np.save(out + ".tokens.npy", np.concatenate(documents))
    np.save(out + ".starts.npy", np.cumsum([0] + [len(d) for d in documents]))


class Corpus:
    def __init__(self, prefix, device, seed=0):
        self.tokens = np.load(prefix + ".tokens.npy", mmap_mode="r")
        self.starts = np.load(prefix + ".starts.npy")
        self.rng, self.device = np.random.default_rng(seed), device

    def _piece(self, longest):
        """A random document, cut at a random place if it is longer."""
        i = self.rng.integers(len(self.starts) - 1)
        begin, end = self.starts[i], self.starts[i + 1]
        begin += self.rng.integers(max(end - begin - longest, 0) + 1)
        return np.asarray(self.tokens[begin : min(end, begin + longest)], np.int64)

    def packed(self, rows, length):
        """Pieces packed into rows -> tokens, positions inside the piece, piece numbers; each [rows, length]."""
        shape = (rows, length)
        tokens, positions, pieces = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for row in range(rows):
            filled, number = 0, 0
            while filled < length:
                piece = self._piece(length - filled)
                place = slice(filled, filled + len(piece))
                tokens[row, place], positions[row, place], pieces[row, place] = piece, np.arange(len(piece)), number
                filled, number = filled + len(piece), number + 1
        return tuple(torch.from_numpy(a).to(self.device) for a in (tokens, positions, pieces))

    def windows(self, rows, length):
        """[rows, length] windows that start inside one document and run on into the next ones."""
        begins = self.rng.integers(len(self.tokens) - length, size=rows)
        return torch.from_numpy(np.stack([self.tokens[b : b + length].astype(np.int64) for b in begins])).to(
            self.device
        )


if __name__ == "__main__":
    encode_files(sys.argv[1], sys.argv[2], sys.argv[3:])
