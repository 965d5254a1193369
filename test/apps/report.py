# SPDX-License-Identifier: MIT
"""Compares runs of the programs with stock NCCL and with onehop: one table, and whether the values agree.

    report.py FOLDER [--markdown FILE] [--plot FILE.svg]

FOLDER holds PROGRAM.WAY.NUMBER.json as the programs write them and PROGRAM.WAY.NUMBER.log with what they printed; WAY
is stock, onehop or off (onehop loaded with ONEHOP_DISABLE=1). Figures are the best of the runs of one way. Exit
status: 0 all values agree, 1 some do not, 2 nothing to compare.

What agrees means: results of the sparse schemes are exact, so the same bits. Losses and tokens are the same bits on
two ranks, where there is but one order of a sum. On more, stock NCCL adds in another order: losses may differ by
LOSS_BOUND of themselves, and a token may differ where stock's own gap between the best word and the second is below
GAP_BOUND (bfloat16 has 8 bits; the logits are of the order of 10).
"""
import argparse
import glob
import json
import os
import re
import shutil
import subprocess
import sys

LOSS_BOUND = 0.01
GAP_BOUND = 0.25
STATS = re.compile(r"stats:.*\bserved=(\d+).*handed_back=(\d+)")


def read_runs(folder):
    """{program: {way: [results]}}"""
    runs = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.json"))):
        program, way, _ = os.path.basename(path).rsplit(".", 3)[:3]
        with open(path, encoding="utf-8") as file:
            results = json.load(file)
        results["calls"] = read_calls(path[:-len("json")] + "log")
        runs.setdefault(program, {}).setdefault(way, []).append(results)
    return runs


def read_calls(path):
    """(served, handed back) of all ranks; None without statistics."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = STATS.findall(file.read())
    except OSError:
        return None
    return (sum(int(s) for s, _ in found), sum(int(h) for _, h in found)) if found else None


def best(results, row, figure):
    """The best of all runs: the least time, the highest rate."""
    values = [r[figure] for run in results for r in run["rows"] if r["name"] == row and figure in r]
    return None if not values else max(values) if figure.endswith("_s") else min(values)


def is_time(figure):
    return figure.endswith(("_ms", "_us", "_s"))


def table(runs):
    """Rows of (name, figure, stock, onehop, speed-up, off)."""
    for ways in runs.values():
        for row in ways["stock"][0]["rows"]:
            for figure in (f for f in row if is_time(f)):
                stock, onehop, off = (best(ways.get(w, []), row["name"], figure) for w in ("stock", "onehop", "off"))
                if stock and onehop:
                    gain = onehop / stock if figure.endswith("_s") else stock / onehop
                    yield row["name"], figure, stock, onehop, gain, off


def losses_differ(stock, other):
    for step, (a, b) in enumerate(zip(stock, other)):
        if abs(a - b) > LOSS_BOUND * abs(a):
            return f"step {step}: {a} and {b}"
    return None


def tokens_differ(stock, other, gaps):
    for place, (a, b, gap) in enumerate(zip(stock, other, gaps)):
        if a != b and gap > GAP_BOUND:
            return f"token {place}: {a} and {b}, where the gap is {gap}"
    return None


def disagreement(name, stock, other, ranks):
    """Why the values of a name do not agree; None: they do."""
    one, two = stock["values"][name], other["values"].get(name)
    if two is None or len(one) != len(two):
        return "missing"
    if one == two or name.startswith("gaps "):
        return None
    if ranks > 2 and name.startswith("loss "):
        return losses_differ(one, two)
    if ranks > 2 and name.startswith("tokens "):
        return tokens_differ(one, two, stock["values"]["gaps " + name[len("tokens "):]])
    return f"{sum(a != b for a, b in zip(one, two))} of {len(one)} values differ"


def compare(runs):
    """Lines of the comparison and the number of disagreements."""
    lines, failures = [], 0
    for program, ways in runs.items():
        stock = ways["stock"][0]
        for way, results in ways.items():
            for number, other in enumerate(results):
                if other is stock:
                    continue
                names = [n for n in stock["values"] if not n.startswith("gaps ")]
                faults = [(n, disagreement(n, stock, other, stock["ranks"])) for n in names]
                faults = [(n, why) for n, why in faults if why]
                same = sum(stock["values"][n] == other["values"].get(n) for n in names)
                lines.append(f"{program}: {way} run {number + 1} against stock run 1: {len(names) - len(faults)} of "
                             f"{len(names)} results agree, {same} bit for bit")
                lines += [f"  {n}: {why}" for n, why in faults]
                failures += len(faults)
    return lines, failures


def calls(runs):
    for program, ways in runs.items():
        for way in ("onehop", "off"):
            for results in ways.get(way, [])[:1]:
                if results["calls"]:
                    yield f"{program}: {way}: served {results['calls'][0]}, handed back {results['calls'][1]} calls"


def shown(value):
    return "" if value is None else f"{value:.1f}" if value >= 100 else f"{value:.3g}"


def print_text(rows, lines):
    print(f"{'':34}{'':10}{'stock':>10}{'onehop':>10}{'faster':>8}{'off':>10}")
    for name, figure, stock, onehop, gain, off in rows:
        print(f"{name:34}{figure:10}{shown(stock):>10}{shown(onehop):>10}{gain:7.2f}x{shown(off):>10}")
    print("\n".join(lines))


def write_markdown(path, runs, rows, lines):
    about = next(iter(next(iter(runs.values()))["stock"]))
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{about['ranks']} x {about['device']}, NVLS off, torch {about['torch']}, NCCL {about['nccl']}, "
                   f"seed {about['seed']}\n\n| program | figure | stock | onehop | faster | onehop, off |\n"
                   "|---|---|---|---|---|---|\n")
        for name, figure, stock, onehop, gain, off in rows:
            file.write(f"| {name} | {figure} | {shown(stock)} | {shown(onehop)} | {gain:.2f}x | {shown(off)} |\n")
        file.write("\n" + "\n".join(f"- {line.strip()}" for line in lines) + "\n")


def plot(path, rows):
    """Step times and tokens a second, stock and onehop, as bars; drawn by gnuplot."""
    if not shutil.which("gnuplot"):
        print("report.py: no gnuplot, so no picture (Debian: gnuplot-nox)", file=sys.stderr)
        return
    parts = (("step_ms", "step, ms"), ("tokens_s", "tokens per second"))
    data = ["$rows%d << EOD\n%s\nEOD" % (i, "\n".join(
        f'"{name.split(" ", 1)[1]}" {stock} {onehop}' for name, f, stock, onehop, _, _ in rows if f == figure))
            for i, (figure, _) in enumerate(parts)]
    script = data + [
        f"set terminal svg size 900,760 font 'sans,13' background '#ffffff'\nset output '{path}'",
        "set multiplot layout 2,1\nset style data histogram\nset style fill solid 0.9 border -1\nset boxwidth 0.85",
        "set xtics rotate by -30 font ',11'\nset grid y\nset key top left\nset logscale y\n"
        "set style histogram clustered gap 1\nset bmargin 6"]
    for i, (_, label) in enumerate(parts):
        script.append(f"set ylabel '{label}'\nplot $rows{i} using 2:xtic(1) title 'stock NCCL' lc rgb '#bbbbbb', "
                      "'' using 3 title 'onehop' lc rgb '#1f4e79'")
    subprocess.run(["gnuplot"], input="\n".join(script) + "\n", text=True, check=True)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("folder")
    options.add_argument("--markdown", metavar="FILE")
    options.add_argument("--plot", metavar="FILE")
    options = options.parse_args()
    runs = {p: ways for p, ways in read_runs(options.folder).items() if "stock" in ways and "onehop" in ways}
    if not runs:
        print(f"report.py: {options.folder} has no program's results with stock NCCL and with onehop", file=sys.stderr)
        sys.exit(2)
    rows = list(table(runs))
    lines, failures = compare(runs)
    lines += calls(runs)
    print_text(rows, lines)
    if options.markdown:
        write_markdown(options.markdown, runs, rows, lines)
    if options.plot:
        plot(options.plot, rows)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
