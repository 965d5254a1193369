# SPDX-License-Identifier: MIT
"""Compares runs of the programs with stock NCCL and with onehop: tables, and whether the values agree.

    report.py FOLDER [--markdown FILE] [--plot FILE.svg]

FOLDER, written by scripts/apps, holds PROGRAM.WAY.NUMBER.json as the programs write them, PROGRAM.WAY.NUMBER.log with
what they printed, about.txt for the head of the page, not-run.txt with the runs for which there was no time, and the
tables of the other programs, which go into the page as they are. Nothing else is needed: the page can be made on another
machine. WAY is stock; onehop; off (onehop loaded with ONEHOP_DISABLE=1); segments (onehop, PyTorch's expandable segments)
and pool (onehop, a memory pool by itself), which run some of the values and have rows of their own. Figures are the best
of the runs of one way. Exit status: 0 all values agree, 1 some do not, 2 nothing to report.

What agrees means: results of the sparse schemes are exact, so the same bits. Losses are the same bits on two ranks, where
there is but one order of a sum; on more they may differ by LOSS_BOUND of themselves. Logits and tokens of two runs of
stock NCCL differ already (the matmuls of decode.py are not the same bits each time); logits may by SIGMAS standard
deviations of what rounding does to them (decode.py says how large that is), by RMS deviations on the average (root of
the mean square); a token may differ where the gap between stock's two best is less than SIGMAS deviations of a
difference of two logits. All but stock feed each step with stock's tokens, so no difference makes others.

Runs with onehop must be served, and must count all allreduces that a program itself has counted; those with it switched
off must be served nothing.
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
SIGMAS, RMS = 6, 2
STATS = re.compile(r"stats:.*\bserved=(\d+).*fallback=(\d+)")
OTHERS = (("programs-in-c", "Programs in C"), ("bindings", "Bindings of NCCL in Python"))


def read_runs(folder):
    """{program: {way: [results]}}"""
    runs = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.*.*.json"))):
        program, way, _ = os.path.basename(path).rsplit(".", 3)[:3]
        with open(path, encoding="utf-8") as file:
            results = json.load(file)
        results["served"], results["fallback"] = read_calls(path[:-len("json")] + "log")
        runs.setdefault(program, {}).setdefault(way, []).append(results)
    return runs


def read_text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def read_calls(path):
    """Served calls and fallbacks, of all ranks; none without statistics."""
    found = STATS.findall(read_text(path))
    return sum(int(s) for s, _ in found), sum(int(h) for _, h in found)


def read_about(folder):
    """What scripts/apps knows of the machine: {key: value}."""
    lines = (line.partition(": ") for line in read_text(os.path.join(folder, "about.txt")).splitlines())
    return {key: value for key, _, value in lines}


def read_not_run(folder):
    """Names of runs that were not made."""
    return read_text(os.path.join(folder, "not-run.txt")).splitlines()


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
        for way, title in (("segments", "segments"), ("pool", "by itself")):
            for row in (row for results in ways.get(way, [])[:1] for row in results["rows"]):
                for figure in (f for f in row if is_time(f)):
                    yield f"{row['name']}, {title}", figure, None, row[figure], None, None


def losses_differ(stock, other):
    for step, (a, b) in enumerate(zip(stock, other)):
        if abs(a - b) > LOSS_BOUND * abs(a):
            return f"step {step}: {a} and {b}"
    return None


def logits_differ(stock, other, bound):
    squares = 0
    for place, (a, b) in enumerate(zip(stock, other)):
        squares += (a - b) ** 2
        if abs(a - b) > SIGMAS * bound:
            return f"logit {place}: {a} and {b}, which may differ by {SIGMAS * bound:.3g}"
    mean = (squares / len(stock)) ** 0.5
    return f"{mean:.3g} apart on the average, not {RMS * bound:.3g}" if mean > RMS * bound else None


def tokens_differ(stock, other, gaps, bound):
    most = SIGMAS * 2 ** 0.5 * bound
    for place, (a, b, gap) in enumerate(zip(stock, other, gaps)):
        if a != b and gap > most:
            return f"token {place}: {a} and {b}, where the gap is {gap}, not below {most:.3g}"
    return None


def disagreement(name, stock, other):
    """Why the values of a name do not agree; None: they do."""
    one, two = stock["values"][name], other["values"][name]
    if one == two:
        return None
    if isinstance(one, dict):
        return f"not the same bits; some of {one['count']} and {two['count']}: {one['some']} and {two['some']}"
    if len(one) != len(two):
        return f"{len(one)} and {len(two)} values"
    exact = stock["ranks"] <= 2 and not name.startswith(("logits ", "tokens "))
    if not exact and name.startswith("loss "):
        return losses_differ(one, two)
    if not exact and name.startswith("logits "):
        return logits_differ(one, two, stock["logit_bound"])
    if not exact and name.startswith("tokens "):
        return tokens_differ(one, two, stock["values"]["gaps " + name[len("tokens "):]], stock["logit_bound"])
    return f"{sum(a != b for a, b in zip(one, two))} of {len(one)} values differ"


def names_of(results):
    return [name for name in results["values"] if not name.startswith("gaps ")]


def faults_of_calls(way, results):
    """What is wrong with who served a run."""
    served, asked = results["served"], results.get("collectives", {}).get("allreduce", 0)
    if way == "stock":
        return
    if way == "off" and (served or results["fallback"]):
        yield "calls are counted, although onehop is switched off"
    if way != "off" and not served:
        yield "no call was served"
    if way != "off" and served + results["fallback"] < asked:
        yield f"{asked} allreduces were asked for, more than the {served} served and {results['fallback']} fallbacks"


def compare(runs, not_run):
    """Lines of the comparison and the number of disagreements. What was not run is neither."""
    lines, failures = [], 0
    for program, ways in runs.items():
        stock = ways["stock"][0]
        for way, results in ways.items():
            for number, other in enumerate(results):
                names = [name for name in names_of(stock) if name in other["values"]]
                faults = [(name, disagreement(name, stock, other)) for name in names]
                faults = [f"{name}: {fault}" for name, fault in faults if fault] + list(faults_of_calls(way, other))
                if not names:
                    faults.append("nothing to compare")
                if other is not stock:
                    same = sum(stock["values"][name] == other["values"][name] for name in names)
                    lines.append(f"{program}: {way} run {number + 1} against stock run 1: {len(names)} results, {same} of "
                                 f"them the same bit for bit, {len(faults)} faults")
                lines += [f"  {program}: {way}: {fault}" for fault in faults]
                failures += len(faults)
        served = {name for way in ways if way not in ("stock", "off") for other in ways[way] for name in other["values"]}
        missing = [f"  {program}: missing with onehop: {name}" for name in names_of(stock) if name not in served]
        if any(name.startswith(program + ".") for name in not_run):
            missing = []
        lines += missing
        failures += len(missing)
    return lines + [f"{name}: not run: no time left" for name in not_run], failures


def calls(runs):
    """Rows of (program, way, served, fallbacks, collectives that the program itself counted), of each way's first run."""
    for program, ways in runs.items():
        for way, results in ways.items():
            if way != "stock":
                counted = ", ".join(f"{kind} {number}" for kind, number in results[0].get("collectives", {}).items())
                yield program, way, results[0]["served"], results[0]["fallback"], counted


def shown(value):
    return "" if value is None else f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.3g}"


def times(gain):
    return "" if gain is None else f"{gain:.2f}x"


def print_text(rows, counts, lines):
    print(f"{'':40}{'':10}{'stock':>10}{'onehop':>10}{'faster':>9}{'off':>10}")
    for name, figure, stock, onehop, gain, off in rows:
        print(f"{name:40}{figure:10}{shown(stock):>10}{shown(onehop):>10}{times(gain):>9}{shown(off):>10}")
    for program, way, served, fallback, counted in counts:
        print(f"{program}: {way}: served {served}, fallbacks {fallback}" +
              (f"; the program asked for: {counted}" if counted else ""))
    print("\n".join(lines))


def head(runs, about):
    machine = about.get("machine", "")
    said = [about["date"] + "." if "date" in about else "",
            machine + (f", driver {about['driver']}" if about.get("driver") else "") + "." if machine else "",
            f"NVLS {about['NVLS']}." if "NVLS" in about else "",
            f"Commit {about['commit']}." if "commit" in about else ""]
    for results in [ways["stock"][0] for ways in runs.values()][:1]:
        said.append("" if machine else f"{results['ranks']} x {results['device']}.")
        said.append(f"PyTorch {results['torch']} with NCCL {results['nccl']}, seed {results['seed']}.")
    return " ".join(part for part in said if part)


def write_markdown(path, folder, runs, rows, lines, plotted):
    about = read_about(folder)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"# Whole programs, {about.get('machine', 'stock NCCL and onehop')}\n\n{head(runs, about)}\n")
        if "command" in about:
            file.write(f"\n    {about['command']}\n")
        if plotted:
            file.write(f"\n![step times and tokens per second]({os.path.basename(plotted)})\n")
        if rows:
            file.write("\n| program | figure | stock | onehop | faster | onehop, off |\n|---|---|---|---|---|---|\n")
        for name, figure, stock, onehop, gain, off in rows:
            file.write(f"| {name} | {figure} | {shown(stock)} | {shown(onehop)} | {times(gain)} | {shown(off)} |\n")
        if runs or lines:
            file.write("\n## Calls\n\n| program | way | served | fallbacks | the program asked for |\n|---|---|---|---|---|\n")
            file.writelines(f"| {' | '.join(str(cell) for cell in row)} |\n" for row in calls(runs))
            file.write("\n## Values\n\n" + "\n".join(f"- {line.strip()}" for line in lines) + "\n")
        for name, title in OTHERS:
            text = read_text(os.path.join(folder, name + ".md"))
            if text:
                file.write(f"\n## {title}\n\n{text}")


def plot(path, rows):
    """Step times and tokens per second, stock and onehop, as bars, drawn by gnuplot. Returns the path of the picture."""
    parts = [(label, [(name.split(" ", 1)[1], stock, onehop) for name, f, stock, onehop, _, _ in rows
                      if f == figure and stock])
             for figure, label in (("step_ms", "step, ms"), ("tokens_s", "tokens per second"))]
    parts = [(label, bars) for label, bars in parts if bars]
    if not parts:
        return None
    if not shutil.which("gnuplot"):
        print("report.py: no gnuplot, so no picture (Debian: gnuplot-nox); where it is, this makes it: report.py FOLDER "
              "--markdown FILE --plot FILE.svg", file=sys.stderr)
        return None
    script = ["$rows%d << EOD\n%s\nEOD" % (i, "\n".join(f'"{name}" {stock} {onehop}' for name, stock, onehop in bars))
              for i, (_, bars) in enumerate(parts)]
    script += [
        f"set terminal svg size 900,{380 * len(parts)} font 'sans,13' background '#ffffff'\nset output '{path}'",
        f"set multiplot layout {len(parts)},1\nset style data histogram\nset style fill solid 0.9 border -1",
        "set boxwidth 0.85\nset xtics rotate by -30 font ',11'\nset grid y\nset key top left\nset logscale y\n"
        "set style histogram clustered gap 1\nset bmargin 6"]
    for i, (label, _) in enumerate(parts):
        script.append(f"set ylabel '{label}'\nplot $rows{i} using 2:xtic(1) title 'stock NCCL' lc rgb '#bbbbbb', "
                      "'' using 3 title 'onehop' lc rgb '#1f4e79'")
    subprocess.run(["gnuplot"], input="\n".join(script) + "\n", text=True, check=True)
    return path


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("folder")
    options.add_argument("--markdown", metavar="FILE")
    options.add_argument("--plot", metavar="FILE")
    options = options.parse_args()
    runs = {program: ways for program, ways in read_runs(options.folder).items() if "stock" in ways}
    others = any(os.path.exists(os.path.join(options.folder, name + ".md")) for name, _ in OTHERS)
    not_run = read_not_run(options.folder)
    if not others and not not_run and not any("onehop" in ways for ways in runs.values()):
        print(f"report.py: {options.folder} has no program's results with stock NCCL and with onehop", file=sys.stderr)
        sys.exit(2)
    rows = list(table(runs))
    lines, failures = compare(runs, not_run)
    if runs or lines:
        print_text(rows, calls(runs), lines)
    plotted = plot(options.plot, rows) if options.plot else None
    if options.markdown:
        write_markdown(options.markdown, options.folder, runs, rows, lines, plotted)
    for name, _ in OTHERS:
        text = read_text(os.path.join(options.folder, name + ".md"))
        print("\n" + text if text else "", end="")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
