"""A tokenizer.json as the keys that GGUF has for tokenizers, where these mean exactly the same.

GGUF names a way of cutting words instead of describing it, and has scores where tokenizer.json has merges. So the keys
are read back, and must give the same vocabulary, and the same ids for a text that tells ways of cutting apart.
"""

import json
import logging
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import tokenizers

from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.errors import CheckpointError
from lightwell.text import byte_level, sentencepiece
from lightwell.text.gguf_tokenizers import TokenType, load_gguf_tokenizer
from lightwell.text.hf_tokenizers import load_hf_tokenizer
from lightwell.text.tokenizer import Tokenizer
from lightwell.text.vocabulary import byte_token

_log = logging.getLogger(__name__)

Keys = dict[str, Any]

_PREFERRED = ("llama-bpe", "smollm")  # of names that cut alike; under smollm llama.cpp also leaves spaces alone

# Digits in runs of every length, contractions in both cases, spaces and line ends of every kind, scripts without
# spaces, combining marks, signs beside letters, code, and characters outside the basic plane.
_PROBE = (
    "Hello world! It's 1 12 123 1234 12345, DON'T we'll I'M they'Ve a1b2\n\n\n  if x == 3.14:\t\treturn [y-1]  \r\n\r\n"
    " café naïve e\u0301 日本語のテキスト 한국어 русский العربية हिन्दी ไทย 🙂👩‍👩‍👧 ½ ² Ⅷ ٣٤ <b>&amp;</b> a_b __init__ "
    "    four   three  two one\u00a0nbsp\u3000wide -- — … “quoted” ¿qué? $5.00 50% #tag @me /path/to\\file x^2~y|z`q` "
)


def gguf_tokenizer(checkpoint: Checkpoint) -> Keys:
    """The ``tokenizer.*`` keys of a Hugging Face folder, its chat template included.

    Raises CheckpointError naming what GGUF cannot say, or has no name for.
    """
    files = checkpoint.tokenizer
    if "tokenizer.json" not in files:
        raise CheckpointError(checkpoint.path, "has no tokenizer.json, which the tokenizer of a GGUF file is made from")
    path, config = Path(files["tokenizer.json"]), files.get("tokenizer_config.json")
    tokenizer = load_hf_tokenizer(path, config and Path(config), vocab=checkpoint.spec.vocab)
    description = json.loads(path.read_bytes())
    _check_model(path, description)
    keys = _common_keys(path, description, tokenizer, checkpoint.spec.vocab)
    if "ByteLevel" in json.dumps(description["decoder"]):
        keys |= _byte_level_keys(path, description)
    else:
        keys |= _sentencepiece_keys(path, description, tokenizer, keys)
    _check_same(path, tokenizer, keys, checkpoint.spec.vocab)
    template = {} if checkpoint.chat_template is None else {"tokenizer.chat_template": checkpoint.chat_template}
    return keys | template


def _cannot(path: Path, what: str) -> CheckpointError:
    return CheckpointError(path, f"cannot be written as GGUF: {what}")


def _check_model(path: Path, description: Mapping[str, Any]) -> None:
    model = description["model"]
    if model.get("type", "BPE") != "BPE":
        raise _cannot(path, f"its model is {model['type']}, and only BPE is written here")
    for field in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(field):
            raise _cannot(path, f"its model has {field} set, for which GGUF has no key")
    for token in description["added_tokens"]:
        if taken := [side for side in ("lstrip", "rstrip", "single_word") if token[side]]:
            raise _cannot(path, f"token {token['content']!r} has {taken[0]} set, for which GGUF has no key")


def _common_keys(path: Path, description: Mapping[str, Any], tokenizer: Tokenizer, vocab: int) -> Keys:
    """Tokens, their types, and the special ones. Ids without a token are unused ones, as the converter names them."""
    texts: dict[int, str] = {token: text for text, token in description["model"]["vocab"].items()}
    texts |= {token["id"]: token["content"] for token in description["added_tokens"]}
    if max(texts, default=0) >= vocab:
        raise _cannot(path, f"it has a token {max(texts)}, and the model rows for {vocab}")
    special = {token["id"]: token["special"] for token in description["added_tokens"]}
    unknown = description["model"].get("unk_token")
    types = [_type(texts.get(token), special.get(token), unknown) for token in range(vocab)]
    keys: Keys = {
        "tokens": [texts.get(token, f"[PAD{token}]") for token in range(vocab)],
        "token_type": [int(kind) for kind in types],
        "add_bos_token": tokenizer.vocabulary.add_bos,
    }
    ids = {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id}
    ids["unknown"] = next((token for token, text in texts.items() if text == unknown), None)
    keys |= {f"{name}_token_id": token for name, token in ids.items() if token is not None}
    return {f"tokenizer.ggml.{name}": value for name, value in keys.items()}


def _type(text: str | None, special: bool | None, unknown: str | None) -> TokenType:
    if text is None:
        return TokenType.UNUSED
    if text == unknown:
        return TokenType.UNKNOWN
    if special is not None:
        return TokenType.CONTROL if special else TokenType.USER_DEFINED
    return TokenType.NORMAL


def _byte_level_keys(path: Path, description: Mapping[str, Any]) -> Keys:
    normalizer = (description.get("normalizer") or {}).get("type")
    if normalizer == "NFC":
        _log.warning("%s: texts are brought to Unicode's NFC form, for which GGUF has no key: give it such texts", path)
    elif normalizer is not None:
        raise _cannot(path, f"it has the normalizer {normalizer}, for which GGUF has no key")
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": _pre_tokenizer(path, bool(description["model"].get("ignore_merges"))),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in _merges(path, description)],
    }


def _pre_tokenizer(path: Path, whole_words: bool) -> str:
    """A name under which words are cut as this file does."""
    wanted = _words(tokenizers.Tokenizer.from_file(str(path)).pre_tokenizer)
    kinds = {name: kind for name, kind in byte_level.PRE_TOKENIZERS.items() if kind.whole_words == whole_words}
    found = [name for name, kind in kinds.items() if _words(byte_level.pre_tokenizer(kind)) == wanted]
    if found:
        return next((name for name in _PREFERRED if name in found), found[0])
    known = ", ".join(sorted(byte_level.PRE_TOKENIZERS))
    raise _cannot(path, f"it cuts words in a way that is none of those known by a name here: {known}")


def _words(pre_tokenizer: Any) -> list[str]:
    return [] if pre_tokenizer is None else [word for word, _ in pre_tokenizer.pre_tokenize_str(_PROBE)]


def _merges(path: Path, description: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Older files have each merge as one text, newer ones as a pair."""
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in description["model"]["merges"]]
    if odd := next((pair for pair in pairs if len(pair) != 2 or " " in "".join(pair)), None):
        raise _cannot(path, f"its merge {odd} has a space in a token")
    return [(left, right) for left, right in pairs]


def _sentencepiece_keys(path: Path, description: Mapping[str, Any], tokenizer: Tokenizer, keys: Keys) -> Keys:
    """Scores that rank tokens as the merges do: the earlier a token is made, the higher."""
    tokens: list[str] = keys["tokenizer.ggml.tokens"]
    types = [
        TokenType.BYTE if kind == TokenType.NORMAL and byte_token(text) is not None else kind
        for text, kind in zip(tokens, keys["tokenizer.ggml.token_type"], strict=True)
    ]
    merges = _merges(path, description)
    made = [text for text, _ in groupby(left + right for left, right in merges)]
    if len(set(made)) < len(made):
        raise _cannot(path, "its merges do not rank tokens, so there are no scores that mean the same")
    ranks = {text: -float(rank) for rank, text in enumerate(made)}
    scores = [ranks.get(text, -float(len(made))) for text in tokens]
    _check_splits(path, tokens, types, scores, merges)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.token_type": [int(kind) for kind in types],
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.add_space_prefix": tokenizer.vocabulary.strips_first_space,
    }


def _check_splits(
    path: Path, tokens: Sequence[str], types: Sequence[int], scores: Sequence[float], merges: list[tuple[str, str]]
) -> None:
    """With scores, any two neighbours that make a token are joined: each of these pairs must be a merge."""
    normal = [token for token, kind in enumerate(types) if kind == TokenType.NORMAL]
    ids = {tokens[token]: token for token in normal}
    missing = set(sentencepiece.rebuild_merges(ids, scores, normal)) - set(merges)
    if missing:
        raise _cannot(path, f"{min(missing)} is no merge of it, but would be one with scores, which GGUF has instead")


def _check_same(path: Path, tokenizer: Tokenizer, keys: Keys, vocab: int) -> None:
    """Raise CheckpointError where the keys are understood as another tokenizer than the file's."""
    found = load_gguf_tokenizer(path, keys, vocab=vocab)
    ours, theirs = tokenizer.vocabulary, found.vocabulary
    for name in ("pieces", "control", "bos_id", "eos_id", "add_bos", "stop_ids", "strips_first_space"):
        if getattr(ours, name) != getattr(theirs, name):
            raise _cannot(path, f"the same tokens in GGUF have other {name.replace('_', ' ')}")
    probe = unicodedata.normalize("NFC", _PROBE) if keys["tokenizer.ggml.model"] == "gpt2" else _PROBE
    specials = "".join(f"{token.text}{probe}" for token in ours.control[:3])
    for text in (probe, probe.strip(), specials):
        if tokenizer.encode(text, special=True) != found.encode(text, special=True):
            raise _cannot(path, "the same tokens in GGUF give other ids for a text; its normalizer may be the reason")
