# SPDX-License-Identifier: Apache-2.0
"""Real git, the real compiler, real processes: what is built, what is kept, what is said when it cannot be done."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from kdbench import native
from kdbench.cli import run_command
from kdbench.paired import BuildError, builds, compare, sources
from kdbench.paired.plan import Answer, Item
from kdbench.paired.planted import plant
from kdbench.paired.session import Session

ROOT = Path(__file__).resolve().parents[2]
SERIES = "bench_tree_build.TreeBuild.kern_hot('b15-d7-k8-n1-sharp', 'cpu')"
ITEM = Item(SERIES, "tree_build", "b15-d7-k8-n1-sharp", "cpu", "hot")


def git(repo: Path, *arguments: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    done = subprocess.run(["git", "-C", str(repo), *who, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of its own that holds the engine."""
    repo = tmp_path_factory.mktemp("engine")
    git(repo, "init", "-q", "-b", "main")
    (repo / "README").write_text("no engine yet\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "before the engine")
    listed = git(ROOT, "ls-files", "--", "native").splitlines()
    for name in listed:  # what is built, and nothing that building leaves behind
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, repo / name)
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "the engine")
    return repo


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(builds.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def seed(library: Path, repo: Path, *revisions: str | None) -> None:
    """The library of this checkout as the one of other sources: what is compared does not matter here."""
    from kdbench.paired import toolchain

    for revision in revisions:
        builds.store(library, sources.read(repo, revision).digest, "cpu", toolchain.describe("cpu"))


class TestSources:
    def test_uncommitted_changes_are_seen_and_the_repository_stays_as_it_is(self, engine: Path) -> None:
        header = engine / "native" / "src" / "core" / "error.cpp"
        text = header.read_text()
        assert not sources.read(engine, None).dirty
        before = sorted(path.name for path in (engine / ".git").rglob("*"))
        try:
            header.write_text(text + "// changed\n")
            found = sources.read(engine, None)
        finally:
            header.write_text(text)
        assert found.dirty
        assert found.digest != sources.read(engine, "HEAD").digest
        assert sorted(path.name for path in (engine / ".git").rglob("*")) == before

    def test_a_new_file_counts_and_a_test_does_not(self, engine: Path) -> None:
        known = sources.read(engine, "HEAD").digest
        for name, same in (("native/src/core/new.cpp", False), ("native/tests/new.cpp", True)):
            path = engine / name
            try:
                path.write_text("// new\n")
                assert (sources.read(engine, None).digest == known) is same
            finally:
                path.unlink()

    @pytest.mark.parametrize(
        ("revision", "said"), [("no-such", "'no-such' is no commit"), ("HEAD~1", "no engine to build")]
    )
    def test_what_cannot_be_built_is_one_sentence(self, engine: Path, revision: str, said: str) -> None:
        with pytest.raises(BuildError, match=said):
            sources.read(engine, revision)

    def test_a_submodule_in_the_engine_is_refused(self, engine: Path, tmp_path: Path) -> None:
        clone = tmp_path / "clone"
        git(tmp_path, "clone", "-q", str(engine), str(clone))
        commit = git(clone, "rev-parse", "HEAD")
        git(clone, "update-index", "--add", "--cacheinfo", f"160000,{commit},native/src/third")
        git(clone, "commit", "-qm", "a submodule")
        with pytest.raises(BuildError, match=r"native/src/third.*submodule"):
            sources.read(clone, "HEAD")


class TestBuilds:
    def test_a_compiler_that_is_missing_is_one_sentence(
        self, engine: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CXX", "no-such-compiler")
        with pytest.raises(BuildError, match="no C\\+\\+ compiler no-such-compiler"):
            builds.build(engine, "HEAD", ["cpu"])
        assert not cache.exists()

    def test_without_a_compiler_a_build_from_elsewhere_is_taken(
        self, engine: Path, cache: Path, cpu_library: native.Library, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seed(cpu_library.path, engine, "HEAD")
        monkeypatch.setenv("CXX", "no-such-compiler")
        assert builds.build(engine, "HEAD", ["cpu"]).libraries["cpu"].is_file()

    def test_what_does_not_compile_leaves_a_log_and_no_entry(self, engine: Path, cache: Path) -> None:
        cmake = engine / "native" / "CMakeLists.txt"
        text = cmake.read_text()
        try:
            cmake.write_text('message(FATAL_ERROR "an error of mine")\n' + text)
            with pytest.raises(BuildError, match="does not build for cpu") as caught:
                builds.build(engine, None, ["cpu"])
        finally:
            cmake.write_text(text)
        assert caught.value.log is not None
        assert "an error of mine" in caught.value.log.read_text()
        assert not list(cache.glob(f"*/{builds.MANIFEST}"))

    def test_a_full_disk_is_one_sentence_and_leaves_nothing(
        self, engine: Path, cache: Path, cpu_library: native.Library, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(shutil, "copyfile", full)
        with pytest.raises(BuildError, match="the disk is full"):
            builds.store(cpu_library.path, "0" * 64, "cpu", {})
        assert not list(cache.glob("*"))

    @pytest.mark.slow
    def test_a_build_is_made_once_and_loads(self, engine: Path, cache: Path) -> None:
        said: list[str] = []
        first = builds.build(engine, "HEAD", ["cpu"], said.append)
        again = builds.build(engine, None, ["cpu"], said.append)
        assert len(said) == 1
        assert first.libraries == again.libraries
        library = native.load_file(first.libraries["cpu"], "cpu")
        assert library.build_info["git_commit"] == f"tree-{first.sources}"


class TestSession:
    def test_two_copies_are_two_libraries_and_both_sides_are_measured(self, cpu_library: native.Library) -> None:
        files = {side: {"cpu": cpu_library.path} for side in ("base", "head")}
        with Session([files]) as session:
            (answer,) = session.process(0, [ITEM])
        assert answer.error == ""
        assert len(answer.letters) == len(answer.first) >= 4
        assert all(seconds > 0 and clock > 0 for block in answer.letters for seconds, clock in block)
        assert sorted(set(answer.first)) == [0, 1]

    def test_a_kernel_that_is_missing_or_unknown_fails_alone(self, cpu_library: native.Library) -> None:
        files = {side: {"cpu": cpu_library.path} for side in ("base", "head")}
        unknown = Item("x", "tree_build", "no-such-workload", "cpu", "hot")
        with Session([files]) as session:
            answers = session.process(1, [unknown, ITEM])
        assert "no-such-workload" in answers[0].error
        assert answers[1].error == ""


class TestCompare:
    def test_a_library_against_itself(
        self, engine: Path, cache: Path, cpu_library: native.Library, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        seed(cpu_library.path, engine, "HEAD")
        results = tmp_path / "results"
        words = ["compare", "HEAD", "-b", "b15-d7-k8-n1-", "--backend", "cpu", "--max-processes", "8", "--json"]
        code = run_command([*words, "--repo", str(engine), "--results", str(results), "--machine", "here"])
        document = json.loads(capsys.readouterr().out)
        assert code == 0
        assert document["same_sources"]
        (result,) = document["results"]
        assert (result["series"], result["processes"], result["settled"]) == (SERIES, 8, True)
        assert result["verdict"] in ("SAME", "AMBIGUOUS")  # of a busy machine
        assert result["low"] <= result["ratio"] <= result["high"]
        (line,) = (results / "here" / "paired.jsonl").read_text().splitlines()
        record = json.loads(line)
        assert len(record["log_ratios"]) == 8
        assert record["verdict"] == result["verdict"]
        assert not list((results / "here").glob("*.lock"))

    def test_a_verdict_follows_from_what_processes_answer(
        self, engine: Path, cache: Path, cpu_library: native.Library, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seed(cpu_library.path, engine, "HEAD")

        def answer(session: Session, index: int, items: list[Item]) -> list[Answer]:
            slow, fast = (1.05e-6 + index * 1e-10, 1e9), (1e-6, 1e9)
            blocks = ((fast, slow, slow, fast), (slow, fast, fast, slow))
            return [Answer(item.series, blocks, (0, 1), 10) for item in items]

        monkeypatch.setattr(Session, "process", answer)
        (found,) = compare(engine, "HEAD", "HEAD", "b15-d7-k8-n1-", backends=["cpu"]).results
        assert (found.verdict, found.processes) == ("SLOWER", 8)
        assert found.ratio == pytest.approx(1.05, abs=0.001)

        def stop(session: Session, index: int, items: list[Item]) -> list[Answer]:
            if index == 3:
                raise KeyboardInterrupt
            return answer(session, index, items)

        monkeypatch.setattr(Session, "process", stop)
        comparison = compare(engine, "HEAD", "HEAD", "b15-d7-k8-n1-", backends=["cpu"])
        (found,) = comparison.results
        assert comparison.interrupted
        assert (found.verdict, found.settled, found.processes) == ("AMBIGUOUS", False, 3)
        assert found.ratio == pytest.approx(1.05, abs=0.001)

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["no-such"], "'no-such' is no commit"),
            (["HEAD", "--min-effect", "much"], "'much' is no share"),
            (["HEAD", "--min-effect", "0"], "more than 0"),
            (["HEAD", "--max-processes", "5"], "8 to 24"),
            (["HEAD", "-b", "("], "no regular expression"),
            (["HEAD", "-b", "no-such-series"], "no series fits"),
        ],
    )
    def test_bad_input_is_one_sentence(
        self, engine: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run_command(["compare", "--repo", str(engine), "--backend", "cpu", *words]) == 1
        assert said in " ".join(capsys.readouterr().err.split())


class TestPlanted:
    def test_every_kernel_gets_its_slowdown(self, engine: Path, tmp_path: Path) -> None:
        sources.read(engine, "HEAD").unpack(tmp_path)
        names = plant(tmp_path / "native", 0.03)
        assert {"kdt_tree_build", "kdt_tree_accept", "kdt_verify_attn"} <= set(names)
        file = tmp_path / "native" / "src" / "cpu" / "tree_build.cpp"
        once = file.read_text()
        assert "* 0.03;" in once

        plant(tmp_path / "native", 0, "again")
        again = once.replace("* 0.03;", "* 0.0;").replace("// planted: \n", "// planted: again\n")
        assert file.read_text() == again

    def test_sources_without_kernels_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(BuildError, match="has no entries of CPU kernels"):
            plant(tmp_path, 0.03)
