# SPDX-License-Identifier: MIT
"""Compares runs of the programs with stock NCCL and with onehop: tables, and whether the values agree.

    report.py FOLDER >PAGE.md

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

Runs with onehop must be served, calls of each of KINDS that a program itself has counted, and all of these must be in
onehop's statistics; those with it switched off must be served nothing.
"""
import argparse
import glob
import json
import os
import re
import sys

LOSS_BOUND = 0.01
SIGMAS, RMS = 6, 2
KINDS = "allreduce", "allgather", "reducescatter", "broadcast"  # that onehop may serve
STATS = re.compile(r"stats:.*\bserved=\d+.*fallback=(\d+).*collectives \(([^)]*)\)")
OTHERS = (("programs-in-c", "Programs in C"), ("bindings", "Bindings of NCCL in Python"))


def read_runs(folder):
    """{program: {way: [results]}}"""
    runs = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.*.*.json"))):
        program, way, _ = os.path.basename(path).rsplit(".", 3)[:3]
        with open(path, encoding="utf-8") as file:
            results = json.load(file)
        results["served"], results["kinds"], results["fallback"] = read_calls(path[:-len("json")] + "log")
        runs.setdefault(program, {}).setdefault(way, []).append(results)
    return runs


def read_text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def read_calls(path):
    """Served calls, these by kind, and fallbacks, of all ranks; none without statistics."""
    found, kinds = STATS.findall(read_text(path)), dict.fromkeys(KINDS, 0)
    for kind, number in (part.split("=") for _, parts in found for part in parts.split()):
        kinds[kind] += int(number)
    return sum(kinds.values()), kinds, sum(int(fallbacks) for fallbacks, _ in found)


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


def listed(numbers):
    return ", ".join(f"{kind} {number}" for kind, number in numbers.items() if number)


def faults_of_calls(way, results):
    """What is wrong with who served a run."""
    served, counted = results["served"], results.get("collectives", {})
    asked = {kind: counted[kind] for kind in KINDS if counted.get(kind)}
    if way == "stock":
        return
    if way == "off" and (served or results["fallback"]):
        yield "calls are counted, although onehop is switched off"
    if way != "off" and not served:
        yield "no call was served"
    elif way != "off":
        yield from (f"no {kind} was served" for kind in asked if not results["kinds"][kind])
    if way != "off" and served + results["fallback"] < sum(asked.values()):
        yield f"{listed(asked)} were asked for, more than the {served} served and {results['fallback']} fallbacks"


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
                lines += [f"{program}: {way}: {fault}" for fault in faults]
                failures += len(faults)
        served = {name for way in ways if way not in ("stock", "off") for other in ways[way] for name in other["values"]}
        missing = [f"{program}: missing with onehop: {name}" for name in names_of(stock) if name not in served]
        if any(name.startswith(program + ".") for name in not_run):
            missing = []
        lines += missing
        failures += len(missing)
    return lines + [f"{name}: not run: no time left" for name in not_run], failures


def calls(runs):
    """Rows of (program, way, served, fallbacks, calls that the program itself counted), of each way's first run."""
    for program, ways in runs.items():
        for way, results in ways.items():
            if way != "stock":
                counted = results[0].get("collectives", {})
                yield program, way, listed(results[0]["kinds"]) or 0, results[0]["fallback"], listed(counted)


def shown(value):
    return "" if value is None else f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.3g}"


def times(gain):
    return "" if gain is None else f"{gain:.2f}x"


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


def print_page(folder, runs, rows, lines):
    about = dict(line.split(": ", 1) for line in read_text(os.path.join(folder, "about.txt")).splitlines())
    print(f"# Whole programs, {about.get('machine', 'stock NCCL and onehop')}\n\n{head(runs, about)}")
    if "command" in about:
        print(f"\n    {about['command']}")
    if rows:
        print("\n| program | figure | stock | onehop | faster | onehop, off |\n|---|---|---|---|---|---|")
    for name, figure, stock, onehop, gain, off in rows:
        print(f"| {name} | {figure} | {shown(stock)} | {shown(onehop)} | {times(gain)} | {shown(off)} |")
    if runs or lines:
        print("\n## Calls\n\n| program | way | served | fallbacks | the program asked for |\n|---|---|---|---|---|")
        for row in calls(runs):
            print(f"| {' | '.join(str(cell) for cell in row)} |")
        print("\n## Values\n\n" + "\n".join(f"- {line}" for line in lines))
    for name, title in OTHERS:
        text = read_text(os.path.join(folder, name + ".md"))
        if text:
            print(f"\n## {title}\n\n{text}", end="")


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("folder")
    folder = options.parse_args().folder
    runs = {program: ways for program, ways in read_runs(folder).items() if "stock" in ways}
    others = any(os.path.exists(os.path.join(folder, name + ".md")) for name, _ in OTHERS)
    not_run = read_text(os.path.join(folder, "not-run.txt")).splitlines()
    if not others and not not_run and not any("onehop" in ways for ways in runs.values()):
        print(f"report.py: {folder} has no program's results with stock NCCL and with onehop", file=sys.stderr)
        sys.exit(2)
    lines, failures = compare(runs, not_run)
    print_page(folder, runs, list(table(runs)), lines)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
