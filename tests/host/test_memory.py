import pytest

from lightwell.checkpoints import open_checkpoint
from lightwell.errors import StartupError
from lightwell.host.memory import available_bytes, plan_kv
from tests.tiny_gguf import write_tiny_gguf

GIB = 1 << 30


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return open_checkpoint(write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf"))


def test_the_default_holds_two_full_conversations(tiny):
    plan = plan_kv(tiny, 512, None, available=2 * GIB)
    assert plan.full_conversations == 2
    assert plan.bytes == 2 * 512 * tiny.spec.kv_bytes_per_token("f16")


def test_the_asked_size_is_kept(tiny):
    plan = plan_kv(tiny, 512, 1 << 20, available=2 * GIB)
    assert 0 <= (1 << 20) - plan.bytes < 32 * tiny.spec.kv_bytes_per_token("f16")


def test_smaller_cells_make_more_blocks_of_the_same_memory(tiny):
    blocks = {dtype: plan_kv(tiny, 512, 1 << 20, dtype, available=2 * GIB).blocks for dtype in ("f16", "int8")}
    head_dim = tiny.spec.head_dim
    assert blocks["int8"] / blocks["f16"] == pytest.approx(2 * head_dim / (head_dim + 4), rel=0.01)


def test_a_draft_model_takes_a_part_of_each_block(tiny):
    alone, with_draft = plan_kv(tiny, 512, 1 << 20), plan_kv(tiny, 512, 1 << 20, draft=tiny)
    assert with_draft.blocks == alone.blocks // 2
    assert with_draft.bytes <= 1 << 20


@pytest.mark.parametrize(("asked", "available"), [(4 * GIB, 2 * GIB), (1, 2 * GIB), (None, 1 << 20)])
def test_too_little_memory_is_one_clear_error(tiny, asked, available):
    with pytest.raises(StartupError, match=r"Too little memory for tiny\.gguf"):
        plan_kv(tiny, 512, asked, available=available)


def test_the_machine_says_what_it_has():
    assert available_bytes() > 1 << 20
