from .registry import MODEL_WRAPPERS, MODELS, build
from .wrappers import MMFullyShardedDataParallel
from .model import BaseModel
from .optim import OptimWrapper
__all__ = ["MODEL_WRAPPERS", "MODELS", "build", "MMFullyShardedDataParallel", "BaseModel", "OptimWrapper"]
