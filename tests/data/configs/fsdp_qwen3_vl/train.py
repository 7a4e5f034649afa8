import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.fully_sharded_data_parallel import CPUOffload, MixedPrecision
from torch.optim import AdamW
import os

def setup_distributed():
    local_rank = int(os.environ["LOCAL_RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    # 使用NCCL后端,适用于多GPU节点间高速通信
    dist.init_process_group(backend="nccl", rank=local_rank, world_size=world_size)
    torch.cuda.set_device(local_rank)
    return local_rank, world_size

def build_model_and_optimizer():
    local_rank, world_size = setup_distributed()

    # 加载预训练检查点
    model = Qwen3VL30B.from_pretrained("qwen3-vl-30b-checkpoint")

    # 配置FSDP参数分片策略
    fsdp_kwargs = {
        "cpu_offload": CPUOffload(offload_params=True),  # 将非活跃参数卸载至CPU内存
        "mixed_precision": MixedPrecision(
            param_dtype=torch.bfloat16,  # 参数以bf16存储
            reduce_dtype=torch.float32,  # 梯度归约使用fp32保证数值稳定
        ),
        "use_orig_params": False,  # 允许包装非nn.Parameter对象(如MoE路由表)
        "sharding_strategy": "SHARD_GRAD_OP",  # ZeRO-3风格分片
    }

    # 应用FSDP包装
    model = FSDP(model, **fsdp_kwargs)

    # 不再额外包裹DDP——FSDP已内置梯度同步逻辑
    optimizer = AdamW(model.parameters(), lr=2e-5, betas=(0.9, 0.95), weight_decay=0.01)

    return model, optimizer, local_rank
