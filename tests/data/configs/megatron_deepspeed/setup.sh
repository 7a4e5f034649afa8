# 基础环境
conda create -n megatron-ds python=3.9
conda activate megatron-ds
# 核心依赖(版本需严格匹配)
pip install torch==2.1.0+cu118 torchvision==0.16.0+cu118 --index-url https://download.pytorch.org/whl/cu118
pip install deepspeed==0.10.0  # 需支持 ZeRO-3 与序列并行协同
pip install megatron-lm==0.7.0  # 含序列并行和上下文并行支持
pip install transformers==4.34.0 sentencepiece==0.1.99
pip install ninja==1.11.1  # 加速 CUDA 算子编译
git clone https://github.com/NVIDIA/Megatron-LM.git
cd Megatron-LM
git checkout deepspeed-integration  # 切换到支持 DeepSpeed 的分支
