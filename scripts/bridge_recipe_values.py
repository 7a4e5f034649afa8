"""What Megatron-Bridge's recipes set of a plan, read from their functions without running them.

A recipe is a list of assignments to a ConfigContainer, on top of another recipe or of the defaults
that all share (recipes/common.py): the last assignment of a field is its value. What an `if` or a
function that is not followed may set is OPEN: a name that nothing defines, as a reader of Python
takes it.
"""

import ast
import pathlib

# Of a plan (planner/frameworks/megatron/bridge.cpp); None and what these are unless said is left out.
FIELDS = {
    "model": """tensor_model_parallel_size sequence_parallel pipeline_model_parallel_size
        virtual_pipeline_model_parallel_size pipeline_model_parallel_layout
        num_layers_in_first_pipeline_stage num_layers_in_last_pipeline_stage
        account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split context_parallel_size
        cp_comm_type expert_model_parallel_size expert_tensor_parallel_size seq_length
        moe_token_dispatcher_type moe_flex_dispatcher_backend moe_permute_fusion
        gradient_accumulation_fusion recompute_granularity recompute_method recompute_num_layers
        recompute_modules cpu_offloading_num_layers fine_grained_activation_offloading offload_modules
        cuda_graph_impl cuda_graph_scope deterministic_mode cross_entropy_loss_fusion
        cross_entropy_fusion_impl""",
    "train": "micro_batch_size global_batch_size",
    "dataset": "seq_length",
    "ddp": """use_distributed_optimizer num_distributed_optimizer_instances overlap_grad_reduce
        overlap_param_gather use_megatron_fsdp data_parallel_sharding_strategy""",
    "dist": "use_megatron_fsdp",
    "comm_overlap": """overlap_grad_reduce overlap_param_gather tp_comm_overlap
        overlap_moe_expert_parallel_comm""",
    "mixed_precision": "grad_reduce_in_fp32 fp8_param_gather",
    "optimizer": """optimizer use_distributed_optimizer use_precision_aware_optimizer main_grads_dtype main_params_dtype
        exp_avg_dtype exp_avg_sq_dtype optimizer_cpu_offload optimizer_offload_fraction""",
}
FIELDS = {f"{section}.{name}" for section, names in FIELDS.items() for name in names.split()}
OPEN = "by_the_recipe"
# perf_recipes/_common.py, _perf_precision: which leaves gradients in 16 bits.
PERF_PRECISION = {"bf16": "bf16_mixed", "fp8_cs": "bf16_with_fp8_current_scaling_mixed",
                  "fp8_ds": "bf16_with_fp8_delayed_scaling_mixed", "fp8_mx": "bf16_with_mxfp8_mixed",
                  "nvfp4": "bf16_with_nvfp4_mixed"}
LAYOUT = "model.pipeline_model_parallel_layout"  # what functions that are not followed set by the stages
UNSAID = {"torch.float32", "False", "'none'", "[]"}
DEGREES = {f"model.{axis}_parallel_size" for axis in
           ("tensor_model", "pipeline_model", "context", "expert_model")}
SAID_FALSE = {"moe_permute_fusion", "gradient_accumulation_fusion", "cross_entropy_loss_fusion",
              "grad_reduce_in_fp32", "fp8_param_gather", "use_distributed_optimizer",
              "overlap_grad_reduce", "overlap_param_gather"}


class Unknown(Exception):
    """A function that is not followed."""


def dotted(node):
    return ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""


def value_of(node):
    """As the file spells it; Unknown where a run would have to say."""
    if isinstance(node, ast.Call) and dotted(node.func).endswith(("_mixed", "_mixed_precision")) and not node.args:
        return dotted(node.func) + "()"
    if isinstance(node, ast.Attribute) and dotted(node).startswith("torch."):
        return dotted(node)
    try:
        ast.literal_eval(node)
    except ValueError as error:
        raise Unknown(ast.unparse(node)) from error
    return ast.unparse(node)


class Recipes:
    def __init__(self, folder, base=None):
        self.folder, self.base = pathlib.Path(folder), base  # base: recipes that these begin from
        self.functions, self.aliases, self.parameters, self.known = {}, {}, {}, {}
        self.of_base = {}  # names here: those of the base's functions
        self.private, self.imported = {}, set()
        self.constants = {}
        for path in sorted(pathlib.Path(folder).rglob("*.py")):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.FunctionDef):
                    if node.name.startswith("_"):
                        self.private[node.name] = node
                        if path.name == "common.py":
                            self.functions[node.name] = node
                    else:
                        self.functions[node.name] = node
                        self.parameters[node.name] = [a.arg for a in (*node.args.args, *node.args.kwonlyargs)]
                    self.functions[(path, node.name)] = node
                    node.path = path
                elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                    self.constants.update((dotted(target), node.value) for target in node.targets)
                elif isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Constant):
                    self.constants[dotted(node.target)] = node.value
                elif isinstance(node, ast.ImportFrom) and base and (node.module or "").startswith("megatron.bridge.recipes"):
                    self.of_base.update((a.asname or a.name, a.name) for a in node.names)
                elif isinstance(node, ast.ImportFrom):
                    self.aliases.update((a.asname, a.name) for a in node.names if a.asname)
                    self.imported.update((path, a.name) for a in node.names)

    def name(self, name):
        while name in self.aliases and name not in self.functions:
            name = self.aliases[name]
        return name

    def find(self, path, name):
        """The function that a name is, where it stands; of a base's own module the base's."""
        if self.base and path.is_relative_to(self.base.folder):
            return self.base.find(path, name)
        if self.base and name in self.of_base:
            return self.base.find(path, self.of_base[name])
        here = self.functions.get((path, name)) or self.functions.get(self.name(name))
        return here or (self.private.get(name) if (path, name) in self.imported else None)

    def of(self, name):
        """Field: value, of a recipe's name; Unknown where it is not followed."""
        node = self.functions.get(self.name(name))
        if node is None:
            raise Unknown(name)
        if node not in self.known:
            self.known[node] = None  # it calls itself
            self.known[node] = self.run(node, {})
        if self.known[node] is None:
            raise Unknown(name)
        return dict(self.known[node])

    @staticmethod
    def bound(node, call):
        """What a call gives to a function's parameters behind the first: by name or by order, or unsaid."""
        names, defaults = node.args.args, node.args.defaults
        given = {p.arg: d for p, d in zip(names[len(names) - len(defaults):], defaults)}
        given.update({p.arg: d for p, d in zip(node.args.kwonlyargs, node.args.kw_defaults) if d})
        given.update({p.arg: value for p, value in zip(names[1:], call.args[1:])})
        given.update({k.arg: k.value for k in call.keywords if k.arg})
        return given

    def run(self, node, values, parameter=None, given=()):
        """The values behind a function that makes a configuration, or is handed one."""
        config = parameter
        locals_ = dict(given)
        for statement in node.body:
            if isinstance(statement, ast.Return):
                if isinstance(statement.value, ast.Call):
                    return self.made(node.path, statement.value, values, config, locals_)
                break
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                target, made = statement.targets[0], statement.value
                if isinstance(target, ast.Name) and isinstance(made, ast.Call):
                    callee = self.find(node.path, dotted(made.func))
                    if dotted(made.func).endswith("ConfigContainer") or \
                            callee is not None and (target.id in ("cfg", "config") or target.id == config):
                        config = target.id
                        values = self.made(node.path, made, values, config, locals_)
                        continue
                if isinstance(target, ast.Name):
                    locals_[target.id] = made
                elif isinstance(target, ast.Tuple) and all(isinstance(e, ast.Name) for e in target.elts):
                    locals_.update((e.id, made) for e in target.elts)
                elif config and dotted(target).startswith(config + "."):
                    self.assign(dotted(target)[len(config) + 1:], made, values, locals_)
            elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                self.called(node.path, statement.value, values, config)
            else:
                self.forget(statement, values, config)
        return values

    def made(self, path, call, values, config, locals_):
        if dotted(call.func).endswith("ConfigContainer"):
            values = {}
            for keyword in call.keywords:
                self.assign(keyword.arg, keyword.value, values, locals_)
            return values
        callee = self.find(path, dotted(call.func))
        if callee is None:
            raise Unknown(dotted(call.func))
        if call.args and dotted(call.args[0]) == config:
            return self.run(callee, values, callee.args.args[0].arg, self.bound(callee, call))
        if call.args and isinstance(call.args[0], ast.Call) and callee.args.args:  # _with_batch(recipe(), 64)
            begin = self.made(path, call.args[0], values, config, locals_)
            return self.run(callee, begin, callee.args.args[0].arg, self.bound(callee, call))
        return self.run(callee, {})

    def called(self, path, call, values, config):
        """apply_flex_dispatcher_backend(cfg.model, "hybridep"), _set_common(cfg)."""
        name = dotted(call.func).rsplit(".")[-1]
        if name == "apply_flex_dispatcher_backend":
            backend = call.args[1] if len(call.args) > 1 else None
            told = values.get("model.moe_flex_dispatcher_backend") if dotted(backend or call.func).endswith(
                "moe_flex_dispatcher_backend") else ast.unparse(backend) if backend else None
            if told in ("'deepep'", "'hybridep'"):
                values.update({"model.moe_token_dispatcher_type": "'flex'",
                               "model.moe_flex_dispatcher_backend": told})
            return
        if name == "set_cuda_graph_modules" and len(call.args) > 1:
            try:
                values["model.cuda_graph_scope"] = value_of(call.args[1])
            except Unknown:
                values["model.cuda_graph_scope"] = OPEN
            return
        if name == "_benchmark_common":  # perf_recipes/_common.py: what its branches come to
            given = {k.arg: k.value for k in call.keywords}
            impl = given.get("cross_entropy_impl")
            values.update({"model.cross_entropy_fusion_impl": ast.unparse(impl) if impl else "'te'",
                           "mixed_precision.grad_reduce_in_fp32": "False"})
            return
        if name == "set_full_iteration_cuda_graph":
            values.update({"model.cuda_graph_impl": "'local'", "model.cuda_graph_scope": "'full_iteration'"})
            return
        if name == "set_deepseek_v3_pipeline_model_parallel_layout" and len(call.args) > 1:
            values[LAYOUT] = ast.unparse(call.args[1])
            return
        callee = self.find(path, dotted(call.func))
        if callee is not None and call.args and dotted(call.args[0]) == config and callee.args.args:
            values.update(self.run(callee, values, callee.args.args[0].arg, self.bound(callee, call)))
        elif config and any(dotted(a) in (config, f"{config}.model") for a in call.args):
            values[LAYOUT] = OPEN

    def assign(self, field, node, values, locals_):
        if isinstance(node, ast.Name):
            node = locals_.get(node.id) or self.constants.get(node.id, node)
        other = dotted(node).partition(".")[2]  # "cfg.model.seq_length"
        if "." in field and other in values:
            values[field] = values[other]
            return
        if "." not in field:  # a section
            for name in [f for f in values if f.startswith(field + ".")]:
                del values[name]
            before = values.pop(field, None)
            if isinstance(node, ast.Call):
                callee = dotted(node.func)
                if callee.endswith("get_mixed_precision_config"):
                    given = node.args[0]
                    values[field] = ast.unparse(given) if isinstance(given, ast.Constant) else \
                        before if before and dotted(given).endswith(".mixed_precision") else OPEN
                elif field == "mixed_precision":
                    values.update(self.precision(node))
                    return
                elif field == "comm_overlap":
                    values[field] = callee + "()"
                elif field == "optimizer" and "muon" in callee:
                    values["optimizer.optimizer"] = "'dist_muon'"
                elif field == "optimizer" and callee.startswith("distributed_fused_adam"):
                    values["optimizer.use_distributed_optimizer"] = "True"
                for keyword in node.keywords:
                    if keyword.arg:
                        self.assign(f"{field}.{keyword.arg}", keyword.value, values, locals_)
            elif field == "mixed_precision" and isinstance(node, ast.Constant) and node.value:
                values[field] = ast.unparse(node)
            return
        try:
            values[field] = value_of(node)
        except Unknown:
            values[field] = OPEN

    def precision(self, call):
        """What a call makes of mixed_precision: a preset, with what a function sets on top of it."""
        name = dotted(call.func).rpartition(".")[2]
        if name == "_perf_precision" and call.args and isinstance(call.args[0], ast.Constant):
            return {"mixed_precision": PERF_PRECISION[call.args[0].value] + "()",
                    "mixed_precision.grad_reduce_in_fp32": "False"}
        maker = self.private.get(name)
        begin = maker and next((s for s in maker.body if isinstance(s, ast.Assign)), None)
        if not begin or not isinstance(begin.value, ast.Call):
            made = {"mixed_precision": name + "()"}
            for keyword in call.keywords:
                self.assign(f"mixed_precision.{keyword.arg}", keyword.value, made, {})
            return made
        made, of = self.precision(begin.value), dotted(begin.targets[0])
        for statement in maker.body[maker.body.index(begin) + 1:]:
            if isinstance(statement, ast.Assign) and dotted(statement.targets[0]).startswith(of + "."):
                field = "mixed_precision" + dotted(statement.targets[0])[len(of):]
                self.assign(field, statement.value, made, {})
        return made

    def forget(self, statement, values, config):
        for node in ast.walk(statement):
            targets = node.targets if isinstance(node, ast.Assign) else []
            for target in targets:
                if config and dotted(target).startswith(config + "."):
                    values[dotted(target)[len(config) + 1:]] = OPEN


def is_said(field, value, values):
    if field in DEGREES and value == "1" or value == "None":
        return False
    if field == LAYOUT and value == OPEN and values.get("model.pipeline_model_parallel_size", "1") == "1":
        return False
    if field == "ddp.data_parallel_sharding_strategy":  # by Megatron-FSDP, which shards all unless this is said
        return value != "'optim_grads_params'"
    if field == "model.cpu_offloading_num_layers":
        return values.get("model.cpu_offloading") == "True"
    if field == "model.cuda_graph_scope":
        return values.get("model.cuda_graph_impl", "'none'") not in ("'none'", "None")
    return value not in UNSAID or value == "False" and field.rsplit(".")[-1] in SAID_FALSE


def shown(values):
    """ "model.tensor_model_parallel_size=4; ..." of what counts, by name."""
    return "; ".join(f"{field}={value}".replace("'", '"') for field, value in sorted(values.items())
                     if (field in FIELDS or field in ("mixed_precision", "comm_overlap")) and is_said(field, value, values))


def performance_values(folder, base):
    """Of perf_recipes, which begin from recipes: scripts/performance hands the model's length to its data."""
    recipes = Recipes(folder, Recipes(base))
    found = {}
    for name in recipes.parameters:
        if not name.endswith("_config"):
            continue
        try:
            values = recipes.of(name)
        except Unknown:
            continue
        if "model.seq_length" in values:
            values["dataset.seq_length"] = values["model.seq_length"]
        found[name] = shown(values)
    return found


def recipe_values(folder):
    """Name of a recipe's function: what it sets, and its parameters."""
    recipes = Recipes(folder)
    found = {}
    for name in [*recipes.functions, *recipes.aliases]:
        if not isinstance(name, str) or name.startswith("_"):
            continue
        try:
            values = shown(recipes.of(name))
        except Unknown:
            values = ""
        found[name] = values, recipes.parameters.get(recipes.name(name), [])
    return found
