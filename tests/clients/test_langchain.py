"""A LangChain chat as its documentation has it, with nothing said of Lightwell but its address."""

import pytest

from tests.clients.conftest import Served

pytestmark = pytest.mark.slow
pytest.importorskip("langchain_openai", reason="LangChain is not installed: make test-clients installs it")


@pytest.fixture
def chat(served: Served):
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        model="smollm2", base_url=f"{served.address}/v1", api_key=served.key, temperature=0, max_tokens=24
    )


def test_a_chain_answers_streams_and_batches(chat):
    from langchain_core.output_parsers import StrOutputParser
    from langchain_core.prompts import ChatPromptTemplate

    prompt = ChatPromptTemplate.from_messages([("system", "You are brief."), ("human", "Tell me about {topic}.")])
    chain = prompt | chat | StrOutputParser()
    told = chain.invoke({"topic": "the sea"})
    assert told
    assert "".join(chain.stream({"topic": "the sea"})) == told
    assert chain.batch([{"topic": "the sea"}, {"topic": "ships"}])[0] == told


async def test_a_chain_streams_beside_the_event_loop(chat):
    pieces = [piece.content async for piece in chat.astream("Tell me about the sea.")]
    assert len(pieces) > 2


def test_a_bound_tool_is_called(chat):
    from langchain_core.tools import tool

    @tool
    def weather(city: str) -> str:
        """Tell the weather of a city."""
        return f"Rain in {city}."

    told = chat.bind_tools([weather], tool_choice="weather").bind(max_tokens=80).invoke("What is the weather in Oslo?")
    [call] = told.tool_calls
    assert call["name"] == "weather"
    assert isinstance(call["args"]["city"], str)


def test_an_answer_in_a_form(chat):
    from pydantic import BaseModel

    class Person(BaseModel):
        name: str
        age: int

    longer = chat.model_copy(update={"max_tokens": 200})
    told = longer.with_structured_output(Person, method="json_schema").invoke("Describe a person as JSON.")
    assert isinstance(told, Person)
