from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from deepinfer.sampling.tokenizer import BpeTokenizer

FIRST = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"]
MARKERS = ["<｜System｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜", "<｜latest_reminder｜>"]


def bpe(path: Path, markers: list[str]) -> BpeTokenizer:
    """Bytes as tokens, plus DeepSeek's special tokens."""
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    model.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=259, special_tokens=FIRST, initial_alphabet=alphabet, show_progress=False)
    model.train_from_iterator([], trainer)
    model.add_special_tokens([AddedToken(marker, special=True, normalized=False) for marker in markers])
    model.save(str(path))
    return BpeTokenizer(path)


@pytest.fixture(scope="session")
def chat_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> BpeTokenizer:
    return bpe(tmp_path_factory.mktemp("chat") / "tokenizer.json", MARKERS)


@pytest.fixture(scope="session")
def tokenizer_without_system(tmp_path_factory: pytest.TempPathFactory) -> BpeTokenizer:
    return bpe(tmp_path_factory.mktemp("plain") / "tokenizer.json", [m for m in MARKERS if m != "<｜System｜>"])
