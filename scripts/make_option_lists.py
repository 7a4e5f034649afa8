#!/usr/bin/env python3
"""Writes planner/frameworks/options/*.tsv: the options that frameworks' own parsers know. Who reads which framework
stands in option_lists/.

Columns: spellings (separated by spaces), values it takes (0, 1, 3, ?, + or *), type, default, choices
(separated by commas). A type may say what its numbers lie between: int[0:3], float[0:]; and "!"
that it is never null. Sources, each named by an argument:
  --megatron DUMP        rows dumped from the live parser of Megatron-LM: spellings, destination,
                         action, type, number of values, default, choices as JSON
  --argparse NAME=FILE   a Python file that calls add_argument(), or a patch (.patch) of Megatron that adds
                         such calls, or switches to its configuration; may be repeated for one NAME
  --forks OWNER=DIR...   folders of forks of Megatron-LM: names that they add to the parser, and who does
  --deepspeed            the installed deepspeed package's configuration classes
  --accelerate           the installed accelerate package's configuration classes
  --torchtitan FILE      torchtitan/config/configs.py
  --torchtitan-toml FILE...  torchtitan/config/job_config.py of the last release that read TOML, then the same
                         (or config_manager.py) of older ones, whose names are known too
  --nanotron DIR...      src/nanotron/config of nanotron, then the same of older releases, whose names are known too
  --torchtitan-names DIR a checkout of torchtitan: "module:name" of what modules define, and
                         "models.NAME/FLAVOR" of their registries
  --launchers            the installed accelerate's, deepspeed's and torch's launchers
  --trainer              the installed transformers' TrainingArguments, as its parser has them
  --older-trainer FILE... training_args.py of older versions, whose names are known too
  --run-clm FILE         transformers' examples/pytorch/language-modeling/run_clm.py
  --bridge-fields DIR DIR  checkouts of Megatron-Bridge and Megatron-LM: fields of its configuration
  --llama-factory DIR    a checkout of LLaMA-Factory: its src/llamafactory/hparams
  --axolotl DIR          a checkout of axolotl: its src/axolotl/utils/schemas and the arguments of its plugins
  --verl DIR             a checkout of verl: the whole configurations that it generates of its own, and the
                         classes that their sections go to
  --hydra                the installed hydra-core's own flags
  --nemo-rl DIR          a checkout of NeMo-RL: the keys of the configurations that its examples start with,
                         and the classes that they are held against
  --automodel DIR        a checkout of NeMo AutoModel: the classes of distributed, peft and step_scheduler,
                         and the names of blocks that its examples have
  --sglang FILE...       server_args.py of releases of sglang, whose arguments slime takes behind --sglang-:
                         names alone
  --trl DIR              a checkout of TRL: the classes of arguments of its commands
  --prime-rl DIR         prime-rl's packages/prime-rl-configs/src/prime_rl/configs: keys of its TOML
  --torchtune DIR        a checkout of torchtune: the keys of its recipes' configurations
  --openrlhf FILE...     openrlhf/cli/train_*.py of OpenRLHF, and of older releases, whose names are known too
  --ms-swift DIR         a checkout of ms-swift: the fields of its swift/arguments and swift/megatron/arguments
  --bridge-recipes DIR   Megatron-Bridge's src/megatron/bridge/recipes: names of functions, what they
                         set of a plan (bridge_recipe_values.py) and which arguments they take
  --bridge-perf-recipes DIR  its src/megatron/bridge/perf_recipes, which begin from those
"""
import argparse
import collections
import pathlib

from option_lists.finetuning import (
    automodel_rows, axolotl_rows, llama_factory_rows, ms_swift_rows, older_trainer_rows, run_clm_rows,
    prime_rl_rows, torchtune_rows, trainer_rows, trl_rows)
from option_lists.megatron import argparse_rows, bridge_field_rows, bridge_performance_rows, bridge_recipe_rows, fork_rows, megatron_rows
from option_lists.pytorch import (
    accelerate_rows, deepspeed_rows, launchers, nanotron_merged, nanotron_rows, torchtitan_name_rows,
    torchtitan_part_rows, torchtitan_rows, torchtitan_toml_names, torchtitan_toml_rows)
from option_lists.rl import nemo_rl_types, openrlhf_rows, sglang_rows, verl_types
from option_lists.rows import launcher_rows, merged, write, yaml_leaves, yaml_rows


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megatron")
    parser.add_argument("--argparse", action="append", default=[])
    parser.add_argument("--forks", nargs="*", default=[])
    parser.add_argument("--deepspeed", action="store_true")
    parser.add_argument("--accelerate", action="store_true")
    parser.add_argument("--torchtitan")
    parser.add_argument("--torchtitan-toml", nargs="*", default=[])
    parser.add_argument("--nanotron", nargs="*", default=[])
    parser.add_argument("--torchtitan-names")
    parser.add_argument("--launchers", action="store_true")
    parser.add_argument("--trainer", action="store_true")
    parser.add_argument("--older-trainer", nargs="*", default=[])
    parser.add_argument("--run-clm")
    parser.add_argument("--bridge-recipes")
    parser.add_argument("--bridge-perf-recipes")
    parser.add_argument("--bridge-fields", nargs=2)
    parser.add_argument("--llama-factory")
    parser.add_argument("--axolotl")
    parser.add_argument("--verl")
    parser.add_argument("--hydra", action="store_true")
    parser.add_argument("--nemo-rl")
    parser.add_argument("--ms-swift")
    parser.add_argument("--automodel")
    parser.add_argument("--prime-rl")
    parser.add_argument("--torchtune")
    parser.add_argument("--trl")
    parser.add_argument("--sglang", nargs="*", default=[])
    parser.add_argument("--openrlhf", nargs="*", default=[])
    args = parser.parse_args()
    if args.megatron:
        write("megatron", megatron_rows(args.megatron))
    files = collections.defaultdict(set)
    for item in args.argparse:
        name, path = item.split("=", 1)
        files[name].update(argparse_rows(path))
    for name, rows in files.items():
        write(name, rows)
    if args.forks:
        write("megatron_forks", fork_rows(args.forks))
    if args.deepspeed:
        write("deepspeed", set(deepspeed_rows()))
    if args.accelerate:
        write("accelerate", set(accelerate_rows()))
    if args.bridge_fields:
        write("bridge_fields", set(bridge_field_rows(*args.bridge_fields)))
    if args.torchtitan_names:
        write("torchtitan_names", {*torchtitan_name_rows(args.torchtitan_names),
                                   *torchtitan_part_rows(args.torchtitan_names)})
    if args.launchers:
        for name, rows in launchers():
            write(name, set(rows))
    if args.trainer:
        rows = list(trainer_rows())
        known = {word for row in rows for word in row[0].split()}
        for row in set(older_trainer_rows(args.older_trainer)):
            words = [word for word in row[0].split() if word not in known]
            if not set(row[0].split()) & known:
                rows.append((" ".join(words), *row[1:]))
                known.update(words)
        write("trainer", rows)
    if args.run_clm:
        write("run_clm", set(run_clm_rows(args.run_clm)))
    if args.bridge_recipes:
        write("bridge_recipes", set(bridge_recipe_rows(args.bridge_recipes)))
    if args.bridge_perf_recipes:
        write("bridge_perf_recipes", set(bridge_performance_rows(args.bridge_perf_recipes, args.bridge_recipes)))
    if args.llama_factory:
        write("llama_factory", merged(llama_factory_rows(args.llama_factory)))
    if args.axolotl:
        write("axolotl", merged(axolotl_rows(args.axolotl)))
    if args.hydra:
        from hydra._internal.utils import get_args_parser
        write("hydra", set(launcher_rows(get_args_parser())))
    if args.verl:
        for name, file in (("verl", "ppo_trainer"), ("verl_megatron", "ppo_megatron_trainer")):
            path = pathlib.Path(args.verl) / "verl" / "trainer" / "config" / f"_generated_{file}.yaml"
            write(name, set(yaml_rows(path, verl_types(args.verl, yaml_leaves(path)))))
    if args.sglang:
        write("sglang", sglang_rows(args.sglang))
    if args.openrlhf:
        write("openrlhf", openrlhf_rows(args.openrlhf))
    if args.trl:
        write("trl", trl_rows(args.trl))
    if args.nemo_rl:
        files = sorted((pathlib.Path(args.nemo_rl) / "examples" / "configs").glob("*.yaml"))
        types = nemo_rl_types(args.nemo_rl)
        write("nemo_rl", merged(row for file in files for row in yaml_rows(file, types)))
    if args.automodel:
        write("automodel", merged(automodel_rows(args.automodel)))
    if args.prime_rl:
        write("prime_rl", prime_rl_rows(args.prime_rl))
    if args.torchtune:
        write("torchtune", torchtune_rows(args.torchtune))
    if args.ms_swift:
        write("ms_swift", ms_swift_rows(args.ms_swift, "RLHFArguments"))
        write("ms_swift_megatron", ms_swift_rows(args.ms_swift, "MegatronSftArguments"))
    if args.nanotron:
        write("nanotron", nanotron_merged(nanotron_rows(args.nanotron[0])))
        names = {row[0] for row in nanotron_rows(args.nanotron[0])}
        older = (row for folder in args.nanotron[1:] for row in nanotron_rows(folder))
        write("nanotron_older", nanotron_merged(row for row in older if row[0] not in names))
    if args.torchtitan_toml:
        latest = set(torchtitan_toml_rows(args.torchtitan_toml[0]))
        names = {row[0] for row in latest}
        write("torchtitan_toml", latest)
        older = torchtitan_toml_names(args.torchtitan_toml[1:])
        write("torchtitan_toml_older", merged(row for row in older if row[0] not in names))
    if args.torchtitan:
        write("torchtitan", set(torchtitan_rows(args.torchtitan)))


if __name__ == "__main__":
    main()
