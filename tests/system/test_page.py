"""The page in a real browser, beside a real server with a tiny model: what it shows is what the API answers."""

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import openai
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.system.test_server import server, used_blocks
from tests.tiny_gguf import write_tiny_gguf

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine to show the page in"),
]
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
QUIET += ["--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"]
PATIENCE_MS = 20_000  # for one thing to come true; nothing waits for it to pass
WIDTHS = (1440, 390)
QUESTION = "Why is the sea salt?"
WATCH_ANSWER = """() => {
  window.lengths = new Set()
  const note = () => lengths.add(document.querySelector('[data-answer]')?.textContent.length ?? 0)
  new MutationObserver(note).observe(document.body, { subtree: true, childList: true, characterData: true })
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield chromium
        chromium.close()


def tiny_server(tmp_path_factory, context: int = 2048, **model) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("page")
    tiny = write_tiny_gguf(folder / "tiny.gguf", context=context, **model)
    with server(str(tiny), "--served-model-name", "tiny", log=folder / "log") as (address, _):
        yield address


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    yield from tiny_server(tmp_path_factory)


@pytest.fixture(scope="module")
def base_address(tmp_path_factory) -> Iterator[str]:
    """Of a server whose model has no chat template, and is slow enough to be stopped in a long answer."""
    yield from tiny_server(tmp_path_factory, chat=False, context=16384, layers=6)


def api(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key="unused", max_retries=0, timeout=60)


@contextmanager
def opened(browser: Browser, address: str, width: int = 1440, refused: int = 0) -> Iterator[Page]:
    """The page, ready. At the end: it asked no other host, and nothing is in its console but so many refusals."""
    complaints: list[str] = []
    hosts: set[str] = set()
    page = browser.new_page(viewport={"width": width, "height": 844})
    page.set_default_timeout(PATIENCE_MS)
    page.on("console", lambda message: complaints.append(message.text) if message.type != "log" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    page.goto(address)
    expect(page.get_by_text("ready", exact=True)).to_be_visible()
    yield page
    page.close()
    refusals = [text for text in complaints if "status of 400" in text]  # the browser itself notes these
    assert complaints == refusals
    assert len(refusals) == refused
    assert hosts == {urlsplit(address).netloc}


def settings(page: Page, max_tokens: int, system: str | None = None) -> None:
    page.get_by_text("Settings").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Max tokens").fill(str(max_tokens))
    if system is not None:
        page.get_by_label("System prompt").fill(system)


def send(page: Page, text: str, label: str = "Your question") -> None:
    page.get_by_label(label).fill(text)
    page.get_by_label(label).press("Enter")


def number(page: Page, name: str, turn: int = 0) -> str:
    return page.locator("article").nth(turn).locator(f"[data-number={name}]").text_content() or ""


def answered(page: Page, turn: int = 0) -> str:
    """The answer once it is whole."""
    article = page.locator("article").nth(turn)
    expect(article.locator("[data-number=answer]")).to_be_visible()
    return article.locator("[data-answer]").text_content() or ""


def overflow(page: Page) -> int:
    return page.evaluate("document.documentElement.scrollWidth - innerWidth")


@pytest.mark.parametrize("width", WIDTHS)
def test_an_answer_is_what_the_api_answers_with_its_numbers(browser, address, width):
    client = api(address)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    with opened(browser, address, width) as page:
        page.evaluate(WATCH_ANSWER)
        settings(page, max_tokens=200, system="Be brief.")
        assert overflow(page) <= 0
        send(page, QUESTION)
        text = answered(page)
        whole = client.chat.completions.create(model="tiny", messages=messages, temperature=0, max_tokens=200)
        assert text == whole.choices[0].message.content
        assert page.evaluate("lengths.size") > 3  # it came in pieces
        assert number(page, "prompt") == f"{whole.usage.prompt_tokens} tokens"
        assert number(page, "answer") == f"{whole.usage.completion_tokens} tokens"
        assert number(page, "ended").startswith(f"{whole.choices[0].finish_reason}: ")
        assert re.fullmatch(r"req_\w+", number(page, "id"))
        assert re.fullmatch(r"[\d.]+ m?s", number(page, "first"))
        assert re.fullmatch(r"[\d.,]+ tokens/s", number(page, "rate"))

        more = [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": "And then?"}]
        send(page, "And then?")
        second = answered(page, turn=1)
        whole = client.chat.completions.create(model="tiny", messages=more, temperature=0, max_tokens=200)
        assert second == whole.choices[0].message.content
        assert int(number(page, "cached", turn=1)) > 0
        expect(page.locator("[role=status]").last).to_have_text(f"Answer: {second}")
        assert overflow(page) <= 0


def test_a_refusal_is_shown_in_the_servers_words(browser, address):
    client = api(address)
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": QUESTION}], max_tokens=5000, temperature=0
        )
    with opened(browser, address, refused=1) as page:
        settings(page, max_tokens=5000)
        send(page, QUESTION)
        expect(page.get_by_text(refused.value.body["message"], exact=True)).to_be_visible()
        expect(page.get_by_text("400 · context_length_exceeded")).to_be_visible()
        settings(page, max_tokens=5)
        send(page, "Again")
        answered(page, turn=1)
        assert number(page, "prompt", turn=1) == _prompt_tokens(client, "Again")  # without the refused question


def _prompt_tokens(client: openai.OpenAI, question: str) -> str:
    asked = [{"role": "user", "content": question}]
    usage = client.chat.completions.create(model="tiny", messages=asked, max_tokens=1).usage
    return f"{usage.prompt_tokens} tokens"


@pytest.mark.parametrize("how", ["button", "Escape"])
def test_stopping_frees_what_the_answer_held(browser, base_address, how):
    with opened(browser, base_address) as page:
        settings(page, max_tokens=16000)
        send(page, "on and on", label="Text to continue")
        expect(page.locator("[data-answer]")).not_to_be_empty()
        if how == "button":
            page.get_by_role("button", name="Stop").click()
        else:
            page.keyboard.press("Escape")
        expect(page.get_by_text("stopped by you")).to_be_visible()
        expect(page.get_by_role("button", name="Send")).to_be_visible()
        deadline = time.monotonic() + 5
        while used_blocks(base_address) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert used_blocks(base_address) == 0


def test_a_model_without_a_chat_template_continues_text(browser, base_address):
    client = api(base_address)
    with opened(browser, base_address) as page:
        settings(page, max_tokens=30)
        assert page.get_by_label("System prompt").count() == 0
        send(page, "Once upon a time", label="Text to continue")
        whole = client.completions.create(model="tiny", prompt="Once upon a time", max_tokens=30, temperature=0)
        assert answered(page) == whole.choices[0].text


@pytest.mark.parametrize("width", WIDTHS)
def test_the_engines_numbers_move(browser, address, width):
    client = api(address)
    with opened(browser, address, width) as page:
        page.get_by_role("link", name="Engine").click()
        expect(page.get_by_role("heading", name="Engine", level=1)).to_be_focused()
        generated = page.locator("dt", has_text="Tokens generated").locator("+ dd")
        before = int((generated.text_content() or "").replace(",", ""))
        whole = client.completions.create(model="tiny", prompt="count", max_tokens=64, extra_body={"ignore_eos": True})
        expect(generated).to_have_text(f"{before + whole.usage.completion_tokens:,}")
        chart = page.get_by_role("img", name=re.compile("^Output, last two minutes"))
        expect(chart).to_have_attribute("aria-label", re.compile(r"highest [1-9][\d,.]* tokens/s$"))
        expect(page.get_by_text("128 blocks of 32 tokens")).to_be_visible()
        assert overflow(page) <= 0
