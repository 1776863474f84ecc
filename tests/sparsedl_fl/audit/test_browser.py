"""The report in a real browser, where there is one: wide, narrow, dark and printed."""

import shutil
import subprocess

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    import torch

    from sparsedl_fl.audit import audit_model, example
    from sparsedl_fl.audit.files import load_model, load_update

    model = load_model("sparsedl_fl.audit.example:model", example.WEIGHTS)
    audit = audit_model(model, load_update(model, example.UPDATE).gradients, example=torch.zeros(1, 1, 8, 8))
    path = tmp_path_factory.mktemp("report") / "report.html"
    # What is measured is written into the page by a script that is there for this test alone.
    probe = (
        "<script>document.documentElement.dataset.probe = [document.documentElement.scrollWidth - innerWidth,"
        "document.images.length, [...document.images].every(i => i.naturalWidth == 8),"
        "getComputedStyle(document.body).backgroundColor].join(';')</script></body>"
    )
    path.write_text(audit.to_html(show_samples=True).replace("</body>", probe))
    return path


def chromium(page, *options):
    command = [CHROMIUM, *QUIET, f"--user-data-dir={page.parent / 'profile'}", *options, f"file://{page}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.parametrize("width", [1200, 500])
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_sticks_out_and_pictures_load(page, width, dark):
    theme = ["--blink-settings=preferredColorScheme=0"] if dark else ["--blink-settings=preferredColorScheme=1"]
    found = chromium(page, f"--window-size={width},1000", *theme, "--dump-dom")
    outside, n_images, are_loaded, colour = found.split('data-probe="')[1].split('"')[0].split(";")
    assert int(outside) <= 0
    assert (n_images, are_loaded) == ("16", "true")
    assert colour == ("rgb(21, 25, 29)" if dark else "rgb(255, 255, 255)")


def test_prints(page):
    target = page.with_suffix(".pdf")
    chromium(page, f"--print-to-pdf={target}", "--no-pdf-header-footer")
    assert target.read_bytes().startswith(b"%PDF")
