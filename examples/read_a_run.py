"""A run directory as a table: every round a row, every client a column, for whatever you make tables with.

python examples/read_a_run.py runs/uwa        # without a directory, a small run is made first
"""

import csv
import json
import sys
from pathlib import Path

import trustmix as tm

if len(sys.argv) > 1:
    folder = Path(sys.argv[1])
else:
    folder = Path("small-run")
    small = {"clients": 5, "rounds": 4, "data": {"name": "digits"}, "engine": {"mode": "sequential"}}
    tm.run({**small, "split": {"samples_per_client": 80}}, out=folder, overwrite=True)

rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
recipe = tm.Recipe.load(folder / "recipe.toml")
print(f"{folder}: {recipe.clients} clients, rule {recipe.rule}, data {recipe.data.name}")

clients = sorted({client for line in rounds for client in line["accuracy"]}, key=int)
table = [["round", "mean", "teacher", "kB_up", *(f"client {client}" for client in clients)]]
for line in rounds:
    row = [line["round"], line["accuracy_mean"], line["teacher_accuracy"], line["bytes_up"] / 1000]
    table.append([*row, *(line["accuracy"].get(client) for client in clients)])

with open("rounds.csv", "w", newline="") as file:
    csv.writer(file).writerows(table)
for row in table:
    print("  ".join(f"{cell:>8.3f}" if isinstance(cell, float) else f"{cell!s:>8}" for cell in row))
print("The table is in rounds.csv.")
