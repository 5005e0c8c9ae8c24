"""What all tests share: the command in this process, and runs and reports without what takes longest."""

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def no_map() -> Iterator[None]:
    """Runs leave out t-SNE, which takes longer than their training and has tests of its own (test_summary)."""
    from longtail.engine import finish

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "summarise", functools.partial(finish.summarise, tsne=False))
        yield


@pytest.fixture(autouse=True)
def own_threads() -> Iterator[None]:
    """``--threads`` of one test is no setting of the next: threads that wait for each other cost most of the time."""
    import torch

    before = torch.get_num_threads()
    yield
    if torch.get_num_threads() != before:
        torch.set_num_threads(before)


@pytest.fixture
def longtail(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The command in this process, which has imported torch already: gives exit code, stdout and stderr."""
    from longtail.cli import main

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return int(ended.value.code or 0), out, err

    return run


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports with empty files for figures, each of which takes a second: test_figures and test_page draw them."""

    def save(figure: object, stem: str | Path) -> list[Path]:
        from PIL import Image

        paths = [Path(f"{stem}.{kind}") for kind in ("png", "svg", "pdf")]
        paths[0].parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (2, 2)).save(paths[0])
        for path in paths[1:]:
            path.write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
        return paths

    monkeypatch.setattr("longtail.report.figures.save", save)


@pytest.fixture
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparisons run one after the other in this process; test_cli_train and test_story have workers."""
    from longtail.engine.job import Job, execute
    from longtail.engine.pool import Outcome

    def run_all(jobs: Sequence[Job], workers: int, *, on_done: Callable[..., None], **_: object) -> list[Outcome]:
        outcomes = [Outcome(execute(job, say=print)) for job in jobs]
        for i, outcome in enumerate(outcomes):
            on_done(i, outcome)
        return outcomes

    monkeypatch.setattr("longtail.engine.pool.run_all", run_all)
