"""The tiny model's tokenizer, and the backends that are installed."""

import importlib.util
from collections.abc import Callable

import pytest
from grammar_walks import Writer

from deepinfer.config.facts import shipped_folder
from deepinfer.sampling.grammar.backend import GrammarBackend, Vocabulary
from deepinfer.sampling.grammar.desk import GrammarDesk
from deepinfer.sampling.tokenizer import BpeTokenizer

BACKENDS = ("llguidance", "xgrammar")


@pytest.fixture(scope="session")
def tiny_tokenizer() -> BpeTokenizer:
    return BpeTokenizer(shipped_folder("v41_tiny") / "tokenizer.json")


@pytest.fixture(scope="session")
def vocabulary(tiny_tokenizer: BpeTokenizer) -> Vocabulary:
    """Padded by 40 ids beyond the tokenizer's, as a model's vocabulary may be."""
    return Vocabulary(tiny_tokenizer, tiny_tokenizer.vocab_size + 40, (1,))


@pytest.fixture(scope="session")
def llguidance(vocabulary: Vocabulary) -> GrammarBackend:
    from deepinfer.sampling.grammar.llguidance import Llguidance

    return Llguidance(vocabulary)


@pytest.fixture(scope="session", params=BACKENDS)
def backend(request: pytest.FixtureRequest, vocabulary: Vocabulary) -> GrammarBackend:
    """Each backend; skipped where its library is not installed."""
    if request.param == "llguidance":
        return request.getfixturevalue("llguidance")
    if importlib.util.find_spec("xgrammar") is None:
        pytest.skip("xgrammar is not installed: pip install -e '.[xgrammar]'")
    from deepinfer.sampling.grammar.xgrammar import Xgrammar

    return Xgrammar(vocabulary)


@pytest.fixture
def make_desk(vocabulary: Vocabulary, llguidance: GrammarBackend) -> Callable[..., GrammarDesk]:
    def make(of: GrammarBackend = llguidance, timeout_s: float = 20.0, **limits: int) -> GrammarDesk:
        return GrammarDesk(of, vocabulary, compile_timeout_s=timeout_s, **limits)

    return make


@pytest.fixture
def writer(make_desk: Callable[..., GrammarDesk], vocabulary: Vocabulary) -> Writer:
    """Writes answers from random logits under a grammar."""
    return Writer(make_desk(), vocabulary)
