"""Chat templates: the conversation as the text that a model was trained on, and that text as tokens.

A template is a small Jinja program that comes with the model, written for Hugging Face's ``apply_chat_template``; it
runs here under the same rules, in a sandbox, with a bound on what it may write.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lightwell.checkpoints.checkpoint import Checkpoint
from lightwell.errors import CheckpointError, InvalidRequest, StartupError, UnsupportedParameter
from lightwell.text.guard import Guard, random_number
from lightwell.text.tokenizer import Tokenizer

Message = Mapping[str, Any]

_MAX_CHARACTERS = 1 << 24  # of a rendered conversation: far beyond any context window, far below what hurts
_TRIMMED = "\t \t"  # white space that no template writes of its own accord
_MAX_BITS = 1 << 16  # of a number that a template computes


class NoChatTemplate(InvalidRequest):
    """A chat was asked of a model that comes without a chat template: a base model."""

    code = "no_chat_template"

    def __init__(self) -> None:
        super().__init__(
            "This model has no chat template, so it cannot chat: use /v1/completions, or give the server a template "
            "with --chat-template FILE.",
            param="model",
        )


class ChatTemplate:
    """One model's template. Raises jinja2.TemplateSyntaxError when the source is not one."""

    def __init__(self, source: str) -> None:
        self._template = _environment().from_string(source)

    def render(
        self,
        messages: Sequence[Message],
        /,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The conversation as text. ``variables`` are what else the template reads: ``bos_token``, ``enable_thinking``.

        Content in parts is joined by newlines, as vLLM and llama.cpp do. Raises InvalidRequest with the template's
        own words when it refuses the messages or fails on them, UnsupportedParameter for parts that are not text.
        """
        plain = [_with_plain_content(message, index) for index, message in enumerate(messages)]
        own = {"messages": plain, "tools": tools, "add_generation_prompt": add_generation_prompt}
        _refuse_taken(own, variables)
        return _bounded(self._template, own | variables)


def load_template(checkpoint: Checkpoint, file: Path | None = None) -> ChatTemplate | None:
    """The template in ``file`` if one is given, or else the checkpoint's own; None for a model without one.

    Raises StartupError for a file that cannot be used, CheckpointError for a damaged template in the checkpoint.
    """
    if file is not None:
        return _from_file(file)
    if checkpoint.chat_template is None:
        return None
    try:
        return ChatTemplate(checkpoint.chat_template)
    except jinja2.TemplateSyntaxError as error:
        raise CheckpointError(checkpoint.path, f"its chat template is damaged: {_in_line(error)}") from None


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    **variables: Any,
) -> list[int]:
    """A conversation as token ids, with exactly one BOS if the model wants one.

    ``continue_final_message``: the text ends with the last message's own words, so that the model goes on with them.
    Control tokens that the template writes are control tokens; their names inside what a user wrote, in messages,
    tools or variables, stay ordinary text. Raises what ``ChatTemplate.render`` raises, and NoChatTemplate.
    """
    if template is None:
        raise NoChatTemplate
    names = _special_names(tokenizer)
    _refuse_taken(names, variables)
    guard = Guard(tokenizer.specials)
    given = names | guard.hide({"tools": tools, **variables})
    hidden = guard.hide(messages)
    if continue_final_message:
        text = _render_open(template, hidden, given)
    else:
        text = template.render(hidden, add_generation_prompt=add_generation_prompt, **given)
    parts = tokenizer.specials.split(text)
    ids = tokenizer.encode_parts(part if isinstance(part, int) else guard.restore(part) for part in parts)
    return tokenizer.with_one_bos(ids)


def _render_open(template: ChatTemplate, messages: Sequence[Message], given: Mapping[str, Any]) -> str:
    """The conversation up to the end of the last message's content, found by a mark that is put there.

    White space follows the mark. A template that trims content takes it away, and would have trimmed the message's own.
    """
    last = _with_plain_content(messages[-1], len(messages) - 1)
    content, mark = last.get("content") or "", random_number()
    marked = {**last, "content": f"{content}{mark}{_TRIMMED}"}
    text = template.render([*messages[:-1], marked], add_generation_prompt=False, **given)
    before, found, after = text.rpartition(mark)
    if not found:
        raise InvalidRequest(
            "The chat template leaves out the last message, so it cannot be continued.", param="continue_final_message"
        )
    return before if after.startswith(_TRIMMED) else before.removesuffix(content[len(content.rstrip()) :])


def _special_names(tokenizer: Tokenizer) -> dict[str, Any]:
    """What templates call ``bos_token`` and ``eos_token``."""
    named = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
    return {name: tokenizer.token_text(token) for name, token in named.items() if token is not None}


def _refuse_taken(own: Mapping[str, Any], variables: Mapping[str, Any]) -> None:
    if taken := own.keys() & variables.keys():
        raise InvalidRequest(f"The template variable {min(taken)!r} is the server's.", param="chat_template_kwargs")


def _from_file(file: Path) -> ChatTemplate:
    try:
        return ChatTemplate(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"The chat template {file} cannot be read: {error}") from None
    except jinja2.TemplateSyntaxError as error:
        raise StartupError(f"The chat template {file} is not valid Jinja: {_in_line(error)}") from None


def _in_line(error: jinja2.TemplateSyntaxError) -> str:
    return f"{error.message} (line {error.lineno})"


def _with_plain_content(message: Message, index: int) -> dict[str, Any]:
    """The message with its content as one string, or as it is where there is none (an assistant's tool calls)."""
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{where} is not an object.", param=where)
    content = message.get("content")
    if isinstance(content, list | tuple):
        content = "\n".join(_part_text(part, f"{where}.content[{n}]") for n, part in enumerate(content))
    elif content is not None and not isinstance(content, str):
        raise InvalidRequest(f"{where}.content is neither a string nor a list of parts.", param=f"{where}.content")
    return {**message, "content": content} if "content" in message else dict(message)


def _part_text(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind is None:
        raise InvalidRequest(f"{where} is not a content part: an object with a 'type' is needed.", param=where)
    if kind != "text":
        raise UnsupportedParameter(f"{where} is of type {kind!r}: this model reads only 'text'.", param=f"{where}.type")
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequest(f"{where}.text is not a string.", param=f"{where}.text")
    return text


def _bounded(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    """Render, and turn whatever goes wrong inside the template into an InvalidRequest."""
    pieces: list[str] = []
    room = _MAX_CHARACTERS
    try:
        for piece in template.generate(variables):
            pieces.append(piece)
            room -= len(piece)
            if room < 0:
                raise SecurityError(f"it writes more than {_MAX_CHARACTERS} characters")
    except Exception as error:  # a template is a program: it may fail in any way on what it was given
        raise InvalidRequest(
            f"The chat template does not accept these messages: {str(error) or type(error).__name__}", param="messages"
        ) from error
    return "".join(pieces)


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, which also refuses products and powers too big to be meant."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if _result_size(operator, left, right) > _MAX_BITS:
            raise SecurityError(f"the result of '{operator}' is too big")
        return super().call_binop(context, operator, left, right)


def _result_size(operator: str, left: Any, right: Any) -> int:
    """Bits of a number, items of a sequence."""
    if isinstance(left, int) and isinstance(right, int):
        return left.bit_length() * max(right, 1) if operator == "**" else left.bit_length() + right.bit_length()
    for items, times in ((left, right), (right, left)):
        if isinstance(items, str | list | tuple) and isinstance(times, int):
            return len(items) * times
    return 0


class _Generation(Extension):
    """``{% generation %}``: marks an assistant's words for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012  (Jinja declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@cache
def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is: Jinja's own filter would escape <, > and & for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
