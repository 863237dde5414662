"""Putting an engine together: what guesses for it, and which draft models fit its model."""

import pytest

from lightwell.config import SpeculativeConfig
from lightwell.engine.request import Request
from lightwell.errors import StartupError
from lightwell.events import Sampled, Speculated
from lightwell.host.build import build_engine
from lightwell.host.local import generate
from lightwell.host.messages import EngineConfig
from lightwell.sampling.params import SamplingParams
from tests.tiny_gguf import write_tiny_gguf


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def target(folder) -> str:
    return str(write_tiny_gguf(folder / "target.gguf", context=512))


def config(model: str, speculation: SpeculativeConfig | None) -> EngineConfig:
    return EngineConfig(model, "tiny", 20, 512, pack_cache=False, speculation=speculation)


def answer(config: EngineConfig) -> tuple[list[int], list[Speculated]]:
    engine, _ = build_engine(config)
    request = Request("r", [1, 2, 3, 1, 2, 3, 1, 2], SamplingParams(temperature=0), 40)
    tokens = [event.token for event in generate(engine, request) if isinstance(event, Sampled)]
    return tokens, [event for event in engine.log.read(0)[0] if isinstance(event, Speculated)]


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_an_engine_is_built_with_who_guesses_for_it(target, method):
    asked = SpeculativeConfig(method, target if method == "draft_model" else None, 4)
    tokens, guessed = answer(config(target, asked))
    assert tokens == answer(config(target, None))[0]
    assert guessed
    assert max(event.proposed for event in guessed) <= 4


def test_a_draft_with_other_tokens_is_refused(folder, target):
    other = write_tiny_gguf(folder / "other.gguf", context=512, letter="u")
    with pytest.raises(StartupError, match="another vocabulary"):
        build_engine(config(target, SpeculativeConfig("draft_model", str(other))))
