from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from deepinfer.sampling.tokenizer import BpeTokenizer

SPECIAL = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> BpeTokenizer:
    """A byte-level BPE of 320 tokens: every byte, merges (some across characters), three special tokens, one that is not."""
    path: Path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.decoder = decoders.ByteLevel()
    text = ["the cat sat on the mat", "Human: hello", "naïve 好好 你好 🙂🙃", "안녕"] * 5
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=319, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(text, trainer)
    bpe.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    bpe.save(str(path))
    return BpeTokenizer(path)
