"""Where settings come from, which wins, and what is said when one is wrong."""

from pathlib import Path

import msgspec
import pytest

from lightwell.config import ServeConfig, SpeculativeConfig, settings
from lightwell.errors import StartupError


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    """No settings but those of the test."""
    monkeypatch.chdir(tmp_path)
    for name in ServeConfig.__struct_fields__:
        monkeypatch.delenv(f"LIGHTWELL_{name.upper()}", raising=False)


def write(text: str) -> None:
    Path("lightwell.toml").write_text(text)


def test_the_defaults_are_local_and_need_nothing():
    config = ServeConfig.load()
    assert (config.model, config.host, config.port) == ("smollm2", "127.0.0.1", 8000)


def test_flags_win_over_variables_and_these_over_the_file(monkeypatch):
    write('model = "from-file"\nport = 1\nthreads = 1\nmax_num_seqs = 7\n')
    monkeypatch.setenv("LIGHTWELL_PORT", "2")
    monkeypatch.setenv("LIGHTWELL_THREADS", "2")
    config = ServeConfig.load(threads=3, model=None)
    assert (config.threads, config.port, config.model, config.max_num_seqs) == (3, 2, "from-file", 7)


def test_sizes_and_names_are_read_as_people_write_them(monkeypatch):
    assert ServeConfig.load(kv_cache_memory="1.5GiB").kv_cache_memory == 3 << 29
    assert ServeConfig.load(kv_cache_memory="auto").kv_cache_memory is None
    assert ServeConfig.load(served_model_name=["a", "b"]).served_model_name == ["a", "b"]
    monkeypatch.setenv("LIGHTWELL_SERVED_MODEL_NAME", "c,d")
    monkeypatch.setenv("LIGHTWELL_KV_CACHE_MEMORY", "1M")
    assert ServeConfig.load().served_model_name == ["c", "d"]
    assert ServeConfig.load().kv_cache_memory == 1 << 20


def test_speculation_is_json_or_a_table():
    asked = SpeculativeConfig("draft_model", "small", 4)
    text = '{"method": "draft_model", "model": "small", "num_speculative_tokens": 4}'
    assert ServeConfig.load(speculative_config=text).speculative_config == asked
    assert ServeConfig.load(speculative_config="{}").speculative_config == SpeculativeConfig("ngram")
    write('[speculative_config]\nmethod = "ngram"\nnum_speculative_tokens = 3\n')
    assert ServeConfig.load().speculative_config == SpeculativeConfig("ngram", None, 3)


def test_durations_are_read_as_people_write_them():
    config = ServeConfig.load(target_itl="50ms", target_ttft="1.5s")
    assert (config.target_itl, config.target_ttft) == (0.05, 1.5)
    with pytest.raises(StartupError, match="target_itl: 'soon' is not a duration"):
        ServeConfig.load(target_itl="soon")
    with pytest.raises(StartupError, match="target_itl"):
        ServeConfig.load(target_itl="0ms")


def test_an_objective_gives_what_nobody_else_says(monkeypatch):
    assert ServeConfig.load(objective="balanced") == ServeConfig.load()
    quick = ServeConfig.load(objective="latency", max_num_seqs=8)
    assert (quick.max_num_seqs, quick.max_num_batched_tokens) == (8, 256)
    assert (quick.target_itl, quick.target_ttft) == (0.05, 1.0)
    monkeypatch.setenv("LIGHTWELL_OBJECTIVE", "throughput")
    monkeypatch.setenv("LIGHTWELL_MAX_NUM_BATCHED_TOKENS", "1024")
    much = ServeConfig.load()
    assert (much.max_num_seqs, much.max_num_batched_tokens, much.target_itl) == (256, 1024, None)
    with pytest.raises(StartupError, match="objective"):
        ServeConfig.load(objective="fast")


def test_switches_and_numbers_may_be_text(monkeypatch):
    for text, value in (("false", False), ("0", False), ("true", True), ("1", True)):
        monkeypatch.setenv("LIGHTWELL_PACK_CACHE", text)
        assert ServeConfig.load().pack_cache is value
    assert ServeConfig.load(watermark="0.5", chat_template="a.jinja").chat_template == Path("a.jinja")


def test_every_wrong_value_is_named():
    with pytest.raises(StartupError, match=r"port: .*; threads: "):
        ServeConfig.load(port=-1, threads="many")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", 65536),
        ("port", "http"),
        ("max_model_len", 0),
        ("watermark", 1.0),
        ("threads", 0),
        ("kv_cache_memory", "lots"),
        ("kv_cache_memory", 0),
        ("log_level", "loud"),
        ("shutdown_timeout_seconds", -1),
        ("prot", 8000),
        ("speculative_config", "ngram"),
        ("speculative_config", '{"method": "guess"}'),
        ("speculative_config", '{"method": "draft_model"}'),
        ("speculative_config", '{"model": "smollm2"}'),
        ("speculative_config", '{"num_speculative_tokens": 0}'),
        ("speculative_config", '{"prompt_lookup_max": 4}'),
    ],
)
def test_what_is_wrong_is_one_line_that_names_it(name, value):
    with pytest.raises(StartupError, match=rf"^Configuration: {name}: ") as caught:
        ServeConfig.load(**{name: value})
    assert "\n" not in caught.value.message
    assert repr(value) in caught.value.message


def test_a_name_that_nobody_knows_is_an_error_in_the_file_too(monkeypatch):
    monkeypatch.setenv("LIGHTWELL_CPU_ISA", "portable")  # another program's
    ServeConfig.load()
    write("prot = 8000\n")
    with pytest.raises(StartupError, match=r"prot: there is no such option, did you mean port\? .*lightwell\.toml"):
        ServeConfig.load()


def test_a_variable_that_is_almost_a_setting_is_an_error(monkeypatch):
    monkeypatch.setenv("LIGHTWELL_PORT_8000_TCP", "tcp://10.0.0.1:8000")  # as Kubernetes makes them for a service
    monkeypatch.setenv("LIGHTWELL_SERVICE_HOST", "10.0.0.1")
    ServeConfig.load()
    monkeypatch.setenv("LIGHTWELL_MAX_NUM_SEQ", "3")
    with pytest.raises(StartupError, match=r"LIGHTWELL_MAX_NUM_SEQ: .* did you mean LIGHTWELL_MAX_NUM_SEQS\?"):
        ServeConfig.load()


@pytest.mark.parametrize("name", sorted(ServeConfig.__struct_fields__))
def test_the_nearest_name_is_found_for_any_missing_letter(name):
    with pytest.raises(StartupError, match=f"did you mean {name}\\?"):
        ServeConfig.load(**{name[:-1] + "_": 1})


def test_the_nearest_name_is_found_within_a_table_too():
    write('[speculative_config]\nmethod = "ngram"\nnum_speculative_token = 3\n')
    with pytest.raises(StartupError, match=r"field `num_speculative_token`.*did you mean num_speculative_tokens\?"):
        ServeConfig.load()


def test_every_value_says_where_it_comes_from(monkeypatch):
    write('threads = 1\nobjective = "latency"\nmax_num_seqs = 3\n')
    monkeypatch.setenv("LIGHTWELL_PORT", "2")
    found = settings(host="::1", model=None)
    sources = {name: found[name].source for name in ("threads", "port", "host", "model", "max_num_seqs", "target_itl")}
    assert sources == {
        "threads": "lightwell.toml",
        "port": "LIGHTWELL_PORT",
        "host": "--host",
        "model": "default",
        "max_num_seqs": "lightwell.toml",
        "target_itl": "objective latency",
    }
    assert {name: each.value for name, each in found.items()} == msgspec.structs.asdict(ServeConfig.load(host="::1"))


def test_a_file_that_is_not_toml_is_named():
    write("port = \n")
    with pytest.raises(StartupError, match=r"lightwell\.toml"):
        ServeConfig.load()
