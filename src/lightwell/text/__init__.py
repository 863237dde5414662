"""Text to tokens and back: tokenizers, chat templates, the streaming detokenizer and stop strings."""

from lightwell.text.chat import ChatTemplate, NoChatTemplate, encode_chat, load_template
from lightwell.text.detokenizer import Detokenizer
from lightwell.text.load import load_tokenizer
from lightwell.text.tokenizer import Tokenizer

__all__ = [
    "ChatTemplate",
    "Detokenizer",
    "NoChatTemplate",
    "Tokenizer",
    "encode_chat",
    "load_template",
    "load_tokenizer",
]
