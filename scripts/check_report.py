#!/usr/bin/env python3
"""Opens the pages of `qplan report` in a browser: does what a reader would, and looks for what is wrong.

  scripts/check_report.py build/release/cli/qplan
  scripts/check_report.py build/release/cli/qplan --keep DIR       # pages, pictures and prints stay there
  scripts/check_report.py build/release/cli/qplan --pictures docs/pictures

Makes a page of each verb's answer, and opens each in light and dark colours, on a phone and in print. No
page may write to the console, fail, ask for anything but itself or be wider than its screen; every plot
must be drawn and named, with its numbers in a table. On the page of a search the table is sorted, another
plan chosen and the timeline zoomed, by mouse and by keys. Needs playwright (PyPI) and Chromium (the
distribution's `chromium` will do); without them exits 77, which ctest shows as skipped.
"""
import argparse
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77  # as ctest's SKIP_RETURN_CODE

try:
    from playwright.sync_api import Error, sync_playwright
except ImportError:
    print("skipped: no playwright; pip install playwright")
    sys.exit(SKIPPED)

ROOT = pathlib.Path(__file__).resolve().parent.parent
DESKTOP = {"width": 1200, "height": 850}
PHONE = {"width": 390, "height": 844}  # a phone of 2020 to 2025, in CSS pixels

PAGES = {
    "search": ("search --model qwen3-30b-a3b --gpus 64 --top 6 --pareto --price 2.5 --scaling 16..128", 0),
    "lists": ("search --model llama3-8b --gpus 16 --hardware h100,h200 --framework megatron,torchtitan --top 6", 0),
    "predict": ("predict --model llama3-70b --gpus 64 --tp 4 --pp 4 --vpp 4", 0),
    "steps": ("search --model tiny --gpus 8 --algorithm grpo --max-response-len 300 --prompt-len 50", 0),
    "validate": ("validate 'pp2 gbs4 seq32' --model tiny", 0),
    "accuracy": (f"accuracy {ROOT}/tests/data/measured_runs.csv", 0),
    "nothing": ("search --model llama3-405b --gpus 8", 1),
    "forbidden": ("predict --model tiny --gpus 6 --tp 3", 1),
}

problems = []


def check(truth, page, what):
    if not truth:
        problems.append(f"{page}: {what}")


def make_pages(qplan, folder):
    for name, (words, code) in PAGES.items():
        done = subprocess.run([qplan, "report", *shlex.split(words), "-o", folder / f"{name}.html"], capture_output=True, text=True)
        check(done.returncode == code, name, f"exit code {done.returncode}, not {code}: {done.stderr.strip()}")
        if "tables without plots" in done.stderr:
            print("skipped: this qplan was built without Chart.js")
            sys.exit(SKIPPED)


def launch(playwright):
    """The browser of the distribution, or playwright's own."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if shutil.which(name):
            return playwright.chromium.launch(executable_path=shutil.which(name), args=["--no-sandbox"])
    return playwright.chromium.launch()


class Opened:
    """A page in one kind of window, closed with all that it complained of noted."""

    def __init__(self, browser, folder, name, colors="light", viewport=None):
        self.name = f"{name} ({colors}, {(viewport or DESKTOP)['width']} wide)"
        self.viewport = viewport or DESKTOP
        self.context = browser.new_context(viewport=self.viewport, color_scheme=colors, device_scale_factor=1)
        self.page = self.context.new_page()
        self.page.on("console", lambda message: check(False, self.name, f"console: {message.text}"))
        self.page.on("pageerror", lambda error: check(False, self.name, f"error: {error}"))
        self.page.on("request", lambda request: check(request.url.startswith("file:") and request.url.endswith(f"{name}.html"),
                                                      self.name, f"asks for {request.url}"))
        self.page.goto((folder / f"{name}.html").as_uri())
        self.page.wait_for_function("document.querySelectorAll('h2').length > 0")
        self.page.wait_for_timeout(300)  # plots are drawn after the page

    def __enter__(self):
        return self.page

    def __exit__(self, *_):
        self.context.close()


# How many colours a canvas has, at most so many as tell that something is drawn.
COLORS = """canvas => {
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data, seen = new Set();
  for (let i = 0; i < data.length && seen.size < 4; i += 4) seen.add(data.slice(i, i + 4).join());
  return seen.size;
}"""


# Whether plots on paper, if any, are written in something dark.
ON_PAPER = """() => {
  if (!document.querySelector("canvas")) return true;
  dispatchEvent(new Event("beforeprint"));
  const ink = Chart.defaults.color;
  dispatchEvent(new Event("afterprint"));
  return [1, 3, 5].every(at => parseInt(ink.slice(at, at + 2), 16) < 0x40);
}"""


def look(opened, page):
    """What holds of every page."""
    name = opened.name
    check(page.evaluate("document.documentElement.scrollWidth") <= opened.viewport["width"], name, "is wider than its screen")
    check("cannot be shown" not in page.title(), name, "an answer could not be shown")
    for canvas in page.locator("canvas").all():
        label = canvas.get_attribute("aria-label")
        check(bool(label), name, "a plot has no words for who cannot see it")
        check(canvas.evaluate(COLORS) >= 3, name, f"nothing is drawn: {label}")
    for figure in page.locator("figure").all():
        words = figure.locator("figcaption").inner_text()
        tables = figure.locator("table").count() or figure.locator("xpath=ancestor::section").locator("table").count()
        check(tables > 0, name, f"no table behind or beside: {words}")
    for table in page.locator("table").all():
        check(table.locator("caption").count() == 1, name, "a table has no caption")
    nameless = page.evaluate("[...document.querySelectorAll('button')].filter(b => !(b.getAttribute('aria-label') || b.textContent).trim()).length")
    check(nameless == 0, name, f"{nameless} buttons without a name")
    check(page.locator("h1").count() >= 1 and page.evaluate("document.documentElement.lang") == "en", name, "no heading or language")
    text = page.locator("body").inner_text()
    for slip in ("undefined", "NaN", "[object"):
        check(slip not in text, name, f"says {slip}")


def column(table, place):
    return [row.locator("td, th").nth(place).inner_text() for row in table.locator("tbody tr:not(.below)").all()]


def use(page, name):
    """What a reader does on the page of a search."""
    table = page.locator("table").first
    head = table.locator("th", has=page.get_by_role("button", name="bubble"))
    place = page.evaluate("head => [...head.parentElement.children].indexOf(head)", head.element_handle())
    head.get_by_role("button").click()
    values = [float(value) for value in column(table, place)]
    check(values == sorted(values) and head.get_attribute("aria-sort") == "ascending", name, "the table does not sort")
    head.get_by_role("button").press("Enter")
    values = [float(value) for value in column(table, place)]
    check(values == sorted(values, reverse=True) and head.get_attribute("aria-sort") == "descending", name, "nor backwards, by key")
    page.get_by_role("button", name="show plan 3").click()
    check(page.get_by_role("heading", name="Plan 3").count() == 1, name, "no other plan can be chosen")
    check(table.locator("tr.chosen:not(.below)").count() == 1, name, "the chosen plan is not marked")
    page.get_by_label("Plan ", exact=True).select_option("0")
    check(page.get_by_role("heading", name="Plan 1, the best").count() == 1, name, "no plan can be selected")

    page.wait_for_timeout(300)
    timeline = page.locator(".timeline")
    said = timeline.locator("xpath=..").get_by_role("status")
    whole = said.inner_text()

    def changes(action, what):
        before = said.inner_text()
        action()
        page.wait_for_timeout(100)
        check(said.inner_text() != before, name, f"{what} does not move the timeline")

    timeline.scroll_into_view_if_needed()
    changes(page.get_by_role("button", name="zoom in").click, "the button +")
    changes(page.get_by_role("button", name="later").click, "the button →")
    timeline.focus()
    for key in ("+", "ArrowLeft", "End", "Home", "-"):
        changes(lambda key=key: page.keyboard.press(key), f"the key {key}")
    box = timeline.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 30)
    changes(lambda: page.mouse.wheel(0, -120), "the wheel")
    page.mouse.down()
    changes(lambda: page.mouse.move(box["x"] + box["width"] / 2 - 80, box["y"] + 30, steps=4), "dragging")
    page.mouse.up()
    page.keyboard.press("0")
    check(said.inner_text() == whole, name, "0 does not show the whole step")
    # Not chosen, it lets the page scroll.
    page.evaluate("document.activeElement.blur()")
    at = page.evaluate("scrollY")
    page.mouse.wheel(0, 120)
    page.wait_for_timeout(300)
    check(page.evaluate("scrollY") != at and said.inner_text() == whole, name, "the wheel over the timeline holds the page")


def shrunk(path):
    """A picture of at most 256 colours, where Pillow is there."""
    try:
        from PIL import Image
    except ImportError:
        return
    Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)


def take_pictures(browser, folder, pictures):
    pictures.mkdir(parents=True, exist_ok=True)
    views = (("report.png", "light", {"width": 1200, "height": 2250}, "Ranked plans"),
             ("report-phone.png", "dark", PHONE, "Plan 1, the best"))
    for name, colors, viewport, heading in views:
        with Opened(browser, folder, "search", colors, viewport) as page:
            page.get_by_role("heading", name=heading).evaluate("heading => heading.scrollIntoView()")
            page.screenshot(path=pictures / name)
        shrunk(pictures / name)
        print(f"{pictures / name}: {os.path.getsize(pictures / name) // 1000} kB")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("qplan")
    parser.add_argument("--keep", type=pathlib.Path, help="folder for pages, pictures and prints")
    parser.add_argument("--pictures", type=pathlib.Path, help="folder for the pictures of the documentation")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        folder = (words.keep or pathlib.Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            browser = launch(playwright)
        except Error as error:
            print("skipped: no browser; apt-get install chromium:", str(error).splitlines()[0])
            return SKIPPED
        make_pages(words.qplan, folder)
        views = 0
        for name in PAGES if not problems else []:
            for colors, viewport in (("light", DESKTOP), ("dark", DESKTOP), ("light", PHONE), ("dark", PHONE)):
                opened = Opened(browser, folder, name, colors, viewport)
                with opened as page:
                    look(opened, page)
                    views += 1
                    if name == "search":
                        use(page, opened.name)
                    if words.keep:
                        page.screenshot(path=folder / f"{name}-{colors}-{viewport['width']}.png", full_page=True)
            with Opened(browser, folder, name, "dark") as page:
                check(page.evaluate(ON_PAPER), name, "plots are printed in the colours of the dark")
                print_ = page.pdf(path=folder / f"{name}.pdf" if words.keep else None, format="A4")
                check(len(print_) > 20_000, name, "its print is empty")
                check(page.locator("details[data-printed]").count() == 0, name, "tables stay open after a print")
                views += 1
        if words.pictures and not problems:
            take_pictures(browser, folder, words.pictures)
        browser.close()
    for problem in dict.fromkeys(problems):
        print(problem)
    print(f"{len(PAGES)} pages in {views} views: " + (f"{len(problems)} problems" if problems else "nothing is wrong"))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
