import pytest
from toy_llm import make_llm, make_tokenizer

from deepinfer.api import LLM
from deepinfer.sampling.tokenizer import BpeTokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> BpeTokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def llm(tokenizer: BpeTokenizer) -> LLM:
    return make_llm(tokenizer)


@pytest.fixture
def make(tokenizer: BpeTokenizer):
    return lambda with_tokenizer=True: make_llm(tokenizer if with_tokenizer else None, tokenizer)
