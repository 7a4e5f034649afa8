"""Keys of reinforcement learning's configurations: verl, NeMo-RL, and the engine that slime passes arguments to."""
import ast
import collections
import pathlib
import re

from option_lists.megatron import argparse_rows
from option_lists.rows import annotated_type, classes_of, field_rows, with_range


def sglang_rows(paths):
    """Names of the arguments of any of these releases: calls of add_argument, aliases, and fields of ServerArgs."""
    names = set()
    for path in paths:
        for node in ast.walk(ast.parse(pathlib.Path(path).read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                names.update(re.findall(r"^--([a-z0-9][a-z0-9-]+)$", node.value))
            if isinstance(node, ast.ClassDef) and node.name == "ServerArgs":
                names.update(item.target.id.replace("_", "-") for item in node.body
                             if isinstance(item, ast.AnnAssign))
    return {("--sglang-" + name, "*", "", "", "") for name in names}


# What keys of verl are used as where no class says it: lengths of lists, of ranges and of batches
# (trainer/main_ppo.py:init_resource_pool_mgr, trainer/ppo/ray_trainer.py, utils/dataset/rl_dataset.py).
VERL_TYPES = """
trainer.nnodes=int[1:] trainer.n_gpus_per_node=int[1:] trainer.total_epochs=int trainer.save_freq=int
trainer.test_freq=int data.train_batch_size=int[0:] data.max_prompt_length=int[1:] data.max_response_length=int[1:]
critic.rollout_n=int[1:] actor_rollout_ref.rollout.n=int[1:]
"""
# Words that raise an error elsewhere than in a class: main_ppo.py (NotImplementedError), the registry of
# workers/rollout/base.py, workers/config/actor.py (valid_loss_agg_modes).
KL_WORDS = ",".join(word + end for word in "kl,k1,abs,mse,k2,low_var_kl,k3".split(",") for end in ("", "+"))
VERL_CHOICES = {
    "actor_rollout_ref.actor.strategy": "fsdp,fsdp2,megatron",
    "critic.strategy": "fsdp,fsdp2,megatron",
    "reward_model.strategy": "fsdp,fsdp2,megatron",
    "actor_rollout_ref.rollout.name": "vllm,sglang,trtllm",
    "actor_rollout_ref.actor.loss_agg_mode": "token-mean,seq-mean-token-sum,seq-mean-token-mean,seq-mean-token-sum-norm",
    "trainer.use_legacy_worker_impl": "auto,enable,disable",
    # trainer/ppo/core_algos.py: the registry of estimators, kl_penalty and kl_penalty_forward ("+": straight through).
    "algorithm.adv_estimator": "gae,grpo,reinforce_plus_plus,reinforce_plus_plus_baseline,remax,rloo,opo,grpo_passk,gpg,"
                               "rloo_vectorized,grpo_vectorized,optimal_token_baseline,tir_optimal_token_baseline",
    "actor_rollout_ref.actor.kl_loss_type": KL_WORDS,
    "algorithm.kl_penalty": KL_WORDS,
}


def verl_types(folder, leaves):
    """Of sections with a _target_: the types of the fields of its class."""
    source = pathlib.Path(folder) / "verl"
    classes, enums = classes_of([*(source / "workers" / "config").glob("*.py"),
                                 *(source / "trainer" / "config").glob("*.py"),
                                 *(source / "utils" / "profiler").glob("*.py"), source / "base_config.py"])
    types = {}
    for key, target in leaves:
        if key.endswith("._target_"):
            prefix = key.removesuffix("_target_")
            for name, _, kind, _, choices in field_rows(classes, str(target).rsplit(".", 1)[-1], enums, prefix):
                types[name] = with_range(name, kind, choices)
    for words in VERL_TYPES.split():
        key, kind = words.split("=")
        types[key] = kind, ""
    types.update((key, ("", choices)) for key, choices in VERL_CHOICES.items())
    return types


# Words that raise an error elsewhere than in a class: models/policy/workers/dtensor_policy_worker.py and
# models/automodel/setup.py (Unknown precision).
NEMO_RL_CHOICES = {"policy.precision": "float32,bfloat16,float16",
                   # algorithms/grpo.py:1275, by which engine answers are made
                   "policy.generation.backend": "vllm,sglang,trtllm,megatron,dynamo"}
# Megatron-LM's core/optimizer_param_scheduler.py and core/transformer/moe/moe_layer.py raise an error at others.
for whose in ("policy", "teacher", "value"):
    NEMO_RL_CHOICES[f"{whose}.megatron_cfg.scheduler.lr_decay_style"] = "constant,linear,cosine,inverse-square-root,WSD"
    NEMO_RL_CHOICES[f"{whose}.megatron_cfg.scheduler.weight_decay_incr_style"] = "constant,linear,cosine"
    NEMO_RL_CHOICES[f"{whose}.megatron_cfg.moe_token_dispatcher_type"] = "alltoall,allgather,flex"
    NEMO_RL_CHOICES[f"{whose}.megatron_cfg.optimizer.optimizer"] = "adam,sgd,lion,muon,dist_muon"


def nemo_rl_types(folder):
    """What the class of a whole configuration, MasterConfig, and those that it is made of say of a key;
    of several that speak of one key (a section that is on or off, several algorithms) what agrees."""
    source = pathlib.Path(folder) / "nemo_rl"
    classes, enums = classes_of(sorted(source.rglob("*.py")))
    heirs = collections.defaultdict(list)
    for name, node in classes.items():
        for base in node.bases:
            heirs[ast.unparse(base)].append(name)
    found = collections.defaultdict(set)

    def walk(node, prefix, above):
        for base in node.bases:
            if ast.unparse(base) in classes and ast.unparse(base) not in above:
                walk(classes[ast.unparse(base)], prefix, above)
        for item in node.body:
            if not isinstance(item, ast.AnnAssign):
                continue
            key = prefix + item.target.id
            named = [n.id for n in ast.walk(item.annotation) if isinstance(n, ast.Name) and n.id in classes]
            inner = {heir for name in named for heir in (name, *heirs[name])} - above
            for name in inner:
                if name not in enums:
                    walk(classes[name], key + ".", above | {name})
            if not set(named) - set(enums):
                kind, choices = annotated_type(item.annotation, enums)
                if choices and set(choices.split(",")) <= {"True", "False"}:
                    kind, choices = "bool", ""
                found[key].add(with_range(key, kind, choices))

    for path in sorted((source / "algorithms").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name == "MasterConfig":
                walk(node, "", frozenset())
    types = {key: said.pop() if len(said) == 1 else ("", "") for key, said in found.items()}
    types.update((key, ("", choices)) for key, choices in NEMO_RL_CHOICES.items())
    return types


def openrlhf_rows(paths):
    """Arguments of OpenRLHF's programs, one row a name: a type or choices where all that have it agree. What the
    actor and the critic both have is written once there."""
    rows = {}
    for path in paths:
        text = pathlib.Path(path).read_text()
        found = list(argparse_rows(path))
        for name, rest in re.findall(r'add_argument\(\s*f"--{prefix}\.([a-z_.]+)"(.*)', text):
            kind = re.search(r"type=(\w+)", rest)
            arity = "0" if "store_" in rest else "2" if "nargs=2" in rest else "1"
            found += [(f"--{prefix}.{name}", arity, kind.group(1) if kind else "", "", "")
                      for prefix in ("actor", "critic")]
        for name, arity, *rest in found:
            old = rows.get(name)
            rows[name] = (name, arity, *rest) if old is None else (
                name, old[1], *(a if a == b else "" for a, b in zip(old[2:], rest)))
    return rows.values()
