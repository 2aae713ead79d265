"""Train the tokenizer: byte-level BPE, 3584 ids, digits one by one, DeepSeek's special tokens.

python -m examples.tiny_model.tokenizer OUTPUT_FOLDER
"""

import argparse
import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from examples.tiny_model.data.chat import LEADING_SPECIALS, TRAILING_SPECIALS
from examples.tiny_model.data.mixture import training_documents

VOCAB_SIZE = 3584
DATA_SEED = 77
NUM_DOCUMENTS = 60_000

# DeepSeek's three patterns, except that digits stand alone: it makes sums and dates learnable at this size.
DIGITS = r"\p{N}"
CJK = r"[一-龥\u3040-ゟ゠-ヿ]+"
WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def training_text() -> Iterator[str]:
    """The pieces of text between special tokens."""
    specials = re.compile("|".join(map(re.escape, LEADING_SPECIALS + TRAILING_SPECIALS)))
    for document in islice(training_documents(DATA_SEED), NUM_DOCUMENTS):
        yield from filter(None, specials.split(document.prompt + document.answer))


def train_tokenizer() -> Tokenizer:
    """A tokenizer with BOS, EOS, PAD at 0, 1, 2 and all other special tokens at the end."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in (DIGITS, CJK, WORDS)]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    base_size = VOCAB_SIZE - len(TRAILING_SPECIALS)
    trainer = trainers.BpeTrainer(
        vocab_size=base_size,
        special_tokens=list(LEADING_SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_text(), trainer)
    if tokenizer.get_vocab_size() != base_size:
        raise ValueError(
            f"the text gave only {tokenizer.get_vocab_size()} of {base_size} tokens; give it more documents"
        )
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in TRAILING_SPECIALS])
    return tokenizer


def write_tokenizer(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    train_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": LEADING_SPECIALS[0],
        "eos_token": LEADING_SPECIALS[1],
        "pad_token": LEADING_SPECIALS[2],
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output_folder", type=Path)
    write_tokenizer(parser.parse_args().output_folder)


if __name__ == "__main__":
    main()
