#!/usr/bin/env python3
"""Fills a template of a page with files: make_page.py TEMPLATE OUTPUT name=FILE...

Each {{name}} is replaced once by its file's text; a binary file (.wasm) is packed with gzip and written in
base64. Text that is to lie in a <script> must not end it.
"""
import base64
import gzip
import pathlib
import re
import sys


def text_of(path):
    if path.suffix == ".wasm":
        return base64.b64encode(gzip.compress(path.read_bytes(), 9, mtime=0)).decode()
    text = path.read_text()
    if path.suffix == ".js" and re.search("</script|<!--", text, re.IGNORECASE):
        sys.exit(f"{path} would end the script that it lies in")
    return text


def main():
    template, output, *pairs = sys.argv[1:]
    files = {name: pathlib.Path(path) for name, path in (pair.split("=", 1) for pair in pairs)}
    used = set()

    def fill(match):
        used.add(match[1])
        return text_of(files[match[1]])

    page = re.sub(r"\{\{(\w+)\}\}", fill, pathlib.Path(template).read_text())
    if used != set(files):
        sys.exit(f"{template} has no place for {', '.join(sorted(set(files) - used))}")
    pathlib.Path(output).write_text(page)


if __name__ == "__main__":
    main()
