"""Which parser fits a template, and how tools, calls and results are put where a template does not know them."""

import json

import pytest

from lightwell.gateway.bodies import CalledFunction, Message, ToolCall
from lightwell.gateway.tools.asked import Tools
from lightwell.gateway.tools.conversation import for_template
from lightwell.gateway.tools.dialect import Dialect, find_dialect
from lightwell.gateway.tools.hermes import Hermes
from lightwell.gateway.tools.mistral import Mistral
from lightwell.text.chat import ChatTemplate
from tests.gateway.fake_engine import TEMPLATE, byte_tokenizer

TOKENIZER = byte_tokenizer()
SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}}}
FUNCTION = {"name": "weather", "description": "It tells.", "parameters": SCHEMA}
TOOLS = Tools([{"type": "function", "function": FUNCTION}], {"weather": SCHEMA})
CALL = ToolCall("call_1", CalledFunction("weather", '{"place": "Oslo"}'))
CONVERSATION = [
    Message("system", "Be brief."),
    Message("user", "Weather?"),
    Message("assistant", "Let me see.", tool_calls=[CALL, CALL]),
    Message("tool", "rain", tool_call_id="call_1"),
    Message("tool", [{"type": "text", "text": "snow"}], tool_call_id="call_2"),
    Message("user", "Thanks."),
]


def dialect(source: str, name: str | None = None) -> Dialect:
    return find_dialect(TOKENIZER, ChatTemplate(source), name)


@pytest.mark.parametrize(
    ("file", "name", "native"),
    [
        ("permissive/Qwen-Qwen2.5-7B-Instruct", "Hermes", True),
        ("permissive/Qwen-Qwen3-0.6B", "Hermes", True),
        ("permissive/Qwen-QwQ-32B", "Hermes", True),
        ("permissive/ibm-granite-granite-4.0", "Hermes", True),
        ("permissive/vllm-tool_chat_template_hermes", "Hermes", True),
        ("restricted/meta-llama-Llama-3.1-8B-Instruct", "Llama3", True),
        ("restricted/meta-llama-Llama-3.2-3B-Instruct", "Llama3", True),
        ("restricted/vllm-tool_chat_template_llama3.1_json", "Llama3", True),
        ("permissive/mistralai-Mistral-Nemo-Instruct-2407", "MistralArray", True),
        ("permissive/vllm-tool_chat_template_mistral3", "MistralArray", True),
        ("permissive/Mistral-Small-3.2-24B-Instruct-2506", "Mistral", True),
        ("permissive/mistralai-Ministral-3-14B-Reasoning-2512", "Mistral", True),
        ("restricted/vllm-tool_chat_template_gemma3_pythonic", "Gemma", True),
        # Tools in a style that no parser here reads, or none at all: our own words.
        ("permissive/HuggingFaceTB-SmolLM2-Instruct", "Hermes", False),
        ("permissive/Qwen3-Coder", "Hermes", False),
        ("permissive/GLM-4.6", "Hermes", False),
        ("permissive/moonshotai-Kimi-K2", "Hermes", False),
        ("permissive/openai-gpt-oss-120b", "Hermes", False),
        ("permissive/vllm-tool_chat_template_granite", "Hermes", False),
        ("permissive/vllm-tool_chat_template_deepseekv3", "Hermes", False),
        ("restricted/google-gemma-2-2b-it", "Hermes", False),
    ],
)
def test_the_parser_is_the_one_that_reads_what_the_template_writes(shared, file, name, native):
    found = dialect((shared / f"data/corpora/chat-templates/{file}.jinja").read_text())
    assert (found.parser.__name__, found.native) == (name, native)


def test_every_template_takes_a_conversation_with_a_call_and_its_result(shared):
    """Some take only one call in an answer."""
    messages = [CONVERSATION[1], Message("assistant", tool_calls=[CALL]), CONVERSATION[3]]
    rendered = 0
    for file in sorted((shared / "data/corpora/chat-templates").glob("*/*.jinja")):
        template = ChatTemplate(file.read_text())
        found = find_dialect(TOKENIZER, template, None)
        plain = for_template(messages, TOOLS, found)
        names = {"bos_token": "<bos>", "eos_token": "<eos>"}
        text = template.render(plain, tools=TOOLS.functions if found.native else None, **names)
        assert "weather" in text, file.name
        assert "Oslo" in text, file.name
        rendered += 1
    assert rendered >= 40


def test_a_named_parser_is_taken_whatever_the_template_writes():
    assert dialect(TEMPLATE).parser is Hermes
    found = dialect(TEMPLATE, "mistral")
    assert (found.parser, found.native) == (Mistral, False)


def test_control_tokens_that_calls_are_made_of_are_shown():
    assert dialect(TEMPLATE).shown == frozenset()
    assert Hermes.markers == ("<tool_call>", "</tool_call>")


def test_a_template_without_tools_gets_them_in_words():
    system, asked, called, results, thanks = for_template(
        CONVERSATION, TOOLS, Dialect(Hermes, False, True, frozenset())
    )
    assert system["content"][0]["text"] == "Be brief."
    told = system["content"][1]["text"]
    assert json.dumps(TOOLS.functions[0]["function"]) in told
    assert Hermes.written([("function_name", '{"argument_name": "value"}')]) in told
    assert asked == {"role": "user", "content": "Weather?"}
    assert [part["text"] for part in called["content"]] == [
        "Let me see.",
        Hermes.written([("weather", '{"place": "Oslo"}')] * 2),
    ]
    assert (called["role"], results["role"]) == ("assistant", "user")
    tags = ["<tool_response>", "rain", "</tool_response>", "<tool_response>", "snow", "</tool_response>"]
    assert [part["text"] for part in results["content"]] == tags
    assert thanks == {"role": "user", "content": "Thanks."}


def test_where_there_is_no_place_for_a_system_text_the_tools_come_before_the_first_question():
    told, *rest = for_template(CONVERSATION[1:2], TOOLS, Dialect(Hermes, False, False, frozenset()))
    assert told["role"] == "user"
    assert "weather" in told["content"][0]["text"]
    assert told["content"][1]["text"] == "Weather?"
    assert rest == []


def test_without_a_system_text_the_tools_are_one():
    told, asked = for_template(CONVERSATION[1:2], TOOLS, Dialect(Hermes, False, True, frozenset()))
    assert told["role"] == "system"
    assert asked == {"role": "user", "content": "Weather?"}


def test_a_template_that_knows_tools_gets_arguments_as_objects():
    plain = for_template(CONVERSATION, TOOLS, Dialect(Hermes, True, True, frozenset()))
    assert plain[2]["tool_calls"][0] == {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": {"place": "Oslo"}},
    }
    assert plain[3] == {"role": "tool", "content": "rain", "tool_call_id": "call_1"}


def test_mistrals_templates_get_ids_of_nine_characters():
    plain = for_template(CONVERSATION, TOOLS, Dialect(Mistral, True, True, frozenset()))
    short = plain[3]["tool_call_id"]
    assert plain[2]["tool_calls"][0]["id"] == short
    assert short.isalnum()
    assert len(short) == 9
    assert Mistral.call_id("abcdefgh1") == "abcdefgh1"
