"""The script that makes a real model's folder says in one line why it cannot."""
import pytest

from support import smollm


def fails_with(monkeypatch, capsys, folder):
    monkeypatch.setattr("sys.argv", ["smollm", str(folder)])
    with pytest.raises(SystemExit):
        smollm.main()
    return capsys.readouterr().err.splitlines()[-1]


def test_an_existing_folder_is_not_overwritten(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(smollm, "missing_packages", list)
    assert "exists already: name another folder" in fails_with(monkeypatch, capsys, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_missing_packages_are_named_before_the_download(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(smollm, "missing_packages", lambda: ["gguf", "accelerate"])
    monkeypatch.setattr(smollm, "download", lambda folder: pytest.fail("it began to download"))
    line = fails_with(monkeypatch, capsys, tmp_path / "new")
    assert "pip install gguf accelerate" in line
