from functools import partial
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

min_num_params = 1e8  # 只对大于1亿参数的模块分片
wrapper = partial(size_based_auto_wrap_policy, min_num_params=min_num_params)
model = FSDP(model, auto_wrap_policy=wrapper)
