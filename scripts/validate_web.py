#!/usr/bin/env python3
"""Holds the page that scripts/web builds to the command, and uses it in a browser as a reader would.

  scripts/web
  scripts/validate_web.py build/release/cli/qplan build/web/qplan.html
  scripts/validate_web.py QPLAN PAGE --only node|browser [--random 200] [--seed 1] [--pictures docs/pictures]

In node: questions, fixed ones and as many drawn at random, are asked of the page's module and of the command.
Exit code, standard output, standard error and every file that is written have to be the same bytes. In a
browser (playwright and Chromium, else left out, which is said): the page is opened from its file, in light
and dark, on a desk and a phone; a config.json is pasted, searched, stopped, spoilt; files are checked and
written. Nothing may be requested, said on the console, or wider than the screen. Ends with 77 where node is
missing.
"""
import argparse
import json
import os
import pathlib
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SKIPPED = 77  # as ctest's SKIP_RETURN_CODE
FIRST = "search --model qwen3-30b-a3b --gpus 256 --json"

problems = []


def check(truth, what):
    if not truth:
        problems.append(what)


def text_of(path):
    return (ROOT / path).read_text()


def fixed_questions():
    """Every verb that a page answers, with what it reads and writes; and what each refuses."""
    config = {"config.json": text_of("models/zoo/qwen3-30b-a3b.json")}
    deepspeed = {"ds_config.json": json.dumps({"train_batch_size": 30, "zero_optimization": {"stage": 3}, "bf16": {"enabled": True}})}
    yield FIRST, {}
    yield "search --model config.json --gpus 256 --json", config
    yield "search --model config.json --gpus 16 -o plan.json", config
    yield "report search --model qwen3-30b-a3b --gpus 64 --top 3 --pareto --scaling 16..64 -o report.html", {}
    yield "report search --model config.json --gpus 64 -o report.html", config
    yield "search --model qwen3-30b-a3b --gpus 64 --algorithm grpo --max-response-len 4096 --json", {}
    yield "search --model llama3-405b --gpus 8 --json", {}
    yield "search --model qwen3-8b --gpus 64 --framework megatron,fsdp2 --precision bf16,fp8 --hardware h100-sxm,h200-sxm --json", {}
    yield "predict --model llama3-70b --gpus 64 --tp 4 --pp 4 --vpp 4 --json", {}
    yield "predict --model qwen3-8b --gpus 8 --framework ddp --lora-rank 16 --algorithm sft --json", {}
    yield "sweep --model llama3-8b --gpus 8..64 --json", {}
    yield "trace 'tp2 pp2 dp2 zero1 mbs1 gbs16 seq4096' --model llama3-8b -o trace.json", {}
    yield "emit 'tp2 pp2 dp2 zero1 mbs1 gbs16 seq4096' --model llama3-8b --framework megatron --out job", {}
    yield "check ds_config.json --model qwen3-8b --gpus 16 --fix corrected", deepspeed
    yield "check ds_config.json --model qwen3-8b --gpus 16 --json", deepspeed
    for name in ("axolotl/examples.yaml",):
        if (ROOT / "tests/data/configs" / name).exists():
            yield f"check {pathlib.Path(name).name} --gpus 8", {pathlib.Path(name).name: text_of(f"tests/data/configs/{name}")}
    yield "size --model llama3-8b --seq-len 8192 --json", {}
    yield "compare tp2 tp4 --model llama3-8b --gpus 16 --json", {}
    yield "targets 'tp2 dp4 zero1 mbs1 gbs16 seq4096' --model llama3-8b --json", {}
    yield "accuracy runs.csv --rows --json", {"runs.csv": text_of("tests/data/measured_runs.csv")}
    yield "models --json", {}
    yield "hardware --json", {}
    yield "--version", {}
    yield "--help", {}
    yield "", {}
    yield "search --model config.json --gpus 8", {"config.json": '{"model_type": "llama", '}
    yield "search --model config.json --gpus 8", {"config.json": '{"model_type": "nobody_knows"}'}
    yield "search --model qwen3-30b-a3c --gpus 8", {}
    yield "search --model tiny --gpus 0", {}
    yield "search --model missing.json --gpus 8", {}


def example_files():
    """The files of docs/examples, each job whole."""
    for folder in sorted((ROOT / "docs/examples").glob("*/*")):
        files = {path.name: path.read_text() for path in sorted(folder.glob("*")) if path.is_file()}
        if folder.is_dir() and files:
            yield folder, files


def random_questions(qplan, count, seed):
    draw = random.Random(seed)
    known = lambda verb: [one["name"] for one in json.loads(subprocess.run([qplan, verb, "--json"], capture_output=True, check=True).stdout)[verb]]
    models, machines = known("models"), known("hardware")
    options = {one["name"]: one["words"] or one["known"] for one in json.loads(
        subprocess.run([qplan, "search", "--help=json"], capture_output=True, check=True).stdout)["options"]}
    for _ in range(count):
        words = ["search", "--model", draw.choice(models), "--gpus", str(draw.choice([8, 16, 24, 32, 64, 128, 256, 1024])),
                 "--hardware", draw.choice(machines), "--framework", draw.choice(options["--framework"]), "--json"]
        if draw.random() < 0.4:
            words += ["--precision", draw.choice(options["--precision"])]
        if draw.random() < 0.4:
            words += ["--seq-len", str(draw.choice([1024, 2048, 8192, 16384]))]
        if draw.random() < 0.3:
            words += ["--routing", draw.choice(options["--routing"])]
        if draw.random() < 0.3:
            words += ["--pareto"]
        if draw.random() < 0.2:
            words += ["--lora-rank", "16"]
        yield shlex.join(words), {}


def native(qplan, args, files):
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary) / "job"  # the module's: a config.json's folder is a model's name
        folder.mkdir()
        for name, text in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        before = os.times()
        begin = time.monotonic()
        done = subprocess.run([os.path.abspath(qplan), *args], cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        seconds, after = time.monotonic() - begin, os.times()
        written = {}
        for path in sorted(folder.rglob("*")):
            name = str(path.relative_to(folder))
            if path.is_file() and files.get(name) != path.read_text():
                written[name] = path.read_text()
    return {"code": done.returncode, "out": done.stdout, "err": done.stderr, "files": written, "seconds": seconds,
            "cpu_seconds": after.children_user + after.children_system - before.children_user - before.children_system}


def first_difference(a, b):
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return f"at byte {at}: {a[max(0, at - 60):at + 40]!r} by the command, {b[max(0, at - 60):at + 40]!r} by the page"


class Node:
    def __init__(self, page):
        self.process = subprocess.Popen(["node", ROOT / "scripts/ask_page.js", page], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.start = json.loads(self.process.stdout.readline())

    def ask(self, args, files):
        self.process.stdin.write(json.dumps({"args": args, "files": files}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def compare(qplan, page, questions):
    """How many questions have the same answer, and of how many."""
    node, same, asked, times = Node(page), 0, 0, [0.0, 0.0]
    for line, files in questions:
        args = shlex.split(line)
        of_command, of_page = native(qplan, args, files), node.ask(args, files)
        asked += 1
        if of_page is None:
            check(False, f"qplan {line}: the page's module has failed")
            node = Node(page)
            continue
        times[0] += of_command["cpu_seconds"]
        times[1] += of_page["cpu_seconds"]
        equal = True
        for key in ("code", "out", "err", "files"):
            a, b = of_command[key], of_page[key]
            if key == "files" and sorted(a) == sorted(b):
                a, b = "".join(a.values()), "".join(b[name] for name in of_command[key])
            if a != b:
                equal = False
                check(False, f"qplan {line}: {key} differs, {first_difference(str(a), str(b))}")
        same += equal
    node.close()
    print(f"{same} of {asked} questions have the same answer, byte for byte; processor time {times[0]:.1f} s by the command, {times[1]:.1f} s by the page's module")


def time_first(qplan, page, rounds=3):
    """The first answer: a new process each time, the module compiled from its bytes."""
    args = shlex.split(FIRST)
    rows = []
    for _ in range(rounds):
        node = Node(page)
        answer = node.ask(args, {})
        node.close()
        one = native(qplan, [*args, "--threads", "1"], {})
        all_ = native(qplan, args, {})
        rows.append((node.start["seconds"] + answer["seconds"], node.start["cpu_seconds"] + answer["cpu_seconds"], node.start["seconds"], one["seconds"], one["cpu_seconds"], all_["seconds"]))
    middle = [sorted(column)[rounds // 2] for column in zip(*rows)]
    print("first answer, medians of {}: in node {:.2f} s ({:.2f} s of processor time, {:.2f} s until it can be asked); "
          "the command with one thread {:.2f} s ({:.2f} s of processor time), with all {:.2f} s".format(rounds, *middle))
    size = page.stat().st_size
    import gzip
    print(f"{page}: {size / 1e6:.2f} MB, {len(gzip.compress(page.read_bytes(), 9)) / 1e6:.2f} MB with gzip; load average {os.getloadavg()[0]:.1f}")


# ---- in a browser ----

NAMELESS = """() => [...document.querySelectorAll("input, select, textarea, button, iframe, progress")].filter(node =>
  !(node.labels && node.labels.length) && !node.getAttribute("aria-label") && !node.title && !node.textContent.trim()).map(node => node.id || node.outerHTML)"""


def processor_time():
    """Seconds of all processes that this one has started and their children, the browser's among them."""
    children, used = {}, {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            used[int(entry.name)] = int(fields[11]) + int(fields[12])
    waiting, total = [os.getpid()], 0
    while waiting:
        for child in children.get(waiting.pop(), []):
            waiting.append(child)
            total += used[child]
    return total / os.sysconf("SC_CLK_TCK")


class Opened:
    """The page in one kind of window; what it complains of, or asks for, is noted."""

    def __init__(self, browser, page, colors, viewport, question=""):
        self.name = f"page ({colors}, {viewport['width']} wide)"
        self.viewport = viewport
        self.context = browser.new_context(viewport=viewport, color_scheme=colors, device_scale_factor=1)
        self.page = self.context.new_page()
        self.page.on("console", lambda message: check(False, f"{self.name}: console: {message.text}"))
        self.page.on("pageerror", lambda error: check(False, f"{self.name}: error: {error}"))
        address = page.resolve().as_uri()
        self.page.on("request", lambda request: check(request.url.split("#")[0] == address or request.url.startswith(("blob:", "about:")),
                                                      f"{self.name}: asks for {request.url}"))
        self.begin, self.used = time.monotonic(), processor_time()
        self.page.goto(address + question)
        self.page.wait_for_selector("html[data-ready]", timeout=60_000)

    def fits(self, when):
        check(self.page.evaluate("document.documentElement.scrollWidth") <= self.viewport["width"], f"{self.name}: is wider than its screen {when}")
        nameless = self.page.evaluate(NAMELESS)
        check(not nameless, f"{self.name}: no name {when}: {nameless}")

    def said(self, text):
        self.page.locator("#status").filter(has_text=text).wait_for(timeout=120_000)

    def press(self, name):
        self.page.get_by_role("button", name=name, exact=True).click()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()


def first_in_browser(browser, page, desktop, rounds=3):
    rows = []
    for _ in range(rounds):
        with Opened(browser, page, "light", desktop) as opened:
            ready = time.monotonic() - opened.begin
            opened.page.select_option("#search-model-name", "qwen3-30b-a3b")
            opened.page.fill('[id="search--gpus"]', "256")
            opened.press("Search")
            opened.page.wait_for_selector("#answer iframe, #answer .alert", timeout=120_000)
            opened.said("Answered")
            opened.page.frame_locator("iframe").locator("canvas").first.wait_for()
            rows.append((time.monotonic() - opened.begin, processor_time() - opened.used, ready))
    middle = [sorted(column)[rounds // 2] for column in zip(*rows)]
    print("first answer of the page in Chromium, medians of {}: {:.2f} s from opening it ({:.2f} s of processor time of all of the "
          "browser), {:.2f} s until its form can be used; load average {:.1f}".format(rounds, *middle, os.getloadavg()[0]))


def search_own_model(opened, qplan, config):
    page, name = opened.page, opened.name
    page.check("#search-own")
    page.fill("#search-config", config)
    page.fill('[id="search--gpus"]', "64")
    opened.press("Search")
    page.wait_for_selector("#answer iframe, #answer .alert", timeout=120_000)
    check(page.locator("iframe").count() == 1, f"{name}: no answer, but {page.locator('#answer').inner_text()}")
    if page.locator("iframe").count() != 1:
        return
    of_command = native(qplan, shlex.split("report search --model my-model/config.json --gpus 64 -o report.html"), {"my-model/config.json": config})
    shown = page.locator("iframe").get_attribute("srcdoc")
    check(shown == of_command["files"]["report.html"], f"{name}: the answer shown is not the command's page")
    frame = page.frame_locator("iframe")
    check(frame.locator("h2").count() > 2 and frame.locator("canvas").count() > 0, f"{name}: the answer is not drawn")
    page.wait_for_timeout(500)
    heights = page.evaluate("(() => { const f = document.querySelector('iframe'); return [f.clientHeight, f.contentDocument.documentElement.scrollHeight, f.contentDocument.documentElement.scrollWidth, f.clientWidth]; })()")
    check(heights[0] >= heights[1] - 8, f"{name}: the answer's frame is lower than the answer: {heights}")
    check(heights[2] <= heights[3], f"{name}: the answer is wider than its frame: {heights}")
    opened.fits("with an answer")
    before = page.evaluate("scrollY")
    frame.locator("nav a").nth(1).click()
    page.wait_for_timeout(300)
    check(page.evaluate("scrollY") > before and frame.locator("h2").count() > 2, f"{name}: the answer's own links do not work")
    opened.press("Write the files")
    page.wait_for_selector("#answer section details")
    written = page.locator("#answer section details").count()
    check(written >= 2, f"{name}: {written} files of the framework")
    opened.fits("with files")


def spoil(opened, qplan):
    broken = '{"model_type": "qwen3_moe", "hidden_size": '
    opened.page.fill("#search-config", broken)
    opened.press("Search")
    alert = opened.page.locator("#answer [role=alert]")
    alert.wait_for()
    expected = native(qplan, shlex.split("report search --model my-model/config.json --gpus 64 -o report.html"), {"my-model/config.json": broken})["err"]
    check("qplan: " + alert.inner_text().strip() == expected.strip(), f"{opened.name}: a bad file is refused with {alert.inner_text()!r}, not {expected!r}")
    check(alert.inner_text().count("\n") == 0, f"{opened.name}: more than one sentence")
    opened.fits("with a refusal")


def stop(opened):
    page = opened.page
    page.check("#search-built-in")
    page.select_option("#search-model-name", "gpt-oss-120b")
    page.fill('[id="search--gpus"]', "2048")
    page.select_option('[id="search--framework"]', "qplan")
    opened.press("Search")
    page.wait_for_timeout(700)
    opened.press("Stop")
    opened.said("Stopped")
    page.select_option('[id="search--framework"]', "")
    page.fill('[id="search--gpus"]', "8")
    opened.press("Search")
    page.wait_for_selector("#answer iframe, #answer .alert", timeout=120_000)
    check(page.locator("iframe").count() == 1 or page.locator(".alert").count() == 1, f"{opened.name}: no answer after a stop")


def check_files(opened, qplan):
    page, name = opened.page, opened.name
    page.get_by_role("tab", name="Find a plan").focus()
    page.keyboard.press("ArrowRight")
    check(page.get_by_role("tab", name="Check files").get_attribute("aria-selected") == "true", f"{name}: tabs do not answer to keys")
    text = json.dumps({"train_batch_size": 30, "train_micro_batch_sizes_per_gpu": 2, "zero_optimization": {"stage": 3}}, indent=1)
    page.get_by_label("Name", exact=True).fill("ds_config.json")
    page.get_by_label("Text", exact=True).fill(text)
    page.select_option("#check-model-name", "qwen3-8b")
    page.fill('[id="check--gpus"]', "16")
    opened.press("Check")
    page.wait_for_selector("#answer pre, #answer .alert", timeout=120_000)
    of_command = native(qplan, shlex.split("check ds_config.json --model qwen3-8b --gpus 16"), {"ds_config.json": text})
    shown = page.locator("#answer pre").last.text_content()
    check(shown == of_command["out"], f"{name}: check's answer, {first_difference(of_command['out'], shown)}")
    opened.fits("with findings")
    page.get_by_role("tab", name="Any command").click()
    page.fill("#command-line", "predict 'tp2 dp4 zero1 mbs1 gbs16 seq4096' --model llama3-8b -o plan.json")
    opened.press("Run")
    page.wait_for_selector("#answer details")
    of_command = native(qplan, shlex.split("predict 'tp2 dp4 zero1 mbs1 gbs16 seq4096' --model llama3-8b -o plan.json"), {})
    check(page.locator("#answer pre").first.text_content() == of_command["out"], f"{name}: a command's answer is not the command's")
    opened.fits("with a command")


def stop_at_once(browser, page, desktop):
    """A question that is stopped before the planner has started."""
    with Opened(browser, page, "light", desktop) as opened:
        opened.page.evaluate("document.querySelector('#search-form [type=submit]').click(); document.getElementById('search-stop').click()")
        opened.said("Stopped")
        opened.page.fill('[id="search--gpus"]', "8")
        opened.press("Search")
        opened.said("Answered")


def follow_link(browser, page, desktop):
    with Opened(browser, page, "light", desktop, "#search%20--model%20llama3-8b%20--gpus%2016%20--tp%202") as opened:
        values = [opened.page.input_value(f'[id="{field}"]') for field in ("search-model-name", "search--gpus", "search--tp")]
        check(values == ["llama3-8b", "16", "2"], f"a link to a question fills {values}")


def in_browser(qplan, page, pictures, keep):
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        print("browser: left out, no playwright; pip install playwright")
        return
    from check_report import DESKTOP, PHONE, launch, shrunk
    config = text_of("models/zoo/qwen3-30b-a3b.json")
    with sync_playwright() as playwright:
        try:
            browser = launch(playwright)
        except Error as error:
            print("browser: left out, none found:", str(error).splitlines()[0])
            return
        first_in_browser(browser, page, DESKTOP)
        follow_link(browser, page, DESKTOP)
        stop_at_once(browser, page, DESKTOP)
        views = 0
        for colors, viewport in (("light", DESKTOP), ("dark", DESKTOP), ("light", PHONE), ("dark", PHONE)):
            with Opened(browser, page, colors, viewport) as opened:
                opened.fits("at first")
                search_own_model(opened, qplan, config)
                if keep:
                    opened.page.screenshot(path=keep / f"search-{colors}-{viewport['width']}.png", full_page=True)
                spoil(opened, qplan)
                if keep:
                    opened.page.screenshot(path=keep / f"refused-{colors}-{viewport['width']}.png", full_page=True)
                stop(opened)
                check_files(opened, qplan)
                if keep:
                    opened.page.get_by_role("tab", name="Check files").click()
                    opened.page.screenshot(path=keep / f"check-{colors}-{viewport['width']}.png", full_page=True)
                views += 1
        if pictures:
            with Opened(browser, page, "light", {"width": 1200, "height": 1100}) as opened:
                search_own_model(opened, qplan, config)
                opened.page.evaluate("scrollTo(0, 0)")
                opened.page.screenshot(path=pictures / "browser.png")
            shrunk(pictures / "browser.png")
            print(f"{pictures / 'browser.png'}: {os.path.getsize(pictures / 'browser.png') // 1000} kB")
        browser.close()
    print(f"the page in {views} views, used in each")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("qplan")
    parser.add_argument("page", type=pathlib.Path)
    parser.add_argument("--only", choices=("node", "browser", "time"), help="one part of it")
    parser.add_argument("--random", type=int, default=40, help="searches drawn at random")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pictures", type=pathlib.Path, help="folder for the picture of the documentation")
    parser.add_argument("--keep", type=pathlib.Path, help="folder for screenshots")
    words = parser.parse_args()
    if not shutil.which("node"):
        print("skipped: no node; apt-get install nodejs")
        return SKIPPED
    if words.keep:
        words.keep.mkdir(parents=True, exist_ok=True)
    if words.only in (None, "time"):
        time_first(words.qplan, words.page)
    if words.only in (None, "node"):
        compare(words.qplan, words.page, [*fixed_questions(), *random_questions(words.qplan, words.random, words.seed)])
    if words.only in (None, "browser"):
        in_browser(words.qplan, words.page, words.pictures, words.keep)
    for problem in dict.fromkeys(problems):
        print(problem)
    print(f"{len(problems)} problems" if problems else "nothing is wrong")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
